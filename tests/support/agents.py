"""Real clients of the Model Context Protocol, for tests of the server for agents.

    async def story(agent: Agent) -> None:
        assert (await agent.call("state_get", key="a"))["items"] == []

    drive(in_process(home), story, "legacy")

An `Agent` is the SDK's client with the two questions that tests ask most: what a tool answers, and
with which error it fails. Everything has a time limit.
"""

from __future__ import annotations

import asyncio
import warnings
from asyncio import Queue
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning

from holdfast.apps.mcp.reach import OwnReach
from holdfast.apps.mcp.server import AgentServer
from holdfast.apps.mcp.stdio import OwnReaches
from holdfast.node.library.node import open_node
from holdfast.storage.files.home import HomePaths
from support.waiting import PATIENCE_S

TODAY: Final = "auto"
BOTH: Final = ("legacy", TODAY)
"""The protocol before, and that of today."""
Connects = Callable[[], Any]
"""What the SDK's client takes as a server; as a context manager."""
Says = str | None
"""What the user says when asked: `accept`, `decline`, `cancel`, or `never` anything; `error` and
`nonsense` are answers of a client that is broken; None: the client cannot ask.
"""


class Agent:
    """A client, and what it was told and asked."""

    def __init__(
        self, client: Client, streams: AsyncExitStack, questions: list[str], told: Queue[str]
    ) -> None:
        self.client, self._streams = client, streams
        self.questions, self.told = questions, told

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool; the SDK has compared it with the schema of the tool."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.structured_content
        found: dict[str, Any] = result.structured_content
        return found

    async def fails(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The error with which a tool answers."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        error: dict[str, Any] = result.structured_content["error"]
        assert error.keys() == {"code", "message", "hint"}, error
        return error

    async def follow(self, mode: str, *uris: str) -> None:
        """Follows resources until the agent ends; returns when nothing is missed any more."""
        if mode != "legacy":
            await self._streams.enter_async_context(self.client.listen(resource_subscriptions=uris))
            return
        for uri in uris:
            with warnings.catch_warnings():
                # The SDK says of each use that there is a newer way.
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await self.client.subscribe_resource(uri)

    async def unfollow(self, uri: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await self.client.unsubscribe_resource(uri)


Story = Callable[[Agent], Awaitable[None]]


def drive(connects: Connects, story: Story, mode: str = TODAY, *, says: Says = "accept") -> None:
    """Runs what an agent does."""

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), agent(connects, mode, says=says) as one:
            await story(one)

    try:
        asyncio.run(run())
    except BaseExceptionGroup as group:
        # The SDK's task groups wrap what the story raised.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


@asynccontextmanager
async def agent(connects: Connects, mode: str, *, says: Says = "accept") -> AsyncIterator[Agent]:
    questions: list[str] = []
    told: Queue[str] = Queue()

    async def asked(context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        questions.append(params.message)
        if says == "never":
            await asyncio.sleep(PATIENCE_S)
        if says == "error":
            return types.ErrorData(code=types.INTERNAL_ERROR, message="there is no window")
        if says == "nonsense":
            return types.ElicitResult.model_construct(action=says)
        return types.ElicitResult(action=says)  # type: ignore[arg-type]

    async def heard(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            told.put_nowait(message.params.uri)

    async with (
        connects() as server,
        Client(
            server,
            mode=mode,
            elicitation_callback=None if says is None else asked,
            message_handler=heard,
            read_timeout_seconds=PATIENCE_S,
            cache=None,
        ) as client,
        AsyncExitStack() as streams,
    ):
        yield Agent(client, streams, questions, told)


def in_process(home: Path, mesh: str | None = None) -> Connects:
    """A server on a home, in this process."""

    @asynccontextmanager
    async def connects() -> AsyncIterator[Any]:
        reach = OwnReach(HomePaths(home))

        @contextmanager
        def followed() -> Any:
            with open_node(home) as node:
                yield node

        server = AgentServer(OwnReaches(reach, mesh), followed)
        try:
            yield server.sdk
        finally:
            server.end_streams()
            await asyncio.to_thread(reach.close)

    return connects


def over_stdio(command: list[str], environ: Mapping[str, str] | None = None) -> Connects:
    """A server as a client starts it."""

    @asynccontextmanager
    async def connects() -> AsyncIterator[Any]:
        yield StdioServerParameters(
            command=command[0], args=command[1:], env=None if environ is None else dict(environ)
        )

    return connects


def over_http(address: str, token: str) -> Connects:
    """The server in a daemon."""

    @asynccontextmanager
    async def connects() -> AsyncIterator[Any]:
        import httpx2

        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as client:
            yield streamable_http_client(f"{address}/mcp", http_client=client)

    return connects
