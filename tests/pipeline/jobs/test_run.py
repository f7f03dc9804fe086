"""Whole runs and streams: what they report, when they start Spark, how they end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.node.library.node import open_node
from holdfast.pipeline.fold import silver
from holdfast.pipeline.ingest.ingest import ingest_planned
from holdfast.pipeline.jobs import stream as streams
from holdfast.pipeline.jobs.run import needs_fold, run
from holdfast.pipeline.jobs.sources import LogSource, log_source
from holdfast.pipeline.jobs.stream import Step, stream
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.errors import (
    BadInput,
    HoldfastError,
    JobFailed,
    LakeBusy,
    LogForked,
    Truncated,
    Unreachable,
)
from holdfast.rules.limits import LAKE_TRIES_MAX
from support.histories import Histories, grow
from support.nodes import store_of


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    return grow(8, tmp_path, nodes=2, meshes=2, ops=120)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def sources_of(histories: Histories) -> list[LogSource]:
    return [log_source(str(home)) for home in histories.homes.values()]


def ids(table: Table) -> list[str]:
    found: list[str] = DeltaTable(table.root).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    return found


def never() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


def test_P11_a_run_says_what_it_did_and_starts_spark_only_when_there_is_something(
    spark: SparkSession, histories: Histories, lake: Lake, tmp_path: Path
) -> None:
    ana, bob = histories.homes
    given = [*sources_of(histories), log_source(str(tmp_path / "gone"), name="gone")]
    stages: list[str] = []

    report = run(
        lambda: spark, lake, given, fold=False, progress=lambda stage, *_: stages.append(stage)
    )

    (failure,) = report.failures
    assert (failure.location, failure.log, report.ok) == (str(tmp_path / "gone"), "gone", False)
    assert isinstance(failure.error, BadInput)
    logs = {log.log: log for log in report.ingest.logs}
    for peer in (ana, bob):
        head = histories.heads[peer]
        assert (logs[peer].before, logs[peer].after, logs[peer].read) == (0, head, head)
        assert (logs[peer].head - logs[peer].before, logs[peer].lag_after) == (head, 0)
    assert report.ingest.new + report.ingest.again == sum(histories.heads.values())
    assert set(stages) == {"ingest"}
    # Nothing new: Spark is not needed to find that out, and not to fold what is folded.
    assert run(never, lake, given[:2], fold=False).ok
    assert needs_fold(lake.fresh())
    folded = run(lambda: spark, lake, given[:2])
    assert (folded.ok, folded.ingest.read) == (True, 0)
    assert folded.fold is not None
    assert folded.fold.version == lake.fresh().bronze.version
    assert not needs_fold(lake.fresh())
    again = run(never, lake, given[:2])
    assert (again.fold, again.ok) == (None, True)
    assert silver.position(lake.fresh(), "state") == lake.fresh().bronze.version
    # Somebody else works on it.
    with lake.working("a fold"), pytest.raises(LakeBusy, match="a fold"):
        run(never, lake, given[:2])


@pytest.mark.timeout(400)
def test_P1_a_stream_and_runs_take_turns_without_loss_or_double(
    spark: SparkSession, histories: Histories, lake: Lake
) -> None:
    ana, bob = histories.homes
    given = sources_of(histories)
    steps: list[Step] = []

    # Batches of a few rows; the logs are read up to where they are.
    most = sum(histories.heads.values()) // 2 + 2
    stream(spark, lake, given, once=True, fold=False, max_rows=most, on_step=steps.append)

    assert sum(step.read for step in steps) == sum(histories.heads.values())
    assert len(steps) == 2
    assert steps[-1].lag == {ana: 0, bob: 0}
    assert {at.log: at.offset for at in lake.fresh().positions()} == histories.heads
    found = ids(lake.bronze)
    assert len(found) == len(set(found)) == sum(step.new for step in steps)
    assert len(ids(lake.sightings)) == sum(step.again for step in steps)

    # A run goes on, is confirmed, and what it has read is forgotten by the node.
    with histories.open(ana) as node:
        node.mesh("mesh-0").state.set("k", "by run")
    assert run(lambda: spark, lake, given, fold=False).ingest.new == 1
    with histories.open(ana) as node:
        (reader,) = node.log.consumers()
        assert (reader.name, reader.lag) == (lake.consumer, 0)
        gone = store_of(node).write(lambda tx: tx.log_truncate(10_000, 10_000, 1))
        assert gone == histories.heads[ana]
        node.mesh("mesh-0").state.set("k", "by stream")

    # A stream that runs on until a signal comes: then it ends after the batch.
    steps.clear()

    def told(step: Step) -> None:
        steps.append(step)
        os.kill(os.getpid(), signal.SIGTERM)

    stream(spark, lake, given, every_ms=100, fold=False, on_step=told)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert [(step.read, step.new) for step in steps] == [(1, 1)]
    assert len(ids(lake.bronze)) == len(set(ids(lake.bronze))) == len(found) + 2
    assert lake.fresh().position(ana, 1) == histories.heads[ana] + 2
    # What is not the same log any more is not mixed in.
    other = open_node(histories.homes[bob].parent / "other", peer=bob, create=True)
    other.close()
    with pytest.raises(LogForked):
        stream(spark, lake, [log_source(str(other.home))], once=True)


def test_P11_an_error_in_a_stream_comes_out_as_it_is(
    spark: SparkSession, histories: Histories, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise Truncated("gone", first_available=3)

    monkeypatch.setattr(Table, "commit", refuse)
    with pytest.raises(Truncated, match="gone"):
        stream(spark, lake, sources_of(histories), once=True, fold=False)


def test_P11_a_stream_begins_again_after_what_may_pass_and_loses_nothing(
    spark: SparkSession, histories: Histories, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ingest_planned
    troubles: list[HoldfastError] = [
        Unreachable("it is restarted"),
        JobFailed("the python worker failed to connect back"),
    ]
    steps: list[Step] = []

    def ingest(*args: Any, **options: Any) -> Any:
        if troubles:
            raise troubles.pop(0)
        return real(*args, **options)

    monkeypatch.setattr(streams, "ingest_planned", ingest)
    given = sources_of(histories)
    stream(spark, lake, given, once=True, fold=False, every_ms=1, on_step=steps.append)
    assert troubles == []
    assert sum(step.read for step in steps) == sum(histories.heads.values())
    assert len(ids(lake.bronze)) == len(set(ids(lake.bronze))) == sum(step.new for step in steps)


@pytest.mark.parametrize(
    ("error", "tries"), [(Unreachable("away"), LAKE_TRIES_MAX), (JobFailed("a bug"), 1)]
)
def test_P11_a_stream_gives_up_on_what_lasts(
    spark: SparkSession,
    histories: Histories,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    error: HoldfastError,
    tries: int,
) -> None:
    came = 0

    def plan(*_: object) -> None:
        nonlocal came
        came += 1
        raise error

    monkeypatch.setattr(streams, "make_plan", plan)
    with pytest.raises(type(error), match=error.message):
        stream(spark, lake, sources_of(histories), every_ms=1)
    assert came == tries
