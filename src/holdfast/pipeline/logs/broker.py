"""The log of a mesh at its broker: everything that members handed in, in the order of its numbers.

    broker+https://hub:7421/MESH

The reader is a member with the grant `audit` and proves its key as in every other call: both sides
say hello, the broker proves the key on its card, and then each call carries a session. The key is
read from a file where the log is opened, and goes nowhere else.

A broker removes single messages when they expire, so its offsets have gaps. Gaps from before the
reader registered are skipped. Later ones the broker reports, and they are an error until the reader
says that it knows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec

from holdfast.node.broker_client.client import BrokerClient, card_shown
from holdfast.pipeline.logs.http import ServedLog
from holdfast.pipeline.logs.log import BROKER, LogBounds, LostOffsets
from holdfast.protocol.log_wire import ARROW
from holdfast.rules.errors import BadInput, BadToken, NotTrusted, Truncated, Unreachable
from holdfast.rules.filters import Filter
from holdfast.rules.invites import check_broker_url
from holdfast.rules.names import check_mesh
from holdfast.rules.shown_address import shown_address
from holdfast.storage.files.home import IDENTITY_BYTES, HomePaths
from holdfast.storage.sqlite.snapshot_copy import open_read_only

T = TypeVar("T")

_PEER: Final = "pipeline"
"""The name in our hello. A broker knows members by their keys, not by this name."""
_NO_KEY: Final = "name the home of a member, or a file with its key: the option key_file"


class BrokerLog(ServedLog):
    """A mesh at a broker that answers at an address."""

    def __init__(self, location: str, options: dict[str, str]) -> None:
        super().__init__(location, options)
        self._url, self._mesh = _parts_of(location)
        self._key = _key_path(options)
        self._opened_client: BrokerClient | None = None
        self._known = 0
        """The caller of `place` has heard of what was lost up to this offset."""

    def place(self) -> LogBounds:
        bounds = self._bounds()
        if bounds.lost is not None:
            self._known = max(self._known, bounds.lost.last)
        return bounds

    def _bounds(self) -> LogBounds:
        log = self._ask(_LogDocument, "GET", self._at("log", self._reader()))
        name = self._options.get("name") or log.log
        return LogBounds(name, log.epoch, log.first, log.head, log.lost)

    def register(self, consumer: str, start: int) -> None:
        """From now on the broker reports what it removes before this reader has confirmed it. What
        `place` has reported is accepted; Truncated if more was lost since.
        """
        # A task that reads a range in another process does so under this name too.
        self._options["consumer"] = consumer
        request = {"consumer": consumer, "from": start, "known": self._known}
        lost = self._ask(_Reader, "POST", self._at("consumers"), request).lost
        if lost is not None:
            raise Truncated(
                f"{lost.rows} of the offsets {lost.first} to {lost.last} of the log at "
                f"{self.location} are gone: {consumer!r} had not confirmed them in their time",
                first_available=lost.last + 1,
                hint="take what is missing from members of the mesh, or go on without it",
            )

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        request = {"consumer": consumer, "epoch": epoch, "offset": offset}
        self._ask(_Reader, "POST", self._at("confirm"), request)

    def readers(self) -> dict[str, int]:
        """By name of each reader of this log: the last offset that it has confirmed."""
        readers = self._ask(_Readers, "GET", self._at("consumers")).consumers
        return {reader.name: reader.frontier for reader in readers}

    def close(self) -> None:
        super().close()
        if self._opened_client is not None:
            self._opened_client.close()

    # --- one call ------------------------------------------------------------------------------

    def _ask(
        self, kind: type[T], method: str, path: str, document: dict[str, Any] | None = None
    ) -> T:
        # None of these requests does harm if it is sent twice.
        return self._retrying(lambda: self._client().ask(kind, method, path, document))

    @contextmanager
    def _ranged(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> Iterator[Iterator[bytes]]:
        # The filter is not sent: it only saves work, and everything here is of one mesh.
        query = [("from", start), ("to", stop), ("epoch", place.epoch), *self._reader()]
        if self._known:
            query.append(("known", self._known))
        with self._client().streaming(self._at("range", query), ARROW) as pieces:
            yield _renewing(pieces, self._client().hello)

    def _client(self) -> BrokerClient:
        if self._opened_client is None:
            us = (_PEER, lambda: _seed(self._key))
            card = self._options.get("card") or _card(self._url, self._mesh, self._key)
            if card is None and not self._url.startswith("http:"):
                raise BadInput(
                    f"nothing says by which key the broker at {self._url} is known",
                    hint="give its card, which `holdfast broker status` shows: the option card",
                )
            self._opened_client = BrokerClient(self._url, card or card_shown(self._url, us), us)
        return self._opened_client

    def _reader(self) -> list[tuple[str, Any]]:
        consumer = self._options.get("consumer")
        return [("consumer", consumer)] if consumer else []

    def _at(self, what: str, query: list[tuple[str, Any]] | None = None) -> str:
        path = f"/v1/meshes/{quote(self._mesh, safe='')}/{what}"
        return f"{path}?{urlencode(query)}" if query else path


class _LogDocument(msgspec.Struct, frozen=True):
    log: str
    epoch: int
    first: int
    head: int
    lost: LostOffsets | None = None


class _Reader(msgspec.Struct, frozen=True):
    name: str
    frontier: int
    lost: LostOffsets | None = None


class _Readers(msgspec.Struct, frozen=True):
    consumers: list[_Reader]


def _renewing(pieces: Iterator[bytes], hello: Callable[[], None]) -> Iterator[bytes]:
    """The same pieces. If the session has ended, a new one is made for the next try."""
    try:
        yield from pieces
    except NotTrusted as error:
        hello()
        raise Unreachable(f"the session had ended: {error.message}") from error


# --- how a broker is reached ---------------------------------------------------------------------


def _parts_of(location: str) -> tuple[str, str]:
    """The broker's address and the mesh."""
    url, _, mesh = location.removeprefix(BROKER).rpartition("/")
    if not url or url.endswith("/"):
        raise BadInput(
            f"{shown_address(location)} names no mesh of a broker",
            hint="write broker+https://host:port/MESH",
        )
    return check_broker_url(url), check_mesh(unquote(mesh))


def _key_path(options: dict[str, str]) -> Path:
    path = options.get("keyfile")
    if not path:
        raise BadToken("nobody can read from a broker without a key", hint=_NO_KEY)
    return Path(path)


def _seed(path: Path) -> bytes:
    """The secret key. No error message contains any of it."""
    file = HomePaths(path).identity if path.is_dir() else path
    try:
        with open(file, "rb") as opened:
            seed = opened.read(IDENTITY_BYTES + 1)
    except OSError as error:
        raise BadToken(
            f"the key in {file} cannot be read: {error.strerror}",
            hint="the file must be there on every machine that reads for Spark",
        ) from None
    if len(seed) != IDENTITY_BYTES:
        raise BadToken(f"{file} is not a key of Holdfast", hint=_NO_KEY)
    return seed


def _card(url: str, mesh: str, path: Path) -> str | None:
    """The broker's card, if the home whose key is used shares the mesh at this broker."""
    database = HomePaths(path).database
    if not database.is_file():
        return None
    with open_read_only(database) as reader:
        row = reader.mesh_get(mesh)
    if row is None or row.broker_url is None or row.broker_url.rstrip("/") != url:
        return None
    return row.broker_card
