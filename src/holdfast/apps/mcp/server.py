"""The server for agents: tools, resources, prompts and completion, handed to the SDK.

The SDK's own way to declare tools makes their schemas from functions and hides exceptions; here the
schemas are ours (`tools.declare`), and so are the errors (`answers`). So it is the lower level of
the SDK that is used: it speaks both protocols over any transport and knows nothing of tools.

Each call runs in a thread, some at a time. A call that its client gives up is no longer waited for;
what it was to write may be written all the same, and its id says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import anyio
import mcp_types as types
import msgspec
from anyio import to_thread
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from holdfast import __version__
from holdfast.apps.mcp import completion, prompts, resources
from holdfast.apps.mcp.answers import answered, protocol_error, refused
from holdfast.apps.mcp.asking import confirmed
from holdfast.apps.mcp.feed import Opens, ResourceFeed
from holdfast.apps.mcp.places import ResourcePlace, place_at
from holdfast.apps.mcp.reach import Reach
from holdfast.apps.mcp.subscriptions import AgentSubscriptions
from holdfast.apps.mcp.tools.all import ALL, BY_NAME
from holdfast.apps.mcp.tools.call import AgentCall
from holdfast.apps.mcp.tools.declare import AgentTool, ToolAnswer, ToolArguments, ToolWarning
from holdfast.rules.ids import id_text
from holdfast.rules.limits import MCP_CALLS_AT_ONCE_MAX
from holdfast.service.clock import SystemClock

T = TypeVar("T")
Context = ServerRequestContext[Any, Any]

_FIXED: Final = CacheHint(ttl_ms=60 * 60 * 1000, scope="public")
"""What is the same for everybody, as long as this version runs."""
INSTRUCTIONS: Final = """\
Holdfast keeps what agents share: state (one value per key, the same for all), memory (what each
peer remembers), files, vectors (found by meaning), tasks (one peer at a time has one), messages.
All of it is on this machine and works without a network; members of a mesh get it when they can.
- Call `info` first: it says who you are, which meshes there are and what waits for you.
- Writes take an `id` of your choice. If you do not know whether a call has happened, make the same
  call with the same id: it is written once.
- To change what you have read, give its `stamp` as `expect`. If somebody wrote meanwhile, the
  answer is the error stamp_moved: read again.
- An error has a code, a message and a hint. Do what the hint says; do not repeat a refused call as
  it was.
