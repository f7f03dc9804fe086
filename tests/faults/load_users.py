"""Who uses the zones under load: who writes, who reads, who only looks, and who hangs up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from http.client import HTTPConnection, HTTPException

import msgspec
import pyarrow.ipc

from faults.load import Driver
from holdfast.protocol.log_wire import ARROW, NDJSON
from holdfast.rules.errors import StoreBusy, Truncated, UnknownObject, Unreachable
from holdfast.storage.files.home import HomePaths
from support.daemon import connect

AWAY_LAG = 1500
"""So many entries are kept for the reader that stays away."""
BATCH = 30
OBJECT_BYTES = (100_000, 300_000)


# --- who writes ----------------------------------------------------------------------------------


class Batches(Driver):
    """Appends many facts in a call."""

    every_s = 0.04

    def turn(self) -> None:
        ids = [self.new_id() for _ in range(BATCH)]
        while ids:
            body = b"\n".join(msgspec.json.encode(self.fact(id=id)) for id in ids)
            answer = self.ask("POST", "/v1/facts/append", body, content_type=NDJSON)
            results = msgspec.json.decode(answer.body)["results"]
            failed = {
                id: result["error"]["code"]
                for id, result in zip(ids, results, strict=True)
                if "error" in result
            }
            assert set(failed.values()) <= {StoreBusy.code}, failed
            self.ledger.wrote(id for id in ids if id not in failed)
            self.busy += bool(failed)
            ids = list(failed)


class Singles(Driver):
    """Appends one fact after the other."""

    every_s = 0.003

    def turn(self) -> None:
        id = self.new_id()
        body = msgspec.json.encode(self.fact())
        self.ask("POST", "/v1/facts/append", body, idempotency_key=id)
        self.ledger.wrote([id])


class Objects(Driver):
    """Puts objects and appends facts that name them. Some come again: a sweep may be about to take
    the old one away.
    """

    every_s = 0.1

    def turn(self) -> None:
        if self.turns % 4 == 0:
            self._content = self.rng.randbytes(self.rng.randint(*OBJECT_BYTES))
        id, sha = self.new_id(), sha256(self._content).hexdigest()
        fact = msgspec.json.encode(self.fact(objects=[sha]))
        while True:
            self.ask("PUT", f"/v1/objects/{sha}", self._content)
            try:
                self.ask("POST", "/v1/facts/append", fact, idempotency_key=id)
                break
            except UnknownObject:
                continue  # swept in between, as one that nothing had named for long enough
        self.ledger.wrote([id])
        self.zone.latest_object = sha


# --- who reads -----------------------------------------------------------------------------------


class _Read(msgspec.Struct):
    offset: int
    id: str
    objects: list[str] = []


class _Batch(msgspec.Struct):
    upto: int
    entries: list[_Read]


class Auditor(Driver):
    """Reads all of the log, confirms it, and tells the ledger."""

    every_s = 0.0

    def begin(self) -> None:
        self.post("/v1/consumers", {"consumer": "auditor"})
        self._upto = 0
        self._blobs = HomePaths(self.zone.home).blobs

    def turn(self) -> None:
        ask = {"consumer": "auditor", "limit": 2000, "wait_ms": 500}
        raw = self.ask("POST", "/v1/facts/fetch", msgspec.json.encode(ask)).body
        batch = msgspec.json.decode(raw, type=_Batch)
        for entry in batch.entries:
            self._upto += 1
            assert entry.offset == self._upto, f"{self.name}: a gap before {entry.offset}"
            for sha in entry.objects:
                # Not confirmed yet: so it is held, here as where it was written.
                here = (self._blobs / sha[:2] / sha).exists()
                assert here, f"{self.name}: {sha} is not there, and {entry.id} names it"
        if batch.entries:
            self.ledger.saw(self.zone.name, [entry.id for entry in batch.entries])
            self.post("/v1/facts/confirm", {"consumer": "auditor", "offset": batch.upto})


class Away(Driver):
    """Registers a reader that never comes. When it was given up, another takes its place."""

    every_s = 0.5
    reader = "away"
    given_up = -1

    def turn(self) -> None:
        found = self.get("/v1/consumers")["consumers"]
        if all(reader["name"] != self.reader for reader in found):
            self.given_up += 1
            self.post("/v1/consumers", {"consumer": self.reader, "retire_lag": AWAY_LAG})


class Watcher(Driver):
    """Listens to what happens, without a place of its own: the log may be cut before it."""

    every_s = 0.0
    heard = 0

    def turn(self) -> None:
        self.requests += 1
        last, offset, failed = 0, 0, False
        for line in _lines(self.client.stream("GET", "/v1/events")):
            if line.startswith(b"id: "):
                offset = int(line.rpartition(b":")[2])
            elif line == b"event: entry":
                assert offset > last, f"{self.name}: {offset} after {last}"
                last = offset
                self.heard += 1
            elif line == b"event: error":
                failed = True
            elif failed and line.startswith(b"data: "):
                assert Truncated.code.encode() in line, line
            if self._stop.is_set():
                return

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self.client.abort()


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


class Ranges(Driver):
    """Reads what the log holds as JSON lines and as Arrow, from another machine."""

    every_s = 0.3
    remote = True

    def turn(self) -> None:
        log = self.get("/v1/log")
        start, stop = max(log["first"], log["head"] - 1000), log["head"] + 1
        try:
            rows = self._rows(f"/v1/facts/range?from={start}&to={stop}")
        except (Truncated, Unreachable):
            # Cut under it: before it began, or in the middle, and then so is the answer.
            if self.zone.leaving.is_set():
                raise
            assert self.get("/v1/log")["first"] > start
        else:
            assert rows == stop - start

    def _rows(self, path: str) -> int:
        if self.turns % 2:
            stream = self.ask("GET", path, accept=ARROW).body
            rows: int = pyarrow.ipc.open_stream(stream).read_all().num_rows
            return rows
        return self.ask("GET", path, accept=NDJSON).body.count(b"\n")


class Scraper(Driver):
    """Looks at everything that there is to look at."""

    every_s = 0.2
    paths = ("/metrics", "/v1/status", "/v1/links", "/readyz", "/v1/consumers", "/openapi.json")

    def turn(self) -> None:
        assert self.ask("GET", self.paths[self.turns % len(self.paths)]).body


class Prober(Driver):
    """Makes many small calls: what is lost with each of them adds up."""

    every_s = 0.02
    calls: tuple[tuple[str, str, dict[str, object]], ...] = (
        *(("GET", "/v1/log", {}), ("GET", "/healthz", {}), ("GET", "/readyz", {})),
        ("POST", "/v1/facts/fetch", {"consumer": "auditor", "limit": 1}),
    )
    repeats = 10

    def begin(self) -> None:
        self.post("/v1/consumers", {"consumer": "auditor"})  # whoever of the two comes first

    def turn(self) -> None:
        """All on one connection, without waiting for the answers; the last one closes it."""
        asked = [self._head(*call) for call in self.calls] * self.repeats
        asked.append(self._head("GET", "/healthz", {}, "connection: close\r\n"))
        self.requests += len(asked)
        said = b""
        with closing(connect(self.zone.unix)) as connection:
            connection.connect()
            connection.sock.sendall(b"".join(asked))
            while piece := connection.sock.recv(1_000_000):
                said += piece
        answers = said.count(b"HTTP/1.1 200 OK\r\n")
        assert answers == len(asked) or self.zone.leaving.is_set(), said[-1000:]

    @staticmethod
    def _head(method: str, path: str, body: dict[str, object], more: str = "") -> bytes:
        said = msgspec.json.encode(body) if body else b""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(said)}\r\n{more}\r\n"
        )
        return head.encode() + said


class Quitter(Driver):
    """Asks, and hangs up in the middle: of a long poll, a download, a ranged read, an upload."""

    every_s = 0.05
    remote = True
    reader = "token:load/quitter"

    def begin(self) -> None:
        nothing = {"subjects": ["nobody/"]}
        self.post("/v1/consumers", {"consumer": self.reader, "filter": nothing})

    def turn(self) -> None:
        self.requests += 1
        polls = [self._poll] * 4
        quits = (*polls, self._download, self._range, self._upload)
        quit = quits[self.turns % len(quits)]
        local = quit == self._upload
        with closing(connect(self.zone.unix if local else self.zone.tls)) as connection:
            quit(connection)

    def _poll(self, connection: HTTPConnection) -> None:
        # What it does not want is confirmed too: it must not hold the log.
        head = self.get("/v1/log")["head"]
        ask = {"consumer": self.reader, "wait_ms": 20_000, "confirm": head}
        connection.request("POST", "/v1/facts/fetch", msgspec.json.encode(ask), self._bearer())
        self._stop.wait(self.rng.random() * 0.1)

    def _download(self, connection: HTTPConnection) -> None:
        connection.request("GET", f"/v1/objects/{self.zone.latest_object}", None, self._bearer())
        connection.getresponse().read(1000)

    def _range(self, connection: HTTPConnection) -> None:
        connection.request("GET", "/v1/facts/range", None, self._bearer())
        with suppress(HTTPException):  # the log was cut under it, and the node was first to go
            connection.getresponse().read(1000)

    def _upload(self, connection: HTTPConnection) -> None:
        connection.putrequest("PUT", "/v1/objects")
        connection.putheader("content-length", "300000")
        connection.endheaders(b"x" * 100_000)

    def _bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.zone.token}"}


DRIVERS: tuple[type[Driver], ...] = (
    *(Batches, Singles, Objects),
    *(Auditor, Away, Watcher, Ranges, Scraper, Prober, Quitter),
)
