"""Snapshots: a mesh's state that a member uploads, in parts, for members that come later.

    POST …/snapshot/begin          {epoch, seq}          → {snapshot_id, next}
    POST …/snapshot/{id}/chunk     ?number=&rows=, bytes → {next}
    POST …/snapshot/{id}/commit    {digest}              → the snapshot
    GET  …/snapshot                                      → the newest one that is ready
    GET  …/snapshot/{id}/{number}                        → the bytes of a part

An upload that was cut off goes on with the number that `begin` returns. Nothing of it can be seen
before it is committed.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from holdfast.broker.http.context import BrokerRequest
from holdfast.protocol.broker_http import (
    Chunk,
    SnapshotBegin,
    SnapshotBegun,
    SnapshotCommit,
    SnapshotResponse,
)
from holdfast.rules import limits
from holdfast.rules.broker_rows import SnapshotRow
from holdfast.rules.errors import (
    BadInput,
    BadValue,
    BodyTooLarge,
    EpochMismatch,
    NotAMember,
    UnknownObject,
)
from holdfast.rules.ids import id_text, parse_id
from holdfast.service.http.json_body import json_body
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Param, Route

BINARY: Final = "application/octet-stream"
_AT: Final = "/api/my/meshes/{mesh}/snapshot"
_DIGEST_DIGITS: Final = 64
_NUMBER_MAX: Final = 2**31 - 1
_NO_PART: Final = "ask for the newest snapshot: another may have taken its place"


def routes() -> list[Route]:
    return [
        Route("POST", f"{_AT}/begin", _begin, "Begin an upload, or go on with one.",
              request=SnapshotBegin, answers={200: SnapshotBegun},
              errors=(NotAMember, EpochMismatch)),
        Route("POST", _AT + "/{id}/chunk", _chunk, "One part of it.", request=BINARY,
              answers={200: Chunk}, errors=(NotAMember, UnknownObject, BodyTooLarge),
              params=(Param("number", "Which one, from 0.", int, required=True),
                      Param("rows", "Envelopes in it.", int, required=True))),
        Route("POST", _AT + "/{id}/commit", _commit, "It is whole.", request=SnapshotCommit,
              answers={200: SnapshotResponse}, errors=(NotAMember, UnknownObject, BadValue)),
        Route("GET", _AT, _get, "The newest one that is ready.", answers={200: SnapshotResponse},
              errors=(NotAMember, UnknownObject)),
        Route("GET", _AT + "/{id}/{number}", _part, "One part.", answers={200: BINARY},
              errors=(NotAMember, UnknownObject)),
    ]  # fmt: skip


async def _begin(call: BrokerRequest) -> Response:
    given = await json_body(call, SnapshotBegin)
    # It holds what others wrote: only who may hand that in may upload it.
    await call.member("read", "relay")
    if not (0 <= given.seq <= limits.LAMPORT_MAX and 1 <= given.epoch <= limits.LAMPORT_MAX):
        raise BadInput("epoch and seq are not those of a mesh")
    row = SnapshotRow(
        id=id_text(call.api.broker.source.new_id()),
        epoch=given.epoch,
        seq=given.seq,
        parts=0,
        rows=0,
        ready=False,
        made_by=call.key,
        began_at=call.api.now_ms(),
    )
    begun = await call.api.store.snapshot_begin(call.mesh, row)
    return call.answer(SnapshotBegun(begun.id, begun.parts))


async def _chunk(call: BrokerRequest) -> Response:
    await call.member("relay")
    number, rows = call.number("number"), call.number("rows")
    if number is None or rows is None:
        raise BadInput("number and rows are needed", hint="?number=0&rows=1000")
    if rows > limits.BROKER_PART_BYTES_MAX:
        raise BadInput(f"no part of a snapshot holds {rows} envelopes")
    part = await call.body(limits.BROKER_PART_BYTES_MAX)
    following = await call.api.store.snapshot_add(call.mesh, _id(call), number, rows, part)
    return call.answer(Chunk(following))


async def _commit(call: BrokerRequest) -> Response:
    given = await json_body(call, SnapshotCommit)
    await call.member("relay")
    if len(given.digest) != _DIGEST_DIGITS or given.digest.strip("0123456789abcdef"):
        raise BadInput("a digest is 64 lower-case hex digits")
    digest = bytes.fromhex(given.digest)
    row = await call.api.store.snapshot_commit(call.mesh, _id(call), digest, call.api.now_ms())
    return call.answer(_snapshot(row))


async def _get(call: BrokerRequest) -> Response:
    await call.member("read")
    row = await call.api.store.snapshot_get(call.mesh)
    if row is None:
        raise UnknownObject(f"mesh {call.mesh!r} has no snapshot here", hint="")
    return call.answer(_snapshot(row))


async def _part(call: BrokerRequest) -> Response:
    await call.member("read")
    number = parse_int("number", call.path["number"])
    part = None
    if number <= _NUMBER_MAX:
        part = await call.api.store.snapshot_part(call.mesh, _id(call), number)
    if part is None:
        raise UnknownObject("there is no such part of a snapshot here", hint=_NO_PART)
    return Response(part, media_type=BINARY)


def _id(call: BrokerRequest) -> str:
    return id_text(parse_id(call.path["id"]))


def _snapshot(row: SnapshotRow) -> SnapshotResponse:
    return SnapshotResponse(
        snapshot_id=row.id,
        epoch=row.epoch,
        seq=row.seq,
        parts=row.parts,
        rows=row.rows,
        digest=row.digest.hex(),
        made_by=row.made_by.hex(),
        began_at=row.began_at,
    )
