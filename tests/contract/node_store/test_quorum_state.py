"""What a store keeps of what a quorum has committed: found again as it was put, by page and by
place.
"""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.outbox import quorum_lane_of
from holdfast.rules.quorum.state_rows import QueueNote, RevisionRow
from holdfast.rules.quorum.view import LeaseRow
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Store, Transaction
from support.committed_rows import (
    commit_row,
    entity_row,
    lease_row,
    mesh_snapshot,
    node_row,
    quorum_row,
    waiting_row,
)
from support.envelopes import MESH, make_id
from support.quorum_state import fence
from support.stores import outbox_row, read, with_mesh


@pytest.fixture
def mesh(store: Store) -> Store:
    with_mesh(store)
    return store


def test_Q4_where_a_node_stands_is_kept_to_the_last_field(mesh: Store) -> None:
    assert read(mesh, lambda tx: tx.quorum_get(MESH)) is None
    rows = [
        quorum_row(voter=None, engine="etcd"),
        quorum_row(voter=3, applied=9, number=4, fence=fence(8, epoch=2), committed_at=77),
    ]
    for row in rows:
        mesh.write(lambda tx, row=row: tx.quorum_put(row))  # type: ignore[misc]
        assert read(mesh, lambda tx: tx.quorum_get(MESH)) == row
    assert read(mesh, lambda tx: tx.quorum_list()) == [rows[1]]


def test_Q13_entities_come_by_type_in_pages_without_the_deleted(mesh: Store) -> None:
    rows = [
        entity_row("b", revision=4, whole=False, fields='{"title":"ü"}'.encode()),
        entity_row("a", deleted=True, fields=b"{}", fence=fence(2, coordinator="zoë")),
        entity_row("é"),
        entity_row("Z"),
        entity_row("a", "milestone", parent="b"),
    ]
    mesh.write(lambda tx: tx.entities_put(MESH, rows))
    with mesh.read() as tx:
        first = tx.entity_list(MESH, "mission", "", 2)
        assert [row.id for row in first] == ["Z", "b"], "in the order of bytes"
        assert tx.entity_list(MESH, "mission", "b", 9) == [rows[2]]
        every = tx.entity_list(MESH, "mission", "", 9, live_only=False)
        assert [row.id for row in every] == ["Z", "a", "b", "é"]
        assert [tx.entity_get(MESH, row.type, row.id) for row in rows] == rows
        assert tx.entity_get(MESH, "mission", "none") is None
        assert tx.entity_get("other", "mission", "b") is None
        keys = [("mission", "a"), ("mission", "none"), ("milestone", "a")]
        assert tx.entity_many(MESH, keys) == {keys[0]: rows[1], keys[2]: rows[4]}
        assert tx.entity_many(MESH, []) == {}
        more = [*keys, *(("mission", f"none{at}") for at in range(9))]
        assert tx.entity_many(MESH, more) == {keys[0]: rows[1], keys[2]: rows[4]}, "by one query"


def test_Q4_what_a_run_asks_of_many_at_once_is_what_each_of_them_says(mesh: Store) -> None:
    rows = [entity_row(f"e{at}", revision=at + 1) for at in range(9)]
    rows.append(entity_row("e0", "milestone", revision=70, deleted=True))
    mesh.write(lambda tx: tx.entities_put(MESH, rows))
    mesh.write(lambda tx: tx.commits_add([commit_row(5, 1), commit_row(9, 2)]))
    mesh.write(lambda tx: tx.voids_add(MESH, [(make_id(20), 2)]))
    keys = [(row.type, row.id) for row in rows]
    with mesh.read() as tx:
        for asked in (keys, [*keys[:2], ("mission", "never")], [("slice", "e1")]):
            said = {key: row.revision for key, row in tx.entity_many(MESH, asked).items()}
            assert tx.entity_revision_many(MESH, asked) == said
        assert tx.entity_revision_many("elsewhere", keys) == {}
        for numbers, new in (
            ((10, 11, 19), True),
            ((6, 7), True),
            ((4, 6, 8), True),
            ((1,), True),
            ((21, 99), True),
            ((5,), False),
            ((8, 9, 10), False),
            ((20, 30), False),
            ((1, 20), False),
        ):
            ids = [make_id(number) for number in numbers]
            assert tx.intents_are_new(MESH, ids) is new, numbers
            assert tx.intents_are_new("elsewhere", ids)


