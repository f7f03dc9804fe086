"""A lake filled from homes in the plainest way: in this process, one commit for each log."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake, log_app
from holdfast.pipeline.lake.reads import Read, note_reads
from holdfast.pipeline.lake.schema import arrow_schema
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import ENVELOPE, decode_header

_DAY_MS = 86_400_000


def pour(lake: Lake, *homes: Path, upto: int | None = None) -> None:
    """Reads every home to its end, or to an offset: what is new goes to bronze, what is there is a
    sighting, what cannot be read goes to quarantine.
    """
    for home in homes:
        _pour_one(lake.fresh(), home, upto)


def _pour_one(lake: Lake, home: Path, upto: int | None) -> None:
    log = open_log(str(home))
    place = log.place()
    begin, last = (lake.position(place.log, place.epoch) or 0) + 1, upto or place.head
    batches = [decode_header(batch) for batch in log.batches(place.epoch, begin, last + 1)]
    log.close()
    table = pa.Table.from_batches(batches, ENVELOPE)
    if not table.num_rows:
        return
    batch = lake.next_batch
    table = table.append_column("batch", pa.array([batch] * table.num_rows, pa.int64()))
    bad = table.filter(pc.is_valid(table["problem"]))
    good = table.filter(pc.is_null(table["problem"]))
    seen = pc.is_in(good["id"], value_set=lake.bronze.load(lake.bronze.files(), ["id"])[0]["id"])
    new, again = good.filter(pc.invert(seen)), good.filter(seen)
    _commit(lake.sightings, again)
    why = pc.split_pattern(bad["problem"], ": ", max_splits=1)
    reasons = bad.append_column("reason", pc.list_element(why, 0))
    _commit(lake.quarantine, reasons.append_column("detail", pc.list_element(why, 1)))
    families = pc.list_element(pc.split_pattern(new["op"], ".", max_splits=1), 0)
    days = pa.array([day_of(id) for id in new["id"].to_pylist()], pa.date32())
    dated = new.append_column("family", families).append_column("day", days)
    lake.bronze.commit(
        lake.bronze.stage_rows(_as(lake.bronze, dated.sort_by([("day", "ascending")]))).files,
        txns={log_app(place.log, place.epoch): last},
    )
    read = Read(
        log=place.log,
        epoch=place.epoch,
        first=begin,
        last=last,
        rows=table.num_rows,
        new=new.num_rows,
        again=again.num_rows,
        quarantined=bad.num_rows,
        noted=bad.num_rows,
        last_id=table["id"][-1].as_py(),
        batch=batch,
    )
    note_reads(lake.reads, [read])


def day_of(id: str) -> date:
    """The UTC day in an id."""
    return date(1970, 1, 1) + timedelta(days=int(id[:8] + id[9:13], 16) // _DAY_MS)


def _as(table: Table, rows: pa.Table) -> pa.Table:
    schema = arrow_schema(table.schema)
    return rows.select(schema.names).cast(schema)


def _commit(table: Table, rows: pa.Table) -> None:
    if rows.num_rows:
        table.commit(table.stage_rows(_as(table, rows)).files)
