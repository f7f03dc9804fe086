"""Writing into any family over HTTP, many changes in one request: each by itself (`/v1/changes`),
or all of them in one transaction (`/v1/meshes/{mesh}/batch`).

The answer says that they are on the disk. Each has its own id: a client that missed the answer
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
from holdfast.node.library.batch import AsyncWriteBatch, add_documents
from holdfast.node.library.documents import (
    BatchDocument,
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
    HasVoters,
    HoldfastError,
    IdReused,
    OverLimit,
    StampMoved,
    TaskEnded,
    TaskTaken,
    UnknownFile,
    UnknownKey,
    UnknownMesh,
    UnknownTask,
)
from holdfast.rules.strict_json import strict_json
from holdfast.service.http.errors import failure
from holdfast.service.http.json_body import INLINE_BYTES, check_shape, content_type
from holdfast.service.http.route import Param, Routes


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


class NewBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to write together, in their order."""

    changes: list[BatchDocument]


class ChangeReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a batch that is in the log and on the disk."""

    id: str
    offset: int
    lamport: int | None
    """None for a change that the log no longer holds, but whose id the node still knows."""
    peer: str
    duplicate: bool
    """An earlier call wrote it with this id and content: this is its place."""
    outcome: str


class BatchReceipts(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is written: one receipt for each change, in their order."""

    mesh: str
    receipts: list[ChangeReceipt]


routes = Routes()


@routes.post(
    "/v1/changes",
    request=NewChanges,
    answers={200: ChangesWritten},
    errors=(
        *(IdReused, StampMoved, UnknownMesh, UnknownKey, UnknownTask, TaskTaken, TaskEnded),
        DiskFull,
    ),
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


# --- together ----------------------------------------------------------------------------------


@routes.post(
    "/v1/meshes/{mesh}/batch",
    request=NewBatch,
    answers={201: BatchReceipts, 200: BatchReceipts},
    params=(
        Param(
            "idempotency-key", "Names the batch, and so its changes without ids.", where="header"
        ),
    ),
    errors=(
        *(IdReused, StampMoved, UnknownMesh, UnknownKey, UnknownTask, UnknownFile, TaskTaken),
        *(TaskEnded, HasVoters, OverLimit, DiskFull),
    ),
    example="""-d '{"changes":[{"op":"state.set","entity":"k","value":42},"""
    """{"op":"task.create","title":"Paint the fence"}]}'""",
    local_only=True,
)
async def _batch(call: NodeRequest) -> Response:
    """Write several changes of any family in one transaction, as {"changes": […]} or NDJSON: all
    are on the disk when this answers, or none. A batch that was there already is answered with 200.
    """
    raw, key, mesh = await call.body(), call.idempotency_key(), call.path["mesh"]
    lines = content_type(call) == NDJSON
    if lines or len(raw) > INLINE_BYTES:
        batch = await call.api.run(_collected, call.api, mesh, raw, key, lines)
    else:
        batch = _collected(call.api, mesh, raw, key, lines)
    async with batch:
        pass
    receipts = batch.receipts
    status = 200 if all(one.duplicate for one in receipts) else 201
    return call.answer(BatchReceipts(mesh=mesh, receipts=[*map(_receipt, receipts)]), status)


def _collected(
    api: NodeApi, mesh: str, raw: bytes, key: str | None, lines: bool
) -> AsyncWriteBatch:
    api.engine.require_mesh(mesh)
    if lines:
        values: list[Any] = [strict_json(line) for line in lines_of(raw)]
    else:
        values = check_shape(strict_json(raw), _Listed).changes
    if not values:
        raise BadInput("the batch has no changes", hint='send {"changes": [{"op": …}, …]}')
    batch = AsyncWriteBatch(api.writer, api.engine, mesh, key)
    add_documents(batch, values)
    return batch


def _receipt(one: Receipt) -> ChangeReceipt:
    return ChangeReceipt(
        id=one.id,
        offset=one.offset,
        lamport=one.lamport or None,
        peer=one.peer,
        duplicate=one.duplicate,
        outcome=one.outcome.value,
    )
