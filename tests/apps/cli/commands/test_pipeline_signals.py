"""Ctrl-C and SIGTERM end a pipeline command wherever it is, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark import session
from support.cli import Cli
from support.pipeline_child import marked_processes
from support.waiting import until

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 200
"""Longer than any machine needs to start Spark; nothing waits for it to pass."""
MARK = "HOLDFAST_TEST_JOB"
SMALL = [f"--conf={key}={value}" for key, value in session.SMALL.items()]
ENDLESS = "select count(*) from range(1000000000000) a join range(1000000000000) b on a.id < b.id"


class Job:
    """A command as a process of its own, as a shell starts it: with a process group."""

    def __init__(self, *words: str) -> None:
        self.mark = uuid4().hex
        self.process: subprocess.Popen[bytes] = Cli(Path("none")).start(
            "pipeline", *words, env={MARK: self.mark}, start_new_session=True
        )

    def running(self) -> dict[int, str]:
        """Its processes, with all that Spark has started."""
        return marked_processes(f"{MARK}={self.mark}")

    def ended(self) -> tuple[int, list[str]]:
        """The exit code, and what stood on stderr; nothing of it may be alive any more."""
        _, err = self.process.communicate(timeout=PATIENCE_S)
        # Python workers find out by themselves that their Java is gone.
        until(lambda: not self.running())
        return self.process.returncode, err.decode().splitlines()

    def close(self) -> None:
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return Lake.open(tmp_path / "lake", create=True).root


@pytest.fixture
def black_hole() -> Iterator[socket.socket]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_P11_a_signal_ends_a_job_in_a_second_with_one_sentence(lake: str, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    log = {"dir": str(events), "enabled": "true", "compress": "false"}
    conf = [f"--conf=spark.eventLog.{name}={value}" for name, value in log.items()]
    job = Job("query", ENDLESS, "--lake", lake, *SMALL, *conf)
    try:
        until(lambda: _works(events), PATIENCE_S)
        os.killpg(job.process.pid, signal.SIGINT)
        code, said = job.ended()
    finally:
        job.close()
    assert code == 128 + signal.SIGINT
    assert said == [f"error: SIGINT {ENDED}"]


ENDED = "has ended the job: what was committed stays, and the next one goes on there"


def _works(events: Path) -> bool:
    """Whether Spark has begun with the query."""
    files = (path for path in events.rglob("events_*") if path.is_file())
    return any("SparkListenerJobStart" in file.read_text() for file in files)


def test_P11_a_signal_while_spark_starts_leaves_no_java_behind(lake: str) -> None:
    job = Job("query", "select 1", "--lake", lake, "--json", *SMALL)
    try:
        until(lambda: any("SparkSubmit" in command for command in job.running().values()))
        job.process.send_signal(signal.SIGTERM)
        code, said = job.ended()
    finally:
        job.close()
    assert code == 128 + signal.SIGTERM
    assert said == [f'{{"error":{{"code":"interrupted","message":"SIGTERM {ENDED}","hint":""}}}}']


def test_P10_a_server_that_does_not_answer_can_be_left(
    lake: str, black_hole: socket.socket
) -> None:
    port = black_hole.getsockname()[1]
    job = Job("query", "select 1", "--lake", lake, "--remote", f"sc://127.0.0.1:{port}")
    try:
        held, _ = black_hole.accept()
        job.process.send_signal(signal.SIGTERM)
        code, said = job.ended()
        held.close()
    finally:
        job.close()
    assert (code, said) == (128 + signal.SIGTERM, [f"error: SIGTERM {ENDED}"])


def test_P10_a_server_that_is_not_there_is_an_error_at_once(cli: Cli, lake: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        remote = f"sc://127.0.0.1:{taken.getsockname()[1]}/;token=secret"
        words = ("query", "select 1", "--lake", lake, "--remote", remote, "--json")
        refused = cli.process("pipeline", *words, patience=PATIENCE_S)
    assert refused.code == 1
    assert refused.error["code"] == "unreachable"
    assert "127.0.0.1" in refused.error["message"]
    assert "secret" not in refused.err
