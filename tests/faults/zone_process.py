"""Real zones for fault tests: daemons as processes, linked through proxies that fail on demand.

    with Zones(tmp_path, "ana", "ben", links=[("ana", "ben"), ("ben", "ana")]) as zones:
        zones["ana"].start()
        …
        zones["ana"].kill()            # SIGKILL
        zones.line("ana", "ben").cut() # the way on which ana reads ben

A zone comes back on another port, as a process does that was started anew; its proxies follow it.
Writers go on through all of it: a batch whose answer was lost is sent again with the same ids.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

import holdfast
from holdfast.node.links.registry import Links
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import DiskFull, OutcomeUnknown, StoreClosed, TooMany, Unreachable
from holdfast.rules.ids import id_text, uuid7
from holdfast.storage.files import home as homes
from holdfast.storage.files.home import HomePaths
from holdfast.transport.fault_proxy import FaultProxy
from holdfast.transport.http_client import Client
from support.daemon import start

DYING = Path(__file__).with_name("dying_daemon.py")
MESH = "team"
QUIET_MAX = 6
"""Waits of 20 s in which nothing comes, until it is said that nothing will: on a busy machine a
zone that was killed takes long to be back.
"""
PATIENCE_S = 90
"""Longer than any machine needs; nothing waits for it to pass."""
NOT_NOW = (Unreachable, OutcomeUnknown, StoreClosed, TooMany, DiskFull)
"""What a zone that dies, is dead or comes up answers: asked again with the same ids."""


class Entry(msgspec.Struct):
    """What is looked at of an entry in a log."""

    offset: int
    id: str
    origin: str
    seq: int
    op: str


class _Fetched(msgspec.Struct):
    epoch: int
    head: int
    upto: int
    entries: list[Entry]


class LinkState(msgspec.Struct):
    """What is looked at of a link."""

    name: str
    zone: str
    state: str
    cursor: int
    lag: int | None
    received: int
    quarantined: int


class Reader(msgspec.Struct):
    """What is looked at of a consumer."""

    name: str
    frontier: int
    lag: int


class Zone:
    """One home and the process that serves it, life after life."""

    def __init__(self, home: Path, name: str, sync: str) -> None:
        self.home, self.name = home, name
        self.lives = 0
        self.proxies: list[FaultProxy] = []
        self.said = b""
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None
        self._drains: list[threading.Thread] = []
        self._up = threading.Event()
        with holdfast.open(home, peer=name, create=True, sync=sync) as node:
            node.create_mesh(MESH)
            self.card = Trust(node._engine, HomePaths(home)).card()

    # --- the process -------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when it is ready."""
        place = ("--listen", "127.0.0.1:0")
        self._serve(start(self.home, *place, env={"HOLDFAST_STORE_SYNC": self._sync}))

    def start_to_die(self, point: str, nth: int) -> None:
        """Starts it so that it kills itself at a named point: before it is ready, or later."""
        command = [sys.executable, str(DYING), point, str(nth), "up", "--json"]
        place = ["--home", str(self.home), "--listen", "127.0.0.1:0"]
        self._serve(
            subprocess.Popen(
                [*command, *place],
                env={**os.environ, "HOLDFAST_STORE_SYNC": self._sync},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ),
            may_die=True,
        )

    def dies_within(self, seconds: float) -> bool:
        """Whether it has ended by itself, or does so by then."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def await_death(self) -> int:
        """Waits until it has ended by itself; -9 is a kill."""
        assert self._process is not None
        self._process.wait(PATIENCE_S)
        self._up.clear()
        return self._end()

    def _serve(self, process: subprocess.Popen[bytes], *, may_die: bool = False) -> None:
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        self._drain(process.stdout.read)
        self._drain(lambda: self._hear(process.stderr))
        if not line and may_die:
            return
        if not line:
            process.wait(PATIENCE_S)
            self._join()
            raise AssertionError(f"{self.name} did not start: {self.said.decode()}")
        ready = msgspec.json.decode(line)
        tls = urlsplit(next(at for at in ready["listening"] if at.startswith("https:")))
        for proxy in self.proxies:
            proxy.retarget(("127.0.0.1", tls.port or 0))
        self.lives += 1
        self._up.set()

    def kill(self) -> None:
        assert self._process is not None
        self._up.clear()
        self._process.kill()
        self._end()

    def stop(self) -> int:
        """Ends it as it wants to be ended."""
        assert self._process is not None
        self._up.clear()
        self._process.terminate()
        return self._end()

    def is_up(self) -> bool:
        return self._up.is_set()

    def wait_up(self) -> None:
        assert self._up.wait(PATIENCE_S), f"{self.name} is down and nobody starts it"

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _end(self) -> int:
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        self._join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        return code

    def _drain(self, read: Callable[[], object]) -> None:
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._drains.append(thread)

    def _hear(self, pipe: Any) -> None:
        for line in pipe:
            self.said = (self.said + line)[-100_000:]

    def _join(self) -> None:
        for thread in self._drains:
            thread.join(PATIENCE_S)
        self._drains.clear()

    # --- its API -------------------------------------------------------------------------------

    def client(self) -> Client:
        return Client(f"unix:{homes.socket_path(HomePaths(self.home))}", read_ms=30_000)

    def get(self, path: str) -> Any:
        with closing(self.client()) as client:
            return msgspec.json.decode(client.call("GET", path).body)

    def post(self, path: str, body: object) -> bytes:
        with closing(self.client()) as client:
            answer = client.call(
                "POST",
                path,
                body=msgspec.json.encode(body),
                headers=_JSON,
                bytes_max=64_000_000,
                read_ms=PATIENCE_S * 1000,
            )
            return answer.body

    def head(self) -> int:
        head: int = self.get("/v1/log")["head"]
        return head

    def links(self) -> dict[str, LinkState]:
        found = msgspec.convert(self.get("/v1/links")["links"], list[LinkState])
        return {link.name: link for link in found}

    def readers(self) -> dict[str, Reader]:
        found = msgspec.convert(self.get("/v1/consumers")["consumers"], list[Reader])
        return {reader.name: reader for reader in found}

    def read(self, upto: int, *, start: int = 1) -> list[Entry]:
        """Reads the log, as a consumer does: waits until it has come so far, and takes what is
        there beyond.
        """
        self.post("/v1/consumers", {"consumer": "auditor"})
        found: list[Entry] = []
        tries = QUIET_MAX
        while True:
            ask = {
                "consumer": "auditor",
                "limit": 10_000,
                "wait_ms": 20_000 if start <= upto else 0,
                "from": start,
            }
            batch = msgspec.json.decode(self.post("/v1/facts/fetch", ask), type=_Fetched)
            if not batch.entries:
                if start > upto:
                    return found
                tries -= 1
                assert tries, (
                    f"{self.name} has {start - 1} of {upto} and gets no more: {self.links()}"
                )
                continue
            found += batch.entries
            start, tries = batch.upto + 1, QUIET_MAX


_JSON = {"Content-Type": "application/json"}
_LINES = {"Content-Type": "application/x-ndjson"}


@dataclass
class Writer:
    """Appends facts to a zone, batch by batch, whatever happens to it."""

    zone: Zone
    batches: int
    size: int
    seed: object
    acknowledged: list[str] = field(default_factory=list)
    """Ids, in the order in which they were sent."""
    retries: int = 0
    error: BaseException | None = None
    _permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _moved: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name=f"writer {self.zone.name}", daemon=True
        )
        self._thread.start()

    def allow(self, batches: int) -> None:
        """Lets it write so many more: it must not be done before the faults have begun."""
        self._permits.release(batches)

    def join(self) -> None:
        self.allow(self.batches)
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the writer of {self.zone.name} hangs"
        if self.error is not None:
            raise self.error

    def wait_for(self, count: int) -> None:
        """Until so many facts are acknowledged, or it has ended."""
        with self._moved:
            done = self._moved.wait_for(
                lambda: len(self.acknowledged) >= count or not self._running(), PATIENCE_S
            )
        assert done, f"the writer of {self.zone.name} does not get on"

    @property
    def total(self) -> int:
        return self.batches * self.size

    def _running(self) -> bool:
        return self.error is None and len(self.acknowledged) < self.total

    def _run(self) -> None:
        try:
            rng = random.Random(f"{self.seed} {self.zone.name}")
            for number in range(self.batches):
                assert self._permits.acquire(timeout=PATIENCE_S)
                ids = [
                    id_text(uuid7(1_700_000_000_000, rng.randbytes(10))) for _ in range(self.size)
                ]
                self._append(number, ids)
                with self._moved:
                    self.acknowledged += ids
                    self._moved.notify_all()
        except BaseException as error:
            with self._moved:
                self.error = error
                self._moved.notify_all()

    def _append(self, number: int, ids: Sequence[str]) -> None:
        lines = [
            {
                "id": id,
                "mesh": MESH,
                "subject": f"{self.zone.name}/{number}",
                "predicate": "counts",
                "object": place,
            }
            for place, id in enumerate(ids)
        ]
        body = b"\n".join(msgspec.json.encode(line) for line in lines)
        while True:
            self.zone.wait_up()
            try:
                with closing(self.zone.client()) as client:
                    answer = client.call("POST", "/v1/facts/append", body=body, headers=_LINES)
            except NOT_NOW:
                self.retries += 1
                continue
            results = msgspec.json.decode(answer.body)["results"]
            assert len(results) == len(ids)
            failed = [result for result in results if "error" in result]
            if not failed:
                return
            codes = {result["error"]["code"] for result in failed}
            assert codes <= {error.code for error in NOT_NOW}, failed[:3]
            self.retries += 1


class Zones:
    """A few zones, and a line with a proxy for each link."""

    def __init__(
        self,
        folder: Path,
        *names: str,
        links: Sequence[tuple[str, str]],
        carries: str = "own",
        sync: str = "full",
    ) -> None:
        """A link is (who reads, whom)."""
        self._ending = ExitStack()
        self.zones = {name: Zone(folder / name, name, sync) for name in names}
        self.pairs = list(links)
        self.lines: dict[tuple[str, str], FaultProxy] = {}
        for reader, source in links:
            proxy = self._ending.enter_context(FaultProxy(("127.0.0.1", 1)))
            self.lines[reader, source] = proxy
            self.zones[source].proxies.append(proxy)
            self._join(reader, source, proxy, carries, sync)

    def _join(self, reader: str, source: str, proxy: FaultProxy, carries: str, sync: str) -> None:
        here, there = self.zones[reader], self.zones[source]
        with holdfast.open(there.home, sync=sync) as node:
            Trust(node._engine, HomePaths(there.home)).trust(here.card, reads=[MESH])
        with holdfast.open(here.home, sync=sync) as node:
            trust = Trust(node._engine, HomePaths(here.home))
            trust.trust(there.card)
            url = f"https://127.0.0.1:{proxy.address[1]}"
            links = Links(node._engine, trust)
            links.add(f"from-{source}", url, source, meshes=[MESH], carries=[carries])

    def __getitem__(self, name: str) -> Zone:
        return self.zones[name]

    def line(self, reader: str, source: str) -> FaultProxy:
        """The way on which one zone reads another."""
        return self.lines[reader, source]

    def heal(self) -> None:
        """No more faults; every zone is up, and every link connects anew."""
        for proxy in self.lines.values():
            proxy.heal()
        for zone in self.zones.values():
            if not zone.is_up():
                zone.start()
        self.connect_anew()

    def connect_anew(self) -> None:
        """Nobody waits for an answer that was held back, nor after many failures, nor for the end
        of a long poll: a reader that comes anew is told at once how far there is to read.
        """
        for proxy in self.lines.values():
            proxy.cut()
        for verb in ("pause", "resume"):
            for zone in self.zones.values():
                for name in zone.links():
                    zone.post(f"/v1/links/{name}/{verb}", {})

    def __enter__(self) -> Zones:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for zone in self.zones.values():
            zone.close()
        self._ending.close()


@contextmanager
def writing(zones: Zones, batches: int, size: int, seed: object) -> Iterator[dict[str, Writer]]:
    """A writer at every zone, until all they had to write is acknowledged."""
    writers = {name: Writer(zone, batches, size, f"{seed}") for name, zone in zones.zones.items()}
    for writer in writers.values():
        writer.start()
    yield writers
    zones.heal()
    for writer in writers.values():
        writer.join()
