"""Meshes, their clocks, and the peers heard of."""

from __future__ import annotations

import threading

import msgspec
import pytest

from holdfast.rules.errors import AlreadyExists, BadStamp, UnknownMesh
from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import (
    KNOWN_PAST_MS,
    LAMPORT_LEAP_MAX,
    LAMPORT_MAX,
    LAMPORT_STEP_MAX,
)
from holdfast.rules.rows import PeerRow
from holdfast.storage.ports import Store, Transaction
from support.stores import PEERS_IN_ORDER, mesh_row, read, with_mesh


def test_S6_a_mesh_comes_back_as_it_was_added(store: Store) -> None:
    row = mesh_row("team", name="Équipe", kind="shared_owner", last_sync_at=7, sync_paused=True)
    store.write(lambda tx: tx.mesh_add(row))
    assert read(store, lambda tx: tx.mesh_get("team")) == row
    assert read(store, lambda tx: tx.mesh_get("other")) is None


SHARED = {
    "kind": "shared_guest",
    "broker_url": "https://broker.example:7777",
    "broker_card": "store:ed25519:00",
    "server_id": "01a0",
    "broker_epoch": 2,
    "broker_seq": 41,
    "last_sync_at": 9,
    "sync_paused": True,
}


def test_S14_a_shared_mesh_comes_back_with_its_broker_and_its_cursor(store: Store) -> None:
    row = mesh_row("team", **SHARED)
    store.write(lambda tx: tx.mesh_add(row))
    assert read(store, lambda tx: tx.mesh_get("team")) == row
    assert read(store, lambda tx: tx.mesh_list()) == [row]


def test_S14_a_mesh_changes_in_all_but_its_clocks(store: Store) -> None:
    with_mesh(store, "other")
    store.write(lambda tx: tx.mesh_add(mesh_row("team", lamport=5, seq=3, forgotten_lamport=2)))
    changed = mesh_row("team", name="The Team", lamport=0, seq=9, created_at=8, **SHARED)
    store.write(lambda tx: tx.mesh_change(changed))
    expected = msgspec.structs.replace(changed, lamport=5, seq=3, forgotten_lamport=2)
    assert read(store, lambda tx: tx.mesh_get("team")) == expected
    assert read(store, lambda tx: tx.mesh_get("other")) == mesh_row("other"), "and no other"
    with pytest.raises(UnknownMesh):
        store.write(lambda tx: tx.mesh_change(mesh_row("nowhere")))


@pytest.mark.parametrize("kind", ["shared_owner", "shared_guest"])
def test_S6_a_local_event_of_a_shared_mesh_names_the_lane_by_which_it_leaves(
    store: Store, kind: str
) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row("team", kind=kind)))
    assert store.write(lambda tx: tx.tick("team")) == (1, 1, "broker:team", 0)


def test_S6_meshes_are_listed_by_name(store: Store) -> None:
    with_mesh(store, "b", "a-2", "a", "c.1")
    assert [row.slug for row in read(store, lambda tx: tx.mesh_list())] == ["a", "a-2", "b", "c.1"]


def test_S6_a_mesh_is_added_once(store: Store) -> None:
    with_mesh(store)
    with pytest.raises(AlreadyExists):
        store.write(lambda tx: tx.mesh_add(mesh_row(name="again")))
    found = read(store, lambda tx: tx.mesh_get("team"))
    assert found is not None
    assert found.name == "team"


def test_S1_the_peer_of_a_home_is_told_and_kept(store: Store) -> None:
    assert read(store, lambda tx: tx.peer_name()) is None
    store.write(lambda tx: tx.set_peer_name("Zoë"))
    assert read(store, lambda tx: tx.peer_name()) == "Zoë"
    store.write(lambda tx: tx.set_peer_name("zoë-2"))
    assert read(store, lambda tx: tx.peer_name()) == "zoë-2"


def test_S4_a_local_event_takes_the_next_stamp_and_the_next_number(store: Store) -> None:
    with_mesh(store, "team", "other")
    ticks = [store.write(lambda tx: tx.tick("team")) for _ in range(3)]
    assert ticks == [(1, 1, None, 0), (2, 2, None, 0), (3, 3, None, 0)]
    assert store.write(lambda tx: tx.tick("other")) == (1, 1, None, 0), (
        "every mesh has its own clock"
    )


