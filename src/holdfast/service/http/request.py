"""One request: its caller, its parameters and body, and how many there may be at once.

The listener decides how a caller proves who it is; see `node.http.context` and
`broker.http.context`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.protocol.log_wire import JSON, MSGPACK
from holdfast.rules import limits
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    BodyTooLarge,
    NotGranted,
    OverLimit,
    TooMany,
    TooSlow,
)
from holdfast.service.caller import Caller
from holdfast.transport.http_protocol import ENDED
from holdfast.transport.http_server import LISTENER

if TYPE_CHECKING:
    from holdfast.service.http.route import Route, ServedApp

T = TypeVar("T")
A = TypeVar("A", bound="ServedApp")

ANYONE: Final = Caller(kind="anyone", reads=frozenset())
"""The caller of a public route: nobody has proved anything."""
_SECRETS: Final = frozenset({"token", "access_token", "authorization", "session"})
_CONDITIONS: Final = frozenset({b"if-match", b"if-none-match", b"if-unmodified-since"})
"""Headers that forbid a write where something else stands by then."""
_QUERY_FIELDS_MAX: Final = 256


class ClientGone(Exception):
    """The client has closed the connection: no answer is needed any more."""


class RequestCounts:
    """How many calls were answered and how long they took, for the metrics."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        """By method, path as declared, and status."""
        self.seconds: Counter[tuple[str, str]] = Counter()

    def add(self, method: str, path: str, status: int, seconds: float, many: int = 1) -> None:
        """`seconds` is the sum of what each of them took."""
        self.answers[method, path, status] += many
        # A Counter may hold floats; only its name says otherwise.
        self.seconds[method, path] += seconds  # type: ignore[assignment]


class ConcurrencyLimits:
    """How many calls are in progress, and how many may be. Calls that only wait are counted apart:
    they cost little, and must not keep out calls that do something. So are public calls.

    Callers from outside do not get the last places: however many they are, and however slowly they
    read, the node's own user can still ask what is going on.
    """

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most = {
            "call": limits.CALLS_IN_FLIGHT_MAX,
            "poll": limits.LONG_POLLS_MAX,
            "stream": limits.EVENT_STREAMS_MAX,
            "public": limits.CALLS_OF_ANYBODY_MAX,
            "digest": limits.DIGESTS_AT_ONCE_MAX,
        }

    @contextmanager
    def inside(self, kind: str, *, own: bool = False) -> Iterator[None]:
        most = self.most.get(kind)
        if most is not None and not own:
            most -= most // limits.OWN_SHARE
        if most is not None and self.now[kind] >= most:
            raise TooMany(f"this node answers {most} {_NAMES.get(kind, kind)} at once, and no more")
        self.now[kind] += 1
        try:
            yield
        finally:
            self.now[kind] -= 1


_NAMES: Final = {
    "call": "calls",
    "poll": "waiting calls",
    "stream": "streams",
    "public": "calls without a token",
    "digest": "calls for digests",
}


class Request(Generic[A]):
    """One request to a node or a broker, as its handler gets it."""

    __slots__ = ("_query", "_receive", "api", "caller", "headers", "path", "route", "scope")

    def __init__(
        self, api: A, route: Route, scope: Scope, receive: Receive, caller: Caller
    ) -> None:
        self.api = api
        self.route = route
        self.scope = scope
        self.caller = caller
        self.headers = Headers(scope=scope)
        self.path: Mapping[str, str] = scope.get("path_params", {})
        self._receive = receive
        self._query = query_of(scope)
        known = {param.name for param in route.params if param.where == "query"}
        for name, _ in self._query:
            if name not in known:
                takes = ", ".join(sorted(known)) or "none"
                raise BadInput(f"there is no parameter {name!r} here", hint=f"it takes: {takes}")
        if scope["method"] not in ("GET", "HEAD"):
            self._refuse_conditions()

    def _refuse_conditions(self) -> None:
        """Raises for a condition that the call does not look at: who sends it counts on it."""
        for raw, _ in self.scope["headers"]:
            if raw not in _CONDITIONS:
                continue
            name = raw.decode("ascii")
            if all(one.where != "header" or one.name != name for one in self.route.params):
                raise BadInput(
                    f"{self.route.method} {self.route.path} does not look at {name}",
                    hint="leave the header out: this call has no such condition",
                )

    # --- the query ---------------------------------------------------------------------------

    def all(self, name: str) -> tuple[str, ...]:
        """Every value of a parameter that may be given several times."""
        return tuple(value for given, value in self._query if given == name)

    def one(self, name: str, default: str | None = None) -> str | None:
        values = self.all(name)
        if len(values) > 1:
            raise BadInput(f"{name} is given {len(values)} times")
        return values[0] if values else default

    def number(self, name: str, default: int | None = None) -> int | None:
        text = self.one(name)
        if text is None:
            return default
        return parse_int(name, text)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A parameter that is `true` or `false`."""
        text = self.one(name, "true" if default else "false")
        if text not in ("true", "false"):
            raise BadInput(f"{name} is {text!r}", hint="give true or false")
        return text == "true"

    def limit(self, most: int) -> int:
        """The parameter `limit` of a call that answers in pages of at most `most` rows."""
        limit = self.number("limit", most) or 0
        if not 1 <= limit <= most:
            raise BadInput(f"limit is {limit}", hint=f"ask for 1 to {most} at a time")
        return limit

    def required(self, name: str) -> str:
        """A parameter that must be given."""
        value = self.one(name)
        if value is None:
            raise BadInput(f"{name} is missing", hint=f"give it in the address: ?{name}=…")
        return value

    def idempotency_key(self) -> str | None:
        """The text in the Idempotency-Key header, as UTF-8 and without the quotes around it; None
        if there is none.
        """
        given = self.headers.get("idempotency-key")
        if given is None:
            return None
        try:
            key = given.encode("latin-1").decode().strip()
        except UnicodeDecodeError:
            raise BadInput("the Idempotency-Key is not UTF-8") from None
        return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key

    # --- the body ----------------------------------------------------------------------------

    async def body(self, bytes_max: int = limits.BODY_BYTES_MAX) -> bytes:
        """The whole body; raises BodyTooLarge before reading too much, TooSlow if it takes too
        long.
        """
        self._check_length(bytes_max)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.REQUEST_MS_MAX / limits.SECOND_MS):
                async for part in self._parts():
                    size += len(part)
                    if size > bytes_max:
                        raise _too_large(bytes_max)
                    parts.append(part)
        except TimeoutError:
            raise _too_slow() from None
        return b"".join(parts)

    @property
    def has_no_body(self) -> bool:
        """The client has said that none comes."""
        return (
            "transfer-encoding" not in self.headers
            and self.headers.get("content-length", "0") == "0"
        )

    async def chunks(self, bytes_max: int) -> AsyncIterator[bytes]:
        """The body piece by piece, for one that is too large for memory. Each piece has its
        time.
        """
        self._check_length(bytes_max)
        size = 0
        parts = self._parts()
        while True:
            try:
                async with asyncio.timeout(limits.REQUEST_MS_MAX / limits.SECOND_MS):
                    part = await anext(parts, None)
            except TimeoutError:
                raise _too_slow() from None
            if part is None:
                return
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            yield part

    def _check_length(self, bytes_max: int) -> None:
        declared = self.headers.get("content-length")
        # The HTTP parser has checked that it is a number.
        if declared is not None and int(declared) > bytes_max:
            raise _too_large(bytes_max)

    async def _parts(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            if part := message.get("body", b""):
                yield part
            if not message.get("more_body", False):
                return

    # --- waiting -----------------------------------------------------------------------------

    async def wait_for(self, grown: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Waits for `grown`, which must end by itself when its time is up, and counts the call as a
        waiting one meanwhile. Raises ClientGone if the client goes away. Returns False if it sends
        no more (it may have gone, or wait for its answer). Only after the body was read.
        """
        gate = self.api.gate
        with gate.inside("poll", own=is_own(self.scope)):
            gate.now["call"] -= 1
            try:
                return await self.until_ended(grown())
            finally:
                gate.now["call"] += 1

    async def until_ended(self, awaited: Coroutine[Any, Any, bool]) -> bool:
        """What is awaited; False if the client sends no more before that. Raises ClientGone if it
        goes away.
        """
        ended = asyncio.ensure_future(self._ended())
        grown = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait({ended, grown}, return_when=asyncio.FIRST_COMPLETED)
            if grown.done():
                return grown.result()
            return ended.result()
        finally:
            ended.cancel()
            grown.cancel()

    @property
    def has_ended(self) -> bool:
        """Whether the client has sent all that it will send. It may still wait for its answer."""
        return bool(self.scope[ENDED]())

    async def _ended(self) -> bool:
        while (await self._receive())["type"] != "http.disconnect":
            if self.has_ended:
                return False
        raise ClientGone

    # --- the answer --------------------------------------------------------------------------

    @property
    def wants_msgpack(self) -> bool:
        return MSGPACK in self.headers.get("accept", "")

    def answer(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """A value as JSON, or as msgpack if the client accepts that."""
        if self.wants_msgpack:
            return Response(
                msgspec.msgpack.encode(value), status, headers=headers, media_type=MSGPACK
            )
        return Response(msgspec.json.encode(value), status, headers=headers, media_type=JSON)

    def require_trusted(self) -> None:
        """For calls that show something of every mesh: names of links, of readers, of failures.
        Raises unless the caller is this node's user, or has a token that may read every mesh.
        """
        watches = self.caller.kind == "token" and self.caller.reads is None
        if not (self.caller.is_local or watches):
            raise NotGranted(
                f"{self.route.method} {self.route.path} tells of every mesh",
                hint="use the Unix socket, or a token that reads all: token add NAME --reads '*'",
            )

    def require_local(self) -> None:
        if not self.caller.is_local:
            raise NotGranted(
                f"{self.route.method} {self.route.path} is for this node's own user",
                hint="use the Unix socket, or a token with the scope all on loopback",
            )


def is_own(scope: Scope) -> bool:
    """Whether it came by the Unix socket, which only this node's own user can open."""
    return bool(scope[LISTENER] == "unix")


def refuse_secrets(scope: Scope) -> None:
    """Raises if the query contains a secret: an address ends up in logs and histories."""
    for name, _ in query_of(scope):
        if name.lower() in _SECRETS:
            raise BadToken(f"a secret does not belong in the address: {name}=…")


def check_path(scope: Scope) -> None:
    """Raises for a path that is no UTF-8: it was decoded with one sign for all that cannot be read,
    by which different names would be one.
    """
    raw: bytes = scope.get("raw_path", b"")
    if b"%" not in raw:
        return
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadInput(
            "the path of the address is not UTF-8 where it is percent-encoded",
            hint="encode each name as UTF-8 before: é is %C3%A9",
        ) from None


def query_of(scope: Scope) -> list[tuple[str, str]]:
    raw: bytes = scope["query_string"]
    if not raw:
        return []
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise BadInput("the query of the address cannot be read") from None


def parse_int(name: str, text: str) -> int:
    """A number from a query or a header."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise BadInput(f"{name} is {text!r}", hint="give a whole number")
    value = int(text)
    if value > limits.LAMPORT_MAX:
        raise OverLimit(f"{name} is {text}: no offset is that large")
    return value


def decode_as(raw: bytes, type: type[T], *, packed: bool = False) -> T:
    """A body as a value of a type; raises BadInput if it cannot be decoded."""
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        return decode(raw, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"the body cannot be read: {error}") from None
    except RecursionError:
        raise BadInput("the body is nested too deeply") from None


def bearer(scope: Scope) -> str:
    """The token of a request; raises BadToken if it has none."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        raise BadToken("this call needs a token")
    kind, _, text = values[0].decode("latin-1").partition(" ")
    if len(values) > 1 or kind.lower() != "bearer" or not text.strip():
        raise BadToken("the Authorization header is not of the form: Bearer TOKEN")
    return text.strip()


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body here has {bytes_max} bytes at most", hint="send less at a time")


def _too_slow() -> TooSlow:
    return TooSlow(f"the body did not arrive within {limits.REQUEST_MS_MAX} ms")
