"""Logs that are read over HTTP as Arrow: that of a node, here, and that of a broker.

A stream is believed only with its end mark, and each batch only if its offsets are in order. When
the node does not answer, or the line breaks in the middle, it is asked again from the first offset
that did not arrive, after a wait that grows.
"""

from __future__ import annotations

import random
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
import pyarrow as pa
from pyarrow import ipc

from holdfast.pipeline.logs.arrow import LOG, TIME, in_order, place_columns, uuid_texts
from holdfast.pipeline.logs.log import (
    LogBounds,
    ReadableLog,
    check_range,
    located,
    open_log,
    reading,
)
from holdfast.protocol.log_wire import ARROW, Confirmation, Registration
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    HoldfastError,
    TooMany,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.limits import BODY_BYTES_MAX, SECOND_MS, SOURCE_RETRIES
from holdfast.transport.http_client import Client
from holdfast.transport.remote_errors import HttpAnswer
from holdfast.transport.tls import certificate_digest, client_context, digest_of

T = TypeVar("T")

_FORMAT: Final = b"1"
_END_MARK: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WIRE: Final = tuple(LOG.names[2:])
_AGAIN: Final = (Unreachable, TooMany)
"""What passes by itself, or may."""


class ServedLog(ABC):
    """A log that somebody serves: asked patiently, and believed only when whole."""

    def __init__(self, location: str, options: dict[str, str]) -> None:
        self.location = location
        self._options = options
        self._retries = _retries(options)
        self._closed = threading.Event()

    def __reduce__(self) -> tuple[Callable[..., ReadableLog], tuple[str, dict[str, str]]]:
        return open_log, (self.location, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def place(self) -> LogBounds:
        return self._stands()

    @abstractmethod
    def _stands(self) -> LogBounds: ...

    @abstractmethod
    def _ranged(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> AbstractContextManager[Iterator[bytes]]:
        """The answer with these entries, piece by piece; it is left behind in any case."""

    def batches(
        self, epoch: int, start: int, stop: int, filter: Filter = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        if start >= stop:
            return
        name = self._options.get("name", "")
        with reading(name, self.location, epoch, start, stop):
            place = self._stands()
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
                    # From where on it is missing: what came before was given.
                    raise located(error, name, self.location, epoch, start, stop) from error
            self._pause(failures)

    def close(self) -> None:
        self._closed.set()

    def _patiently(self, ask: Callable[[], T]) -> T:
        failures = 0
        while True:
            try:
                return ask()
            except _AGAIN:
                failures += 1
                if failures > self._retries:
                    raise
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        """Waits before the next try, unless nobody wants it any more."""
        if self._closed.wait(backoff_ms(failures, random.random()) / SECOND_MS):
            raise Unreachable(f"{self.location} was not asked again: its log was closed")

    def _stream(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> Iterator[pa.RecordBatch]:
        # Left in any case: else the connection would wait for somebody to read the rest.
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

    def _stands(self) -> LogBounds:
        said = self.get("/v1/log").json(_Said)
        return LogBounds(self._options.get("name") or said.peer, said.epoch, said.first, said.head)

    def register(self, consumer: str, start: int) -> None:
        self._post("/v1/consumers", Registration(consumer=consumer, start=start))

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        told = Confirmation(consumer=consumer, offset=offset, epoch=epoch)
        self._post("/v1/facts/confirm", told)

    def close(self) -> None:
        super().close()
        self._client.close()

    def get(
        self, path: str, *, bytes_max: int = BODY_BYTES_MAX, read_ms: int | None = None
    ) -> HttpAnswer:
        """What else the node can be asked, with the same patience."""
        return self._patiently(
            lambda: self._client.call("GET", path, bytes_max=bytes_max, read_ms=read_ms)
        )

    def _post(self, path: str, body: msgspec.Struct) -> None:
        raw = msgspec.json.encode(body)
        # Both may be done twice.
        self._patiently(lambda: self._client.call("POST", path, body=raw))

    def _ranged(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> AbstractContextManager[Iterator[bytes]]:
        query = [("from", start), ("to", stop), ("epoch", place.epoch), *_terms(filter)]
        path = f"/v1/facts/range?{urlencode(query)}"
        return closing(self._client.stream("GET", path, headers={"Accept": ARROW}))


class _Said(msgspec.Struct, frozen=True):
    """What `GET /v1/log` answers."""

    peer: str
    epoch: int
    first: int
    head: int


class _Body:
    """An answer that arrives in pieces, as the file that Arrow reads."""

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
        """Did it end as a stream does, and with it the answer?"""
        return self._last == _END_MARK and not self.read()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Whoever made the pieces ends them."""


def _next(stream: Any) -> pa.RecordBatch | None:
    try:
        return stream.read_next_batch()
    except StopIteration:
        return None


def _check_stream(schema: pa.Schema, epoch: int) -> None:
    told = schema.metadata or {}
    # A column may be added at the end; anything else is another format.
    if told.get(b"holdfast.format") != _FORMAT or tuple(schema.names[: len(_WIRE)]) != _WIRE:
        raise BadAnswer("the stream is not in the format that this Holdfast reads")
    if told.get(b"holdfast.epoch") != str(epoch).encode():
        raise BadAnswer("the stream is of another epoch than the one that was asked for")


def _batch(place: LogBounds, wire: pa.RecordBatch) -> pa.RecordBatch:
    ids = wire.column("id")
    if ids.type != pa.binary(16) or ids.null_count:
        raise BadAnswer("the ids of a batch have not 16 bytes")
    columns = {name: wire.column(name) for name in _WIRE}
    columns["id"] = uuid_texts(ids.buffers()[1].slice(ids.offset * 16, len(ids) * 16))
    columns["recorded_at"] = columns["recorded_at"].cast(TIME)
    return pa.RecordBatch.from_arrays(
        [*place_columns(place.log, place.epoch, wire.num_rows), *columns.values()], schema=LOG
    )


def _terms(filter: Filter) -> Iterator[tuple[str, str]]:
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
    said = options.get("retries", str(SOURCE_RETRIES))
    if not said.isdecimal():
        raise BadInput(f"retries {said!r} is not a number")
    return int(said)


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
    """None: the certificate must be vouched for, as in a browser."""
    if "pin" in options:
        return _pinned(_digest(options["pin"]))
    if "ca" not in options:
        return None
    try:
        return ssl.create_default_context(cafile=options["ca"])
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{options['ca']} holds no certificates: {error}") from None


def _digest(said: str) -> bytes:
    if Path(said).is_file():
        return certificate_digest(Path(said))
    try:
        digest = bytes.fromhex(said.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise BadInput(
            f"pin {said!r} is neither a SHA-256 nor a file",
            hint="copy tls.crt from the home of that node and name the copy",
        )
    return digest


def _pinned(digest: bytes) -> ssl.SSLContext:
    """Takes one certificate and no other, on every connection."""

    class Pinned(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            shown = self.getpeercert(binary_form=True)
            if shown is None or digest_of(shown) != digest:
                raise ZoneNotTrusted(
                    "the node shows another certificate than the one that is pinned",
                    hint="it may have been made anew, or somebody stands between",
                )

    context = client_context()
    context.sslsocket_class = Pinned
    return context
