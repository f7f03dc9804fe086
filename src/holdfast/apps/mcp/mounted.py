"""`/mcp` in a daemon: the server for agents over streamable HTTP, with the daemon's tokens.

The listeners of the daemon check Host and Origin, as for every request. A caller without a token is
refused before anything is read of what it sends. A session (only the older protocol has any)
belongs to the token that opened it, and each of its calls is made with the token that came with the
call, so a token that is taken back ends what can be done at once.

The SDK takes half a second and 40 MB, so a daemon loads it when the first agent comes: in a thread,
and without the collector of garbage, or that would go over all of it meanwhile and stop everybody.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from holdfast.apps.mcp.in_process import DaemonDoor, RequestReach
from holdfast.node.http.context import NodeApi, identify
from holdfast.rules.errors import NoPackage, NoRoute, StoreClosed
from holdfast.rules.limits import (
    MCP_BODY_BYTES_MAX,
    MCP_SESSION_IDLE_MS,
    MCP_SESSIONS_MAX,
    MCP_STREAMS_MAX,
    SECOND_MS,
)
from holdfast.service.http.parts import Part

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Receive, Scope, Send

    from holdfast.apps.mcp.server import AgentServer, Context
    from holdfast.node.library.node import Node
    from holdfast.service.caller import Caller
    from holdfast.service.http.app import HttpApp

PREFIX: Final = "/mcp"
_STREAMS: Final = "streams of agents"
_LISTEN: Final = (b"mcp-method", b"subscriptions/listen")

log = logging.getLogger("holdfast")


def agents(api: NodeApi, app: HttpApp) -> Part:
    """The part of a daemon that serves agents."""
    api.gate.most[_STREAMS] = MCP_STREAMS_MAX
    mount = _AgentMount(api, app)
    return Part(PREFIX, mount.answer, kind=_kind, life=mount.life)


def _kind(scope: Scope) -> str:
    """What stays open is counted apart, for it costs next to nothing."""
    stays = scope["method"] == "GET" or _LISTEN in scope["headers"]
    return _STREAMS if stays else "call"


class _AgentMount:
    """The server of one daemon; it begins with the first request."""

    def __init__(self, api: NodeApi, app: HttpApp) -> None:
        self._api, self._app = api, app
        self._begin = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._server: AgentServer | None = None
        self._door: DaemonDoor | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._stop.set()
            if self._door is not None:
                self._door.close()
            if self._server is not None:
                self._server.end_streams()
            if self._task is not None:
                await self._task

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != PREFIX:
            raise NoRoute(f"this node has nothing at {scope['path']}", hint=f"agents ask {PREFIX}")
        caller = identify(self._api, scope)
        if find_spec("mcp") is None:
            raise NoPackage("agents need the package mcp", hint="pip install 'holdfast[mcp]'")
        manager = await self._started()
        scope["user"] = _owner(caller)
        await manager.handle_request(scope, receive, send)

    async def _started(self) -> StreamableHTTPSessionManager:
        async with self._begin:
            if self._stop.is_set():
                raise StoreClosed("this node is stopping", hint="ask again when it is back")
            if self._manager is None:
                make = await self._api.run(_loaded)
                self._door = DaemonDoor(self._api, self._app)
                self._server, manager = make(_RequestReaches(self._door), self._followed)
                up = asyncio.Event()
                # A task of its own: what the SDK starts must end in the task that started it.
                self._task = asyncio.create_task(self._run(manager, up))
                await up.wait()
                self._manager = manager
        return self._manager

    async def _run(self, manager: StreamableHTTPSessionManager, up: asyncio.Event) -> None:
        async with manager.run():
            up.set()
            await self._stop.wait()

    @contextmanager
    def _followed(self) -> Iterator[Node]:
        yield self._api.node


class _RequestReaches:
    """Over HTTP each request says by its token who makes it."""

    mesh: str | None = None

    def __init__(self, door: DaemonDoor) -> None:
        self._door = door

    def of(self, ctx: Context) -> RequestReach:
        assert ctx.request is not None, "it came over HTTP"
        return RequestReach(self._door, ctx.request.scope)

    def may_still(self, ctx: Context) -> Callable[[str], bool]:
        return self.of(ctx).may_still


def _loaded() -> Callable[..., Any]:
    """Makes the server and what keeps its sessions; it takes a while to load, so in a thread."""
    with _uncollected():
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from holdfast.apps.mcp.server import AgentServer

    def make(
        reaches: _RequestReaches, opens: Any
    ) -> tuple[AgentServer, StreamableHTTPSessionManager]:
        server = AgentServer(reaches, opens)
        manager = StreamableHTTPSessionManager(
            server.sdk,
            max_request_body_size=MCP_BODY_BYTES_MAX,
            session_idle_timeout=MCP_SESSION_IDLE_MS / SECOND_MS,
            max_sessions=MCP_SESSIONS_MAX,
        )
        return server, manager

    return make


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is loaded here stays until the end, and is never looked through for garbage: that would
    hold up every thread for tens of milliseconds, and for longer on a busy machine.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _owner(caller: Caller) -> Any:
    """The caller as the SDK knows one: a session belongs to whoever opened it."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    name = f"{caller.kind}:{caller.name}"
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))
