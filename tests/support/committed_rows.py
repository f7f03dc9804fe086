"""Rows of what a quorum has committed, to put into stores."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from holdfast.rules.quorum.commit_record import CommitRecord, encode_record
from holdfast.rules.quorum.degraded_read import SharedSnapshot
from holdfast.rules.quorum.state_rows import CommitRow, QuorumRow, WaitingConflict
from holdfast.rules.quorum.view import Clash, EntityRow, LeaseRow, LeaseWaiter, NodeRow
from holdfast.rules.reconcile import Outcome
from support.envelopes import MESH, make_id
from support.quorum_state import fence


def quorum_row(**fields: Any) -> QuorumRow:
    given = {"mesh": MESH, "incarnation": 1, "tag": b"t" * 16, "voter": 1, **fields}
    return QuorumRow(**given)


def entity_row(id: str, type: str = "mission", **fields: Any) -> EntityRow:
    given = {
        "type": type,
        "id": id,
        "revision": 1,
        "fields": b'{"title":"t"}',
        "origin": "bob",
        "lamport": 1,
        "fence": fence(1),
        "committed_at": 1000,
        **fields,
    }
    return EntityRow(**given)


def commit_row(offset: int, number: int, *, mesh: str = MESH, head: int | None = None) -> CommitRow:
    """The record of the entry at an offset, under an id of that number."""
    record = CommitRecord(
        mesh=mesh,
        id=make_id(offset),
        fingerprint=b"f" * 32,
        number=number,
        fence=fence(number),
        committed_at=1000 + number,
        outcome=Outcome.APPLIED,
    )
    return CommitRow(
        offset=offset,
        mesh=mesh,
        number=number,
        id=make_id(offset),
        head=offset if head is None else head,
        record=encode_record(record),
    )


def lease_row(name: str = "deploy", **fields: Any) -> LeaseRow:
    given = {
        "name": name,
        "holder": "bob",
        "session": make_id(7),
        "ttl_ms": 5000,
        "grant": fence(3),
        "renewed": fence(4),
        "since": 1003,
        "waiting": (LeaseWaiter("cyd", make_id(8), 6000),),
        **fields,
    }
    return LeaseRow(**given)


def node_row(peer: str = "cyd", **fields: Any) -> NodeRow:
    given = {"peer": peer, "lost": True, "fence": fence(5), "committed_at": 1005, **fields}
    return NodeRow(**given)


def waiting_row(number: int) -> WaitingConflict:
    clash = Clash("mission", "m", 1, 2, "moved", ("title",))
    return WaitingConflict(mesh=MESH, number=number, clashes=(clash,))


def mesh_snapshot(
    source: str = "bob", captured_at: int = 5, payload: bytes = b"{}"
) -> SharedSnapshot:
    return SharedSnapshot(
        mesh=MESH,
        source=source,
        captured_at=captured_at,
        version=sha256(payload).hexdigest(),
        payload=payload,
    )
