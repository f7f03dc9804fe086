"""A piece of the log with every column joined to one text: for readers of millions of entries.

To make Python objects of nine values per row takes most of the time of such a read. So SQLite joins
the values itself, column by column, and whoever reads takes them apart again with code that works
on whole columns. Names hold no NUL (see `rules.names`), so a NUL stands between them; a number and
a comma need no more thought; bytes are cut by their lengths.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

import apsw
import msgspec

SEPARATOR: Final = "\0"

_LENGTHS: Final = (
    "SELECT group_concat(length(raw)) FROM "
    "(SELECT raw FROM log NOT INDEXED WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?)"
)
# SQLite keeps the order of a subquery for group_concat. Whoever takes the columns apart looks at
# the offsets all the same.
_JOINED: Final = (
    "SELECT group_concat(offset), CAST(group_concat(id, '') AS BLOB), "
    "group_concat(mesh, char(0)), group_concat(op, char(0)), group_concat(entity, char(0)), "
    "group_concat(origin, char(0)), group_concat(lamport), group_concat(recorded_at), "
    "CAST(group_concat(raw, '') AS BLOB) FROM "
    "(SELECT * FROM log NOT INDEXED WHERE offset >= ? AND offset < ? ORDER BY offset)"
)


class Joined(msgspec.Struct, frozen=True, gc=False):
    """Entries of the log, without a gap, from `start` on."""

    start: int
    rows: int
    ends: list[int]
    """Where each raw ends in the joined ones."""
    offset: str
    id: bytes
    mesh: str
    op: str
    entity: str
    origin: str
    lamport: str
    recorded_at: str
    raw: bytes


def log_joined(
    connection: apsw.Connection, start: int, stop: int, limit: int, bytes_max: int
) -> Joined | None:
    """The entries from `start` on that fit into rows and bytes; one always fits. None if there is
    none. For a connection in a read transaction: it looks twice.
    """
    said = connection.execute(_LENGTHS, (start, stop, limit)).get
    if said is None:
        return None
    # The lengths first: they say how many fit, before any content is read.
    ends = list(accumulate(map(int, str(said).split(","))))
    rows = max(1, bisect_right(ends, bytes_max))
    columns: Any = connection.execute(_JOINED, (start, start + rows)).get
    return Joined(start, rows, ends[:rows], *columns)
