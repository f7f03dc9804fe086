"""What the routes of the source document take and give, with its field names.

The source names the carriers (`PeerSyncRequest`, `PeerSyncResponse`) and says what they carry:
envelopes, and `sharedState` with `authMaterial` in it. What it leaves open is ours: `projectId` is
the mesh, and the answer says of every envelope what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.protocol.fusion_envelope import FUSION_PROTOCOL, FUSION_VERSION
from holdfast.rules.envelope import State
from holdfast.rules.quorum.auth_material import AuthSummary
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.reconcile import Outcome

MeshDegradedReadState = DegradedRead
"""The source's name of the record that every read bears."""
NodeStatus = Literal["online", "offline", "lost"]
PROJECT_SETTINGS_ID = "project"
"""The id of the entity that `/api/settings` is about."""


class _Said(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    protocol: str = FUSION_PROTOCOL
    version: str = FUSION_VERSION


class PeerSyncRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fields that are not known are let pass: a later minor version may have added them."""

    protocol: str = FUSION_PROTOCOL
    version: str = FUSION_VERSION
    project_id: str | None = None
    sender_node_id: str | None = None
    envelopes: list[dict[str, Any]] = []
    shared_state: dict[str, Any] = {}
    """`authMaterial`, for the channel of auth material, and nothing else."""


class EnvelopeResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of one envelope."""

    record_id: str | None
    state: State
    outcome: Outcome | None = None
    lease_epoch: int | None = None
    fence_token: str | None = None
    revisions: dict[str, int] = {}
    """By `entityType/entityId`."""
    code: str = ""
    """Of the error, where it was refused."""
    message: str = ""
    status: int = 200
    """As a call for this envelope alone would have answered."""


class SharedStateResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    auth_material: AuthSummary | None = None


class PeerSyncResponse(_Said, frozen=True, kw_only=True, rename="camel"):
    node_id: str
    project_id: str
    results: Sequence[EnvelopeResult]
    shared_state: SharedStateResult
    read_state: DegradedRead


class MeshMember(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    node_id: str
    role: Literal["coordinator", "voter", "learner"]
    linked: bool
    lag: int | None = None
    """Entries that its disk lacks, as far as this node knows."""


class MeshStateAnswer(_Said, frozen=True, kw_only=True, rename="camel"):
    """The state of a mesh as this node reads it, and how fresh that is."""

    node_id: str
    project_id: str
    coordinator_node_id: str | None
    lease_epoch: int
    members: Sequence[MeshMember]
    entities: Sequence[EntityState] = ()
    next: str | None = None
    """The `after` of the next page of entities."""
    read_state: DegradedRead


class EntityState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    entity_type: str
    entity_id: str
    revision: int
    payload: dict[str, Any]
    origin_node_id: str
    fence_token: str
    committed_at: str


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    status: NodeStatus
    role: str
    """What it is in the quorum of the mesh: `coordinator`, `voter`, `learner` or `member`."""
    is_local: bool = False
    last_heard_ms: int | None = None


class NodeListAnswer(_Said, frozen=True, kw_only=True, rename="camel"):
    project_id: str
    nodes: Sequence[NodeEntry]


class AuthSyncRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    direction: Literal["push", "pull"] = "push"


class AuthSyncAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Names of providers and counts: all that may be told."""

    node_id: str
    direction: Literal["push", "pull", "receive", "forget"]
    providers: Sequence[str]
    count: int


class ProjectSettingsAnswer(_Said, frozen=True, kw_only=True, rename="camel"):
    project_id: str
    settings: dict[str, Any]
    revision: int
    read_state: DegradedRead


class ProjectSettingsChange(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    project_id: str | None = None
    settings: dict[str, Any]
    base_revision: int | None = None
