"""Logs that are read over HTTP as Arrow: that of a node here, that of a broker in `broker.py`.

A stream counts as complete only with its end mark, and each batch only if its offsets are in order.
When the server does not answer, or the connection breaks in the middle, the reader asks again from
the first offset that did not arrive, after a wait that grows.
"""

from __future__ import annotations

import random
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa
from pyarrow import ipc

from holdfast.pipeline.logs.arrow import LOG, in_order, place_columns, texts, times, uuid_texts
from holdfast.pipeline.logs.log import (
    LogBounds,
    OpenedLog,
    ReadCommit,
    check_range,
    located,
    reading,
)
from holdfast.protocol.commit_page import CommitsHeld, decode_page
from holdfast.protocol.log_wire import ARROW, Confirmation, Fetch, Registration
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    HoldfastError,
    NotFound,
    TooMany,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.limits import (
    BODY_BYTES_MAX,
    COMMIT_PAGE_BYTES,
    ENVELOPE_BYTES_MAX,
    LINK_READ_MS_MAX,
    LONG_POLL_MS_DEFAULT,
    MIB,
    SECOND_MS,
    SOURCE_RETRIES,
)
from holdfast.transport.deadline_socket import TlsSocket
from holdfast.transport.http_client import Client
from holdfast.transport.remote_errors import HttpAnswer
from holdfast.transport.tls import (
    certificate_digest,
    client_context,
    digest_of,
    trusting_context,
)

T = TypeVar("T")

_FORMAT: Final = b"1"
_END_MARK: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WIRE: Final = tuple(LOG.names[2:])
_TYPES: Final = [
    {"id": pa.binary(16), "recorded_at": pa.timestamp("ms", tz="UTC")}.get(
        name, LOG.field(name).type
    )
    for name in _WIRE
]
_COMMITS_BYTES_MAX: Final = COMMIT_PAGE_BYTES + ENVELOPE_BYTES_MAX + MIB
_AGAIN: Final = (Unreachable, TooMany)
"""Errors that may pass by themselves: the request is sent again."""


