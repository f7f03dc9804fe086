"""The server of a lake: it follows logs, answers on its socket, and nothing that fails ends it."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import holdfast
from holdfast.pipeline.ingest.ingest import IngestReport
from holdfast.pipeline.ingest.plan import UnreadableLog
from holdfast.pipeline.jobs.run import RunReport
from holdfast.pipeline.jobs.sources import log_source, remember
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.serve import rounds as served_rounds
from holdfast.pipeline.serve.client import LakeClient, server_of
from holdfast.pipeline.serve.daemon import LakeService
from holdfast.pipeline.serve.place import server_place
from holdfast.pipeline.serve.rounds import LakeRounds
from holdfast.pipeline.serve.warm import WarmSession
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    HoldfastError,
    JobFailed,
    StoreClosed,
    Truncated,
    Unreachable,
)
from holdfast.storage.files.home import socket_path
from support.cli import Cli

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 300
"""Longer than any machine needs; nothing waits for it to pass."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "ana", peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team").state.set("build", "green")
    return tmp_path / "ana"


@pytest.fixture
def lake(tmp_path: Path, home: Path) -> Lake:
    lake = Lake.open(tmp_path / "lake", create=True)
    remember(lake, [log_source(str(home))])
    return lake


@contextmanager
def serving(
    start: Callable[[], SparkSession], lake: Lake, reports: Queue[RunReport]
) -> Iterator[LakeClient]:
    """A server in a thread, until the block ends."""
    ready: Queue[BaseException | None] = Queue()
    made: list[tuple[LakeService, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        service = LakeService(
            start,
            lake,
            every_ms=10,
            on_report=reports.put,
            on_event=lambda event, _: ready.put(None) if event == "ready" else None,
            on_overtime=lambda: None,
        )
        made.append((service, asyncio.get_running_loop()))
        try:
            await service.run()
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        failed = ready.get(timeout=PATIENCE_S)
        if failed is not None:
            raise failed
        client = server_of(lake)
        assert client is not None
        yield client
    finally:
        service, loop = made[0]
        if thread.is_alive():
            loop.call_soon_threadsafe(service.stop)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_P11_a_server_follows_logs_and_answers_as_a_run_does(
    spark: SparkSession, home: Path, lake: Lake
) -> None:
    cli = Cli(home.parent / "none")
    reports: Queue[RunReport] = Queue()
    words = ("--lake", lake.root, "--json")
    assert server_of(lake) is None
    with serving(lambda: spark, lake, reports) as client:
        socket = socket_path(server_place(lake))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        first = reports.get(timeout=PATIENCE_S)
        assert (first.ingest.new, first.ingest.logs[0].log) == (1, "ana")

        # A log that grows is read without being asked for.
        with holdfast.open(home, sync="normal") as node:
            node.mesh("team").state.set("more", 1)
        assert reports.get(timeout=PATIENCE_S).ingest.new == 1

        # The commands use it, and say the same as without it.
        done = cli("pipeline", "run", *words).json
        assert [(log["log"], log["to"], log["lag"]) for log in done["logs"]] == [("ana", 2, 0)]
        sql = "select key, value from state order by `key`"  # for Spark only
        asked = cli("pipeline", "query", sql, *words).json
        assert asked == [{"key": "build", "value": '"green"'}, {"key": "more", "value": "1"}]
        status = cli("pipeline", "status", *words).json["server"]
        assert (status["rounds"], status["starts"], status["trouble"]) == (2, 1, None)
        with pytest.raises(BadInput, match="only reads"):
            client.query("drop table state", 10)

        # A run that names another log makes the server follow that one too.
        with holdfast.open(home.parent / "ben", peer="ben", create=True, sync="normal") as node:
            node.create_mesh("team").state.set("build", "red")
        named = cli("pipeline", "run", str(home.parent / "ben"), *words).json
        assert {log["log"]: log["to"] for log in named["logs"]} == {"ana": 2, "ben": 1}

        with pytest.raises(AlreadyExists, match="serves"), serving(lambda: spark, lake, reports):
            pass
    assert server_of(lake) is None
    assert not socket.exists()
    assert cli("pipeline", "status", *words).json["server"] is None


def rounds_of(
    monkeypatch: pytest.MonkeyPatch, lake: Lake, one_round: Callable[..., Any]
) -> LakeRounds:
    monkeypatch.setattr(served_rounds, "run", one_round)
    return LakeRounds(_never, lake, every_ms=1)


def _never() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


def test_P11_a_round_that_fails_is_told_to_who_asked_and_ends_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[HoldfastError | ValueError] = []

    def one_round(*_: Any, **options: Any) -> RunReport:
        if troubles:
            raise troubles.pop()
        assert options["what"] == "a server"
        error = Unreachable("away") if options["allow_gaps"] else None
        failures = [UnreadableLog("there", error, "ana")] if error else []
        return RunReport(IngestReport(failures=failures))

    rounds = rounds_of(monkeypatch, lake, one_round)
    thread = threading.Thread(target=rounds.run)
    thread.start()
    try:
        assert rounds.ask().ok
        for error in (JobFailed("a bug"), ValueError("a fault of ours")):
            troubles[:] = [error] * 1000  # also for rounds that nobody asks for
            with pytest.raises(type(error)):
                rounds.ask()
            assert rounds.trouble in ("a bug", "ValueError('a fault of ours')")
            troubles.clear()
            assert rounds.ask().ok
            assert rounds.trouble is None
        assert not rounds.ask(allow_gaps=True).ok
    finally:
        rounds.stop()
        thread.join(PATIENCE_S)
    with pytest.raises(StoreClosed):
        rounds.ask()


def test_P11_a_session_whose_java_died_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gateway:
        class proc:
            code: int | None = None

            @classmethod
            def poll(cls) -> int | None:
                return cls.code

    started: list[Any] = []

    def start() -> Any:
        started.append(object())
        monkeypatch.setattr(SparkContext, "_gateway", Gateway)
        Gateway.proc.code = None
        return started[-1]

    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    warm = WarmSession(start)
    assert warm() is warm() is started[0]
    Gateway.proc.code = -9
    assert warm() is started[1]
    assert warm() is started[1]
    assert warm.starts == 2


def test_P11_reports_of_a_server_keep_their_errors() -> None:
    from holdfast.pipeline.serve.calls import done_of
    from holdfast.pipeline.serve.client import _failure

    errors = [
        UnreadableLog("a", Unreachable("away", hint="wait"), "ana"),
        UnreadableLog("b", Truncated("gone", first_available=3), "ben"),
    ]
    travelled = [
        _failure(one) for one in done_of(RunReport(IngestReport(failures=errors))).failures
    ]
    assert [(type(one.error), one.log, one.error.message) for one in travelled] == [
        (Unreachable, "ana", "away"),
        (JobFailed, "ben", "gone"),
    ]
