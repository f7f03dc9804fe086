"""A real broker as a process, life after life at the same address, for tests that kill it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from holdfast.broker.settings import BrokerSettings
from support.project import TESTS

DYING = Path(__file__).with_name("dying_broker.py")
PATIENCE_S = 90


class BrokerProcess:
    """`holdfast broker serve` on SQLite, or on PostgreSQL by a DSN."""

    def __init__(self, folder: Path, dsn: str | None = None, processes: int = 1) -> None:
        self.folder, self._dsn, self._processes = folder, dsn, processes
        self._place = f"127.0.0.1:{_free_port()}"
        self.url = f"http://{self._place}"
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._drains: list[threading.Thread] = []
        self.said = b""

    @property
    def settings(self) -> BrokerSettings:
        return BrokerSettings(store=self.folder, dsn=self._dsn)

    def start(self, *dying: str) -> None:
        """Returns when it is ready. `dying` is a point, and at which passing it kills itself."""
        program = [str(DYING), *dying] if dying else ["-m", "holdfast"]
        words = ["broker", "serve", "--json", "--store", str(self.folder), "--tcp", self._place]
        words += [f"--processes={self._processes}"]
        dsn = {} if self._dsn is None else {"HOLDFAST_BROKER_DSN": self._dsn}
        process = self._process = subprocess.Popen(
            [sys.executable, *program, *words, "--name", "hub"],
            env={**os.environ, **dsn, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        self._drain(process)
        self.lives += 1
        if line:
            assert json.loads(line)["event"] == "ready"
        elif not dying:
            self.await_death()
            raise AssertionError(f"the broker did not start: {self.said.decode()}")

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pids(self) -> list[int]:
        """Of the processes that it has begun."""
        assert self._process is not None
        own = str(self._process.pid)
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if parent == own and state != "Z":
                    found.append(int(folder.name))
        return sorted(found)

    def end(self) -> None:
        """However a test ended."""
        if self.is_up:
            self.kill()

    def kill(self) -> None:
        """As the power would."""
        assert self._process is not None
        self._process.kill()
        assert self.await_death() == -9

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        assert self.await_death() == 0, self.said.decode()

    def await_death(self) -> int:
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        for thread in self._drains:
            thread.join(PATIENCE_S)
        self._drains, self._process = [], None
        return code

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Nobody else reads what it says: a pipe that fills up would stop it."""

        def read() -> None:
            assert process.stdout is not None
            assert process.stderr is not None
            self.said = process.stderr.read()
            process.stdout.read()
            process.stdout.close()
            process.stderr.close()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._drains.append(thread)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
