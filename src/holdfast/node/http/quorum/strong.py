"""Strong writes and confirmed reads over HTTP, as `RemoteQuorum` asks for them."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.held import ANY_CALL, READS, WRITES, check_time, mesh_of, quorum_of
from holdfast.node.quorum import documents
from holdfast.node.quorum.api import ReplaySummary, StrongReceipt
from holdfast.rules.errors import (
    BadEnvelope,
    BadInput,
    Conflict,
    IdReused,
    LeaseNotHeld,
    NotAllowed,
)
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import BODY_BYTES_MAX
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes

_PATH = "/v1/meshes/{mesh}/quorum"

routes = Routes()


@routes.post(
    f"{_PATH}/intend",
    request=documents.IntentAsked,
    answers={200: documents.ReceiptDocument, 202: documents.ReceiptDocument},
    errors=(BadEnvelope, BadInput, Conflict, IdReused, NotAllowed, *WRITES),
    local_only=True,
)
async def _intend(call: NodeRequest) -> Response:
    """Bring an intent into the order of its mesh. 200: it is committed. 202: no quorum was there in
    time; it waits on this node's disk and is tried again.
    """
    asked = await json_body(call, documents.IntentAsked, BODY_BYTES_MAX)
    work = quorum_of(call).intend(
        mesh_of(call),
        asked.op,
        asked.entity,
        asked.body,
        id=asked.id,
        timeout_ms=check_time(asked.timeout_ms),
    )
    return receipt_answer(call, await waited(call, work))


def receipt_answer(call: NodeRequest, receipt: StrongReceipt) -> Response:
    status = 202 if receipt.state == "queued" else 200
    return call.answer(documents.ReceiptDocument.of(receipt), status)


@routes.post(
    f"{_PATH}/confirm",
    request=documents.ReadConfirmAsked,
    answers={200: DegradedRead},
    errors=(BadInput, *READS),
    example="-d '{}'",
    local_only=True,
)
async def _confirm(call: NodeRequest) -> Response:
    """How fresh a read of this home is from now on, or an error if that is less than demanded."""
    asked = await json_body(call, documents.ReadConfirmAsked)
    time = check_time(asked.timeout_ms)
    work = quorum_of(call).confirm(mesh_of(call), asked.demand, timeout_ms=time)
    return call.answer(await waited(call, work))


@routes.post(
    f"{_PATH}/leases/wait",
    request=documents.LeaseWait,
    answers={200: documents.LeaseGranted},
    errors=(BadInput, LeaseNotHeld, *ANY_CALL),
    local_only=True,
)
async def _lease_wait(call: NodeRequest) -> Response:
    """Wait until a session holds a lease that it asked for; `granted` is false when time is over.
    A client that goes away stops waiting, and keeps its place in the line.
    """
    asked = await json_body(call, documents.LeaseWait)
    time = check_time(asked.timeout_ms)
    assert time is not None, "it is a number"
    work = quorum_of(call).lease_granted(
        mesh_of(call), asked.name, parse_id(asked.session), timeout_ms=time
    )
    return call.answer(documents.LeaseGranted(await waited(call, work)))


@routes.post(
    f"{_PATH}/replay",
    request=documents.ReplayAsked,
    answers={200: ReplaySummary},
    errors=ANY_CALL,
    example="-d '{}'",
    local_only=True,
)
async def _replay(call: NodeRequest) -> Response:
    """Try the writes that wait for a quorum now, all or those for one node."""
    asked = await json_body(call, documents.ReplayAsked)
    work = quorum_of(call).replay(mesh_of(call), node=asked.node)
    return call.answer(await waited(call, work))