def test_S4_many_local_events_in_a_row_take_the_stamps_and_numbers_of_as_many_single_ones(
    store: Store,
) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row("team", lamport=7, seq=2)))
    assert store.write(lambda tx: tx.tick_many("team", 3)) == (8, 3, None, 0)
    assert store.write(lambda tx: tx.tick("team")) == (11, 6, None, 0)
    with pytest.raises(UnknownMesh):
        store.write(lambda tx: tx.tick_many("nowhere", 2))


def test_S4_a_clock_that_would_wear_out_within_many_events_does_not_move(store: Store) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row("team", lamport=LAMPORT_MAX - 2)))
    with pytest.raises(BadStamp):
        store.write(lambda tx: tx.tick_many("team", 3))
    assert store.write(lambda tx: tx.tick_many("team", 2))[0] == LAMPORT_MAX - 1
    with pytest.raises(BadStamp):
        store.write(lambda tx: tx.tick("team"))


@pytest.mark.parametrize(("ours", "theirs", "then"), [(0, 1, 2), (5, 3, 6), (5, 5, 6), (5, 9, 10)])
def test_S4_a_merged_event_moves_the_clock_past_both(
    store: Store, ours: int, theirs: int, then: int
) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row(lamport=ours, seq=4)))
    assert store.write(lambda tx: tx.tick_merged("team", theirs, KNOWN_PAST_MS)) == then
    row = read(store, lambda tx: tx.mesh_get("team"))
    assert row is not None
    assert (row.lamport, row.seq) == (then, 4), "only our own events are numbered"


def test_S4_an_unknown_mesh_has_no_clock(store: Store) -> None:
    with pytest.raises(UnknownMesh):
        store.write(lambda tx: tx.tick("nowhere"))
    with pytest.raises(UnknownMesh):
        store.write(lambda tx: tx.tick_merged("nowhere", 1, KNOWN_PAST_MS))


@pytest.mark.parametrize("stamp", [0, -1, LAMPORT_MAX, 2**63, 2**64])
def test_S4_a_stamp_that_is_no_positive_63_bit_integer_is_refused(store: Store, stamp: int) -> None:
    with_mesh(store)
    with pytest.raises(BadStamp):
        store.write(lambda tx: tx.tick_merged("team", stamp, KNOWN_PAST_MS))
    assert store.write(lambda tx: tx.tick("team")) == (1, 1, None, 0), "nothing moved"


def test_S4_a_stamp_may_be_2_to_the_48_ahead_and_no_more(store: Store) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row(lamport=10)))
    with pytest.raises(BadStamp):
        store.write(lambda tx: tx.tick_merged("team", 10 + LAMPORT_LEAP_MAX + 1, IN_2128))
    far = 10 + LAMPORT_LEAP_MAX
    assert store.write(lambda tx: tx.tick_merged("team", far, IN_2128)) == far + 1


IN_2128 = 5_000_000_000_000
"""Before that year no mesh can have given 2^48 stamps, so the other bound is the lower one."""


def test_S4_no_stamp_takes_the_clock_above_what_a_mesh_can_have_given_by_now(store: Store) -> None:
    with_mesh(store)
    top = ceiling(KNOWN_PAST_MS)
    with pytest.raises(BadStamp, match="by now"):
        store.write(lambda tx: tx.tick_merged("team", top + 1, KNOWN_PAST_MS))
    with pytest.raises(BadStamp, match="by now"):
        store.write(lambda tx: tx.tick_merged_run("team", [5, top + 1], 0))
    assert store.write(lambda tx: tx.tick_merged_run("team", [5, top], 0)) == top + 1
    far = top + 2 + LAMPORT_STEP_MAX
    with pytest.raises(BadStamp, match="by now"):
        store.write(lambda tx: tx.tick_merged("team", far, KNOWN_PAST_MS))
    later = KNOWN_PAST_MS + LAMPORT_STEP_MAX
    assert store.write(lambda tx: tx.tick_merged("team", far, later)) == far + 1


