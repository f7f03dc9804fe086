"""The other node of a link, as the one that pulls sees it.

Before anything is asked for, both say hello (see `rules.keys`): the other node must prove one of
the keys that are pinned for its zone, over the certificate that we saw on our own connection. What
was proved holds for that certificate only, so a connection that shows another one is not spoken on.

There are two connections: the long wait for news goes on over one, everything else over the other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.protocol.commit_page import CommitsHeld, StateObject
from holdfast.protocol.link_snapshot import LinkSnapshotPart, SnapshotPartAsked, decode_part
from holdfast.protocol.log_wire import (
    JSON,
    MSGPACK,
    Batch,
    Confirmation,
    Fetch,
    Registration,
    batch_cut,
    decode_batch,
)
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    NotFound,
    UnknownObject,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.keys import HelloTranscript, is_good
from holdfast.rules.limits import (
    COMMIT_PAGE_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    FETCH_BYTES_MAX,
    LINK_CONNECT_MS_MAX,
    LINK_READ_MS_MAX,
    LINK_SNAPSHOT_PART_BYTES_MAX,
    MIB,
)
from holdfast.rules.links import compression_pays
from holdfast.rules.rows import ZoneRow
from holdfast.transport.handshake import ClientSession, Seed, handshake, require_proof
from holdfast.transport.http_client import AnswerCut, Client, bearer
from holdfast.transport.remote_errors import HttpAnswer
from holdfast.transport.session_client import SessionClient
from holdfast.transport.tls import client_context

_BATCH_BYTES_MAX: Final = FETCH_BYTES_MAX + ENVELOPE_BYTES_MAX + MIB
_COMPARE: Final = (
    "compare the cards: on that node run: `holdfast peer card`; here: holdfast peer zones"
)


class _Registered(msgspec.Struct):
    """What the answer to a registration says of the log."""

    frontier: int = 0
    lag: int = 0
    beyond: list[tuple[int, int]] = []


class PeerClient:
    """What a link needs of the other node. Thread-safe; `abort` ends it for good."""

    def __init__(
        self,
        url: str,
        *,
        us: tuple[str, Seed],
        pinned: Callable[[], ZoneRow],
        token: str | None = None,
        connect_ms: int = LINK_CONNECT_MS_MAX,
        read_ms: int = LINK_READ_MS_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`us` is our name and our seed; `pinned` the zone that must be there, looked up anew for
        every hello. With a `token` there is no hello: for a node on the same machine.
        """
        context = client_context()
        self._reading = Client(url, connect_ms=connect_ms, read_ms=read_ms, context=context)
        self._export = Client(url, connect_ms=connect_ms, read_ms=read_ms, context=context)
        address = self._export.address
        if token is None and address.scheme != "https":
            raise BadInput(f"{address} is not encrypted", hint="use an https address")
        if token is not None and (address.scheme == "https" or not address.is_secret):
            # Nobody would have proved to be the one that the token is meant for.
            raise BadInput("a token is for nodes on this machine", hint="leave it out: use keys")
        self._us, self._seed = us
        self._pinned = pinned
        self._compress = False
        self._read_ms = read_ms
        self._now_ms = now_ms
        fixed = None if token is None else ClientSession(bearer(token), None)
        self._calls = SessionClient(self._export, self._greet, fixed=fixed)

    # --- what a link asks for ------------------------------------------------------------------

    def hello(self) -> None:
        """Gets a new session. Every other call does this by itself when it is needed."""
        self._calls.hello()

    def ping(self) -> tuple[float, float]:
        """Milliseconds until both sides had said hello, and there and back after that."""
        return self._calls.ping()

    def register(self, registration: Registration) -> int:
        """Returns the last offset of the log there."""
        found = self._post("/v1/consumers", registration).json(_Registered)
        return found.frontier + sum(end - start for start, end in found.beyond) + found.lag

    def fetch(self, fetch: Fetch) -> Batch:
        """Waits up to `fetch.wait_ms` for news, on a connection of its own. A line that turns out
        to be slow is asked for compressed batches from then on. `BatchCut` if it breaks in the
        middle of one.
        """
        begun = time.monotonic()
        try:
            answer = self._post(
                "/v1/facts/fetch",
                fetch,
                over=self._reading,
                accept=MSGPACK,
                bytes_max=_BATCH_BYTES_MAX,
                read_ms=self._read_ms + fetch.wait_ms,
                gzip=self._compress,
            )
        except Unreachable as error:
            cut = error.__cause__
            if isinstance(cut, AnswerCut) and cut.status == 200:
                raise batch_cut(error, cut.partial) from error
            raise
        took_ms = (time.monotonic() - begun) * 1000
        self._compress = self._compress or compression_pays(len(answer.body), took_ms)
        return decode_batch(answer.msgpack())

    def confirm(self, confirmation: Confirmation) -> None:
        self._post("/v1/facts/confirm", confirmation)

    def commits_held(self) -> dict[str, int]:
        """How far the node is in the orders of meshes with voters; empty if it is of a version that
        knows of none.
        """
        try:
            return self._calls.call("GET", "/v1/commits").json(CommitsHeld).commits
        except NotFound:
            return {}

    def commits_page(self, mesh: str, first: int) -> bytes:
        path = f"/v1/commits/page?mesh={quote(mesh, safe='')}&from={first}"
        return self._calls.call("GET", path, bytes_max=COMMIT_PAGE_BYTES_MAX).msgpack()

    def committed_state(self, mesh: str, have: int) -> StateObject:
        """An object with everything that the other node has of an order."""
        path = f"/v1/commits/state?mesh={quote(mesh, safe='')}&have={have}"
        return self._calls.call("GET", path).json(StateObject)

    def snapshot_part(self, asked: SnapshotPartAsked) -> LinkSnapshotPart:
        """A part of what the tables of the other node show and its log no longer holds."""
        answer = self._post(
            "/v1/log/snapshot", asked, accept=MSGPACK, bytes_max=LINK_SNAPSHOT_PART_BYTES_MAX
        )
        return decode_part(answer.msgpack())

    def retire(self, consumer: str) -> None:
        self._calls.call("DELETE", f"/v1/consumers/{quote(consumer, safe='')}")

    def object_size(self, sha: str) -> int | None:
        """None if the other node does not have it."""
        return self._calls.object_size(f"/v1/objects/{sha}")

    def object(self, sha: str, start: int, size: int) -> bytes:
        """`size` bytes of an object from `start` on, or what came of them before the line broke.
        UnknownObject if there is none. The caller checks the hash of the whole.
        """
        assert start >= 0
        assert size >= 1
        wanted = f"bytes={start}-{start + size - 1}"
        try:
            answer = self._calls.call(
                "GET", f"/v1/objects/{sha}", headers={"Range": wanted}, bytes_max=size
            )
        except NotFound as error:
            raise UnknownObject(error.message) from None
        except Unreachable as error:
            cut = error.__cause__
            if not isinstance(cut, AnswerCut) or not cut.partial:
                raise
            return self._piece(cut.status, cut.headers, cut.partial, start)
        return self._piece(answer.status, answer.headers, answer.body, start)

    def _piece(self, status: int, headers: Mapping[str, str], body: bytes, start: int) -> bytes:
        """A piece, or its beginning, if it is the one that was asked for."""
        if status == 206:
            given = headers.get("content-range", "").partition("/")[0]
            ends = re.fullmatch(rf"bytes {start}-(\d{{1,19}})", given)
            if ends is None or int(ends[1]) < start + len(body) - 1:
                raise BadAnswer(f"{self._export.address} gives another piece than asked for")
        elif start:
            raise BadAnswer(f"{self._export.address} gives no pieces of objects")
        return body

    def abort(self) -> None:
        """From any thread: a call that waits fails at once, and so does every later one."""
        self._reading.abort()
        self._export.abort()

    def close(self) -> None:
        self._reading.close()
        self._export.close()

    def _post(
        self, path: str, document: msgspec.Struct, *, accept: str = JSON, **more: Any
    ) -> HttpAnswer:
        headers = {"Accept": accept, "Content-Type": JSON}
        body = msgspec.json.encode(document)
        return self._calls.call("POST", path, body=body, headers=headers, **more)

    # --- the hello -----------------------------------------------------------------------------

    def _greet(self) -> ClientSession:
        row = self._pinned()
        if row.blocked_at is not None:
            raise ZoneNotTrusted(
                f"zone {row.name!r} is blocked here",
                hint="trust it again with: holdfast peer trust CARD",
            )

        def check(hello: HelloTranscript, proof: bytes) -> None:
            self._check(row, hello, proof)

        return handshake(self._export, self._us, self._seed, check, plain=False)

    def _check(self, row: ZoneRow, hello: HelloTranscript, proof: bytes) -> None:
        """Is it the zone that is pinned, by one of its keys, on this very connection?"""
        who = f"{self._export.address} says that it is {hello.server_zone!r}"
        if hello.server_zone != row.name:
            raise ZoneNotTrusted(f"{who}, but the link is to {row.name!r}", hint=_COMPARE)
        now = self._now_ms()
        if not any(known.key == hello.server_key and is_good(known, now) for known in row.keys):
            raise ZoneNotTrusted(f"{who}, by a key that is not trusted here", hint=_COMPARE)
        require_proof(hello, proof, who)
