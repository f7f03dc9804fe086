"""The whole log of a mesh over HTTP, for members with the grant audit: what a pipeline reads.

    GET  …/log         ?consumer=                → where it stands
    GET  …/range       ?from=&to=&epoch=&consumer=&known=  → entries, as JSON lines or Arrow
    POST …/consumers   {consumer, from, known}   → keep for me what I have not confirmed
    POST …/confirm     {consumer, offset, epoch}

Offsets are seqs. A range is read page by page, each in a read of its own, as a node does it. What
has expired is not in it. A reader with a name learns if something went that it had not confirmed:
before the first byte by an error; in the middle the connection is cut, and the next call gets the
error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from starlette.responses import Response

from holdfast.broker.access import require_mesh
from holdfast.broker.http.context import BrokerRequest
from holdfast.protocol.broker_http import Dropped
from holdfast.protocol.broker_log_http import (
    ConfirmRequest,
    ConsumerRequest,
    ConsumerResponse,
    ConsumersResponse,
    LogResponse,
    LostRange,
)
from holdfast.protocol.log_wire import ARROW, NDJSON
from holdfast.rules import limits
from holdfast.rules.broker_rows import AUDIT, BrokerConsumer, BrokerMesh, LogPage
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    BadInput,
    EpochChanged,
    NotAMember,
    NotGranted,
    PastEnd,
    TooMany,
    Truncated,
    UnknownConsumer,
)
from holdfast.rules.ids import id_time_ms
from holdfast.rules.names import check_key
from holdfast.rules.rows import Columns
from holdfast.service.http.json_body import json_body
from holdfast.service.http.ranges import Form, Lines, RangeBounds, arrow_form
from holdfast.service.http.route import Param, Route
from holdfast.service.http.streaming import Streamed

_AT: Final = "/v1/meshes/{mesh}"
_NUMBER_MAX: Final = limits.LAMPORT_MAX


def routes() -> list[Route]:
    known = (NotAMember, NotGranted)
    consumer = Param("consumer", "The name under which you read.")
    return [
        Route("GET", _AT + "/log", _log, "Where the whole log stands (grant audit).",
              answers={200: LogResponse}, errors=known, params=(consumer,)),
        Route("GET", _AT + "/range", _range,
              "What is held of from <= offset < to, as NDJSON or as an Arrow stream (grant audit).",
              answers={200: NDJSON}, errors=(*known, Truncated, EpochChanged, PastEnd),
              params=(Param("from", "The first offset; the log's first if left out.", int),
                      Param("to", "The offset after the last; up to the end if left out.", int),
                      Param("epoch", "The epoch that the offsets count in.", int), consumer,
                      Param("known", "You know what you have lost up to here.", int),
                      Param("accept", f"{ARROW} for an Arrow stream.", where="header"))),
        Route("GET", _AT + "/consumers", _list, "Who reads the whole log (grant audit).",
              answers={200: ConsumersResponse}, errors=known),
        Route("POST", _AT + "/consumers", _add,
              "Register a reader: what it has not confirmed is kept for a while (grant audit).",
              request=ConsumerRequest, answers={200: ConsumerResponse},
              errors=(*known, PastEnd, Truncated, TooMany)),
        Route("DELETE", _AT + "/consumers/{name:path}", _drop, "Forget a reader of yours.",
              answers={200: Dropped}, errors=known),
        Route("POST", _AT + "/confirm", _confirm, "A reader has everything up to an offset.",
              request=ConfirmRequest, answers={200: ConsumerResponse},
              errors=(*known, UnknownConsumer, EpochChanged, PastEnd)),
    ]  # fmt: skip


async def _log(call: BrokerRequest) -> Response:
    await call.member(AUDIT)
    reader = await _reader(call, call.one("consumer"))
    mesh = await require_mesh(call.api.store, call.mesh)
    name = f"{call.api.broker.identity.name}/{mesh.slug}"
    return call.answer(LogResponse(name, mesh.epoch, mesh.first, mesh.seq, _lost(reader)))


# --- ranges --------------------------------------------------------------------------------------


async def _range(call: BrokerRequest) -> Response:
    await call.member(AUDIT)
    consumer = call.one("consumer")
    mesh = await require_mesh(call.api.store, call.mesh)
    place = _place(mesh, call.number("from"), call.number("to"), call.number("epoch"))
    known = call.number("known") or 0
    _check_kept(await _reader(call, consumer), max(place.start, known + 1), place.stop)
    wants_arrow = ARROW in call.headers.get("accept", "")
    name = call.api.broker.identity.name
    form = await call.api.run(arrow_form, place.epoch, name) if wants_arrow else Lines()
    parts = _parts(call, place, consumer, known, form)
    return Streamed(parts, headers=place.headers(), media_type=ARROW if wants_arrow else NDJSON)


def _place(mesh: BrokerMesh, start: int | None, stop: int | None, epoch: int | None) -> RangeBounds:
    """What the range is, or why there is none."""
    if epoch is not None and epoch != mesh.epoch:
        raise _other_epoch(mesh.slug, mesh.epoch, epoch)
    begin = mesh.first if start is None else start
    if begin < 1 or (stop is not None and stop < begin):
        raise BadInput(f"[{begin}, {stop}) is not a range of offsets")
    if begin > mesh.seq + 1:
        raise PastEnd(f"offset {begin} is past the end of the log at {mesh.seq}")
    end = max(begin, mesh.seq + 1 if stop is None else min(stop, mesh.seq + 1))
    _check_there(begin, end, mesh.first)
    return RangeBounds(mesh.epoch, mesh.first, mesh.seq, begin, end)


async def _parts(
    call: BrokerRequest, place: RangeBounds, consumer: str | None, known: int, form: Form
) -> AsyncGenerator[bytes, None]:
    if begun := form.begin():
        yield begun
    at = place.start
    while at < place.stop:
        page = await call.api.store.log_page(
            call.mesh, at - 1, place.stop - 1, limits.BROKER_RANGE_ROWS, limits.BROKER_RANGE_BYTES
        )
        # Looked at after the page: what went before it was read shows now.
        await call.member(AUDIT)
        if page.epoch != place.epoch:
            raise _other_epoch(call.mesh, page.epoch, place.epoch)
        _check_there(at, place.stop, page.first)
        _check_kept(await _reader(call, consumer), max(at, known + 1), page.to + 1)
        if page.rows:
            yield await call.api.run(_encoded, form, page)
        at = page.to + 1
    if ended := form.end():
        yield ended


def _encoded(form: Form, page: LogPage) -> bytes:
    rows = page.rows
    envelopes = [decode_trusted(row.raw) for row in rows]
    return form.batch(
        Columns(
            offset=[row.seq for row in rows],
            id=[row.id for row in rows],
            mesh=[one.mesh for one in envelopes],
            op=[one.op for one in envelopes],
            entity=[one.entity for one in envelopes],
            origin=[one.origin for one in envelopes],
            lamport=[one.lamport for one in envelopes],
            recorded_at=[id_time_ms(row.broker_id) for row in rows],
            raw=[row.raw for row in rows],
            upto=page.to,
        )
    )


def _other_epoch(mesh: str, now: int, asked: int) -> EpochChanged:
    return EpochChanged(
        f"the log of {mesh!r} counts in epoch {now}, not {asked}",
        epoch=now,
        hint="the broker was restored: read from the first offset; known entries do no harm",
    )


def _check_there(start: int, stop: int, first: int) -> None:
    if start < first and stop > start:
        raise Truncated(
            f"changes before offset {first} are gone: a snapshot holds what they made",
            first_available=first,
            hint="take what is missing from a member of the mesh",
        )


def _check_kept(reader: BrokerConsumer | None, start: int, stop: int) -> None:
    if reader is not None and reader.lacks(start, stop):
        raise Truncated(
            f"{reader.lost} of the offsets {reader.lost_first} to {reader.lost_last} are gone: "
            f"they had their time, and {reader.name!r} had not confirmed them",
            first_available=reader.lost_last + 1,
            hint="take what is missing from members of the mesh, or go on without it",
        )


# --- readers -------------------------------------------------------------------------------------


async def _reader(call: BrokerRequest, name: str | None) -> BrokerConsumer | None:
    """The caller's reader of this name; None if it is not registered."""
    if name is None:
        return None
    for reader in await call.api.store.consumer_list(call.mesh):
        if (reader.key, reader.name) == (call.key, name):
            return reader
    return None


