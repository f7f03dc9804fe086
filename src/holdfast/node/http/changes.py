"""Writing into any family over HTTP, many changes in one request.

The answer says that they are on the disk. Each brings its own id: a client that missed the answer
sends the same again, and gets the places of what was written.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.node.core.change import Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.http.many import each, lines_of
from holdfast.node.library.documents import (
    ChangeDocument,
    Prepared,
    PreparedChange,
    prepare,
    read_change,
    write_all,
)
from holdfast.protocol.error_body import ErrorDetail
from holdfast.protocol.log_wire import NDJSON
from holdfast.rules.errors import (
    BadInput,
    DiskFull,
    HoldfastError,
    IdReused,
    TaskEnded,
    TaskTaken,
    UnknownKey,
    UnknownMesh,
    UnknownTask,
)
from holdfast.rules.strict_json import strict_json
from holdfast.service.http.errors import failure
from holdfast.service.http.json_body import INLINE_BYTES, check_shape, content_type
from holdfast.service.http.route import Routes


class NewChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to write. Each is accepted or refused by itself."""

    changes: list[ChangeDocument]


class ChangeWritten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result for one change: where it is in the log, or why it was refused."""

    status: int
    id: str | None = None
    offset: int | None = None
    lamport: int | None = None
    """None for a change that the log no longer holds, but whose id the node still knows."""
    duplicate: bool | None = None
    """An earlier call wrote it with this id and content: this is its place."""
    error: ErrorDetail | None = None


class ChangesWritten(msgspec.Struct, frozen=True):
    """One result for each change, in their order."""

    results: list[ChangeWritten]


routes = Routes()


@routes.post(
    "/v1/changes",
    request=NewChanges,
    answers={200: ChangesWritten},
    errors=(*(IdReused, UnknownMesh, UnknownKey, UnknownTask, TaskTaken, TaskEnded, DiskFull),),
    example="""-d '{"changes":[{"op":"state.set","mesh":"team","entity":"k","value":42,"""
    """"id":"0197f2a0-0000-7000-8000-000000000001"}]}'""",
    local_only=True,
)
async def _changes(call: NodeRequest) -> Response:
    """Write into any family, many changes as {"changes": […]} or NDJSON: on the disk when this
    answers. Each is refused for itself, by what is listed below or in its own result.
    """
    raw = await call.body()
    lines = content_type(call) == NDJSON
    if lines or len(raw) > INLINE_BYTES:
        prepared = await call.api.run(_prepared, call.api, raw, lines)
    else:
        prepared = _prepared(call.api, raw, lines)
    outcomes = await write_all(call.api.writer, prepared)
    return call.answer(ChangesWritten([_written(outcome) for outcome in outcomes]))


class _Listed(msgspec.Struct, forbid_unknown_fields=True):
    """The request, before each change in it is checked."""

    changes: list[Any]


def _prepared(api: NodeApi, raw: bytes, lines: bool) -> list[Prepared]:
    ctx = api.engine.ctx
    if lines:
        return each(lines_of(raw), partial(_of_line, ctx), "changes")
    value = strict_json(raw)
    if not isinstance(value, dict) or "changes" not in value:
        raise BadInput('the body has no "changes"', hint='send {"changes": [{"op": …}, …]}')
    return each(check_shape(value, _Listed).changes, partial(_of_value, ctx), "changes")


def _of_value(ctx: NodeContext, value: object) -> PreparedChange:
    return prepare(ctx, read_change(value))


def _of_line(ctx: NodeContext, line: bytes) -> PreparedChange:
    return _of_value(ctx, strict_json(line))


def _written(outcome: Receipt | HoldfastError) -> ChangeWritten:
    if isinstance(outcome, HoldfastError):
        return ChangeWritten(status=outcome.http_status, error=failure(outcome).error)
    return ChangeWritten(
        status=200 if outcome.duplicate else 201,
        id=outcome.id,
        offset=outcome.offset,
        lamport=outcome.lamport or None,
        duplicate=outcome.duplicate,
    )