def test_Q5_children_are_counted_as_far_as_one_asks(mesh: Store) -> None:
    rows = [entity_row(f"c{at}", "milestone", parent="m") for at in range(5)]
    mesh.write(lambda tx: tx.entities_put(MESH, rows))
    gone = msgspec.structs.replace(rows[0], deleted=True, parent="")
    mesh.write(lambda tx: tx.entities_put(MESH, [gone]))
    with mesh.read() as tx:
        assert tx.entity_children(MESH, "milestone", "m", 99) == 4
        assert tx.entity_children(MESH, "milestone", "m", 2) == 2
        assert tx.entity_children(MESH, "milestone", "other", 99) == 0
        assert tx.entity_children(MESH, "slice", "m", 99) == 0


def test_S19_revisions_are_found_by_the_commit_that_was_the_last(mesh: Store) -> None:
    rows = [
        RevisionRow("mission", "m", 1, 3, False, True),
        RevisionRow("mission", "m", 2, 5, False, False),
        RevisionRow("mission", "m", 3, 9, True, True),
    ]
    mesh.write(lambda tx: tx.entity_revisions_add(MESH, rows))
    with mesh.read() as tx:
        assert tx.entity_revisions(MESH, "mission", "m", 0, 9) == rows
        assert tx.entity_revisions(MESH, "mission", "m", 1, 1) == rows[1:2]
        found = [tx.entity_revision_by(MESH, "mission", "m", at) for at in (2, 3, 4, 8, 9, 99)]
        assert found == [None, rows[0], rows[0], rows[1], rows[2], rows[2]]
        assert tx.entity_revision_by(MESH, "mission", "m", 8, whole=True) == rows[0]


def test_Q7_commits_are_found_by_place_number_and_id(mesh: Store) -> None:
    rows = [commit_row(4, 1), commit_row(2, 2, head=4), commit_row(7, 3), commit_row(9, 4)]

    def work(tx: Transaction) -> None:
        tx.commits_add(rows)
        tx.voids_add(MESH, [(make_id(50), 2)])

    mesh.write(work)
    with mesh.read() as tx:
        assert tx.commit_at(2) == rows[1]
        assert tx.commit_at(3) is None
        assert tx.commit_of(MESH, make_id(7)) == rows[2]
        assert tx.commit_of("other", make_id(7)) is None
        assert tx.commit_range(MESH, 2, 2) == rows[1:3]
        heads = [tx.commit_by_head(MESH, offset) for offset in (0, 3, 4, 6, 7, 8, 9, 99)]
        assert heads == [0, 0, 2, 2, 3, 3, 4, 4]
        assert tx.commit_by_head("other", 99) == 0
        for most in (51, 60):  # a few are looked up one by one, many by one query
            ids = [make_id(4), *(make_id(at) for at in range(50, most + 1))]
            known = tx.intents_known(MESH, ids)
            assert set(known) == {make_id(4), make_id(50)}
            assert (known[make_id(4)].void, known[make_id(4)].fence) == (False, fence(1))
            assert (known[make_id(50)].void, known[make_id(50)].fence) == (True, fence(2))
        assert tx.intents_known("other", [make_id(4), make_id(50)]) == {}


def test_Q13_leases_that_nobody_holds_are_gone(mesh: Store) -> None:
    rows = [lease_row("a"), lease_row("b", holder="cyd", waiting=()), lease_row("c")]

    def work(tx: Transaction) -> None:
        for row in rows:
            tx.lease_put(MESH, row)
        tx.lease_put(MESH, LeaseRow(name="a"))

    mesh.write(work)
    with mesh.read() as tx:
        assert tx.lease_get(MESH, "a") is None
        assert tx.lease_get(MESH, "b") == rows[1]
        assert tx.lease_list(MESH, "", 9) == rows[1:]
        assert tx.lease_list(MESH, "b", 9) == rows[2:]


