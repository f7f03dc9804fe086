"""The table `reads`: what was read of each log, one row for each stretch of a committed batch.

A row says how many entries a log gave between two offsets, and how many of them went to each table.
The position of a log is the end of its last row. Bronze commits first, then `reads`: a killed job
leaves rows in bronze that `reads` does not know, never the reverse. If the two disagree, somebody
has set back, copied or cleaned a table; `compare.py` finds out what is missing, and `reads` is made
again from what is stored.

Readers of the lake may use the table as well: it tells when each offset came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.schema import READS, arrow_schema
from holdfast.rules.errors import JobFailed, LakeMoved
from holdfast.rules.limits import LAKE_TRIES_MAX, READS_FILES_MAX

BATCH: Final = "batch"
"""The application id with which a commit of `reads` notes a batch number that is taken: silver has
seen it, though bronze and `reads` were set back to before it.
"""
PART: Final = "part"
"""The application id in a copy of a part of a lake, which has rows but no positions."""

ARROW: Final = arrow_schema(READS)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch read of one log between two offsets."""

    log: str
    epoch: int
    first: int
    last: int
    """The batch has all entries from `first` to `last` that the log gave, both included."""
    rows: int
    """How many entries that were; a broker's log has holes."""
    new: int = 0
    """How many of them went to bronze,"""
    again: int = 0
    """to sightings,"""
    quarantined: int = 0
    """to quarantine and not to bronze."""
    noted: int = 0
    """All rows of quarantine: those, entries with an unknown op that bronze has too, and gaps."""
    last_id: str = ""
    """The id of the entry at `last`; empty if there is none."""
    batch: int
    """The number in the column `batch` of the rows."""


class Position(msgspec.Struct, frozen=True):
    """How far one log has been read."""

    log: str
    epoch: int
    offset: int
    id: str = ""
    """The id of the entry at this offset; the next run checks that the log still has it there."""


def load_reads(table: Table) -> tuple[pa.Table, list[File]]:
    """The rows of `reads`, and the files of it that are gone."""
    return table.load(table.files(), READS.names)


def note_reads(table: Table, reads: Sequence[Read]) -> None:
    """Adds rows; another job that adds rows at the same time does no harm. Many small files become
    one in the same commit.
    """
    if not reads:
        return
    rows = as_rows(reads)
    for _ in range(LAKE_TRIES_MAX):
        table = table.fresh()
        old = table.files()
        try:
            if len(old) < READS_FILES_MAX:
                table.commit(table.stage_rows(rows).files)
            else:
                known, _ = load_reads(table)
                table.commit(table.stage_rows(pa.concat_tables([known, rows])).files, old)
            return
        except LakeMoved:
            continue
    raise JobFailed(f"other jobs changed {table.root} {LAKE_TRIES_MAX} times in a row")


def replace_reads(table: Table, rows: pa.Table) -> None:
    """Puts these rows in the place of all that are there."""
    staged = table.stage_rows(rows).files if rows.num_rows else ()
    table.commit(staged, table.files())


def as_rows(reads: Iterable[Read]) -> pa.Table:
    now = datetime.now(UTC)
    rows = [{**msgspec.structs.asdict(read), "read_at": now} for read in reads]
    return pa.Table.from_pylist(rows, schema=ARROW)


def positions_in(rows: pa.Table) -> list[Position]:
    """The end of what was read, by log and epoch."""
    order = [("log", "ascending"), ("epoch", "ascending"), ("last", "ascending")]
    sorted_rows = rows.select(["log", "epoch", "last", "last_id"]).sort_by(order)
    ends = sorted_rows.group_by(["log", "epoch"], use_threads=False).aggregate(
        [("last", "last"), ("last_id", "last")]
    )
    return [
        Position(row["log"], row["epoch"], row["last_last"], row["last_id_last"] or "")
        for row in ends.sort_by(order[:2]).to_pylist()
    ]


def sum_of(rows: pa.Table, column: str) -> int:
    return int(pc.sum(rows.column(column)).as_py() or 0)


def with_ids(rows: pa.Table, id_at: Callable[[tuple[str, int], int], str]) -> pa.Table:
    """The rows, with the id at the end of each log where it is not known."""
    unknown = {(at.log, at.epoch, at.offset) for at in positions_in(rows) if not at.id}
    if not unknown:
        return rows
    places = zip(*(rows.column(name).to_pylist() for name in ("log", "epoch", "last")), strict=True)
    known = rows.column("last_id").to_pylist()
    ids = [
        id_at((log, epoch), last) if not id and (log, epoch, last) in unknown else id
        for (log, epoch, last), id in zip(places, known, strict=True)
    ]
    at = rows.schema.get_field_index("last_id")
    return rows.set_column(at, rows.schema.field(at), pa.array(ids, pa.string()))
