"""Pieces of the log as they leave it: filtered inside the query, cut by rows and bytes.

A node that serves its log reads most of it, most of the time, and sends it on as it is. So no
`Entry` is made per row: rows are taken from SQLite in small handfuls, which bounds what is in
memory beyond the cut, and are turned into columns at the end.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import Any, Final

from holdfast.rules.filters import MESSAGES, Filter
from holdfast.rules.limits import SCAN_ROWS_MAX
from holdfast.rules.rows import Columns, Page
from holdfast.storage.sqlite.families import above_prefix
from holdfast.storage.sqlite.log_leaves import LeafReads, refuse_damaged_rows

_HANDFUL: Final = 16
"""Rows taken at once: at most so many are read in vain."""
_ALL: Final = "offset, id, mesh, op, entity, origin, lamport, recorded_at, raw"
_AS_BYTES: Final = (
    "offset, id, CAST(mesh AS BLOB), CAST(op AS BLOB), CAST(entity AS BLOB), "
    "CAST(origin AS BLOB), lamport, recorded_at, raw"
)
_TEXTS: Final = range(2, 6)


class LogPages(LeafReads):
    def log_page(self, start: int, end: int, limit: int, bytes_max: int, filter: Filter) -> Page:
        rows, upto = self._cut("offset, raw", start, end, limit, bytes_max, filter)
        if not rows:
            return Page([], [], upto)
        offsets, raws, _ = zip(*rows, strict=True)
        return Page(list(offsets), list(raws), upto)

    def log_columns(
        self,
        start: int,
        end: int,
        limit: int,
        bytes_max: int,
        filter: Filter,
        *,
        damaged: bool = False,
        odd: bool = False,
    ) -> Columns:
        piece = (start, end, limit, bytes_max, filter)
        try:
            rows, upto = self._cut(_ALL, *piece, damaged=damaged)
        except UnicodeDecodeError:
            if not odd:
                raise
            found, upto = self._cut(_AS_BYTES, *piece, damaged=damaged)
            rows = [[_readable(value, at) for at, value in enumerate(row)] for row in found]
        if not rows:
            return Columns([], [], [], [], [], [], [], [], [], upto)
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
        columns[-1] = upto
        return Columns(*columns)

    def _cut(
        self,
        columns: str,
        start: int,
        end: int,
        limit: int,
        bytes_max: int,
        filter: Filter,
        *,
        damaged: bool = False,
    ) -> tuple[list[Any], int]:
        """The rows that fit, with `raw` and its leaf hash as their last columns, and how far was
        looked. EntryDamaged where bytes have changed since they were written, unless those are
        wanted: they must not spread.
        """
        stop = min(end, start + SCAN_ROWS_MAX)
        if limit < 1 or stop <= start:
            return [], start - 1
        terms, bindings = _terms(filter)
        cursor = self._con.execute(
            # The rows are wanted by offset, whatever else a filter names.
            f"SELECT {columns}, {self.leaf_column} FROM log NOT INDEXED "
            f"WHERE offset >= ? AND offset < ?{terms} ORDER BY offset LIMIT ?",
            (start, stop, *bindings, limit),
        )
        rows: list[Any] = []
        room = bytes_max
        cut = False
        while not cut and (handful := list(islice(cursor, _HANDFUL))):
            try:
                sizes = [len(row[-2]) for row in handful]
            except TypeError:
                refuse_damaged_rows(handful)  # what has no length is not what was written
                raise
            if (size := sum(sizes)) > room:
                fitting = sum(total <= room for total in accumulate(sizes))
                # One always fits, or nobody would ever get past it.
                handful = handful[: fitting if rows else max(fitting, 1)]
                cursor.close()
                cut = True
            rows += handful
            room -= size
        if not damaged:
            refuse_damaged_rows(rows)
        if cut or len(rows) == limit:
            return rows, rows[-1][0]
        head = self._con.execute("SELECT max(offset) FROM log").get
        return rows, max(start - 1, min(stop - 1, head or 0))


def _readable(value: Any, at: int) -> Any:
    """A name that was read as bytes, with marks where it is no text."""
    return value.decode(errors="replace") if at in _TEXTS else value


def _terms(filter: Filter) -> tuple[str, list[str]]:
    """A filter as the rest of a WHERE clause, as `Filter.passes` says it."""
    terms: list[str] = []
    bindings: list[str] = []
    ops = filter.wanted_ops
    for column, chosen in (
        ("mesh", filter.meshes or None),
        ("op", None if ops is None else sorted(ops)),
        ("origin", filter.origins or None),
    ):
        if chosen is not None:
            terms.append(f"{column} IN ({', '.join('?' * len(chosen))})")
            bindings += chosen
    if filter.subjects:
        spans = []
        for prefix in filter.subjects:
            # A range of bytes: LIKE would fold case and know wildcards.
            above = above_prefix(prefix)
            spans.append("entity >= ?" if above is None else "(entity >= ? AND entity < ?)")
            bindings += [prefix] if above is None else [prefix, above]
        terms.append(f"({' OR '.join(spans)})")
    if filter.without_messages:
        terms.append(f"op NOT IN ({', '.join('?' * len(MESSAGES))})")
        bindings += sorted(MESSAGES)
    if filter.beyond:
        # IS NOT: a zone that nothing ever came through has no number.
        terms.append("origin <> ? AND via IS NOT (SELECT number FROM zone WHERE name = ?)")
        bindings += [filter.beyond, filter.beyond]
    return "".join(f" AND {term}" for term in terms), bindings
