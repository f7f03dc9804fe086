"""Following logs: they wake the rounds themselves, and a stream ends when it is told to."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import holdfast
from holdfast.node.library.node import open_node
from holdfast.pipeline.ingest.ingest import IngestReport
from holdfast.pipeline.jobs import follow
from holdfast.pipeline.jobs.follow import Step, Watch, stream
from holdfast.pipeline.jobs.run import RunReport, run
from holdfast.pipeline.jobs.sources import LogSource, log_source
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import open_log
from holdfast.rules.errors import (
    HoldfastError,
    JobFailed,
    LakeBusy,
    LogForked,
    Truncated,
    Unreachable,
)
from holdfast.rules.limits import LAKE_TRIES_MAX
from support.daemon import running
from support.histories import Histories, grow
from support.nodes import store_of

PATIENCE_MS = 60_000
"""Longer than any machine needs; nothing waits for it to pass."""


def never() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


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


@pytest.mark.timeout(400)
def test_P1_a_stream_and_runs_take_turns_without_loss_or_double(
    spark: SparkSession, histories: Histories, lake: Lake
) -> None:
    ana, bob = histories.homes
    given = sources_of(histories)
    steps: list[Step] = []

    stream(spark, lake, given, once=True, fold=False, on_step=steps.append)

    assert sum(step.read for step in steps) == sum(histories.heads.values())
    assert len(steps) == 1
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


def test_P11_a_stream_tries_again_what_may_pass_and_ends_with_what_lasts(
    histories: Histories, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[HoldfastError] = []
    rounds: list[RunReport] = []

    def one_round(*_: Any, **__: Any) -> RunReport:
        if troubles:
            raise troubles.pop(0)
        rounds.append(RunReport(IngestReport()))
        if len(rounds) == 1:
            troubles.append(LakeBusy("a compaction"))
        else:
            stop.set()
        return rounds[-1]

    monkeypatch.setattr(follow, "run", one_round)
    given = sources_of(histories)
    stop = Event()
    troubles += [Unreachable("it restarts"), JobFailed("the python worker failed to connect back")]
    stream(never, lake, given, every_ms=1, stop=stop)
    assert (len(rounds), troubles) == (2, [])

    for lasting, tries in (
        (Unreachable("away"), LAKE_TRIES_MAX),
        (JobFailed("a bug"), 1),
        (LakeBusy("a run"), 1),
        (Truncated("gone", first_available=3), 1),
    ):
        troubles[:] = [lasting] * (LAKE_TRIES_MAX + 1)
        with pytest.raises(type(lasting), match=lasting.message):
            stream(never, lake, given, every_ms=1, stop=Event())
        assert len(troubles) == LAKE_TRIES_MAX + 1 - tries


def test_P11_a_log_that_grows_wakes_a_round_by_itself(histories: Histories, lake: Lake) -> None:
    ana, bob = histories.homes
    with running(histories.homes[bob]) as up:
        # As a run does it: from now on the node keeps what this lake has not read.
        with closing(open_log(up.unix)) as log:
            log.register(lake.consumer, 1)
        given = [log_source(str(histories.homes[ana])), log_source(up.unix)]
        ending = Event()
        with Watch(lake, given, ending) as watch:
            # Both logs ring when they are first looked at.
            while watch.wait(300):
                watch.take()
            for home in (histories.homes[ana], up.home):
                with holdfast.open(home, sync="normal") as node:
                    node.mesh("mesh-0").state.set("k", "more")
                assert watch.wait(PATIENCE_MS), home
                watch.take()
            ending.set()
            watch.wait(PATIENCE_MS)  # it waits no longer
