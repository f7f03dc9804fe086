"""Appending facts over HTTP: one, or many in one request.

The answer says that they are on the disk. The facts of one request share commits with each other
and with other writes of that moment. Each is accepted or refused by itself, and has its own place
in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from holdfast.node.core import operations
from holdfast.node.core.change import Change, Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.http.many import each, lines_of
from holdfast.node.library.documents import Prepared, write_all
from holdfast.protocol.error_body import ErrorDetail
from holdfast.protocol.log_wire import NDJSON
from holdfast.rules.errors import (
    BadInput,
    DiskFull,
    HoldfastError,
    IdReused,
    UnknownMesh,
    UnknownObject,
)
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text
from holdfast.rules.strict_json import strict_json
from holdfast.service.http.errors import failure
from holdfast.service.http.json_body import INLINE_BYTES, check_shape, content_type
from holdfast.service.http.route import Param, Routes

T = TypeVar("T")


class NewFact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact to append."""

    subject: str
    predicate: str
    object: Any
    mesh: str = ""
    """May be left out on a node with one mesh."""
    id: str | None = None
    """A UUID of version 7. The same id with the same content is appended once."""
    meta: dict[str, Any] | None = None
    objects: list[str] = []
    """Hashes of objects that were put before."""


class NewFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts to append. Each is accepted or refused by itself."""

    facts: list[Any]


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that is in the log and on the disk."""

    id: str
    epoch: int
    offset: int
    lamport: int
    origin: str
    duplicate: bool
    """An earlier call appended it with this id and content: this is its place."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result for one fact of many: where it is, or why it was refused."""

    status: int
    fact: Appended | None = None
    error: ErrorDetail | None = None


class Results(msgspec.Struct, frozen=True):
    """One result for each fact, in their order."""

    results: list[Result]


routes = Routes()


@routes.post(
    "/v1/facts/append",
    request=NewFact,
    answers={201: Appended, 200: Results},
    params=(Param("idempotency-key", "Names a single fact: any text, or a UUID.", where="header"),),
    errors=(IdReused, UnknownMesh, UnknownObject, DiskFull),
    example="""-d '{"mesh":"team","subject":"s/1","predicate":"is","object":42}'""",
    local_only=True,
)
async def _append(call: NodeRequest) -> Response:
    """Append a fact, or many as {"facts": […]} or NDJSON: on the disk when this answers. A fact
    that was there already is answered as a new one, with 200.
    """
    raw = await call.body()
    key = call.idempotency_key()
    lines = content_type(call) == NDJSON
    if lines or len(raw) > INLINE_BYTES:
        prepared = await call.api.run(_prepare, call.api, raw, key, lines)
    else:
        prepared = _prepare(call.api, raw, key, lines)
    if isinstance(prepared, Change):
        receipt = await call.api.writer.write("fact.append", prepared)
        return call.answer(appended(call.api, receipt), 200 if receipt.duplicate else 201)
    outcomes = await write_all(call.api.writer, prepared)
    return call.answer(Results([_result(call.api, outcome) for outcome in outcomes]))


def _prepare(api: NodeApi, raw: bytes, key: str | None, lines: bool) -> Change | list[Prepared]:
    """The change of a single fact, or a list with the change or the error of each fact."""
    only_mesh = cache(partial(_only_mesh, api))  # looked up once, and only if a fact needs it
    change = partial(_change, api.engine.ctx, only_mesh)
    if lines:
        return _each(change, key, lines_of(raw), _of_line)
    value = strict_json(raw)
    if isinstance(value, dict) and "facts" in value:
        return _each(change, key, check_shape(value, NewFacts).facts, _of_value)
    return change(_of_value(value), key)


def _each(
    change: Callable[[NewFact, None], Change],
    key: str | None,
    given: Sequence[T],
    read: Callable[[T], NewFact],
) -> list[Prepared]:
    if key is not None:
        raise BadInput(
            "an Idempotency-Key names one fact, and this brings many",
            hint="give each of them its own id",
        )
    return each(given, lambda item: change(read(item), None), "facts")


def _change(
    ctx: NodeContext, only_mesh: Callable[[], str], fact: NewFact, key: str | None
) -> Change:
    mesh = fact.mesh or only_mesh()
    return operations.fact_append(
        ctx,
        mesh,
        fact.subject,
        fact.predicate,
        fact.object,
        fact.id if key is None else id_text(id_of_key(key, mesh, ctx.peer)),
        fact.meta,
        fact.objects,
    )


def _only_mesh(api: NodeApi) -> str:
    meshes = api.engine.read("mesh.list", lambda tx: tx.mesh_list())
    if len(meshes) != 1:
        raise BadInput(
            f"this node has {len(meshes)} meshes, and the fact does not say which",
            hint='add "mesh": "NAME"; see: holdfast mesh list',
        )
    return meshes[0].slug


def _result(api: NodeApi, outcome: Receipt | HoldfastError) -> Result:
    if isinstance(outcome, HoldfastError):
        return Result(status=outcome.http_status, error=failure(outcome).error)
    return Result(status=200 if outcome.duplicate else 201, fact=appended(api, outcome))


def appended(api: NodeApi, receipt: Receipt) -> Appended:
    return Appended(
        id=receipt.id,
        epoch=api.engine.ctx.epoch,
        offset=receipt.offset,
        lamport=receipt.lamport,
        origin=receipt.peer,
        duplicate=receipt.duplicate,
    )


def _of_value(value: Any) -> NewFact:
    return check_shape(value, NewFact)


def _of_line(line: bytes) -> NewFact:
    return _of_value(strict_json(line))
