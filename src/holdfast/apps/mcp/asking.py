"""Asking a person before something is removed.

The protocol of today has no requests from the server: a call that needs a yes is answered with the
question, and the client makes it again with what its user said. The name of the question is a hash
of what is to be done, so that a yes to one thing is none to another. In the protocol before, the
server asks while the call waits. A client that can do neither is told to say `confirm` after it has
asked its user in its own way.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast.apps.mcp.tools.declare import AgentTool, ToolArguments
from holdfast.rules.errors import NotConfirmed
from holdfast.rules.limits import MCP_ASKING_MS_MAX, SECOND_MS

log = logging.getLogger("holdfast")

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
"""A form without fields: its buttons say it."""


async def confirmed(
    ctx: ServerRequestContext[Any, Any],
    params: types.CallToolRequestParams,
    tool: AgentTool,
    asked: ToolArguments,
) -> types.InputRequiredResult | None:
    """None if it may be done; else what the client has to ask first. Raises NotConfirmed if
    somebody said no.
    """
    question = tool.question(asked)
    if question is None:
        return None
    if not _can_ask(ctx):
        if getattr(asked, "confirm", False):
            return None
        raise NotConfirmed(
            f"nobody has agreed yet: {question}",
            hint="ask the user, and after a yes make the same call with confirm=true",
        )
    form = types.ElicitRequestFormParams(message=question, requested_schema=_SCHEMA)
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        name = f"confirm-{sha256(msgspec.json.encode([tool.name, asked])).hexdigest()[:16]}"
        said = (params.input_responses or {}).get(name)
        if not isinstance(said, types.ElicitResult):
            return types.InputRequiredResult(
                input_requests={name: types.ElicitRequest(params=form)}
            )
        action: str = said.action
    else:
        action = await _said(ctx, question)
    if action != "accept":
        raise NotConfirmed(
            f"the user did not agree: {question}", hint="leave it, or ask the user what to do"
        )
    return None


async def _said(ctx: ServerRequestContext[Any, Any], question: str) -> str:
    """What the user said, in the protocol before. A client that answers with an error, or with what
    is no answer, has said nothing: that is its fault and not ours.
    """
    from anyio import move_on_after
    from mcp.shared.exceptions import MCPError

    with move_on_after(MCP_ASKING_MS_MAX / SECOND_MS):
        try:
            told = await ctx.session.elicit_form(
                question, _SCHEMA, related_request_id=ctx.request_id
            )
            return told.action
        except (MCPError, ValueError) as error:
            log.info("a client did not answer a question: %s", error)
    return "cancel"


def _can_ask(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client shows forms to its user. One that names no mode means forms."""
    able = ctx.session.client_capabilities
    modes = None if able is None else able.elicitation
    return modes is not None and (modes.form is not None or modes.url is None)
