"""The tables that a write of one key does not touch: `later` brings them when they are needed."""

from __future__ import annotations

from holdfast.storage.sqlite.broker_positions import BrokerPositionReads, BrokerPositionWrites
from holdfast.storage.sqlite.bus.rows import BusReads, BusWrites
from holdfast.storage.sqlite.bus.streams import StreamReads, StreamWrites
from holdfast.storage.sqlite.committed.audit import AuditReads, AuditWrites
from holdfast.storage.sqlite.committed.quorum_state import CommittedReads, CommittedWrites
from holdfast.storage.sqlite.committed.telemetry import TelemetryReads, TelemetryWrites
from holdfast.storage.sqlite.consumers import ConsumerReads, ConsumerWrites
from holdfast.storage.sqlite.ends.mesh_end import MeshEndReads, MeshEndWrites
from holdfast.storage.sqlite.inbox import InboxReads, InboxWrites
from holdfast.storage.sqlite.outbox import OutboxReads, OutboxWrites
from holdfast.storage.sqlite.tasks import TaskReads, TaskWrites
from holdfast.storage.sqlite.vector_rows import VectorReads, VectorWrites
from holdfast.storage.sqlite.zones import ZoneReads, ZoneWrites


class OtherReads(
    MeshEndReads,
    VectorReads,
    TaskReads,
    AuditReads,
    TelemetryReads,
    ConsumerReads,
    ZoneReads,
    OutboxReads,
    InboxReads,
    BrokerPositionReads,
    StreamReads,
    CommittedReads,
    BusReads,
):
    """What they tell."""


class OtherWrites(
    MeshEndWrites,
    VectorWrites,
    TaskWrites,
    AuditWrites,
    TelemetryWrites,
    ConsumerWrites,
    ZoneWrites,
    OutboxWrites,
    InboxWrites,
    BrokerPositionWrites,
    StreamWrites,
    CommittedWrites,
    BusWrites,
):
    """What changes them."""
