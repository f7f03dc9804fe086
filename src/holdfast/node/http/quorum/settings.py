"""`/api/settings` of the source document: settings of the project, and the auth channel beside it.

Settings are an entity, decided by the quorum. A secret among them is refused by its name, and
settings in the auth channel are refused by their form: neither can slip into the other.
"""

from __future__ import annotations

from starlette.responses import Response

from holdfast.node.http.bus import bus_of
from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.http.quorum.access import (
    PROJECT,
    auth_channel,
    check_may_read,
    check_may_write,
    project_of,
)
from holdfast.node.http.quorum.held import READ, READS, WRITES, quorum_of, read_committed
from holdfast.node.http.quorum.strong import receipt_answer
from holdfast.node.quorum.documents import ReceiptDocument
from holdfast.node.quorum.entity_writes import change_entities
from holdfast.protocol.fusion_routes import (
    PROJECT_SETTINGS_ID,
    AuthSyncAnswer,
    ProjectSettingsAnswer,
    ProjectSettingsChange,
)
from holdfast.rules.bodies import encode_value
from holdfast.rules.errors import (
    AuthChannelClosed,
    BadChecksum,
    BadInput,
    NotAuthMaterial,
    NotGranted,
    OverLimit,
    RevisionMoved,
    SecretRefused,
    WrongKey,
)
from holdfast.rules.limits import BODY_BYTES_MAX
from holdfast.rules.quorum.auth_material import AuthMaterialSnapshot
from holdfast.rules.quorum.entities import read_fields
from holdfast.rules.quorum.intents import EntityOperation
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes

_TYPE = "project_settings"

routes = Routes()


@routes.get(
    "/api/settings",
    answers={200: ProjectSettingsAnswer},
    params=(PROJECT, *READ),
    errors=(BadInput, NotGranted, *READS),
)
async def _get(call: NodeRequest) -> Response:
    """The settings of the project, their revision, and how fresh they are."""
    mesh = project_of(call, call.one("projectId"))
    check_may_read(call, mesh)
    row, read = await read_committed(
        call, mesh, lambda tx: tx.entity_get(mesh, _TYPE, PROJECT_SETTINGS_ID), "entity.get"
    )
    fields = {} if row is None or row.deleted else read_fields(row.fields)
    return call.answer(
        ProjectSettingsAnswer(
            project_id=mesh,
            settings=fields,
            revision=0 if row is None else row.revision,
            read_state=read,
        )
    )


@routes.put(
    "/api/settings",
    request=ProjectSettingsChange,
    answers={200: ReceiptDocument, 202: ReceiptDocument},
    errors=(BadInput, NotGranted, OverLimit, RevisionMoved, SecretRefused, *WRITES),
    example="""-d '{"settings":{"theme":"dark"},"baseRevision":0}'""",
)
async def _put(call: NodeRequest) -> Response:
    """Replace the settings of the project. With `baseRevision` only if they still are what you
    saw. A field that by its name is a secret is refused.
    """
    asked = await json_body(call, ProjectSettingsChange, BODY_BYTES_MAX)
    mesh = project_of(call, asked.project_id)
    check_may_write(call, mesh)
    fields = encode_value(asked.settings)
    change = EntityOperation("put", _TYPE, PROJECT_SETTINGS_ID, asked.base_revision, fields)
    return receipt_answer(
        call, await waited(call, change_entities(quorum_of(call), mesh, [change]))
    )


@routes.post(
    "/api/settings/auth-receive",
    request=AuthMaterialSnapshot,
    answers={200: AuthSyncAnswer},
    errors=(AuthChannelClosed, BadChecksum, NotAuthMaterial, NotGranted, OverLimit, WrongKey),
)
async def _receive(call: NodeRequest) -> Response:
    """Take a snapshot of auth material. It is sealed before it is stored; the answer names
    providers and counts only. Settings are refused here.
    """
    channel = auth_channel(call)
    raw = await call.body(BODY_BYTES_MAX)
    own = call.api.node.peer
    came = await call.api.run(channel.material.receive, raw, call.caller.name or own)
    return call.answer(
        AuthSyncAnswer(node_id=own, direction="receive", providers=came.providers, count=came.count)
    )


@routes.delete(
    "/v1/auth-material",
    answers={200: AuthSyncAnswer},
    params=(Param("provider", "Only this provider; all of them if it is not given."),),
    errors=(WrongKey,),
    local_only=True,
)
async def _forget(call: NodeRequest) -> Response:
    """Delete auth material from this node, also while its channel is closed. Other nodes keep
    theirs, and bring it back if they push it.
    """
    provider, own = call.one("provider"), call.api.node.peer
    material = bus_of(call).auth.material
    gone = await call.api.run(material.forget, None if provider is None else [provider])
    return call.answer(
        AuthSyncAnswer(node_id=own, direction="forget", providers=gone.providers, count=gone.count)
    )


@routes.get(
    "/api/settings/auth-export",
    answers={200: AuthMaterialSnapshot},
    errors=(AuthChannelClosed, NotGranted, WrongKey),
)
async def _export(call: NodeRequest) -> Response:
    """All auth material of this node, as a snapshot with its checksum."""
    channel = auth_channel(call)
    snapshot = await call.api.run(channel.material.export)
    return call.answer(snapshot, headers={"cache-control": "no-store"})
