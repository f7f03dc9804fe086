"""Whatever a write did before it raised is undone, alone: its neighbours in the group are not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.commit_columns import read_columns
from holdfast.rules.envelope import encode
from holdfast.rules.limits import KNOWN_PAST_MS
from holdfast.rules.quorum.coordinated import coordinated
from holdfast.rules.quorum.state_rows import QueueNote, RevisionRow
from holdfast.rules.quorum.view import LeaseRow
from holdfast.rules.rows import BlockedPeer, JobRow, PeerRow
from holdfast.rules.tasks import TaskStatus
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.mesh_end_port import ErasePlace
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.tickets import Ticket
from support.committed_rows import (
    commit_row,
    entity_row,
    lease_row,
    mesh_snapshot,
    node_row,
    quorum_row,
    waiting_row,
)
from support.dump import dump
from support.envelopes import MESH, MODEL, make_id, state_set
from support.quorum_state import change, fence, operation
from support.stores import (
    append,
    arrived,
    audit_event,
    blob_row,
    conflict_row,
    consumer_row,
    event_row,
    file_row,
    inbox_row,
    known_member,
    link_row,
    memory_row,
    mesh_row,
    outbox_row,
    quarantine_row,
    read,
    state_row,
    task_row,
    telemetry_row,
    token_row,
    vector_row,
    version,
    warning_row,
    zone_key,
    zone_row,
)

ID = MODEL.fingerprint
BOB = StreamName(MESH, "bob", 1)
BIG = {"content": None, "sha256": "b" * 64, "size": 70_000}


def ground(tx: Transaction) -> None:
    """Something of everything, so that each step has something to change and to remove."""
    tx.set_peer_name("ana")
    tx.blocked_put(BlockedPeer(peer="mallory", since=1))
    tx.mesh_add(mesh_row(lamport=20, seq=9))
    for number in range(1, 6):
        append(tx, number, now_ms=100 * number)
    tx.log_truncate(2, 10, 90)
    tx.state_put(state_row("k", 3))
    tx.state_seen_put(MESH, "k", "bob", 2)
    tx.state_put(state_row("dead", 1, tombstone=True))
    tx.memory_put(memory_row("ana", "k", 3))
    tx.file_put(file_row("ana", "k", 3, **BIG))  # type: ignore[arg-type]
    tx.blob_put(blob_row("b"))
    tx.vector_add(vector_row("ana", "k", 3), MODEL)
    tx.task_put(task_row("t"))
    tx.task_event_put(event_row("t", version(3)))
    tx.audit_add(audit_event(1))
    tx.telemetry_put(telemetry_row("run", "a"))
    tx.conflict_add(conflict_row())
    tx.warning_add(warning_row("t"))
    tx.consumer_put(consumer_row("reader", "1"))
    tx.job_put(JobRow(name="work", cursor={"at": 1}, updated_at=1))
    tx.peer_seen(PeerRow(mesh=MESH, peer="bob", last_seen_at=1, last_lamport=1))
    tx.zone_put(zone_row("zoe", zone_key("a")))
    tx.token_put(token_row())
    tx.link_put(link_row())
    tx.quarantine_add(quarantine_row())
    tx.fact_objects_put(3, ["b" * 64])
    tx.outbox_add([outbox_row(1), outbox_row(2, state="inflight"), outbox_row(3)])
    tx.outbox_done([(1, b"b" * 16, 1, 7)], 50)
    tx.inbox_add(inbox_row(3, read_at=5))
    tx.inbox_add(inbox_row(4))
    tx.broker_positions_add(MESH, 1, [(7, 1), (8, 3)])
    tx.known_members_put(MESH, [known_member("a")])
    tx.stream_add(BOB, [(3, 3, b"l" * 32)])
    tx.quorum_put(quorum_row())
    tx.entities_put(MESH, [entity_row("m")])
    tx.entity_revisions_add(MESH, [RevisionRow("mission", "m", 1, 1, False, True)])
    tx.commits_add([commit_row(3, 1)])
    tx.lease_put(MESH, lease_row())
    tx.node_put(MESH, node_row())
    tx.waiting_conflict_add(waiting_row(1))
    tx.queue_note_put(QueueNote(number=2))
    tx.snapshot_put(mesh_snapshot())


COLUMNS = read_columns(
    MESH,
    [
        coordinated("ana", 1, encode(change(operation("put", "mission", id, {"title": "t"}))))
        for id in ("m", "n", "m")
    ],
)
"""None where there is no compiled part: then no store ever gets some."""


def append_columns(tx: Transaction) -> object:
    if COLUMNS is None:
        return tx.log_append_new([arrived(30)], 10_000)
    return tx.log_append_columns(MESH, COLUMNS, 10_000)


def put_columns(tx: Transaction) -> None:
    if COLUMNS is None:
        tx.commits_add([commit_row(4, 2)])
    else:
        tx.columns_put(MESH, COLUMNS, fence(7), 2, 4)


STEPS: dict[str, Callable[[Transaction], object]] = {
    "stream_add, the next": lambda tx: tx.stream_add(BOB, [(4, 4, b"m" * 32)]),
    "stream_add, several": lambda tx: tx.stream_add(BOB, [(1, 5, b"m" * 32), (3, 4, b"n" * 32)]),
    "stream_add, new": lambda tx: tx.stream_add(BOB._replace(epoch=2), [(1, 4, b"m" * 32)]),
    "stream_cover": lambda tx: tx.stream_cover(BOB, [(8, 9)], base=1, key=b"k" * 32),
    "stream_trouble": lambda tx: tx.stream_trouble(BOB, "look"),
    "quorum_put": lambda tx: tx.quorum_put(quorum_row(applied=7)),
    "entities_put, over": lambda tx: tx.entities_put(MESH, [entity_row("m", revision=2)]),
    "entities_put, new": lambda tx: tx.entities_put(MESH, [entity_row("n")]),
    "entity_revisions_add": lambda tx: tx.entity_revisions_add(
        MESH, [RevisionRow("mission", "m", 2, 2, False, True)]
    ),
    "columns_put": put_columns,
    "commits_add": lambda tx: tx.commits_add([commit_row(4, 2)]),
    "committed_clear": lambda tx: tx.committed_clear(MESH),
    "committed_move": lambda tx: tx.committed_move("~stage", MESH, 5),
    "voids_add": lambda tx: tx.voids_add(MESH, [(make_id(50), 1)]),
    "lease_put, over": lambda tx: tx.lease_put(MESH, lease_row(holder="cyd")),
    "lease_put, free": lambda tx: tx.lease_put(MESH, LeaseRow(name="deploy")),
    "node_put": lambda tx: tx.node_put(MESH, node_row(lost=False)),
    "waiting_conflict_add": lambda tx: tx.waiting_conflict_add(waiting_row(2)),
    "waiting_conflict_resolve": lambda tx: tx.waiting_conflict_resolve(MESH, 1, "mine", 9),
    "queue_note_put": lambda tx: tx.queue_note_put(QueueNote(number=2, target="bob")),
    "snapshot_put": lambda tx: tx.snapshot_put(mesh_snapshot(captured_at=9)),
    "set_peer_name": lambda tx: tx.set_peer_name("bea"),
    "mesh_add": lambda tx: tx.mesh_add(mesh_row("new")),
    "tick": lambda tx: tx.tick(MESH),
    "tick_many": lambda tx: tx.tick_many(MESH, 3),
    "clock_raise": lambda tx: tx.clock_raise(MESH, 99),
    "tick_merged": lambda tx: tx.tick_merged(MESH, 99, KNOWN_PAST_MS),
    "tick_merged_run": lambda tx: tx.tick_merged_run(MESH, [99, 3], KNOWN_PAST_MS),
    "bury": lambda tx: tx.bury(MESH, 9, [(b"n" * 16, 9), (b"m" * 16, 3)], 1),
    "forget_below": lambda tx: tx.forget_below(MESH, 7),
    "peer_seen, known": lambda tx: tx.peer_seen(
        PeerRow(mesh=MESH, peer="bob", last_seen_at=9, last_lamport=9)
    ),
    "peer_seen, new": lambda tx: tx.peer_seen(
        PeerRow(mesh=MESH, peer="cyd", last_seen_at=9, last_lamport=9)
    ),
    "log_append": lambda tx: append(tx, 30, now_ms=10_000),
    "log_append, through a zone": lambda tx: append(tx, 30, via=1),
    "log_append_new": lambda tx: tx.log_append_new([arrived(30), arrived(32)], 10_000, 1),
    "log_append_columns": append_columns,
    "log_set_aside": lambda tx: tx.log_set_aside(3, b"another"),
    "log_truncate": lambda tx: tx.log_truncate(4, 10, 91),
    "log_replace": lambda tx: tx.log_replace(3, state_set("k", 9, id=make_id(3), lamport=9)),
    "forgotten_add": lambda tx: tx.forgotten_add(make_id(30), b"\x08" * 32, 91),
    "forgotten_sweep": lambda tx: tx.forgotten_sweep(1000, 10),
    "set_epoch": lambda tx: tx.set_epoch(3),
    "state_put, over": lambda tx: tx.state_put(state_row("k", 9, value=b"9")),
    "state_put, new": lambda tx: tx.state_put(state_row("new", 9)),
    "state_put_many": lambda tx: tx.state_put_many([state_row("k", 9), state_row("new", 9)]),
    "memory_put_many": lambda tx: tx.memory_put_many(
        [memory_row("ana", "k", 9), memory_row("bob", "k", 9)]
    ),
    "memory_put, over": lambda tx: tx.memory_put(memory_row("ana", "k", 9, tombstone=True)),
    "memory_put, new": lambda tx: tx.memory_put(memory_row("bob", "k", 9)),
    "file_put, over": lambda tx: tx.file_put(file_row("ana", "k", 9, tombstone=True)),
    "file_put, new": lambda tx: tx.file_put(file_row("ana", "new", 9)),
    "blob_put, over": lambda tx: tx.blob_put(blob_row("b", released_at=1, released_offset=1)),
    "blob_put, new": lambda tx: tx.blob_put(blob_row("c")),
    "fact_objects_put": lambda tx: tx.fact_objects_put(4, ["b" * 64, "c" * 64]),
    "fact_objects_drop": lambda tx: tx.fact_objects_drop(4),
    "blob_drop": lambda tx: tx.blob_drop("b" * 64),
    "state_seen_put, over": lambda tx: tx.state_seen_put(MESH, "k", "bob", 9),
    "state_seen_put, new": lambda tx: tx.state_seen_put(MESH, "k", "new", 9),
    "state_seen_drop": lambda tx: tx.state_seen_drop(MESH, "k", "bob"),
    "tombstones_sweep": lambda tx: tx.tombstones_sweep(MESH, 99, 10),
    "vector_add": lambda tx: tx.vector_add(vector_row("ana", "new", 9, (1, 1)), MODEL),
    "vector_retire": lambda tx: tx.vector_retire(MESH, "ana", "k", ID),
    "vector_bury": lambda tx: tx.vector_bury(
        vector_row("ana", "k", 9, tombstone=True, live=False, embedding=b"")
    ),
    "model_mark": lambda tx: tx.model_mark(ID, deprecated_at=5, last_read_at=6),
    "model_drop": lambda tx: _empty_and_drop(tx),
    "task_put, over": lambda tx: tx.task_put(task_row("t", status=TaskStatus.CANCELLED)),
    "task_put, new": lambda tx: tx.task_put(task_row("u")),
    "task_event_put, over": lambda tx: tx.task_event_put(
        event_row("t", version(3), event="superseded", against=version(1))
    ),
    "task_event_put, new": lambda tx: tx.task_event_put(event_row("t", version(4))),
    "blocked_put": lambda tx: tx.blocked_put(BlockedPeer(peer="eve", since=5)),
    "blocked_drop": lambda tx: tx.blocked_drop("mallory"),
    "blocked_dropped": lambda tx: tx.blocked_dropped("mallory", 2),
    "tasks_forget": lambda tx: _end_and_forget(tx),
    "mesh_end_begin": lambda tx: tx.mesh_end_begin(MESH, 5),
    "mesh_erase": lambda tx: _erase(tx),
    "mesh_end_done": lambda tx: _erase(tx, done=True),
    "ended_mesh_dropped": lambda tx: _end_and_drop(tx),
    "audit_add": lambda tx: tx.audit_add(audit_event(2)),
    "telemetry_put, over": lambda tx: tx.telemetry_put(telemetry_row("run", "a", value=b"2")),
    "telemetry_put, new": lambda tx: tx.telemetry_put(telemetry_row("run", "new")),
    "telemetry_drop": lambda tx: tx.telemetry_drop(MESH, "run", "a"),
    "telemetry_expire": lambda tx: tx.telemetry_expire(99, 10),
    "conflict_add": lambda tx: tx.conflict_add(conflict_row("l")),
    "conflict_change": lambda tx: tx.conflict_change(
        msgspec.structs.replace(conflict_row("l"), number=1, reason="another")
    ),
    "conflict_drop": lambda tx: tx.conflict_drop(1),
    "conflict_resolve": lambda tx: tx.conflict_resolve(1, "dismissed", 5),
    "warning_add": lambda tx: tx.warning_add(warning_row("u")),
    "warnings_take": lambda tx: tx.warnings_take(None),
    "consumer_put, over": lambda tx: tx.consumer_put(consumer_row("reader", "4")),
    "consumer_put, new": lambda tx: tx.consumer_put(consumer_row("new")),
    "consumer_drop": lambda tx: tx.consumer_drop("reader"),
    "job_put, over": lambda tx: tx.job_put(JobRow(name="work", cursor={"at": 2}, updated_at=2)),
    "job_put, new": lambda tx: tx.job_put(JobRow(name="other", cursor={}, updated_at=2)),
    "job_drop": lambda tx: tx.job_drop("work"),
    "zone_put, over": lambda tx: tx.zone_put(zone_row("zoe", zone_key("b"), reads=())),
    "zone_put, new": lambda tx: tx.zone_put(zone_row("yan", zone_key("c"))),
    "token_put": lambda tx: tx.token_put(token_row("other", "b")),
    "stream_drop": lambda tx: tx.stream_drop(MESH),
    "stream_cover, floor": lambda tx: tx.stream_cover(BOB, [(1, 3)], floor=2),
    "token_drop": lambda tx: tx.token_drop("spark"),
    "link_put, over": lambda tx: tx.link_put(link_row(paused=True, epoch=2, cursor=9)),
    "link_put, new": lambda tx: tx.link_put(link_row("other")),
    "link_drop": lambda tx: tx.link_drop("to-zoe"),
    "quarantine_add": lambda tx: tx.quarantine_add(quarantine_row(offset=2)),
    "quarantine_drop": lambda tx: tx.quarantine_drop(1),
    "mesh_change": lambda tx: tx.mesh_change(mesh_row(kind="shared_owner", broker_seq=3)),
    "outbox_add": lambda tx: tx.outbox_add([outbox_row(4), outbox_row(5)]),
    "outbox_put": lambda tx: tx.outbox_put(outbox_row(3, number=3, state="dead", attempts=4)),
    "outbox_inflight": lambda tx: tx.outbox_inflight(outbox_row(3).lane, [3]),
    "outbox_recover": lambda tx: tx.outbox_recover(),
    "outbox_done": lambda tx: tx.outbox_done([(2, b"c" * 16, 1, 9)], 60),
    "outbox_arrived": lambda tx: tx.outbox_arrived(
        outbox_row(3).lane, [(outbox_row(3).id, b"c" * 16, 1, 9)], 60
    ),
    "outbox_sweep": lambda tx: tx.outbox_sweep(51, 10**15, 10),
    "inbox_add": lambda tx: tx.inbox_add(inbox_row(5)),
    "inbox_read": lambda tx: tx.inbox_read(make_id(4), 9),
    "inbox_hooked": lambda tx: tx.inbox_hooked([2], 9),
    "inbox_sweep": lambda tx: tx.inbox_sweep(4, 10),
    "broker_positions_add": lambda tx: tx.broker_positions_add(MESH, 1, [(9, 4)]),
    "broker_positions_sweep": lambda tx: tx.broker_positions_sweep(2, 10),
    "broker_positions_drop": lambda tx: tx.broker_positions_drop("team", 10),
    "known_members_put": lambda tx: tx.known_members_put(MESH, [known_member("b")]),
}

AnyStore = MemoryStore | SqliteStore


def _empty_and_drop(tx: Transaction) -> None:
    tx.vector_retire(MESH, "ana", "k", ID)
    tx.model_drop(ID)


@pytest.mark.parametrize("name", STEPS)
def test_S3_a_lone_write_that_raises_changes_nothing(store: AnyStore, name: str) -> None:
    store.write(ground)
    before = read(store, dump)

    def work(tx: Transaction) -> None:
        STEPS[name](tx)
        assert dump(tx) != before, "the step must change something, or it proves nothing"
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.write(work)
    assert read(store, dump) == before


@pytest.mark.parametrize("name", STEPS)
def test_S3_a_write_that_raises_in_a_group_undoes_itself_alone(store: AnyStore, name: str) -> None:
    store.write(ground)

    def one(tx: Transaction) -> None:
        tx.state_put(state_row("one", 40))

    def bad(tx: Transaction) -> None:
        STEPS[name](tx)
        raise RuntimeError("stop")

    def two(tx: Transaction) -> int:
        tx.state_put(state_row("two", 41))
        return append(tx, 31, now_ms=600)

    def check(tx: Transaction) -> None:
        seen.append(dump(tx))

    seen: list[object] = []
    answered: list[Ticket] = []
    tickets = [Ticket(work, answered.extend) for work in (one, check, bad, check, two)]
    for ticket in tickets:
        store.writer.enqueue(ticket)
    store.writer._clock = lambda: 0.0  # however slow the machine is, they are one group
    assert store.writer.run_group() == 5
    assert answered == tickets, "answered in order, after the commit"
    assert isinstance(tickets[2].error, RuntimeError)
    assert [ticket.error for ticket in tickets if ticket is not tickets[2]] == [None] * 4
    assert seen[0] == seen[1], "undone when the next one runs"
    assert tickets[4].result == 6
    with store.read() as tx:
        assert tx.state_get(MESH, "one") is not None
        assert tx.state_get(MESH, "two") is not None
        entry = tx.log_get(6)
        assert entry is not None
        assert (entry.lamport, entry.recorded_at) == (31, 600)


def _end_and_forget(tx: Transaction) -> None:
    tx.task_put(task_row("t", status=TaskStatus.CANCELLED))
    tx.tasks_forget(MESH, 99, 10, 10)


def _end_and_drop(tx: Transaction) -> None:
    tx.mesh_end_begin(MESH, 5)
    tx.ended_mesh_dropped(MESH, 3)


def _erase(tx: Transaction, *, done: bool = False) -> None:
    tx.mesh_end_begin(MESH, 5)
    place: ErasePlace | None = ErasePlace()
    while place is not None:
        place = tx.mesh_erase(MESH, place, 100, 5).next
    if done:
        tx.mesh_end_done(MESH, 6)


def test_S3_every_kind_of_change_is_tried(store: AnyStore) -> None:
    """A port that grows a writing method must grow a proof that it can be undone."""
    from holdfast.storage import (
        audit_port,
        blocked_port,
        broker_position_port,
        family_port,
        inbox_port,
        mesh_end_port,
        ports,
        quorum_state_port,
        stream_port,
        task_port,
        telemetry_port,
    )

    writing = {
        name
        for writer, reader in (
            (ports.MeshWriter, ports.MeshReader),
            (blocked_port.BlockedWriter, blocked_port.BlockedReader),
            (mesh_end_port.MeshEndWriter, mesh_end_port.MeshEndReader),
            (ports.LogWriter, ports.LogReader),
            (family_port.FamilyWriter, family_port.FamilyReader),
            (ports.VectorWriter, ports.VectorReader),
            (task_port.TaskWriter, task_port.TaskReader),
            (audit_port.AuditWriter, audit_port.AuditReader),
            (telemetry_port.TelemetryWriter, telemetry_port.TelemetryReader),
            (ports.LedgerWriter, ports.LedgerReader),
            (ports.ConsumerWriter, ports.ConsumerReader),
            (ports.ZoneWriter, ports.ZoneReader),
            (ports.OutboxWriter, ports.OutboxReader),
            (inbox_port.InboxWriter, inbox_port.InboxReader),
            (broker_position_port.BrokerPositionWriter, broker_position_port.BrokerPositionReader),
            (stream_port.StreamWriter, stream_port.StreamReader),
            (quorum_state_port.EntityWriter, quorum_state_port.EntityReader),
            (quorum_state_port.CommitWriter, quorum_state_port.CommitReader),
        )
        for name in vars(writer)
        if not name.startswith("_") and name not in vars(reader)
    }
    assert {name.partition(",")[0] for name in STEPS} == writing
