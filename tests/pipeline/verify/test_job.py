"""The job that makes the lake's side of a comparison: the same by Spark and by the driver, in one
piece and in many.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest.dedupe import CONFLICT
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import fitted
from holdfast.pipeline.lake.schema import arrow_schema
from holdfast.pipeline.spark.spark_workers import SparkWorkers
from holdfast.pipeline.spark.workers import DriverWorkers, Workers
from holdfast.pipeline.verify import job
from holdfast.pipeline.verify.digests import Tallying
from holdfast.pipeline.verify.expected import Scope, ranges_of, read_ranges
from holdfast.pipeline.verify.silver import Gaps
from holdfast.rules import digests as rules
from support.filled_lake import pour
from support.histories import grow


class Crowd(DriverWorkers):
    """As a driver that has three tasks at a time."""

    @property
    def parallelism(self) -> int:
        return 3


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("job")
    histories = grow(7, folder / "homes", nodes=3, meshes=2, ops=200, message_watch=20)
    lake = Lake.open(folder / "lake", create=True)
    homes: list[Path] = list(histories.homes.values())
    pour(lake, *homes[:2])
    fold_lake(DriverWorkers(), lake.fresh())
    pour(lake, homes[2])
    return lake.fresh()


def made(workers: Workers, lake: Lake) -> tuple[dict[tuple[str, str], dict[str, str]], Gaps]:
    scopes = scopes_of(workers, lake)
    forgotten = {scope.tag(mesh): 0 for scope in scopes for mesh in scope.forgotten}
    look, gaps = job.look_at(workers, lake, scopes, Tallying(forgotten))
    return {place: tally.digests() for place, tally in look.found.items()}, gaps


def scopes_of(workers: Workers, lake: Lake) -> Sequence[Scope]:
    logs = sorted({log for log, _ in lake.offsets})
    read = read_ranges(workers, lake, logs)
    scopes = []
    for number, log in enumerate(logs):
        # The first node has not heard of everything.
        head = lake.offsets[log, 1] // (2 if number == 0 else 1)
        spans, missing = ranges_of(read[log], 1, 1, head)
        assert not missing
        scopes.append(Scope(number, log, spans, 1, {"mesh-0": 0, "mesh-1": 0}))
    return scopes


def test_P3_any_number_of_tasks_makes_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, gaps = made(DriverWorkers(), lake)
    assert {table for _, table in whole} == set(rules.TABLES) - {"entities"}
    assert any(gap.behind for gap in gaps.values())
    monkeypatch.setattr(job, "AUDIT_SHARE_ROWS", 40)
    monkeypatch.setattr(job, "spans_for", lambda rows, size, parallelism: 5)
    assert made(Crowd(), lake) == (whole, gaps)


def test_P3_a_place_where_an_id_came_with_other_bytes_counts_as_one_of_the_envelope(
    lake: Lake, tmp_path: Path
) -> None:
    shutil.copytree(lake.root, tmp_path / "lake")
    apart = Lake.open(tmp_path / "lake")
    places, _ = apart.sightings.load(apart.sightings.files(), apart.sightings.schema.names)
    assert places.num_rows
    apart.sightings.commit([], apart.sightings.files())
    aside = places.append_column("reason", pa.array([CONFLICT] * places.num_rows))
    whole = fitted(aside, arrow_schema(apart.quarantine.schema))
    apart.quarantine.commit(apart.quarantine.stage_rows(whole).files)
    assert made(DriverWorkers(), apart.fresh()) == made(DriverWorkers(), lake)
    # Of any other reason it is no place of the envelope.
    files = apart.fresh().quarantine.files()
    other = whole.set_column(
        whole.column_names.index("reason"), "reason", pa.array(["other"] * whole.num_rows)
    )
    again = apart.fresh().quarantine
    again.commit(again.stage_rows(other).files, files)
    assert made(DriverWorkers(), apart.fresh()) != made(DriverWorkers(), lake)


def test_P3_tasks_of_spark_make_what_the_driver_makes(spark: SparkSession, lake: Lake) -> None:
    assert made(SparkWorkers(spark, lake.proof), lake) == made(DriverWorkers(), lake)