- `claim` a task before you work on it.
"""


class Reaches(Protocol):
    """How the server finds the node of a call."""

    mesh: str | None
    """The mesh that is meant where an agent names none."""

    def of(self, ctx: Context) -> Reach:
        """For whoever makes this call."""

    def may_still(self, ctx: Context) -> Callable[[str], bool]:
        """Whether who makes this call may read a mesh, asked again later."""


class AgentServer:
    """What both ways in have in common."""

    def __init__(self, reaches: Reaches, opens: Opens) -> None:
        self._reaches = reaches
        self._feed = ResourceFeed(opens)
        self._subscriptions = AgentSubscriptions(self._feed)
        self._limiter: anyio.CapacityLimiter | None = None
        self._clock = SystemClock()
        self.sdk: Server[Any] = Server(
            "holdfast",
            version=__version__,
            title="Holdfast",
            description="Shared state, memory, files, vectors, tasks and messages of agents.",
            instructions=INSTRUCTIONS,
            cache_hints={"tools/list": _FIXED, "prompts/list": _FIXED},
            get_tool_input_schema=lambda name: BY_NAME[name].input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
        )

    def end_streams(self) -> None:
        """Ends what would stay open."""
        self._subscriptions.close()
        self._feed.close()

    # --- tools -------------------------------------------------------------------------------

    async def _list_tools(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_TOOLS)

    async def _call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        tool = BY_NAME.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}")
        try:
            asked = tool.asked(params.arguments)
            if (question := await confirmed(ctx, params, tool, asked)) is not None:
                return question
            answer, touched = await self._run(ctx, lambda call: _done(tool, call, asked))
        except MCPError:
            raise
        except Exception as error:
            return refused(error, f"the tool {tool.name}")
        for place in touched:
            self._feed.touched(place)
        return answered(answer)

    # --- resources ---------------------------------------------------------------------------

    async def _list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = None if params is None else params.cursor
        found, more = await self._asked(ctx, lambda call: resources.resources(call, cursor))
        return types.ListResourcesResult(resources=found, next_cursor=more)

    async def _list_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=list(resources.TEMPLATES))

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        found = await self._asked(ctx, lambda call: resources.read_resource(call, params.uri))
        return types.ReadResourceResult(contents=found)

    async def _subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        await self._asked(ctx, lambda call: call.mesh(place_at(params.uri).mesh))
        may_still = self._reaches.may_still(ctx)
        await _in_protocol(self._subscriptions.subscribe(ctx, params.uri, may_still))
        return types.EmptyResult()

    async def _unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self._subscriptions.unsubscribe(ctx, params.uri)
        return types.EmptyResult()

    async def _listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        uris = params.notifications.resource_subscriptions or []

        def check(call: AgentCall) -> None:
            for slug in {place_at(uri).mesh for uri in uris}:
                call.mesh(slug)

        await self._asked(ctx, check)
        may_still = self._reaches.may_still(ctx)
        return await _in_protocol(self._subscriptions.listen(ctx, params, may_still))

    # --- prompts and completion --------------------------------------------------------------

    async def _list_prompts(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=prompts.described())

    async def _get_prompt(
        self, ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        given = dict(params.arguments or {})
        text = await self._asked(ctx, lambda call: prompts.prompt_text(call, params.name, given))
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(
            description=prompts.BY_NAME[params.name].said, messages=[message]
        )

    async def _complete(
        self, ctx: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        others = dict((params.context and params.context.arguments) or {})
        name, begun = params.argument.name, params.argument.value
        values, more = await self._asked(
            ctx, lambda call: completion.complete(call, name, begun, others)
        )
        return types.CompleteResult(completion=types.Completion(values=values, has_more=more))

    # --- running -----------------------------------------------------------------------------

    async def _asked(self, ctx: Context, work: Callable[[AgentCall], T]) -> T:
        """The same as `_run`, where an error is one of the protocol."""
        return await _in_protocol(self._run(ctx, work))

    async def _run(self, ctx: Context, work: Callable[[AgentCall], T]) -> T:
        """Runs work on the node of whoever asks, in a thread."""
        reach = self._reaches.of(ctx)
        call = AgentCall(id_text(self._clock.new_id()), self._reaches.mesh)
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(MCP_CALLS_AT_ONCE_MAX)
        return await to_thread.run_sync(
            lambda: reach.run(lambda node: work(call.on(node))),
            abandon_on_cancel=True,
            limiter=self._limiter,
        )


async def _in_protocol(work: Awaitable[T]) -> T:
    """What is awaited; an error of ours becomes one of the protocol."""
    try:
        return await work
    except Exception as error:
        raise protocol_error(error, "a request of an agent") from error


def _done(
    tool: AgentTool, call: AgentCall, asked: ToolArguments
) -> tuple[ToolAnswer, tuple[ResourcePlace, ...]]:
    """The answer with the warnings that nobody was told of, and what has changed by it that is in
    no log.
    """
    answer = tool.run(call, asked)
    slug: str | None = getattr(answer, "mesh", None)
    # A mere read says no warnings: they are told once, and cost a request where a daemon is asked.
    warns = tool.kind != "reads" or tool.name == "info"
    told = tuple(ToolWarning(**row) for row in call.warnings(slug)) if warns else ()
    if told:
        answer = msgspec.structs.replace(answer, warnings=told)
    if tool.name not in ("inbox", "conflict"):
        return answer, ()
    kind = {"inbox": "inbox", "conflict": "conflicts"}[tool.name]
    return answer, tuple(ResourcePlace(slug, kind) for slug in call.slugs())


def _described(tool: AgentTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.said,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.kind == "reads",
            destructive_hint=tool.kind == "removes",
            idempotent_hint=True,
            open_world_hint=tool.name in ("send", "inbox"),
        ),
    )


_TOOLS: Final = [_described(tool) for tool in ALL]
