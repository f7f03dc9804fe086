"""How a call is declared, and what its handler may reach.

    routes = Routes()

    @routes.get("/v1/log", answers={200: LogStatus})
    async def _log(call: NodeRequest) -> Response:
        "Where the log stands."
        head = await call.api.run(call.api.node.log.head)
        return call.answer(LogStatus(head.epoch, head.first, head.offset))

A declaration says everything that a reader of `/openapi.json` and `/docs` must know. The
application checks the caller, the size of the body and the number of calls before the handler runs;
what the handler raises becomes the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from holdfast.rules.errors import HoldfastError

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope

    from holdfast.service.http.request import ConcurrencyLimits, Request, RequestCounts
    from holdfast.service.sessions import Sessions

T = TypeVar("T")
Handler = Callable[[Any], "Awaitable[Response]"]
"""Takes the `Request` and returns the answer."""
HandlerT = TypeVar("HandlerT", bound=Handler)
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
    """One call: its path, who may make it, what it takes and what it returns."""

    method: str
    path: str
    """As Starlette writes it: `/v1/consumers/{name:path}`."""
    handler: Handler
    summary: str
    name: str = ""
    """Its `operationId`; made of method and path if it is not given."""
    request: Any = None
    """The type of the body, or a content type for a body that has no type."""
    request_needed: bool = True
    """Without a body the call is as one with an empty object."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """By status: the type of the body, a content type, or None for no body."""
    lines: bool = False
    """The rows of the answer come one by one as NDJSON, if the caller accepts that."""
    params: tuple[Param, ...] = ()
    """All parameters in the query; the call refuses others, which are likely typing errors."""
    errors: tuple[type[HoldfastError], ...] = ()
    """What it raises, besides what every call may raise."""
    example: str = ""
    """What follows the address in an example for curl: options and body."""
    public: bool = False
    """Anybody may make the call, without a token."""
    local_only: bool = False
    """Only this node's own user may make the call."""
    kind: Kind = "call"
    """`stream`: stays open and is counted apart. `probe`: is answered however busy the node is."""


class Routes:
    """Collects the calls of one module, by decorators on their handlers. The first argument is the
    path, keywords are the other fields of `Route`; the handler's docstring is the summary.
    """

    def __init__(self) -> None:
        self._routes: list[Route] = []

    def __call__(self) -> list[Route]:
        """The calls that were declared so far."""
        return list(self._routes)

    def get(self, path: str, **declared: Any) -> Callable[[HandlerT], HandlerT]:
        return self._declare("GET", path, declared)

    def post(self, path: str, **declared: Any) -> Callable[[HandlerT], HandlerT]:
        return self._declare("POST", path, declared)

    def put(self, path: str, **declared: Any) -> Callable[[HandlerT], HandlerT]:
        return self._declare("PUT", path, declared)

    def delete(self, path: str, **declared: Any) -> Callable[[HandlerT], HandlerT]:
        return self._declare("DELETE", path, declared)

    def _declare(
        self, method: str, path: str, declared: dict[str, Any]
    ) -> Callable[[HandlerT], HandlerT]:
        def add(handler: HandlerT) -> HandlerT:
            summary = " ".join((handler.__doc__ or "").split())
            assert summary, f"{method} {path} needs a docstring: it is the summary of the call"
            self._routes.append(Route(method, path, handler, summary, **declared))
            return handler

        return add


class ServedApp(Protocol):
    """What `HttpApp` needs to know of the node or broker that it serves."""

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
        """What this service is, in one sentence."""

    def admit(self, route: Route, scope: Scope, receive: Receive) -> Request[Any]:
        """The request with its caller; raises if the caller is not trusted."""

    def certificate_of(self, listener: str) -> bytes:
        """The digest of the certificate to which a hello on this kind of listener is bound."""

    async def run(self, work: Callable[..., T], *args: Any) -> T: ...