def test_S4_a_clock_is_raised_past_our_own_lost_stamps_and_never_lowered(store: Store) -> None:
    with_mesh(store)
    for to in (2**60, 7):
        store.write(lambda tx, to=to: tx.clock_raise("team", to))  # type: ignore[misc]
    assert store.write(lambda tx: tx.tick("team")) == (2**60 + 1, 1, None, 0)
    with pytest.raises(UnknownMesh):
        store.write(lambda tx: tx.clock_raise("nowhere", 1))


def test_S4_a_rolled_back_event_leaves_the_clock_where_it_was(store: Store) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        assert tx.tick("team") == (1, 1, None, 0)
        assert tx.tick_merged("team", 40, KNOWN_PAST_MS) == 41
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.write(work)
    assert store.write(lambda tx: tx.tick("team")) == (1, 1, None, 0)


def test_S4_a_hundred_concurrent_ticks_have_no_gap_and_no_double(store: Store) -> None:
    with_mesh(store)
    threads, each = 10, 10
    start = threading.Barrier(threads)
    taken: list[list[tuple[int, int]]] = [[] for _ in range(threads)]

    def run(mine: list[tuple[int, int]]) -> None:
        start.wait()
        for _ in range(each):
            mine.append(store.write(lambda tx: tx.tick("team")[:2]))

    workers = [threading.Thread(target=run, args=(mine,)) for mine in taken]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(tick for mine in taken for tick in mine) == [(n, n) for n in range(1, 101)]
    assert all(mine == sorted(mine) for mine in taken), "each caller sees time go forward"


def test_S17_what_was_forgotten_only_grows(store: Store) -> None:
    with_mesh(store)
    for lamport, kept in ((5, 5), (3, 5), (9, 9)):

        def work(tx: Transaction, lamport: int = lamport) -> None:
            tx.forget_below("team", lamport)

        store.write(work)
        row = read(store, lambda tx: tx.mesh_get("team"))
        assert row is not None
        assert (row.forgotten_lamport, row.forgotten_floor) == (kept, kept)


def test_S17_removed_tombstones_are_remembered_by_key_up_to_a_number(store: Store) -> None:
    with_mesh(store, "team", "other")
    a, b, c = (letter * 16 for letter in (b"a", b"b", b"c"))

    def known() -> list[int]:
        found = [read(store, lambda tx, n=n: tx.buried("team", n)) for n in (a, b, c)]  # type: ignore[misc]
        row = read(store, lambda tx: tx.mesh_get("team"))
        assert row is not None
        return [*found, row.forgotten_lamport, row.forgotten_floor]

    store.write(lambda tx: tx.bury("team", 20, [(a, 7), (b, 5)], 2))
    assert known() == [7, 5, 0, 20, 0]
    store.write(lambda tx: tx.bury("team", 9, [(a, 6), (b, 9)], 2))
    assert known() == [7, 9, 0, 20, 0], "the newest of a key counts"
    store.write(lambda tx: tx.bury("team", 30, [(c, 30)], 2))
    assert known() == [0, 9, 30, 30, 7], "the lowest is gone, and of whatever key"
    assert read(store, lambda tx: tx.buried("other", c)) == 0


def test_S6_peers_are_a_cache_that_keeps_the_newest(store: Store) -> None:
    with_mesh(store, "team", "other")
    seen = PeerRow(mesh="team", peer="bob", last_seen_at=10, last_lamport=5)
    store.write(lambda tx: tx.peer_seen(seen))
    older = msgspec.structs.replace(seen, last_seen_at=4, last_lamport=7)
    store.write(lambda tx: tx.peer_seen(older))
    newest = PeerRow(mesh="team", peer="bob", last_seen_at=10, last_lamport=7)
    assert read(store, lambda tx: tx.peer_list("team")) == [newest]
    assert read(store, lambda tx: tx.peer_list("other")) == []


def test_S5_peers_are_listed_by_their_bytes(store: Store) -> None:
    with_mesh(store)
    for peer in reversed(PEERS_IN_ORDER):
        row = PeerRow(mesh="team", peer=peer, last_seen_at=1, last_lamport=1)
        store.write(lambda tx, row=row: tx.peer_seen(row))  # type: ignore[misc]
    found = read(store, lambda tx: tx.peer_list("team"))
    assert tuple(row.peer for row in found) == PEERS_IN_ORDER
