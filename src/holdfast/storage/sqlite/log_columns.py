"""A piece of the log with every column joined to one text: for readers of millions of entries.

To make Python objects of nine values per row takes most of the time of such a read. So SQLite joins
the values itself, column by column, and the reader takes them apart again with code that works
on whole columns. Names hold no NUL (see `rules.names`), so a NUL stands between them; a number and
a comma need no more thought; bytes are cut by their lengths.

How many entries fit into a number of bytes is known only when their sizes were looked at, which is
a fifth of the work. Most logs are of small entries. So a reader may ask for a light read, which
joins at once and leaves out what is large: if nothing was, it was enough.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

import apsw
import msgspec

SEPARATOR: Final = "\0"

# Along the table itself, and so by offset: a subquery with an ORDER BY says the same and takes a
# quarter longer. The reader checks the offsets all the same.
_RANGE: Final = " FROM log NOT INDEXED WHERE offset >= ? AND offset < ?"
_SIZE: Final = f"SELECT count(*), sum(length(raw)){_RANGE}"
_LENGTHS: Final = f"SELECT group_concat(length(raw)){_RANGE}"
_COLUMNS: Final = (
    "count(*), group_concat(length(raw)), group_concat(offset), "
    "CAST(group_concat(id, '') AS BLOB), "
    "group_concat(mesh, char(0)), group_concat(op, char(0)), group_concat(entity, char(0)), "
    "group_concat(origin, char(0)), group_concat(lamport), group_concat(recorded_at)"
)
_LEAVES: Final = "CAST(group_concat(coalesce({leaf}, zeroblob(32)), '') AS BLOB)"
_JOINED: Final = f"SELECT {_COLUMNS}, {_LEAVES}, CAST(group_concat(raw, '') AS BLOB){_RANGE}"
_LIGHT: Final = (
    f"SELECT max(length(raw)), {_COLUMNS}, {_LEAVES}, "
    f"CAST(group_concat(CASE WHEN length(raw) <= ? THEN raw END, '') AS BLOB){_RANGE}"
)
_LARGE: Final = 8
"""Times what an entry may have on average: one that is larger is no part of a light read, so that
no such read takes more than so many times its bytes.
"""


class Joined(msgspec.Struct, frozen=True, gc=False):
    """Entries of the log from `start` on."""

    start: int
    rows: int
    lengths: str
    """Of each raw among the joined ones."""
    offset: str
    id: bytes
    mesh: str
    op: str
    entity: str
    origin: str
    lamport: str
    recorded_at: str
    leaf: bytes
    """Of each entry 32 bytes; zeroes for one from before leaf hashes."""
    raw: bytes


def log_joined(
    connection: apsw.Connection, leaf: str, start: int, stop: int, limit: int, bytes_max: int
) -> Joined | None:
    """The entries from `start` on that fit into rows and bytes; one always fits. None if there is
    none. For a connection in a read transaction: it looks twice. `leaf` is the column of leaf
    hashes, see `LeafReads`.
    """
    stop = min(stop, start + limit)
    # Their size first: it says whether they fit, before any content is read.
    found: Any = connection.execute(_SIZE, (start, stop)).get
    count, size = found
    if not count:
        return None
    if size > bytes_max:
        lengths = str(connection.execute(_LENGTHS, (start, stop)).get)
        ends = list(accumulate(map(int, lengths.split(","))))
        stop = start + max(1, bisect_right(ends, bytes_max))
    columns: Any = connection.execute(_JOINED.format(leaf=leaf), (start, stop)).get
    return Joined(start, *columns) if columns[0] else None


def log_joined_lightly(
    connection: apsw.Connection, leaf: str, start: int, stop: int, limit: int, bytes_max: int
) -> Joined | None:
    """The same by one query; None also where only `log_joined` can tell what fits."""
    stop = min(stop, start + limit)
    large = _LARGE * bytes_max // limit
    query = _LIGHT.format(leaf=leaf)
    found: Any = connection.execute(query, (large, start, stop)).get
    most, count, *columns = found
    if not count or most > large or len(columns[-1]) > bytes_max:
        return None
    return Joined(start, count, *columns)
