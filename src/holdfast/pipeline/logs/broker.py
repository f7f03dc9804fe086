"""The log of a mesh at its broker: everything that was handed in there, in the order of its seqs.

    broker+https://hub:7421/MESH

Whoever reads is a member with the grant `audit`, known by its key as in every other call: both
sides say hello, the broker proves the key on its card, and then the call bears a session. The key
is read from a file where the log is opened, and goes nowhere else.

A broker forgets single messages when they had their time, so its offsets have holes. Those that
were there before a reader came are passed over. Of those that came afterwards the broker tells, and
they are an error, until the reader says that it knows.
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
from holdfast.storage.files.home import IDENTITY_BYTES, HomePaths
from holdfast.storage.sqlite.snapshot_copy import open_read_only

T = TypeVar("T")

_US: Final = "pipeline"
"""What we say that we are called. A broker knows members by their keys."""
_NO_KEY: Final = "name the home of a member, or a file with its key: the option key_file"


class BrokerLog(ServedLog):
    """A mesh at a broker that answers at an address."""

    def __init__(self, location: str, options: dict[str, str]) -> None:
        super().__init__(location, options)
        self._url, self._mesh = _parts_of(location)
        self._key = _key_path(options)
        self._calls_made: BrokerClient | None = None
        self._known = 0
        """What was lost up to here has been told, to whoever asked for our place."""

    def place(self) -> LogBounds:
        found = self._stands()
        if found.lost is not None:
            self._known = max(self._known, found.lost.last)
        return found

    def _stands(self) -> LogBounds:
        said = self._ask(_Said, "GET", self._at("log", self._as()))
        name = self._options.get("name") or said.log
        return LogBounds(name, said.epoch, said.first, said.head, said.lost)

    def register(self, consumer: str, start: int) -> None:
        """From now on what goes unconfirmed is told. What we were told of already is forgiven; what
        went since is Truncated.
        """
        # Whoever reads a range in another process does so under this name too.
        self._options["consumer"] = consumer
        asked = {"consumer": consumer, "from": start, "known": self._known}
        lost = self._ask(_Reader, "POST", self._at("consumers"), asked).lost
        if lost is not None:
            raise Truncated(
                f"{lost.rows} of the offsets {lost.first} to {lost.last} of the log at "
                f"{self.location} are gone: {consumer!r} had not confirmed them in their time",
                first_available=lost.last + 1,
                hint="take what is missing from members of the mesh, or go on without it",
            )

    def confirm(self, consumer: str, epoch: int, offset: int) -> None:
        asked = {"consumer": consumer, "epoch": epoch, "offset": offset}
        self._ask(_Reader, "POST", self._at("confirm"), asked)

    def readers(self) -> dict[str, int]:
        """Who reads this log by name, and up to where each has confirmed it."""
        found = self._ask(_Readers, "GET", self._at("consumers")).consumers
        return {one.name: one.frontier for one in found}

    def close(self) -> None:
        super().close()
        if self._calls_made is not None:
            self._calls_made.close()

    # --- one call ------------------------------------------------------------------------------

    def _ask(
        self, kind: type[T], method: str, path: str, document: dict[str, Any] | None = None
    ) -> T:
        # All of them may be done twice.
        return self._patiently(lambda: self._calls().ask(kind, method, path, document))

    @contextmanager
    def _ranged(
        self, place: LogBounds, start: int, stop: int, filter: Filter
    ) -> Iterator[Iterator[bytes]]:
        # A filter only saves work, and a mesh at a broker is one mesh: everything is given.
        query = [("from", start), ("to", stop), ("epoch", place.epoch), *self._as()]
        if self._known:
            query.append(("known", self._known))
        with self._calls().streaming(self._at("range", query), ARROW) as pieces:
            yield _renewing(pieces, self._calls().hello)

    def _calls(self) -> BrokerClient:
        if self._calls_made is None:
            us = (_US, lambda: _seed(self._key))
            card = self._options.get("card") or _card(self._url, self._mesh, self._key)
            if card is None and not self._url.startswith("http:"):
                raise BadInput(
                    f"nothing says by which key the broker at {self._url} is known",
                    hint="give its card, which `holdfast broker status` shows: the option card",
                )
            self._calls_made = BrokerClient(self._url, card or card_shown(self._url, us), us)
        return self._calls_made

    def _as(self) -> list[tuple[str, Any]]:
        consumer = self._options.get("consumer")
        return [("consumer", consumer)] if consumer else []

    def _at(self, what: str, query: list[tuple[str, Any]] | None = None) -> str:
        path = f"/v1/meshes/{quote(self._mesh, safe='')}/{what}"
        return f"{path}?{urlencode(query)}" if query else path


class _Said(msgspec.Struct, frozen=True):
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
    """A session may end between two ranges. Then the next try has a new one."""
    try:
        yield from pieces
    except NotTrusted as error:
        hello()
        raise Unreachable(f"the session had ended: {error.message}") from error


# --- how a broker is reached ---------------------------------------------------------------------


def _parts_of(location: str) -> tuple[str, str]:
    """Where the broker is, and the mesh."""
    url, _, mesh = location.removeprefix(BROKER).rpartition("/")
    if not url or url.endswith("/"):
        raise BadInput(
            f"{location!r} names no mesh of a broker", hint="write broker+https://host:port/MESH"
        )
    return check_broker_url(url), check_mesh(unquote(mesh))


def _key_path(options: dict[str, str]) -> Path:
    said = options.get("keyfile")
    if not said:
        raise BadToken("a broker lets nobody read without a key", hint=_NO_KEY)
    return Path(said)


def _seed(path: Path) -> bytes:
    """The secret itself. Nothing that is told of it holds any of it."""
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
    """The card of the broker, if the home whose key we use shares the mesh there."""
    database = HomePaths(path).database
    if not database.is_file():
        return None
    with open_read_only(database) as reader:
        row = reader.mesh_get(mesh)
    if row is None or row.broker_url is None or row.broker_url.rstrip("/") != url:
        return None
    return row.broker_card
