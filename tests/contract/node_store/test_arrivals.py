"""Entries that come in numbers: all of a batch or none, told at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.errors import BadStamp, UnknownMesh
from holdfast.rules.limits import KNOWN_PAST_MS, LAMPORT_LEAP_MAX, LAMPORT_MAX
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Store, Transaction
from support.dump import dump
from support.envelopes import MESH, make_id
from support.stores import append, arrived, make_store, mesh_row, read, with_mesh

ALL = 1 << 40

# --- the log -------------------------------------------------------------------------------------


def test_Z1_a_batch_is_appended_as_its_entries_would_be_one_by_one(store: Store) -> None:
    with_mesh(store)
    other = MemoryStore()
    with_mesh(other)
    batch = [arrived(number, f"é-{number}") for number in (3, 1, 2)]
    store.write(lambda tx: append(tx, 9, now_ms=500))
    assert store.write(lambda tx: tx.log_append_new(batch, 400)) == 2

    def one_by_one(tx: Transaction) -> None:
        append(tx, 9, now_ms=500)
        for id, mesh, op, entity, origin, lamport, raw in batch:
            tx.log_append(id, mesh, op, entity, origin, lamport, 400, raw)

    other.write(one_by_one)
    assert read(store, dump) == read(other, dump)
    assert [entry.recorded_at for entry in read(store, lambda tx: tx.log_range(1, 9, 9))] == [
        500
    ] * 4, "a clock that jumps back does not make the log run backwards"


def test_Z1_an_empty_batch_tells_where_the_next_would_stand(store: Store) -> None:
    with_mesh(store)
    assert store.write(lambda tx: tx.log_append_new([], 1)) == 1
    store.write(lambda tx: append(tx, 1))
    assert store.write(lambda tx: tx.log_append_new([], 1)) == 2
    assert read(store, lambda tx: tx.log_bounds()) == (1, 1)


@pytest.mark.parametrize(
    "batch",
    [[5, 6, 2], [2, 5], [5, 6, 5], [1, 5], [5, 1, 2], [1]],
    ids=["in the log", "first", "twice", "forgotten", "both", "alone"],
)
def test_Z6_a_batch_with_a_known_id_is_not_appended_and_leaves_no_gap(
    store: Store, batch: list[int]
) -> None:
    with_mesh(store)

    def ground(tx: Transaction) -> None:
        for number in (1, 2, 3):
            append(tx, number, now_ms=100 * number)
        tx.log_truncate(2, 9, 1)
        assert tx.forgotten(make_id(1)) is not None

    store.write(ground)
    before = read(store, dump)

    def work(tx: Transaction) -> int:
        assert tx.log_append_new([arrived(number) for number in batch], 10_000, 1) is None
        assert dump(tx) == before
        # In the same transaction, as whoever was refused goes on entry by entry.
        return append(tx, 7, now_ms=400)

    assert store.write(work) == 4
    entry = read(store, lambda tx: tx.log_get(4))
    assert entry is not None
    assert (entry.id, entry.recorded_at) == (make_id(7), 400), "time did not move with the refused"
    assert store.write(lambda tx: tx.log_append_new([arrived(8), arrived(9)], 1)) == 5


def test_Z6_a_first_batch_that_is_refused_leaves_an_empty_log(store: Store) -> None:
    with_mesh(store)
    assert store.write(lambda tx: tx.log_append_new([arrived(1), arrived(1)], 5)) is None
    assert read(store, lambda tx: tx.log_bounds()) == (1, 0)
    assert store.write(lambda tx: tx.log_append_new([arrived(1)], 5)) == 1


@given(
    batches=st.lists(st.lists(st.integers(1, 30), max_size=6), max_size=8),
    truncated=st.lists(st.integers(0, 20), min_size=8, max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_Z6_whatever_arrives_how_often_each_id_stands_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], truncated: list[int]
) -> None:
    stores = [make_store(kind, tmp_path_factory.mktemp("s")) for kind in ("memory", "sqlite")]
    for store in stores:
        with_mesh(store)
    known: set[int] = set()
    for batch, below in zip(batches, truncated, strict=False):
        new = known.isdisjoint(batch) and len(set(batch)) == len(batch)
        for store in stores:
            arrivals = [arrived(number) for number in batch]
            first = store.write(lambda tx, a=arrivals: tx.log_append_new(a, 5))  # type: ignore[misc]
            assert first == (len(known) + 1 if new else None)
            store.write(lambda tx, below=below: tx.log_truncate(below, 9, 1))  # type: ignore[misc]
        known |= set(batch) if new else set()
        assert read(stores[0], dump) == read(stores[1], dump)
    for store in stores:
        store.stop()


# --- the clock -----------------------------------------------------------------------------------


def test_S4_a_run_of_merged_events_moves_the_clock_as_one_by_one(store: Store) -> None:
    with_mesh(store, "one", "run")
    stamps = [5, 3, 9, 9, 1]
    for stamp in stamps:
        last = store.write(lambda tx, stamp=stamp: tx.tick_merged("one", stamp, KNOWN_PAST_MS))  # type: ignore[misc]
    assert store.write(lambda tx: tx.tick_merged_run("run", stamps, KNOWN_PAST_MS)) == last == 12
    assert store.write(lambda tx: tx.tick_merged_run("run", [], KNOWN_PAST_MS)) == last
    one, run = read(store, lambda tx: (tx.mesh_get("one"), tx.mesh_get("run")))
    assert one is not None
    assert run is not None
    assert (one.lamport, one.seq) == (run.lamport, run.seq) == (12, 0)


def test_S4_a_run_with_one_absurd_stamp_does_not_tick_at_all(store: Store) -> None:
    with_mesh(store)

    def refused_inside(tx: Transaction) -> None:
        for stamps in ([5, 0], [5, LAMPORT_LEAP_MAX + 7], [True]):
            with pytest.raises(BadStamp):
                tx.tick_merged_run(MESH, stamps, KNOWN_PAST_MS)

    store.write(refused_inside)
    row = read(store, lambda tx: tx.mesh_get(MESH))
    assert row is not None
    assert row.lamport == 0
    with pytest.raises(UnknownMesh):
        store.write(lambda tx: tx.tick_merged_run("nowhere", [1], KNOWN_PAST_MS))


def test_S4_a_clock_at_its_end_refuses_to_merge(store: Store) -> None:
    store.write(lambda tx: tx.mesh_add(mesh_row(lamport=LAMPORT_MAX - 1)))
    assert store.write(lambda tx: tx.tick_merged_run(MESH, [1], KNOWN_PAST_MS)) == LAMPORT_MAX
    for work in (
        lambda tx: tx.tick_merged_run(MESH, [1], KNOWN_PAST_MS),
        lambda tx: tx.tick_merged(MESH, 1, KNOWN_PAST_MS),
    ):
        with pytest.raises(BadStamp, match="no number left"):
            store.write(work)


# --- objects that facts name ---------------------------------------------------------------------


def test_S9_a_blob_is_referenced_by_the_facts_that_name_it_too(store: Store) -> None:
    with_mesh(store)
    a, b = "a" * 64, "b" * 64

    def work(tx: Transaction) -> None:
        tx.fact_objects_put(7, [b, a])
        tx.fact_objects_put(7, [a])
        tx.fact_objects_put(3, [a])
        tx.fact_objects_put(9, [])

    store.write(work)
    with store.read() as tx:
        assert (tx.blob_refs(a), tx.blob_refs(b)) == (2, 1)
        assert tx.fact_objects(ALL, 9) == [(3, a), (7, a), (7, b)]
        assert tx.fact_objects(7, 9) == [(3, a)]
        assert tx.fact_objects(ALL, 2) == [(3, a), (7, a)]
    store.write(lambda tx: tx.fact_objects_drop(7))
    assert read(store, lambda tx: tx.fact_objects(ALL, 9)) == [(7, a), (7, b)]
    assert read(store, lambda tx: tx.blob_refs(a)) == 1
