"""Stores of both kinds, and rows to put into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nacl.signing import SigningKey

from holdfast.rules.arrivals import Arrived
from holdfast.rules.audit_chain import AuditChain, AuditRow, next_event
from holdfast.rules.bus.capability import issue
from holdfast.rules.bus.meshes.member_list import first_list
from holdfast.rules.bus.meshes.membership import BusCapabilityRow, BusInviteRow, BusMeshRow
from holdfast.rules.filters import Filter
from holdfast.rules.order import Version
from holdfast.rules.rows import (
    BlobRow,
    ConflictRow,
    ConsumerRow,
    FileRow,
    InboxRow,
    KnownMember,
    LinkRow,
    MemoryRow,
    MeshRow,
    OutboxRow,
    QuarantineRow,
    StateRow,
    TaskEventRow,
    TaskRow,
    TokenRow,
    VectorRow,
    WarningRow,
    ZoneKey,
    ZoneRow,
)
from holdfast.rules.tasks import TaskStatus
from holdfast.rules.telemetry import TelemetryRow
from holdfast.rules.vectors import pack
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Reader, Store, Transaction
from holdfast.storage.sqlite.store import SqliteStore
from support.envelopes import MESH, MODEL, fact_append, make_id, state_set

T = TypeVar("T")

# Where code points and UTF-16 disagree: U+FFFF is above U+10000 by UTF-16 units, below it by bytes.
PEERS_IN_ORDER = ("Z", "a", "z", "zz", "é", "\ufffe", "\uffff", "\U00010000", "\U0010ffff")


def make_store(kind: str, folder: Path) -> MemoryStore | SqliteStore:
    if kind == "memory":
        return MemoryStore()
    return SqliteStore(folder / "data.db", sync="normal")


def read(store: Store, look: Callable[[Reader], T]) -> T:
    with store.read() as reader:
        return look(reader)


def with_mesh(store: Store, *slugs: str) -> None:
    def work(tx: Transaction) -> None:
        for slug in slugs or (MESH,):
            tx.mesh_add(mesh_row(slug))

    store.write(work)


def version(lamport: int = 1, peer: str = "ana", number: int | None = None) -> Version:
    return Version(lamport, peer, make_id(lamport if number is None else number))


def mesh_row(slug: str = MESH, **fields: Any) -> MeshRow:
    return MeshRow(**{"slug": slug, "name": slug, "created_at": 1, "updated_at": 2, **fields})


def _stamped(lamport: int, peer: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "mesh": MESH,
        "lamport": lamport,
        "peer": peer,
        "id": make_id(lamport),
        "offset": lamport,
        "updated_at": 1000 + lamport,
        **fields,
    }


def state_row(key: str, lamport: int = 1, peer: str = "ana", **fields: Any) -> StateRow:
    return StateRow(**{"key": key, "value": b'"v"', **_stamped(lamport, peer, fields)})


def telemetry_row(kind: str, key: str, **fields: Any) -> TelemetryRow:
    given = {"mesh": MESH, "value": b"1", "updated_at": 1, "expires_at": 9, **fields}
    return TelemetryRow(kind=kind, key=key, **given)


def audit_event(seq: int) -> AuditRow:
    """The first, the second… of a chain."""
    chain, last = AuditChain(MESH, "s", "ana", 1), None
    for number in range(1, seq + 1):
        last = next_event(chain, last, id=make_id(40 + number), at=number, payload=b"1")
    assert last is not None
    return last


def memory_row(
    owner: str, key: str, lamport: int = 1, peer: str | None = None, **fields: Any
) -> MemoryRow:
    stamped = _stamped(lamport, peer or owner, fields)
    return MemoryRow(**{"owner": owner, "key": key, "value": b"1", **stamped})


def file_row(
    owner: str, path: str, lamport: int = 1, peer: str | None = None, **fields: Any
) -> FileRow:
    stamped = _stamped(lamport, peer or owner, fields)
    return FileRow(
        **{"owner": owner, "path": path, "sha256": "", "size": 0, "content": b"", **stamped}
    )


def blob_row(digit: str, **fields: Any) -> BlobRow:
    return BlobRow(**{"sha256": digit * 64, "size": 70_000, "created_at": 5, **fields})


def vector_row(
    owner: str, key: str, lamport: int = 1, at: tuple[float, float] = (0.0, 0.0), **fields: Any
) -> VectorRow:
    row = {
        "owner": owner,
        "key": key,
        "model": MODEL.fingerprint,
        "content": f"about {key}",
        "metadata": b'{"n":1}',
        "embedding": pack(at, MODEL.dim),
        **_stamped(lamport, owner, fields),
    }
    return VectorRow(**row)


def task_row(task: str, **fields: Any) -> TaskRow:
    row: dict[str, Any] = {
        "mesh": MESH,
        "task": task,
        "known": True,
        "title": f"title of {task}",
        "description": "",
        "created_by": "ana",
        "created_at": 3,
        "status": TaskStatus.OPEN,
        "generation": 0,
        "holder": None,
        "claimed_at": None,
        "ended": None,
        "ended_at": None,
        "last": version(),
        "offset": 1,
        "updated_at": 4,
    }
    return TaskRow(**{**row, **fields})


def event_row(task: str, at: Version, **fields: Any) -> TaskEventRow:
    row: dict[str, Any] = {
        "mesh": MESH,
        "task": task,
        "version": at,
        "kind": "claim",
        "generation": 0,
        "event": "claimed",
        "event_time": 7,
        "applied_at": 8,
    }
    return TaskEventRow(**{**row, **fields})


def conflict_row(entity: str = "k", mesh: str = MESH) -> ConflictRow:
    return ConflictRow(
        mesh=mesh,
        family="state",
        owner="",
        entity=entity,
        reason="because",
        winner=version(5),
        loser=version(4, "bob"),
        loser_op="state.set",
        loser_body=b"\x91\xc4\x011",
        found_at=9,
    )


def warning_row(entity: str, mesh: str = MESH) -> WarningRow:
    return WarningRow(
        mesh=mesh, type="task_claim_superseded", entity=entity, by_peer="bob", at_lamport=3
    )


def consumer_row(name: str, frontier: str = "0") -> ConsumerRow:
    return ConsumerRow(name=name, frontier=frontier, created_at=1, seen_at=1)


def zone_key(digit: str, added_at: int = 1, expires_at: int | None = None) -> ZoneKey:
    return ZoneKey(key=digit.encode() * 32, added_at=added_at, expires_at=expires_at)


def zone_row(name: str = "zoe", *keys: ZoneKey, **fields: Any) -> ZoneRow:
    return ZoneRow(**{"name": name, "keys": keys, "reads": ("team",), "added_at": 1, **fields})


def token_row(name: str = "spark", digit: str = "a", **fields: Any) -> TokenRow:
    row = {"scope": "read", "reads": ("*",), "created_at": 1, **fields}
    return TokenRow(name=name, digest=digit.encode() * 32, **row)


def link_row(name: str = "to-zoe", **fields: Any) -> LinkRow:
    row = {
        "url": "https://zoe.example:7777",
        "zone": "zoe",
        "filter": Filter(meshes=("team",), origins=("zoe",)),
        "added_at": 2,
    }
    return LinkRow(name=name, **{**row, **fields})


def quarantine_row(link: str = "to-zoe", offset: int = 1, **fields: Any) -> QuarantineRow:
    row = {"epoch": 1, "code": "bad_stamp", "message": "no", "raw": b"\x00raw", "found_at": 3}
    return QuarantineRow(link=link, offset=offset, **{**row, **fields})


def bus_mesh_row(mesh: str = MESH, **fields: Any) -> BusMeshRow:
    """A mesh that is shared over the bus, with a list that its owner has signed."""
    owner = SigningKey(b"o" * 32)
    members = first_list(owner, mesh, bytes(16), "zoe", 1)
    given = {"owner": members.owner, "members": members.raw, "joined_at": 1, **fields}
    return BusMeshRow(mesh=mesh, **given)


def bus_capability_row() -> BusCapabilityRow:
    """A right that this node gave."""
    key, holder = SigningKey(b"o" * 32), bytes(SigningKey(b"h" * 32).verify_key)
    made = issue(key, holder, ["service:a"], now_ms=1, expires_at=9, name="bo")
    return BusCapabilityRow(
        id=made.id,
        kind="given",
        name="bo",
        key=holder,
        capability=made.raw,
        added_at=1,
        expires_at=9,
    )


def bus_invite_row(digit: str, mesh: str = MESH, **fields: Any) -> BusInviteRow:
    given = {"grants": ("read",), "uses_left": 2, "expires_at": 9, "made_at": 1, **fields}
    return BusInviteRow(digest=digit.encode() * 32, mesh=mesh, **given)


def arrived(number: int, entity: str = "k", *, origin: str = "bob", mesh: str = MESH) -> Arrived:
    """A fact on its way into the log."""
    id = make_id(number)
    raw = fact_append(entity, "is", number, id=id, lamport=number, origin=origin, mesh=mesh)
    return id, mesh, "fact.append", entity, origin, number, raw


def append(
    tx: Transaction,
    number: int,
    entity: str = "k",
    *,
    mesh: str = MESH,
    now_ms: int = 1000,
    origin: str = "bob",
    via: int = 0,
    op: str = "state.set",
) -> int:
    """One entry with a real envelope: truncation reads its fingerprint."""
    raw = state_set(entity, number, id=make_id(number), lamport=number, origin=origin, mesh=mesh)
    return tx.log_append(make_id(number), mesh, op, entity, origin, number, now_ms, raw, via)


def outbox_row(at: int, /, **fields: Any) -> OutboxRow:
    """A row about the envelope with this number, at the offset of that number."""
    row = {"lane": f"broker:{MESH}", "id": make_id(at), "mesh": MESH, "offset": at}
    return OutboxRow(**{**row, "created_at": 1000 + at, **fields})


def inbox_row(at: int, /, **fields: Any) -> InboxRow:
    row = {"id": make_id(at), "mesh": MESH, "kind": "topic", "ref": "news", "sender": "bob"}
    return InboxRow(**{**row, "offset": at, "received_at": 1000 + at, **fields})


def known_member(digit: str, **fields: Any) -> KnownMember:
    row = {"mesh": MESH, "key": bytes.fromhex(digit * 64), "name": f"peer-{digit}"}
    return KnownMember(**{**row, "grants": ("read", "send"), "seen_at": 7, **fields})
