"""One look at the groups of a home, beside a process that may have the Raft logs open.

The look leaves the WAL as it is, even if it is the last to close: after a bad end the next opening
has to find it, to see whether commits in it are lost.
"""

from __future__ import annotations

import apsw

from holdfast.rules.quorum.log_rows import GroupRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.connection import connect, shut, typed
from holdfast.storage.sqlite.quorum.rows import QuorumRows


def read_groups(paths: HomePaths) -> list[GroupRow]:
    """All groups, by scope. StoreCorrupt if they cannot be read."""
    connection = connect(paths.quorum, read_only=True)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return [card.group for card in QuorumRows(connection).cards().values()]
    except (apsw.Error, UnicodeDecodeError) as error:
        raise typed(error) from error
    finally:
        shut(connection)
