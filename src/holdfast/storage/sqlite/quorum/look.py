"""One look at the groups of a home, beside a process that may have the Raft logs open.

The look leaves the WAL as it is, even if it is the last to close: after a bad end the next opening
has to find it, to see whether commits in it are lost.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from holdfast.rules.errors import EntryDamaged
from holdfast.rules.quorum.log_rows import GroupRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.connection import connect, shut, typed
from holdfast.storage.sqlite.quorum.rows import Card, QuorumRows


class SeenGroup(NamedTuple):
    """A group, and who its members are by the newest config of its log."""

    group: GroupRow
    config: bytes
    """Empty if there is none, or it is damaged."""


def read_groups(paths: HomePaths) -> list[SeenGroup]:
    """All groups, by scope. StoreCorrupt if they cannot be read."""
    connection = connect(paths.quorum, read_only=True)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        rows = QuorumRows(connection)
        return [SeenGroup(card.group, _config(rows, card)) for card in rows.cards().values()]
    except (apsw.Error, UnicodeDecodeError) as error:
        raise typed(error) from error
    finally:
        shut(connection)


def _config(rows: QuorumRows, card: Card) -> bytes:
    try:
        newer = rows.configs(card)
        return newer[-1].payload if newer else rows.boundary(card).config
    except EntryDamaged:
        return b""  # what that means is for other checks to say
