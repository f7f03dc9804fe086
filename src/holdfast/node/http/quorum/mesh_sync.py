"""`/api/mesh` of the source document: envelopes in, the state of the mesh out.

An envelope of the source is JSON, and the bytes that a quorum decides about are made where an
intent enters: so its origin inside is this node. Its id stays what it was, and with it "once".
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.node.core import operations
from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.access import (
    PROJECT,
    auth_channel,
    check_may_read,
    check_may_write,
    project_of,
)
from holdfast.node.http.quorum.held import READ, READS, quorum_of, read_committed
from holdfast.node.quorum.api import QuorumApi, ReadDemand, StrongReceipt
from holdfast.node.quorum.entity_writes import change_entities
from holdfast.node.quorum.ports import OrderStatus
from holdfast.protocol.fusion_envelope import (
    FusionChange,
    FusionEvent,
    read_fusion,
    read_fusion_event,
)
from holdfast.protocol.fusion_routes import (
    EntityState,
    EnvelopeResult,
    MeshMember,
    MeshStateAnswer,
    PeerSyncRequest,
    PeerSyncResponse,
    SharedStateResult,
)
from holdfast.rules.data_classes import WriteClass
from holdfast.rules.envelope import State
from holdfast.rules.errors import (
    AuthChannelClosed,
    BadChecksum,
    BadInput,
    FenceTooOld,
    HoldfastError,
    NotAuthMaterial,
    NotCommitted,
    NotGranted,
    OverLimit,
    Unknown,
    UnsupportedProtocol,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import BODY_BYTES_MAX, QUORUM_PAGE_ROWS, SYNC_ENVELOPES_MAX
from holdfast.rules.quorum.entities import check_type, read_fields
from holdfast.rules.quorum.moments import moment_text
from holdfast.rules.quorum.view import EntityRow
from holdfast.rules.reconcile import Outcome
from holdfast.rules.strict_json import strict_json
from holdfast.service.http.json_body import check_shape
from holdfast.service.http.route import Param, Routes
from holdfast.storage.ports import Reader

_CHANNELS: Final = frozenset({"authMaterial"})
_DECIDED: Final[dict[Outcome | None, State]] = {
    Outcome.APPLIED: "committed",
    Outcome.NOOP_ALREADY_APPLIED: "committed",
    Outcome.SUPERSEDED: "reconciled",
}

routes = Routes()


@routes.post(
    "/api/mesh/sync",
    request=PeerSyncRequest,
    answers={200: PeerSyncResponse, 202: PeerSyncResponse},
    errors=(
        *(AuthChannelClosed, BadChecksum, BadInput, NotAuthMaterial, NotGranted, OverLimit),
        *(UnsupportedProtocol, *READS),
    ),
    example="""-d '{"protocol":"fusion.shared-mesh","version":"1.0","envelopes":[]}'""",
)
async def _sync(call: NodeRequest) -> Response:
    """Bring envelopes of the source's protocol, and auth material in `sharedState`. Each envelope
    gets its own result; 202 if one of them waits for a quorum.
    """
    asked = check_shape(strict_json(await call.body(BODY_BYTES_MAX)), PeerSyncRequest)
    _check_version(asked)
    mesh = project_of(call, asked.project_id)
    if asked.envelopes:
        check_may_write(call, mesh)
    check_may_read(call, mesh)
    if len(asked.envelopes) > SYNC_ENVELOPES_MAX:
        raise OverLimit(
            f"{len(asked.envelopes)} envelopes; a call takes {SYNC_ENVELOPES_MAX}",
            hint="send them in several calls",
        )
    # First what may be refused as a whole: nothing was written then.
    shared = await _shared_state(call, asked.shared_state)
    quorum = quorum_of(call)
    read = await quorum.confirm(mesh, ReadDemand(linearizable=False))
    results = [
        await waited(call, _taken(call, quorum, mesh, envelope)) for envelope in asked.envelopes
    ]
    answer = PeerSyncResponse(
        node_id=call.api.node.peer,
        project_id=mesh,
        results=results,
        shared_state=shared,
        read_state=read,
    )
    return call.answer(answer, 202 if any(one.state == "queued" for one in results) else 200)


@routes.get(
    "/api/mesh/state",
    answers={200: MeshStateAnswer},
    params=(
        PROJECT,
        Param("entityType", "Also the live entities of this type."),
        Param("after", "Only entities with an id after this one."),
        Param("limit", f"At most this many; {QUORUM_PAGE_ROWS} if it is not given.", int),
        *READ,
    ),
    errors=(BadInput, NotGranted, *READS),
)
async def _state(call: NodeRequest) -> Response:
    """The state of the mesh: coordinator, lease epoch, members, entities; and how fresh it is, as
    `MeshDegradedReadState`. A fallback is never hidden.
    """
    mesh = project_of(call, call.one("projectId"))
    check_may_read(call, mesh)
    type, after = call.one("entityType"), call.one("after", "") or ""
    limit = call.limit(QUORUM_PAGE_ROWS)
    if type is not None:
        check_type(type)

    def look(tx: Reader) -> list[EntityRow]:
        return [] if type is None else tx.entity_list(mesh, type, after, limit)

    rows, read = await read_committed(call, mesh, look, "entity.list")
    order = await quorum_of(call).status(mesh)
    return call.answer(
        MeshStateAnswer(
            node_id=call.api.node.peer,
            project_id=mesh,
            coordinator_node_id=order.coordinator or None,
            lease_epoch=order.lease_epoch,
            members=members_of(order),
            entities=[_entity(row) for row in rows],
            next=rows[-1].id if len(rows) == limit else None,
            read_state=read,
        )
    )


def members_of(order: OrderStatus) -> list[MeshMember]:
    return [
        MeshMember(
            node_id=one.peer,
            role="coordinator" if one.leads else one.place,
            linked=one.linked,
            lag=None if one.match is None else max(0, order.committed - one.match),
        )
        for one in order.members
    ]


# --- what came -------------------------------------------------------------------------------


def _check_version(asked: PeerSyncRequest) -> None:
    if asked.protocol != "fusion.shared-mesh" or asked.version.partition(".")[0] != "1":
        raise UnsupportedProtocol(
            f"{asked.protocol!r} {asked.version!r} is not fusion.shared-mesh 1.x"
        )


async def _shared_state(call: NodeRequest, shared: dict[str, Any]) -> SharedStateResult:
    unknown = sorted(set(shared) - _CHANNELS)
    if unknown:
        raise BadInput(
            f"sharedState has no channel {unknown[0]!r}",
            hint="settings travel as entities: PUT /api/settings",
        )
    material = shared.get("authMaterial")
    if material is None:
        return SharedStateResult()
    channel = auth_channel(call)
    # As bytes again: what reads it shows nothing of what is wrong with it.
    raw = msgspec.json.encode(material)
    by = call.caller.name or call.api.node.peer
    came = await call.api.run(channel.material.receive, raw, by)
    return SharedStateResult(auth_material=came)


async def _taken(
    call: NodeRequest, quorum: QuorumApi, mesh: str, envelope: dict[str, Any]
) -> EnvelopeResult:
    """What becomes of one envelope. Its error is its own: the others have theirs."""
    given = envelope.get("recordId")
    record = given if isinstance(given, str) else None
    try:
        if envelope.get("writeClass") == WriteClass.APPEND_ONLY:
            return await _appended(call, mesh, read_fusion_event(msgspec.json.encode(envelope)))
        change = read_fusion(msgspec.json.encode(envelope))
        if change.state not in ("intent", "queued"):
            raise NotCommitted(
                f"an envelope that says {change.state!r} brings no commit of this mesh",
                hint="send the intent",
            )
        await _check_incarnation(call, quorum, mesh, change)
        receipt = await change_entities(quorum, mesh, change.body.operations, id=id_text(change.id))
    except Unknown:
        raise  # the caller sends all of it again: under the same ids it is done once
    except HoldfastError as error:
        return EnvelopeResult(
            record_id=record,
            state="rejected",
            code=error.code,
            message=error.message,
            status=error.http_status,
        )
    return _result(receipt)


async def _check_incarnation(
    call: NodeRequest, quorum: QuorumApi, mesh: str, change: FusionChange
) -> None:
    """An intent under a fence of another incarnation was made in another order. Its epoch is
    checked where it is decided, but epochs of two incarnations may be the same number. FenceTooOld;
    what was decided before is answered from its record, and what waited in a queue is fenced anew.
    """
    if change.fence is None or change.state != "intent":
        return
    now = (await quorum.status(mesh)).incarnation
    if change.fence.incarnation == now:
        return

    def is_known(tx: Reader) -> bool:
        return change.id in tx.intents_known(mesh, [change.id])

    if not await call.api.run(call.api.engine.read, "quorum.intent", is_known):
        raise FenceTooOld(f"the fence {change.fence} is not of incarnation {now} of {mesh!r}")


async def _appended(call: NodeRequest, mesh: str, event: FusionEvent) -> EnvelopeResult:
    """An event needs no quorum: it stands when it is on this disk, and travels from here."""
    id = id_text(event.id)
    ctx = call.api.engine.ctx
    change = operations.audit_append(ctx, mesh, event.stream, event.payload, id)
    receipt = await call.api.writer.write("audit.append", change)
    return EnvelopeResult(record_id=id, state="committed", outcome=receipt.outcome)


def _result(receipt: StrongReceipt) -> EnvelopeResult:
    if receipt.state == "queued":
        return EnvelopeResult(
            record_id=receipt.id,
            state="queued",
            code=receipt.reason,
            message=receipt.detail,
            status=202,
        )
    epoch = int(receipt.fence.split(".")[1]) if receipt.fence else None
    return EnvelopeResult(
        record_id=receipt.id,
        state=_DECIDED.get(receipt.outcome, "rejected"),
        outcome=receipt.outcome,
        lease_epoch=epoch,
        fence_token=receipt.fence or None,
        revisions={f"{one.type}/{one.id}": one.revision for one in receipt.revisions},
    )


def _entity(row: EntityRow) -> EntityState:
    return EntityState(
        entity_type=row.type,
        entity_id=row.id,
        revision=row.revision,
        payload=read_fields(row.fields),
        origin_node_id=row.origin,
        fence_token=str(row.fence),
        committed_at=moment_text(row.committed_at),
    )
