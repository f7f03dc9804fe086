"""A lake filled from homes in the plainest way: in this process, one commit for each log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.lake.lake import ID_DAY, Lake, Position, log_app
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import ENVELOPE, decode_header


def pour(spark: SparkSession, lake: Lake, *homes: Path) -> None:
    """Reads every home to its end: what is new goes to bronze, the rest is a sighting."""
    known: set[str] = set()
    if lake.bronze.exists:
        known = {row.id for row in lake.bronze.read(spark).select("id").collect()}
    for home in homes:
        lake = lake.fresh()
        _pour_one(spark, lake, home, known)


def _pour_one(spark: SparkSession, lake: Lake, home: Path, known: set[str]) -> None:
    log = open_log(str(home))
    place = log.place()
    begin = (lake.position(place.log, place.epoch) or 0) + 1
    batches = [decode_header(batch) for batch in log.batches(place.epoch, begin, place.head + 1)]
    log.close()
    table = pa.Table.from_batches(batches, ENVELOPE)
    if not table.num_rows:
        return
    fresh = pa.array([id not in known for id in table.column("id").to_pylist()])
    last = Position(place.log, place.epoch, place.head, table.column("id")[-1].as_py())
    _sight(spark, lake, table.filter(pc.invert(fresh)))
    new = table.filter(fresh)
    known.update(new.column("id").to_pylist())
    frame = (
        spark.createDataFrame(new)
        .withColumn("family", F.split_part("op", F.lit("."), F.lit(1)))
        .withColumn("batch", F.lit(lake.bronze.version + 1).cast("long"))
        .withColumn("day", F.expr(ID_DAY))
    )
    files: tuple[Any, ...] = ()
    if new.num_rows:
        files = lake.bronze.stage(frame.coalesce(1)).files
    txns = {log_app(place.log, place.epoch): place.head}
    lake.bronze.commit(files, txns=txns, info=lake.moved([last]))


def _sight(spark: SparkSession, lake: Lake, again: pa.Table) -> None:
    if again.num_rows:
        frame = spark.createDataFrame(again).withColumn("batch", F.lit(0).cast("long"))
        lake.sightings.commit(lake.sightings.stage(frame.coalesce(1)).files)
