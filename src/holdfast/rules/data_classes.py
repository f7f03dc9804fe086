"""How each kind of data travels.

The matrix below is the one place that says so. A data class is what a record is about; its write
class is how a write to it becomes true:

    strong        by the coordinator's fence and a majority of voters
    append-only   accepted here, replicated as an immutable event, deduplicated by its id
    queued        accepted here, replayed to the others when they can be reached
    local         never leaves this node

A mesh need not have voters. Tasks then travel queued, because their merge (first claim wins,
whatever the order of delivery) gives the same task everywhere. The other strong classes have no
such merge: they stay strong, and without voters such a write waits for a quorum, which its caller
learns. No row, and so no call, turns a strong write into a local one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from holdfast.rules.errors import BadValue


class WriteClass(StrEnum):
    STRONG = "strong"
    APPEND_ONLY = "append-only"
    QUEUED = "queued"
    LOCAL = "local"


class DataClass(StrEnum):
    # What the mesh coordinates
    TASKS = "tasks"
    TASK_METADATA = "task_metadata"
    MISSIONS = "missions"
    AGENT_DEFINITIONS = "agent_definitions"
    AGENT_RUNTIME = "agent_runtime"
    PROJECT_SETTINGS = "project_settings"
    AUTH_MATERIAL = "auth_material"
    RUN_ACTIVITY = "run_activity"
    RUN_OUTCOMES = "run_outcomes"
    AUDIT_EVENTS = "audit_events"
    LEASES = "leases"
    NODE_STATUS = "node_status"
    FILE_BLOBS = "file_blobs"
    # What a node keeps in its families beyond those
    MEMORY = "memory"
    STATE = "state"
    VECTORS = "vectors"
    FACTS = "facts"
    MESSAGES = "messages"
    PEER_CACHE = "peer_cache"


class Travel(NamedTuple):
    with_voters: WriteClass
    without_voters: WriteClass


_STRONG: Final = Travel(WriteClass.STRONG, WriteClass.STRONG)
_STRONG_OR_MERGED: Final = Travel(WriteClass.STRONG, WriteClass.QUEUED)
_APPEND_ONLY: Final = Travel(WriteClass.APPEND_ONLY, WriteClass.APPEND_ONLY)
_QUEUED: Final = Travel(WriteClass.QUEUED, WriteClass.QUEUED)
_LOCAL: Final = Travel(WriteClass.LOCAL, WriteClass.LOCAL)

TRAVELS: Final[Mapping[DataClass, Travel]] = MappingProxyType(
    {
        DataClass.TASKS: _STRONG_OR_MERGED,
        # Priority, model overrides, references: on the same path as the task that they belong to.
        DataClass.TASK_METADATA: _STRONG_OR_MERGED,
        # Missions, milestones, slices, features: their order keeps the hierarchy whole.
        DataClass.MISSIONS: _STRONG,
        DataClass.AGENT_DEFINITIONS: _STRONG,
        # Heartbeats, processes, worktree paths: true on this node only.
        DataClass.AGENT_RUNTIME: _LOCAL,
        DataClass.PROJECT_SETTINGS: _STRONG,
        # Only in its own snapshot over authenticated links, never as a settings payload.
        DataClass.AUTH_MATERIAL: _QUEUED,
        # A run is two things: what happens live stays here, what came of it follows later.
        DataClass.RUN_ACTIVITY: _LOCAL,
        DataClass.RUN_OUTCOMES: _QUEUED,
        DataClass.AUDIT_EVENTS: _APPEND_ONLY,
        # Users' own leases, and which nodes count as lost: worth something only if all agree.
        DataClass.LEASES: _STRONG,
        DataClass.NODE_STATUS: _STRONG,
        # The record that names the content is replicated; the content itself goes out of band.
        DataClass.FILE_BLOBS: _QUEUED,
        # The last writer wins in any order of delivery, so both merge without a vote.
        DataClass.MEMORY: _QUEUED,
        DataClass.STATE: _QUEUED,
        DataClass.VECTORS: _APPEND_ONLY,
        DataClass.FACTS: _APPEND_ONLY,
        DataClass.MESSAGES: _QUEUED,
        # Each node learns its peers by itself.
        DataClass.PEER_CACHE: _LOCAL,
    }
)

FAMILIES: Final[Mapping[str, DataClass]] = MappingProxyType(
    {
        "memory": DataClass.MEMORY,
        "state": DataClass.STATE,
        "vector": DataClass.VECTORS,
        "file": DataClass.FILE_BLOBS,
        "task": DataClass.TASKS,
        "fact": DataClass.FACTS,
        "message": DataClass.MESSAGES,
        "audit": DataClass.AUDIT_EVENTS,
        "peer": DataClass.PEER_CACHE,
    }
)


ENTITY_TYPES: Final[Mapping[str, DataClass]] = MappingProxyType(
    {
        "task": DataClass.TASKS,
        "task_metadata": DataClass.TASK_METADATA,
        "mission": DataClass.MISSIONS,
        "milestone": DataClass.MISSIONS,
        "slice": DataClass.MISSIONS,
        "feature": DataClass.MISSIONS,
        "agent_definition": DataClass.AGENT_DEFINITIONS,
        "project_settings": DataClass.PROJECT_SETTINGS,
        # How this mesh itself behaves: what a minority does with writes, what follows a lost node.
        "mesh_settings": DataClass.PROJECT_SETTINGS,
    }
)
"""What can be written as an entity, through a quorum."""


def is_decided(family: str) -> bool:
    """Whether voters decide the changes of one of our own families, where a mesh has voters."""
    known = FAMILIES.get(family)
    return known is not None and write_class_of(known, voters=True) is WriteClass.STRONG


def data_class_of(family: str) -> DataClass:
    """The data class of one of our own families."""
    data_class = FAMILIES.get(family)
    if data_class is None:
        raise BadValue(f"unknown family {family!r}", hint=f"use one of: {', '.join(FAMILIES)}")
    return data_class


def write_class_of(data_class: DataClass, *, voters: bool) -> WriteClass:
    """How a write to this class travels in a mesh that has voters, or has none."""
    travel = TRAVELS[data_class]
    return travel.with_voters if voters else travel.without_voters
