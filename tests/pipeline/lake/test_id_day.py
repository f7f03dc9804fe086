"""To which day of bronze an id belongs."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.lake.id_bits import days, id_bits
from holdfast.pipeline.lake.lake import ID_DAY
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text, uuid7, uuid8
from holdfast.rules.limits import DAY_MS, SOURCE_TIME_MS_MAX

LAST = date(9999, 12, 31)


def test_P2_every_id_that_a_node_takes_belongs_to_a_day_of_the_calendar(
    spark: SparkSession,
) -> None:
    """Ids of idempotency keys are hashes: one in ten begins with bits beyond the year 9999."""
    keys = [id_of_key(f"order-{number}", "team", "ana") for number in range(50)]
    assert any(int.from_bytes(id[:6]) >= SOURCE_TIME_MS_MAX for id in keys)
    ids = {
        uuid7(0, bytes(10)): date(1970, 1, 1),
        uuid7(DAY_MS - 1, bytes(10)): date(1970, 1, 1),
        uuid7(1_794_795_165_988, bytes(10)): date(2026, 11, 16),
        uuid7(SOURCE_TIME_MS_MAX - 1, bytes(10)): LAST,
        uuid8(SOURCE_TIME_MS_MAX.to_bytes(6) + bytes(10)): LAST,
        uuid8(b"\xff" * 16): LAST,
    }
    frame = spark.createDataFrame([(id_text(id),) for id in [*ids, *keys]], "id string")
    found = [row.day for row in frame.select(F.expr(ID_DAY).alias("day")).collect()]
    assert found[: len(ids)] == list(ids.values())
    assert max(found) == LAST
    texts = pa.array([id_text(id) for id in [*ids, *keys]])
    assert days(id_bits(texts)[0]).to_pylist() == found, "tasks say the same as SQL"
