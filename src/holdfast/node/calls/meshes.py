"""Meshes themselves as calls, what merges discarded, and the log."""

from __future__ import annotations

from typing import Final

from holdfast.node.bus.ways import PingRound
from holdfast.node.calls.declare import Call, Calls, Shape
from holdfast.node.calls.shapes import CONFLICT, COUNTS, ENTRY, LOG_PLACE, RECEIPT
from holdfast.node.calls.wires import AFTER_NUMBER, number, text, yes
from holdfast.node.core.views import MeshClock, ObjectInfo, PeerInfo
from holdfast.node.library.node import Mesh, Node
from holdfast.node.log.log import Log
from holdfast.node.upkeep.delete_mesh import DeletedMesh, DeletionPlan
from holdfast.node.upkeep.restamp import RestampReport
from holdfast.rules.errors import (
    AlreadyExists,
    AlreadyResolved,
    BlobMissing,
    HasVoters,
    IdReused,
    MeshOwes,
    NotGranted,
    NotOurs,
    OverLimit,
    TaskEnded,
    TaskTaken,
    Truncated,
    UnknownConflict,
    UnknownConsumer,
    UnknownKey,
    UnknownMesh,
    UnknownPeer,
    UnknownTask,
    ZoneNotTrusted,
)
from holdfast.rules.rows import BlockedPeer, MeshRow, WarningRow

_node = Calls(Node, "/v1")
_node.get("/meshes", Node.meshes, Shape(MeshRow), "list", mesh_of=lambda row: row.slug, quick=True)
_node.post(
    "/meshes",
    Node.create_mesh,
    Shape(MeshRow, lambda mesh: mesh.info()),
    errors=(AlreadyExists, OverLimit),
    example="""-d '{"slug":"team"}'""",
)
_node.get("/meshes/{mesh}/deletion", Node.deletion_plan, Shape(DeletionPlan), errors=(UnknownMesh,))
_node.delete(
    "/meshes/{mesh}",
    Node.delete_mesh,
    Shape(DeletedMesh),
    errors=(UnknownMesh, MeshOwes),
    wires={"owed_too": yes("Also if it owes something to others.")},
    looks_again=True,
)
_node.get(
    "/conflicts",
    Node.conflicts,
    CONFLICT,
    "page",
    place=lambda row: row.number,
    wires={"after": AFTER_NUMBER},
    mesh_of=lambda row: row.mesh,
)
_node.get(
    "/conflicts/{number}",
    Node.conflict,
    CONFLICT,
    errors=(UnknownConflict,),
    mesh_of=lambda row: row.mesh,
)
_node.post(
    "/conflicts/{number}/restore",
    Node.restore_conflict,
    RECEIPT,
    errors=(
        *(UnknownConflict, AlreadyResolved, NotOurs, IdReused, BlobMissing, HasVoters),
        *(UnknownTask, TaskTaken, TaskEnded, UnknownMesh, UnknownKey),
    ),
)
_node.post("/conflicts/{number}/dismiss", Node.dismiss_conflict, None, errors=(UnknownConflict,))
_node.get("/objects", Node.objects, Shape(ObjectInfo), "list", writes=True)
_node.get("/blocked", Node.blocked_peers, Shape(BlockedPeer), "list", writes=True)
_node.put(
    "/blocked/{peer:path}",
    Node.block_peer,
    Shape(BlockedPeer),
    errors=(OverLimit,),
    wires={"peer": text("The peer.")},
    looks_again=True,
)
_node.delete(
    "/blocked/{peer:path}",
    Node.unblock_peer,
    Shape(BlockedPeer),
    errors=(UnknownPeer, UnknownKey),
    wires={"peer": text("The peer.")},
    looks_again=True,
)
_node.post(
    "/ping",
    Node.ping,
    Shape(PingRound),
    wires={
        "target": text("The peer, or the broker by its name or address."),
        "card": text("The card of a broker through which no mesh is shared."),
    },
    errors=(UnknownPeer, NotOurs, ZoneNotTrusted),
    example="""-d '{"target":"bo"}'""",
)
_node.post("/warnings/take", Node.take_warnings, Shape(WarningRow), "list")

_mesh = Calls(Mesh, "/v1/meshes/{mesh}", (UnknownMesh,))
_mesh.get("", Mesh.info, Shape(MeshRow), quick=True)
_mesh.get("/counts", Mesh.counts, COUNTS)
_mesh.get("/clock", Mesh.clock, Shape(MeshClock), quick=True)
_mesh.get("/peers", Mesh.peers, Shape(PeerInfo), "list", quick=True)
_mesh.post(
    "/restamp",
    Mesh.restamp,
    Shape(RestampReport),
    errors=(HasVoters,),
    example="""-d '{"past":9}'""",
)

_log = Calls(Log, "/v1/log", (NotGranted,))
_log.get(
    "/place",
    Log.place_at,
    LOG_PLACE,
    wires={"at_ms": number("A time, in milliseconds since 1970.")},
)
_log.get(
    "/entries",
    Log.range,
    ENTRY,
    "page",
    goes_on="start",
    place=lambda row: row.offset + 1,
    wires={
        "start": number("The first offset; the `next` of the last page."),
        "end": number("The offset after the last one."),
    },
    errors=(Truncated,),
    trusted=True,
)
_log.get(
    "/tail",
    Log.tail,
    ENTRY,
    "list",
    wires={"count": number("How many; 20 if it is not given.")},
    trusted=True,
)
_log.post(
    "/fetch",
    Log.fetch,
    ENTRY,
    "list",
    wires={"consumer": text("The reader.")},
    errors=(UnknownConsumer, Truncated),
    example="""-d '{"consumer":"reader"}'""",
)

MESHES: Final[tuple[Call, ...]] = (*_node(), *_mesh(), *_log())