def test_Q12_nodes_that_were_lost_stay_known(mesh: Store) -> None:
    def work(tx: Transaction) -> None:
        tx.node_put(MESH, node_row())
        tx.node_put(MESH, node_row("ana"))
        tx.node_put(MESH, node_row(lost=False))

    mesh.write(work)
    with mesh.read() as tx:
        assert tx.node_get(MESH, "cyd") == node_row(lost=False)
        assert tx.node_get(MESH, "bob") is None
        assert tx.node_list(MESH) == [node_row("ana"), node_row(lost=False)]


def test_Q7_a_conflict_waits_until_it_is_resolved_once(mesh: Store) -> None:
    def work(tx: Transaction) -> None:
        for number in (5, 2, 9):
            tx.waiting_conflict_add(waiting_row(number))

    mesh.write(work)
    assert mesh.write(lambda tx: tx.waiting_conflict_resolve(MESH, 5, "theirs", 99))
    assert not mesh.write(lambda tx: tx.waiting_conflict_resolve(MESH, 5, "mine", 100))
    assert not mesh.write(lambda tx: tx.waiting_conflict_resolve(MESH, 6, "mine", 100))
    with mesh.read() as tx:
        assert tx.waiting_conflicts(MESH, 0, 9) == [waiting_row(2), waiting_row(9)]
        assert tx.waiting_conflicts(MESH, 2, 1) == [waiting_row(9)]
        every = tx.waiting_conflicts(MESH, 0, 9, open_only=False)
        assert [(row.number, row.resolution) for row in every] == [(2, ""), (5, "theirs"), (9, "")]


def test_Q6_the_queue_counts_what_nobody_has_settled_and_keeps_its_rows(mesh: Store) -> None:
    lane = quorum_lane_of(MESH)
    states = ("pending", "inflight", "dead", "dead", "done")
    rows = [
        outbox_row(at, lane=lane, state=state, ended_at=1 if state in ("dead", "done") else None)
        for at, state in enumerate(states, 1)
    ]

    noted = QueueNote(
        number=0,
        outcome=Outcome.REJECTED_FENCED,
        fence=fence(9, epoch=2),
        earlier_fences=(fence(2), fence(3)),
    )

    def work(tx: Transaction) -> None:
        tx.outbox_add([*rows, outbox_row(6), outbox_row(7)])
        numbers = [row.number for row in tx.outbox_list(lane, (), 0, 9)]
        assert tx.queue_newest() == 0
        for number in numbers:
            tx.queue_note_put(QueueNote(number=number))
        tx.queue_note_put(msgspec.structs.replace(noted, number=numbers[3]))
        tx.queue_note_put(QueueNote(number=numbers[2], resolved_by="mel", target="bob"))

    mesh.write(work)
    mesh.write(lambda tx: tx.outbox_sweep(10**6, 10**7, 99))
    with mesh.read() as tx:
        assert tx.queue_counts(lane) == {"pending": 1, "inflight": 1, "dead": 1, "done": 1}
        kept = tx.outbox_list(lane, (), 0, 9)
        assert [row.state for row in kept] == list(states)
        number = kept[3].number
        assert tx.queue_note(number) == msgspec.structs.replace(noted, number=number)
        assert tx.queue_newest() == kept[-1].created_at
        assert tx.queue_counts("quorum:other") == {}
        assert tx.queue_note(number + 9) is None


def test_Q9_the_newest_snapshot_of_each_node_is_kept(mesh: Store) -> None:
    assert read(mesh, lambda tx: tx.snapshot_latest(MESH)) is None
    put = [
        mesh.write(lambda tx, row=row: tx.snapshot_put(row))  # type: ignore[misc]
        for row in (
            mesh_snapshot("bob", 5),
            mesh_snapshot("cyd", 9, b"[1]"),
            mesh_snapshot("bob", 4, b"[2]"),
            mesh_snapshot("bob", 7, b"[3]"),
        )
    ]
    assert put == [True, True, False, True]
    with mesh.read() as tx:
        assert tx.snapshot_latest(MESH) == mesh_snapshot("cyd", 9, b"[1]")
        assert tx.snapshot_latest(MESH, "bob") == mesh_snapshot("bob", 7, b"[3]")
        assert tx.snapshot_latest("other") is None