async def _list(call: BrokerRequest) -> Response:
    await call.member(AUDIT)
    mesh = await require_mesh(call.api.store, call.mesh)
    rows = await call.api.store.consumer_list(call.mesh)
    return call.answer(ConsumersResponse([consumer_document(row, mesh.seq) for row in rows]))


async def _add(call: BrokerRequest) -> Response:
    given = await json_body(call, ConsumerRequest)
    await call.member(AUDIT)
    check_key(given.consumer, "consumer name", limits.CONSUMER_NAME_BYTES_MAX)
    if not (1 <= given.start <= _NUMBER_MAX and 0 <= given.known <= _NUMBER_MAX):
        raise BadInput("from and known are not offsets of a log")
    store = call.api.store
    readers = await store.consumer_list(call.mesh)
    mine = [reader.name for reader in readers if reader.key == call.key]
    if given.consumer not in mine and len(mine) >= limits.CONSUMERS_OF_CALLER_MAX:
        raise TooMany(
            f"this key has {len(mine)} readers already", hint="drop those that read no more"
        )
    row = await store.consumer_add(
        call.mesh, call.key, given.consumer, given.start - 1, given.known, call.api.now_ms()
    )
    return call.answer(consumer_document(row, (await require_mesh(store, call.mesh)).seq))


async def _drop(call: BrokerRequest) -> Response:
    await call.member(AUDIT)
    dropped = await call.api.store.consumer_drop(call.mesh, call.key, call.path["name"])
    return call.answer(Dropped(dropped))


async def _confirm(call: BrokerRequest) -> Response:
    given = await json_body(call, ConfirmRequest)
    await call.member(AUDIT)
    if not (0 <= given.offset <= _NUMBER_MAX and 1 <= given.epoch <= _NUMBER_MAX):
        raise BadInput("epoch and offset are not those of a log")
    store = call.api.store
    row = await store.consumer_confirm(
        *(call.mesh, call.key, given.consumer, given.epoch, given.offset), call.api.now_ms()
    )
    return call.answer(consumer_document(row, (await require_mesh(store, call.mesh)).seq))


def consumer_document(row: BrokerConsumer, head: int) -> ConsumerResponse:
    return ConsumerResponse(
        name=row.name,
        frontier=row.seq,
        lag=max(0, head - row.seq),
        seen_at=row.seen_at,
        member=row.key.hex(),
        lost=_lost(row),
    )


def _lost(row: BrokerConsumer | None) -> LostRange | None:
    if row is None or not row.lacks(1, limits.SEQ_MAX):
        return None
    return LostRange(row.lost_first, row.lost_last, row.lost)
