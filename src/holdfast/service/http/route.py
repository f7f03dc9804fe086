"""What the modules of the API share: how a call is declared, and what it may reach.

    def routes() -> list[Route]:
        return [
            Route("GET", "/v1/log", _log, "Where the log stands.", answers={200: Place}),
        ]

    async def _log(call: Call) -> Response:
        head = await call.api.run(call.api.node.log.head)
        return call.answer(Place(head.epoch, head.first, head.offset))

A declaration says everything that a reader of `/openapi.json` and `/docs` must know. Who asks, how
much may be sent and how many may ask at once is settled before the handler runs; what it raises
becomes the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.rules.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.service.http.request import ConcurrencyLimits, Request, RequestCounts
    from holdfast.service.sessions import Sessions

T = TypeVar("T")
Handler = Callable[[Any], Awaitable[Response]]
"""Takes the call: an `Request` of what is served."""
Phase = Literal["starting", "ready", "stopping"]
Kind = Literal["call", "stream", "probe"]


@dataclass(frozen=True)
class Param:
    """One parameter in the query or among the headers."""

    name: str
    summary: str
    type: Any = str
    where: Literal["query", "header"] = "query"
    required: bool = False


@dataclass(frozen=True)
class Route:
    """One call: where it is, who may make it, what it takes and what it gives."""

    method: str
    path: str
    """As Starlette writes it: `/v1/consumers/{name:path}`."""
    handler: Handler
    summary: str
    request: Any = None
    """The type of the body, or a content type where the body is not ours to describe."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """By status: the type of the body, a content type, or None for no body."""
    params: tuple[Param, ...] = ()
    """All that it takes in the query: another one is refused, for it is likely a typing error."""
    errors: tuple[type[HoldfastError], ...] = ()
    """What it refuses by, beyond what every call may be refused by."""
    example: str = ""
    """What follows the address in an example for curl: options and body."""
    public: bool = False
    """Anybody may ask, without a token."""
    local_only: bool = False
    kind: Kind = "call"
    """`stream`: stays open and is counted apart. `probe`: is answered however busy the node is."""


class ServedApp(Protocol):
    """What the frame around all calls needs to know of whatever it serves."""

    gate: ConcurrencyLimits
    counts: RequestCounts
    phase: Phase
    sessions: Sessions
    routes: list[Route]
    pages: dict[str, bytes]

    @property
    def title(self) -> str: ...
    @property
    def about(self) -> str:
        """What this is, in one sentence."""

    def admit(self, route: Route, scope: Scope, receive: Receive) -> Request[Any]:
        """The call, once it is known who makes it."""

    def certificate_of(self, listener: str) -> bytes:
        """What a hello that came by this kind of listener is bound to."""

    async def run(self, work: Callable[..., T], *args: Any) -> T: ...