class ServedLog(OpenedLog, ABC):
    """A log behind a server: requests are repeated, and only complete answers count."""

    def __init__(self, location: str, options: dict[str, str]) -> None:
        super().__init__(location, options)
        self._retries = _retries(options)

    def place(self) -> LogBounds:
        return self._bounds()

    @abstractmethod
    def _bounds(self) -> LogBounds:
        """Asks the server where the log begins and ends."""

    @abstractmethod
    def _ranged(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Requests these entries; gives the pieces of the answer and closes it in any case."""

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        if start >= stop:
            return
        name = self._options.get("name", "")
        with reading(name, self.location, epoch, start, stop):
            place = self._bounds()
        name = place.log
        with reading(name, self.location, epoch, start, stop):
            # A node cuts a range at its head, and within an epoch the head only grows.
            check_range(place, epoch, start, stop)
        failures = 0
        while True:
            try:
                for batch in self._stream(place, start, stop, filter):
                    failures = 0
                    start = batch.column("offset")[-1].as_py() + 1
                    yield batch
                return
            except HoldfastError as error:
                failures += 1
                if failures > self._retries or not isinstance(error, _AGAIN):
                    # Names only the offsets that did not arrive: the caller has the others.
                    raise located(error, name, self.location, epoch, start, stop) from error
            self._pause(failures)

    def _retrying(self, request: Callable[[], T]) -> T:
        """Sends a request that may be sent twice, again after each passing error."""
        failures = 0
        while True:
            try:
                return request()
            except _AGAIN:
                failures += 1
                if failures > self._retries:
                    raise
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        """Waits before the next try. Unreachable if the log is closed meanwhile."""
        if self._closed.wait(backoff_ms(failures, random.random()) / SECOND_MS):
            raise Unreachable(f"{self.location} was not asked again: its log was closed")

    def _stream(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> Iterator[pa.RecordBatch]:
        # Closed in any case: otherwise the connection would wait for the rest to be read.
        with self._ranged(place, start, stop, filter) as pieces:
            body = _Body(pieces)
            try:
                stream = ipc.open_stream(body)
                _check_stream(stream.schema, place.epoch)
                while (wire := _next(stream)) is not None:
                    batch = _batch(place, wire)
                    if not in_order(batch.column("offset"), start, stop):
                        raise BadAnswer("the offsets of a batch are out of order")
                    if batch.num_rows:
                        start = batch.column("offset")[-1].as_py() + 1
                        yield batch
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
                raise BadAnswer(f"{self.location} sends what is not Arrow: {error}") from None
            if not body.is_whole():
                raise Unreachable(f"{self.location} broke off in the middle of a range")


class NodeLog(ServedLog):
    """The log of a node that answers at an address."""

    def __init__(self, location: str, options: dict[str, str]) -> None:
        super().__init__(location, options)
        self._client = Client(location, token=_token(options), context=_context(options))

    def _bounds(self) -> LogBounds:
        log = self.get("/v1/log").json(_LogDocument)
        return LogBounds(self._options.get("name") or log.peer, log.epoch, log.first, log.head)

    def commits(self, known: Mapping[str, int]) -> Iterator[list[ReadCommit]]:
        try:
            held = self.get("/v1/commits").json(CommitsHeld).commits
        except NotFound:
            return  # a node of a version without quorums
        for mesh, last in held.items():
            at = known.get(mesh, 0) + 1
            while at <= last:
                path = f"/v1/commits/page?mesh={quote(mesh, safe='')}&from={at}"
                page = decode_page(self.get(path, bytes_max=_COMMITS_BYTES_MAX).msgpack())
                if page.mesh != mesh or page.first != at:
                    raise BadAnswer(f"{self.location} gives other commits than asked for")
                if not page.lines:
                    break
                yield [ReadCommit(line.record_bytes, line.raw) for line in page.lines]
                at += len(page.lines)

    def register(self, consumer: str, start: int) -> None:
        self._post("/v1/consumers", Registration(consumer=consumer, start=start))

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        confirmation = Confirmation(consumer=consumer, offset=offset, epoch=epoch)
        self._post("/v1/facts/confirm", confirmation)

    def wait(self, consumer: str, place: LogBounds, patience_ms: int) -> None:
        """The node answers as soon as it has one more entry."""
        ask = Fetch(
            consumer=consumer,
            limit=1,
            wait_ms=min(patience_ms, LONG_POLL_MS_DEFAULT),
            start=place.head + 1,
            epoch=place.epoch,
        )
        raw = msgspec.json.encode(ask)
        read_ms = LINK_READ_MS_MAX + ask.wait_ms
        if not self._closed.is_set():
            self._client.call("POST", "/v1/facts/fetch", body=raw, read_ms=read_ms)

    def close(self) -> None:
        super().close()
        # A call that waits in another thread ends with it.
        self._client.abort()
        self._client.close()

    def get(
        self, path: str, *, bytes_max: int = BODY_BYTES_MAX, read_ms: int | None = None
    ) -> HttpAnswer:
        """Any other GET to the node, with the same retries."""
        return self._retrying(
            lambda: self._client.call("GET", path, bytes_max=bytes_max, read_ms=read_ms)
        )

    def _post(self, path: str, body: msgspec.Struct) -> None:
        raw = msgspec.json.encode(body)
        # To register or confirm twice does no harm.
        self._retrying(lambda: self._client.call("POST", path, body=raw))

    def _ranged(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> AbstractContextManager[Iterator[bytes]]:
        query = [("from", start), ("to", stop), ("epoch", place.epoch), *_terms(filter)]
        path = f"/v1/facts/range?{urlencode(query)}"
        return closing(self._client.stream("GET", path, headers={"Accept": ARROW}))


class _LogDocument(msgspec.Struct, frozen=True):
    """What `GET /v1/log` answers."""

    peer: str
    epoch: int
    first: int
    head: int


class _Body:
    """The pieces of an answer as a file object for Arrow to read."""

    closed = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._last = b""

    def read(self, size: int = -1) -> bytes:
        taken: list[memoryview] = []
        wanted = size if size >= 0 else 1 << 62
        while wanted:
            if not self._rest:
                piece = next(self._pieces, b"")
                if not piece:
                    break
                self._rest = memoryview(piece)
            part, self._rest = self._rest[:wanted], self._rest[wanted:]
            taken.append(part)
            wanted -= len(part)
        read = b"".join(taken)
        self._last = (self._last + read[-len(_END_MARK) :])[-len(_END_MARK) :]
        return read

    def is_whole(self) -> bool:
        """Whether the answer ended with the end mark of a stream and nothing after it."""
        return self._last == _END_MARK and not self.read()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to do: the request that gives the pieces closes them."""


def _next(stream: Any) -> pa.RecordBatch | None:
    try:
        return stream.read_next_batch()
    except StopIteration:
        return None


def _check_stream(schema: pa.Schema, epoch: int) -> None:
    metadata = schema.metadata or {}
    # A column may be added at the end; anything else is another format.
    known = schema.names[: len(_WIRE)] == list(_WIRE) and schema.types[: len(_WIRE)] == _TYPES
    if metadata.get(b"holdfast.format") != _FORMAT or not known:
        raise BadAnswer("the stream is not in the format that this Holdfast reads")
    if metadata.get(b"holdfast.epoch") != str(epoch).encode():
        raise BadAnswer("the stream is of another epoch than the one that was asked for")


def _batch(place: LogBounds, wire: pa.RecordBatch) -> pa.RecordBatch:
    ids = wire.column("id")
    if ids.type != pa.binary(16) or ids.null_count:
        raise BadAnswer("the ids of a batch have not 16 bytes")
    columns = {name: wire.column(name) for name in _WIRE}
    columns["id"] = uuid_texts(ids.buffers()[1].slice(ids.offset * 16, len(ids) * 16))
    for name in ("mesh", "op", "entity", "origin"):
        columns[name] = texts(columns[name])
    columns["raw"].validate(full=True)  # whoever sends places beyond the bytes would have them read
    columns["recorded_at"] = times(columns["recorded_at"].cast(pa.int64()))
    return pa.RecordBatch.from_arrays(
        [*place_columns(place.log, place.epoch, wire.num_rows), *columns.values()], schema=LOG
    )


def _terms(filter: Filter) -> Iterator[tuple[str, str]]:
    """A filter as parameters of the query."""
    for name, values in (
        ("mesh", filter.meshes),
        ("subject", filter.subjects),
        ("class", filter.classes),
        ("origin", filter.origins),
    ):
        for value in values:
            yield name, value


# --- how a node is reached -----------------------------------------------------------------------


def _retries(options: dict[str, str]) -> int:
    text = options.get("retries", str(SOURCE_RETRIES))
    if not text.isdecimal():
        raise BadInput(f"retries {text!r} is not a number")
    return int(text)


def _token(options: dict[str, str]) -> str | None:
    if "tokenfile" not in options:
        return options.get("token") or None
    path = Path(options["tokenfile"])
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it holds no token"
        raise BadToken(
            f"the token in {path} cannot be read: {reason}",
            hint="the file must be there on every machine that reads for Spark",
        ) from None


def _context(options: dict[str, str]) -> ssl.SSLContext | None:
    """The TLS context for `pin` or `ca`; None to trust the authorities of the system."""
    if "pin" in options:
        return _pinned(_digest(options["pin"]))
    return trusting_context(options["ca"]) if "ca" in options else None


def _digest(pin: str) -> bytes:
    if Path(pin).is_file():
        return certificate_digest(Path(pin))
    try:
        digest = bytes.fromhex(pin.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise BadInput(
            f"pin {pin!r} is neither a SHA-256 nor a file",
            hint="copy tls.crt from the home of that node and name the copy",
        )
    return digest


def _pinned(digest: bytes) -> ssl.SSLContext:
    """A context that accepts exactly one certificate, on every connection."""

    class Pinned(TlsSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            shown = self.getpeercert(binary_form=True)
            if shown is None or digest_of(shown) != digest:
                raise ZoneNotTrusted(
                    "the node shows another certificate than the one that is pinned",
                    hint="the node may have a new certificate, or another machine answers for it",
                )

    context = client_context()
    context.sslsocket_class = Pinned
    return context
