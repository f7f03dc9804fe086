"""What an agent gets: answers as data and as text, errors with their code, message and hint.

The SDK hides what it does not know: an exception of ours would reach the agent as "internal error",
and it could do nothing about it. So every error of ours becomes an answer, in the shape that HTTP
has too. An error of a tool is an answer of that tool, as the protocol wants it, so that the model
reads it; of a resource, a prompt or a completion it is an error of the protocol, with the same
document as its data.
"""

from __future__ import annotations

import logging
from typing import Any

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.apps.mcp.tools.declare import ToolAnswer
from holdfast.rules.errors import HoldfastError, Refused

log = logging.getLogger("holdfast")

_OURS = {
    "code": "internal",
    "message": "a fault of ours; the log of the server says more",
    "hint": "report it, with: holdfast bugreport",
}


def answered(answer: ToolAnswer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[_text(answer)], structured_content=msgspec.to_builtins(answer, str_keys=True)
    )


def refused(error: Exception, what: str) -> types.CallToolResult:
    """The answer of a tool that failed."""
    document = {"error": failure(error, what)}
    return types.CallToolResult(
        content=[_text(document)], structured_content=document, is_error=True
    )


def protocol_error(error: Exception, what: str) -> MCPError:
    """The same where the protocol has no room for an error in an answer."""
    if isinstance(error, MCPError):
        return error
    document = failure(error, what)
    code = INVALID_PARAMS if isinstance(error, Refused) else INTERNAL_ERROR
    return MCPError(code, f"{document['message']} ({document['code']})", {"error": document})


def failure(error: Exception, what: str) -> dict[str, Any]:
    """An error as a document. What is no error of ours is a fault of ours, and is logged."""
    if not isinstance(error, HoldfastError):
        log.error("a fault of ours in %s", what, exc_info=error)
        return dict(_OURS)
    if not isinstance(error, Refused):
        log.warning("%s: %s", what, error.message)
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _text(document: Any) -> types.TextContent:
    return types.TextContent(text=msgspec.json.encode(document).decode())
