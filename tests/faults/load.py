"""A mixed load on zones that are served by real processes: everybody who may use a node, at once.

Each driver is one party in a thread of its own: it takes its turn again and again, with a pause in
between, until the load ends. The first error that is none of the few a caller must expect ends the
run. What the writers were told is theirs goes into a ledger, and so does what the auditor of each
zone reads: at the end the two must agree.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException
from pathlib import Path
from time import time_ns
from typing import Any, ClassVar

import msgspec

from faults.zone_process import MESH, PATIENCE_S
from holdfast.rules.errors import HoldfastError, StoreBusy
from holdfast.rules.ids import id_text, uuid7
from holdfast.rules.limits import SERVER_THREADS
from holdfast.transport.http_client import Client
from holdfast.transport.remote_errors import HttpAnswer
from holdfast.transport.tls import client_context
from support.daemon import connect

PROCESS = Path(__file__).with_name("load_process.py")


class Ledger:
    """What was acknowledged anywhere, against what each zone showed its auditor.

    Holds only what is open, so that a run may be as long as it likes.
    """

    def __init__(self, zones: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._missing: dict[str, set[str]] = {zone: set() for zone in zones}
        self._early: dict[str, set[str]] = {zone: set() for zone in self._missing}
        self.acknowledged = 0

    def wrote(self, ids: Iterable[str]) -> None:
        with self._lock:
            for id in ids:
                self.acknowledged += 1
                for zone, missing in self._missing.items():
                    self._match(id, self._early[zone], missing)

    def saw(self, zone: str, ids: Iterable[str]) -> None:
        with self._lock:
            for id in ids:
                self._match(id, self._missing[zone], self._early[zone])

    def open(self, zone: str) -> tuple[set[str], set[str]]:
        """What the zone should have and did not show; what it showed, and nobody wrote, or too
        often.
        """
        with self._lock:
            return set(self._missing[zone]), set(self._early[zone])

    def is_settled(self) -> bool:
        with self._lock:
            return not any([*self._missing.values(), *self._early.values()])

    @staticmethod
    def _match(id: str, waiting: set[str], others: set[str]) -> None:
        if id in waiting:
            waiting.remove(id)
        else:
            assert id not in others, f"{id} came twice"
            others.add(id)


class Target:
    """One zone, as its users see it."""

    def __init__(self, name: str, home: Path, pid: int, unix: str, tls: str, token: str) -> None:
        self.name, self.home, self.pid = name, home, pid
        self.unix, self.tls, self.token = unix, tls, token
        self.leaving = threading.Event()
        """It was asked to end: from now on it may refuse, and hang up."""
        self.latest_object = ""


def crowd(zone: Target) -> None:
    """More callers at once than there are threads to serve them: each thread that will ever be
    needed is started now, and does not look like growth later.
    """
    with ExitStack() as ending:
        many = [
            ending.enter_context(closing(connect(zone.unix))) for _ in range(2 * SERVER_THREADS)
        ]
        for connection in many:
            ending.callback(connection.close)
            connection.request("GET", "/v1/status")
        for connection in many:
            assert connection.getresponse().read()


class Driver:
    """One user of a zone."""

    every_s: ClassVar[float] = 0.1
    remote: ClassVar[bool] = False
    """From another machine, with a token, or from this one by the socket."""

    def __init__(self, zone: Target, ledger: Ledger, seed: object) -> None:
        self.zone, self.ledger = zone, ledger
        self.name = f"{type(self).__name__} of {zone.name}"
        self.rng = random.Random(f"{seed} {self.name}")
        self.turns = self.requests = self.busy = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.client = Client(
            zone.tls if self.remote else zone.unix,
            token=zone.token if self.remote else None,
            read_ms=PATIENCE_S * 1000,
            context=client_context() if self.remote else None,
        )

    def begin(self) -> None:
        """Once, before the first turn."""

    def turn(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        self.client.close()

    def _run(self) -> None:
        try:
            self.begin()
            while not self._stop.wait(self.every_s):
                self.turn()
                self.turns += 1
        except (HoldfastError, OSError, HTTPException) as error:
            if not (self.zone.leaving.is_set() or self._stop.is_set()):
                self.error = error
        except BaseException as error:
            self.error = error

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> HttpAnswer:
        """One call; again, if another process had the database for too long."""
        while True:
            self.requests += 1
            try:
                return self.client.call(
                    method,
                    path,
                    body=body,
                    headers={name.replace("_", "-"): value for name, value in headers.items()},
                    bytes_max=64_000_000,
                )
            except StoreBusy:
                self.busy += 1

    def post(self, path: str, body: object) -> Any:
        said = msgspec.json.encode(body)
        return msgspec.json.decode(
            self.ask("POST", path, said, content_type="application/json").body
        )

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.ask("GET", path).body)

    def new_id(self) -> str:
        return id_text(uuid7(time_ns() // 1_000_000, self.rng.randbytes(10)))

    def fact(self, **more: object) -> dict[str, object]:
        said = {"mesh": MESH, "subject": f"{self.zone.name}/{self.turns % 100}", "predicate": "is"}
        return {**said, "object": {"n": self.turns, "text": "x" * 100}, **more}


class Neighbour:
    """The process that writes and sweeps by the library, on the home of a zone."""

    def __init__(self, zone: Target, ledger: Ledger, seed: object) -> None:
        self.zone, self.ledger = zone, ledger
        self.swept = self.busy = self.written = 0
        self._said: dict[str, threading.Event] = {
            word: threading.Event() for word in ("ready", "quiet", "emptied")
        }
        self._process = subprocess.Popen(
            [sys.executable, str(PROCESS), str(zone.home), "--seed", f"{seed}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()
        self._await("ready")

    def say(self, word: str, answer: str) -> None:
        """Gives an order and waits until it is done."""
        assert self._process.stdin is not None
        self._said[answer].clear()
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        self._await(answer)

    def end(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait(PATIENCE_S)
        self._ear.join(PATIENCE_S)
        self._process.stdout.close()
        return code

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.is_alive():
            self._process.kill()
        self.end()

    def _await(self, word: str) -> None:
        assert self._said[word].wait(PATIENCE_S), f"the neighbour of {self.zone.name} never {word}"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            if word == "id":
                self.written += 1
                self.ledger.wrote([rest])
            elif word == "swept":
                self.swept += int(rest)
            elif word == "busy":
                self.busy += 1
            else:
                self._said[word].set()
