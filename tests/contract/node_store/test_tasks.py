"""Tasks and their turns as a store keeps them."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.ids import id_text
from holdfast.rules.order import Version
from holdfast.rules.tasks import TaskStanding, TaskStatus
from holdfast.storage.ports import Store, Transaction
from support.envelopes import MESH, make_id
from support.stores import PEERS_IN_ORDER, event_row, read, task_row, version, with_mesh


def test_S10_a_task_comes_back_as_it_was_put(store: Store) -> None:
    with_mesh(store)
    bare = task_row("t1")
    full = task_row(
        "t2",
        title="Überschrift",
        description="mehr\ndavon",
        status=TaskStatus.COMPLETED,
        generation=3,
        holder=version(4, "bob"),
        claimed_at=44,
        ended=version(5, "Zoë"),
        ended_at=55,
        last=version(9, "cyd"),
        offset=12,
    )
    store.write(lambda tx: tx.task_put(bare))
    store.write(lambda tx: tx.task_put(full))
    assert read(store, lambda tx: tx.task_get(MESH, "t1")) == bare
    assert read(store, lambda tx: tx.task_get(MESH, "t2")) == full
    assert read(store, lambda tx: tx.task_get("other", "t1")) is None


def test_S10_a_task_is_replaced_whole(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.task_put(task_row("t", holder=version(4), claimed_at=4)))
    again = task_row("t", known=False, title="", status=TaskStatus.OPEN, generation=1, offset=2)
    store.write(lambda tx: tx.task_put(again))
    assert read(store, lambda tx: tx.task_get(MESH, "t")) == again


def test_S10_known_tasks_are_paged_by_name_and_by_status(store: Store) -> None:
    with_mesh(store, MESH, "other")
    names = ["a", "b", "é", "\uffff", "\U00010000"]

    def work(tx: Transaction) -> None:
        for n, name in enumerate(reversed(names)):
            tx.task_put(task_row(name, status=TaskStatus.CLAIMED if n % 2 else TaskStatus.OPEN))
        tx.task_put(task_row("c", known=False))
        tx.task_put(task_row("d", mesh="other"))

    store.write(work)

    def walk(status: TaskStatus | None) -> list[str]:
        found: list[str] = []
        with store.read() as tx:
            while page := tx.task_scan(MESH, status, found[-1] if found else "", 2):
                found += [row.task for row in page]
        return found

    assert walk(None) == names
    assert walk(TaskStatus.CLAIMED) == ["b", "\uffff"]
    assert walk(TaskStatus.CANCELLED) == []


def test_S10_turns_come_back_in_stamp_order_by_bytes(store: Store) -> None:
    with_mesh(store)
    versions = [
        Version(1, "\U0010ffff", make_id(9)),
        *(Version(2, peer, make_id(1)) for peer in PEERS_IN_ORDER),
        Version(2, PEERS_IN_ORDER[-1], make_id(2)),
        Version(3, "a", make_id(0)),
    ]

    def work(tx: Transaction) -> None:
        for at in reversed(versions):
            tx.task_event_put(event_row("t", at))
        tx.task_event_put(event_row("u", version(1)))

    store.write(work)
    found = read(store, lambda tx: tx.task_events(MESH, "t"))
    assert [row.version for row in found] == versions
    assert read(store, lambda tx: tx.task_events(MESH, "nothing")) == []
    assert read(store, lambda tx: tx.task_events("other", "t")) == []


@pytest.mark.parametrize("against", [None, Version(1, "bob", make_id(8))])
def test_S10_a_turn_comes_back_as_it_was_put(store: Store, against: Version | None) -> None:
    with_mesh(store)
    row = event_row(
        "t", version(4), kind="create", event="created", against=against, title="é", description="d"
    )
    store.write(lambda tx: tx.task_event_put(row))
    assert read(store, lambda tx: tx.task_events(MESH, "t")) == [row]


def test_S10_a_verdict_may_change_but_not_when_it_was_applied(store: Store) -> None:
    with_mesh(store)
    first = event_row("t", version(4), applied_at=100)
    store.write(lambda tx: tx.task_event_put(first))
    lost = msgspec.structs.replace(
        first, event="superseded", against=version(3, "bob"), applied_at=999
    )
    store.write(lambda tx: tx.task_event_put(lost))
    kept = msgspec.structs.replace(lost, applied_at=100)
    assert read(store, lambda tx: tx.task_events(MESH, "t")) == [kept]


def test_S10_turns_are_found_by_place_and_by_generation(store: Store) -> None:
    """As a late turn looks for them. Peers sort by their bytes."""
    with_mesh(store, MESH, "other")
    places = [version(2, peer) for peer in PEERS_IN_ORDER]
    standing = TaskStanding(TaskStatus.CLAIMED, 1, version(2), 7, None, None)
    rows = [
        event_row("t", version(1), kind="create", event="created", standing=standing),
        *(event_row("t", at, generation=1, standing=standing) for at in places),
        event_row("t", version(3), kind="release", generation=1, standing=standing, opened=2),
        event_row("t", version(4), kind="create", standing=standing),
        event_row("t", version(5), kind="complete", generation=1, standing=standing, opened=5),
        event_row("t", version(6), generation=3, standing=standing),
    ]

    def put(tx: Transaction) -> None:
        for row in reversed(rows):
            tx.task_event_put(row)
            tx.task_event_put(msgspec.structs.replace(row, mesh="other"))
            tx.task_event_put(msgspec.structs.replace(row, task="u", standing=None))

    store.write(put)
    with store.read() as tx:
        assert tx.task_events(MESH, "t") == rows
        for n, row in enumerate(rows):
            before = rows[n - 1] if n else None
            assert tx.task_event_before(MESH, "t", row.version) == before
            assert tx.task_event_before(MESH, "t", row.version, or_at=True) == row
            assert tx.task_events_after(MESH, "t", row.version, 2) == rows[n + 1 : n + 3]
        named = rows[1 : len(places) + 2]
        assert tx.task_events_naming(MESH, "t", 1, 1, version(9)) == named
        assert tx.task_events_naming(MESH, "t", 1, 3, version(9)) == [*named, rows[-1]]
        assert tx.task_events_naming(MESH, "t", 1, 1, named[2].version) == named[:2]
        assert tx.task_events_naming(MESH, "t", 2, 2, version(9)) == []
        openings = [tx.task_event_opening(MESH, "t", n) for n in (1, 2, 3, 5, 6)]
        assert [row and row.opened for row in openings] == [2, 2, 5, 5, None]
        assert tx.task_event_create(MESH, "t") == rows[0]
        assert tx.task_event_create(MESH, "nothing") is None
        assert not tx.task_lacks_standings(MESH, "t")
        assert tx.task_lacks_standings(MESH, "u")


def test_S20_ended_tasks_go_with_their_turns_and_their_names_are_remembered(store: Store) -> None:
    with_mesh(store)
    names = [id_text(make_id(number)) for number in range(1, 5)]

    def fill(tx: Transaction) -> None:
        for offset, name in enumerate(names, 1):
            status = TaskStatus.OPEN if offset == 2 else TaskStatus.CANCELLED
            tx.task_put(task_row(name, status=status, offset=offset, last=version(offset)))
            tx.task_event_put(event_row(name, version(offset)))

    store.write(fill)
    assert store.write(lambda tx: tx.tasks_forget(MESH, 4, 100, 100)) == [(1, 1), (3, 3)]
    assert read(store, lambda tx: [tx.task_get(MESH, name) is None for name in names]) == [
        *(True, False, True, False)
    ]
    assert read(store, lambda tx: tx.task_events(MESH, names[0])) == []
    known = read(store, lambda tx: [tx.task_forgotten(MESH, name) for name in names])
    assert known == [True, False, True, False]
    assert store.write(lambda tx: tx.tasks_forget(MESH, 9, 100, 1)) == [(4, 4)]
    known = read(store, lambda tx: [tx.task_forgotten(MESH, name) for name in names])
    assert known == [True, True, True, True], "up to the third nobody knows"
    assert not read(store, lambda tx: tx.task_forgotten(MESH, id_text(make_id(9))))
    assert store.write(lambda tx: tx.tasks_forget(MESH, 9, 100, 1)) == []
