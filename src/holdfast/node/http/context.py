"""What the handlers of a node's API may use, and who makes a call.

The listener decides how a caller proves who it is. Only this node's own user can open the Unix
socket. On loopback any user of the machine could connect, so a call needs a token. From other
machines, over TLS, a zone brings the session that its hello gave it, and a person a token that may
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Receive, Scope

from holdfast.node.http.bus_streams import BusStreams
from holdfast.rules import limits
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    HoldfastError,
    NotGranted,
    RequestCancelled,
)
from holdfast.service.caller import LOCAL, Caller
from holdfast.service.http.request import (
    ANYONE,
    ConcurrencyLimits,
    Request,
    RequestCounts,
    bearer,
    is_own,
)
from holdfast.service.http.route import Phase, Route
from holdfast.transport.http_server import LISTENER

if TYPE_CHECKING:
    from holdfast.node.bus.host import BusHost
    from holdfast.node.core.engine import NodeEngine
    from holdfast.node.core.loop_writer import LoopWriter
    from holdfast.node.daemon.hooks import EventHooks, HookRunner
    from holdfast.node.daemon.message_hook import MessageWatch
    from holdfast.node.library.node import Node
    from holdfast.node.links.worker import LinkManager
    from holdfast.node.settings import Reloaded, Settings
    from holdfast.node.sync.manager import SyncManager
    from holdfast.node.trust.trust import Trust
    from holdfast.node.upkeep.disk import DiskWatch
    from holdfast.node.watching.log_watch import LogWatch
    from holdfast.service.sessions import Sessions

T = TypeVar("T")


def _not_yet() -> Reloaded:
    raise AssertionError("nobody asks before the daemon is up")


@dataclass
class NodeApi:
    """What handlers may use. There is one for each daemon."""

    node: Node
    trust: Trust
    sessions: Sessions
    settings: Settings
    log_watch: LogWatch
    gate: ConcurrencyLimits
    counts: RequestCounts
    threads: Executor
    writer: LoopWriter
    disk: DiskWatch | None = None
    link_manager: LinkManager | None = None
    message_watch: MessageWatch | None = None
    hooks: HookRunner | None = None
    event_hooks: EventHooks | None = None
    sync_manager: SyncManager | None = None
    bus: BusHost | None = None
    bus_problem: HoldfastError | None = None
    """Why there is no bus, if there should be one."""
    bus_streams: BusStreams = field(default_factory=BusStreams)
    reload: Callable[[], Reloaded] = _not_yet
    """Reads the settings again; in the loop."""
    phase: Phase = "starting"
    started_at: float = 0.0
    """Seconds since 1970."""
    routes: list[Route] = field(default_factory=list)
    pages: dict[str, bytes] = field(default_factory=dict)
    """The public pages that are made once from the declarations, so that a call costs nothing."""
    addresses: list[str] = field(default_factory=list)
    """Where it listens."""
    open_door: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Makes it listen on loopback too, if it does not."""
    certificate: bytes = b""
    """The digest of the TLS listener's certificate; empty without such a listener."""

    @property
    def doors(self) -> list[str]:
        """Where it is this process that answers: everywhere."""
        return self.addresses

    intro = (
        "On the Unix socket no token is needed; on loopback and over TLS send "
        "<code>Authorization: Bearer TOKEN</code>."
    )
    """What `/docs` says of callers."""

    def reader_of(self, route: Route) -> tuple[str, str]:
        """Who makes a call that is neither everybody's nor this machine's own."""
        return "callers that may read", ""

    @property
    def title(self) -> str:
        return self.node.peer

    @property
    def about(self) -> str:
        return "One node of Holdfast: its log, its readers, its links."

    def admit(self, route: Route, scope: Scope, receive: Receive) -> NodeRequest:
        return NodeRequest(
            self, route, scope, receive, ANYONE if route.public else identify(self, scope)
        )

    def certificate_of(self, listener: str) -> bytes:
        if listener != "tls":
            raise BadInput(
                "a hello is bound to a certificate, and this connection has none",
                hint="zones meet on the address of --listen",
            )
        return self.certificate

    @property
    def engine(self) -> NodeEngine:
        return self.node._engine

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs work that may block in a thread of this daemon."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, work, *args)


class NodeRequest(Request[NodeApi]):
    """One request to a node."""

    __slots__ = ()

    async def wait(self, beyond: int, timeout_ms: float) -> bool:
        """True as soon as the log goes beyond an offset; False when time is up or the node is
        stopping.
        """
        timeout_s = timeout_ms / limits.SECOND_MS
        return await self.wait_for(lambda: self.api.log_watch.wait(beyond, timeout_s))


async def waited(call: NodeRequest, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. It is cancelled if the client goes away."""
    done: list[T] = []

    async def run() -> bool:
        done.append(await work)
        return True

    if not await call.wait_for(run):
        raise RequestCancelled("the client did not wait for the answer")
    return done[0]


def check_still(call: NodeRequest) -> None:
    """For an answer that takes long: raises NotGranted if the caller has lost a grant meanwhile. A
    new grant counts from the next call on.
    """
    if not identify(call.api, call.scope).may_all_of(call.caller):
        raise NotGranted("what this caller may read has been taken back", hint="ask again")


def identify(api: NodeApi, scope: Scope) -> Caller:
    """The caller of a request, from its listener and its token."""
    if is_own(scope):
        return LOCAL
    text = bearer(scope)
    if scope[LISTENER] == "tcp":
        return api.trust.caller_of_token(text, local=True)
    if text.startswith("hf_"):
        return api.trust.caller_of_token(text, local=False)
    caller = api.sessions.caller_of(text)
    if caller is None:
        raise BadToken("the session is not known here, or has ended", hint="say hello again")
    return caller
