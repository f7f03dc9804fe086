"""The log: append, find, range, truncate, forget."""

from __future__ import annotations

import pytest

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.rows import Entry
from holdfast.storage.ports import Store, Transaction
from support.envelopes import MESH, make_id
from support.stores import append, read, with_mesh

LATER = 10**15
DAY_MS = 24 * 3600 * 1000


def offsets(entries: list[Entry]) -> list[int]:
    return [entry.offset for entry in entries]


def fill(store: Store, count: int) -> None:
    def work(tx: Transaction) -> None:
        for number in range(1, count + 1):
            append(tx, number, now_ms=1000 + number)

    store.write(work)


def test_Z1_an_empty_log_says_so(store: Store) -> None:
    assert read(store, lambda tx: tx.log_bounds()) == (1, 0)
    assert read(store, lambda tx: tx.log_range(1, 100, 100)) == []
    assert read(store, lambda tx: tx.log_get(1)) is None
    assert read(store, lambda tx: tx.log_find(make_id(1))) is None
    assert read(store, lambda tx: tx.log_at(10**15, 10**15)) == 0
    assert read(store, lambda tx: tx.forgotten(make_id(1))) is None


def test_Z1_offsets_count_from_one_without_gaps(store: Store) -> None:
    assert [store.write(lambda tx, n=n: append(tx, n)) for n in (1, 2, 3)] == [1, 2, 3]  # type: ignore[misc]
    assert read(store, lambda tx: tx.log_bounds()) == (1, 3)


def test_Z1_a_rolled_back_append_leaves_no_gap(store: Store) -> None:
    fill(store, 2)

    def work(tx: Transaction) -> None:
        assert append(tx, 3) == 3
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.write(work)
    assert read(store, lambda tx: tx.log_bounds()) == (1, 2)
    assert read(store, lambda tx: tx.log_find(make_id(3))) is None
    assert read(store, lambda tx: tx.log_of(MESH, "k", 99)) == read(
        store, lambda tx: tx.log_range(1, 3, 9)
    )
    assert store.write(lambda tx: append(tx, 4)) == 3


def test_Z1_an_entry_comes_back_whole_by_offset_and_by_id(store: Store) -> None:
    store.write(lambda tx: append(tx, 7, "schlüssel", now_ms=5000, origin="Zoë"))
    entry = read(store, lambda tx: tx.log_get(1))
    assert entry is not None
    assert entry == read(store, lambda tx: tx.log_find(make_id(7)))
    assert (entry.offset, entry.id, entry.mesh, entry.op) == (1, make_id(7), MESH, "state.set")
    assert (entry.entity, entry.origin, entry.lamport) == ("schlüssel", "Zoë", 7)
    assert entry.recorded_at == 5000
    assert decode_trusted(entry.raw).entity == "schlüssel"


@pytest.mark.parametrize(
    ("start", "end", "limit", "found"),
    [
        (1, 6, 10, [1, 2, 3, 4, 5]),
        (2, 4, 10, [2, 3]),
        (2, 99, 2, [2, 3]),
        (4, 4, 10, []),
        (6, 9, 10, []),
        (-3, 3, 10, [1, 2]),
        (5, 2, 10, []),
        (1, 6, 0, []),
    ],
)
def test_Z3_a_range_is_half_open_and_limited(
    store: Store, start: int, end: int, limit: int, found: list[int]
) -> None:
    fill(store, 5)
    assert offsets(read(store, lambda tx: tx.log_range(start, end, limit))) == found


def test_S19_the_entries_about_one_thing_are_found_in_order(store: Store) -> None:
    with_mesh(store, "team", "other")

    def work(tx: Transaction) -> None:
        append(tx, 1, "a")
        append(tx, 2, "b")
        append(tx, 3, "a", mesh="other")
        append(tx, 4, "a")
        append(tx, 5, "a")

    store.write(work)
    assert offsets(read(store, lambda tx: tx.log_of("team", "a", 99))) == [1, 4, 5]
    assert offsets(read(store, lambda tx: tx.log_of("team", "a", 5))) == [1, 4]
    assert offsets(read(store, lambda tx: tx.log_of("other", "a", 99))) == [3]
    assert read(store, lambda tx: tx.log_of("team", "c", 99)) == []
    assert offsets(read(store, lambda tx: tx.log_of("team", "a", 99, 1, 1))) == [4]


def test_S19_the_log_tells_what_ops_are_about_each_once_in_order(store: Store) -> None:
    with_mesh(store, "other")

    def work(tx: Transaction) -> None:
        for number, key in enumerate(["b", "a", "\U00010000", "\uffff", "a", "é"], 1):
            append(tx, number, key)
        append(tx, 7, "m", op="memory.set")
        append(tx, 8, "z", mesh="other")

    store.write(work)
    in_order = ["a", "b", "é", "\uffff", "\U00010000"]
    assert read(store, lambda tx: tx.log_entities("team", "state.", "", 9)) == in_order
    assert read(store, lambda tx: tx.log_entities("team", "state.", "b", 2)) == in_order[2:4]
    assert read(store, lambda tx: tx.log_entities("team", "memory.", "", 9)) == ["m"]
    assert read(store, lambda tx: tx.log_entities("other", "state.", "", 9)) == ["z"]


def test_S19_recorded_times_never_run_backwards_even_when_the_clock_does(store: Store) -> None:
    for number, now in ((1, 1000), (2, 3000), (3, 2000), (4, 2500), (5, 4000)):
        store.write(lambda tx, n=number, t=now: append(tx, n, now_ms=t))  # type: ignore[misc]

    def together(tx: Transaction) -> None:
        append(tx, 6, now_ms=100)
        append(tx, 7, now_ms=5000)
        append(tx, 8, now_ms=100)

    store.write(together)
    times = [entry.recorded_at for entry in read(store, lambda tx: tx.log_range(1, 99, 99))]
    assert times == [1000, 3000, 3000, 3000, 4000, 4000, 5000, 5000]


def test_D4_an_entry_that_is_set_aside_frees_its_id(store: Store) -> None:
    fill(store, 3)
    before = read(store, lambda tx: tx.log_get(2))
    assert before is not None
    store.write(lambda tx: tx.log_set_aside(2, b"a" * 16))
    assert read(store, lambda tx: tx.log_find(before.id)) is None
    after = read(store, lambda tx: tx.log_find(b"a" * 16))
    assert after is not None
    assert (after.offset, after.raw) == (2, before.raw)
    assert store.write(lambda tx: append(tx, 2)) == 4, "another entry takes the id"
    found = read(store, lambda tx: tx.log_find(before.id))
    assert found is not None
    assert found.offset == 4


def test_S19_a_clock_that_was_set_back_makes_a_turn_and_times_are_found_on_both_sides(
    store: Store,
) -> None:
    with_mesh(store)
    at = [DAY_MS, 2 * DAY_MS, 402 * DAY_MS, 3 * DAY_MS, 4 * DAY_MS]
    for number, now in enumerate(at, 1):
        store.write(lambda tx, n=number, t=now: append(tx, n, now_ms=t))  # type: ignore[misc]
    batch = [(make_id(n), MESH, "fact.append", "s", "bob", n, b"raw") for n in (6, 7)]
    store.write(lambda tx: tx.log_append_new(batch, DAY_MS))
    assert [entry.recorded_at for entry in read(store, lambda tx: tx.log_range(1, 9, 9))] == [
        *at,
        DAY_MS,
        DAY_MS,
    ]
    assert read(store, lambda tx: tx.log_turns()) == (
        (4, 402 * DAY_MS, 3 * DAY_MS),
        (6, 4 * DAY_MS, DAY_MS),
    )
    found = [read(store, lambda tx, d=d: tx.log_at(d * DAY_MS, 9 * DAY_MS)) for d in range(10)]  # type: ignore[misc]
    assert found == [0, 1, 2, 4, 7, 7, 7, 7, 7, 7]
    old = [
        read(store, lambda tx, d=d: tx.log_at(d * DAY_MS, 9 * DAY_MS, cautious=True))  # type: ignore[misc]
        for d in range(10)
    ]
    assert old == [0, 1, 2, 4, 5, 5, 5, 5, 5, 7], "what was recorded behind may be young"


def test_S3_a_refused_batch_notes_no_turn(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: append(tx, 1, now_ms=9 * DAY_MS))
    twice = [(make_id(n), MESH, "fact.append", "s", "bob", n, b"raw") for n in (6, 6)]
    assert store.write(lambda tx: tx.log_append_new(twice, DAY_MS)) is None
    assert read(store, lambda tx: tx.log_turns()) == ()


@pytest.mark.parametrize(
    ("at", "offset"), [(0, 0), (1000, 0), (1001, 1), (1003, 3), (1005, 5), (9999, 5)]
)
def test_S19_a_time_finds_the_last_entry_recorded_by_then(
    store: Store, at: int, offset: int
) -> None:
    fill(store, 5)
    assert read(store, lambda tx: tx.log_at(at, LATER)) == offset


def test_Z5_truncation_removes_from_the_front_and_remembers_ids(store: Store) -> None:
    fill(store, 6)
    assert store.write(lambda tx: tx.log_truncate(4, 100, 7777)) == 3
    assert read(store, lambda tx: tx.log_bounds()) == (4, 6)
    assert offsets(read(store, lambda tx: tx.log_range(1, 99, 99))) == [4, 5, 6]
    assert read(store, lambda tx: tx.log_get(3)) is None
    assert read(store, lambda tx: tx.log_find(make_id(3))) is None
    assert offsets(read(store, lambda tx: tx.log_of(MESH, "k", 99))) == [4, 5, 6]
    gone = read(store, lambda tx: tx.forgotten(make_id(3)))
    assert gone is not None
    offset, fingerprint = gone
    assert offset == 3
    assert len(fingerprint) == 32
    assert read(store, lambda tx: tx.forgotten(make_id(4))) is None


def test_Z5_truncation_goes_in_chunks(store: Store) -> None:
    fill(store, 6)
    assert store.write(lambda tx: tx.log_truncate(6, 2, 1)) == 2
    assert store.write(lambda tx: tx.log_truncate(6, 2, 1)) == 2
    assert store.write(lambda tx: tx.log_truncate(6, 2, 1)) == 1
    assert store.write(lambda tx: tx.log_truncate(6, 2, 1)) == 0
    assert read(store, lambda tx: tx.log_bounds()) == (6, 6)


def test_Z5_the_last_entry_stays_so_that_offsets_go_on(store: Store) -> None:
    fill(store, 3)
    assert store.write(lambda tx: tx.log_truncate(100, 100, 1)) == 2
    assert read(store, lambda tx: tx.log_bounds()) == (3, 3)
    assert store.write(lambda tx: append(tx, 9)) == 4


def test_Z5_there_is_nothing_to_truncate_below_the_first_entry(store: Store) -> None:
    assert store.write(lambda tx: tx.log_truncate(5, 10, 1)) == 0
    fill(store, 3)
    assert store.write(lambda tx: tx.log_truncate(1, 10, 1)) == 0
    assert read(store, lambda tx: tx.log_bounds()) == (1, 3)


def test_S17_a_time_before_a_truncated_log_finds_nothing(store: Store) -> None:
    """Not the entry before the first: the age of what is gone is not known any more."""
    fill(store, 6)
    store.write(lambda tx: tx.log_truncate(4, 100, 7777))
    assert read(store, lambda tx: tx.log_at(1000, LATER)) == 0
    assert read(store, lambda tx: tx.log_at(1003, LATER)) == 0
    assert read(store, lambda tx: tx.log_at(1004, LATER)) == 4


def test_S17_dedupe_rows_go_by_age_oldest_first(store: Store) -> None:
    fill(store, 6)
    store.write(lambda tx: tx.log_truncate(3, 100, 100))
    store.write(lambda tx: tx.log_truncate(5, 100, 200))
    assert store.write(lambda tx: tx.forgotten_sweep(100, 10)) == 0, "the bound itself is kept"
    assert store.write(lambda tx: tx.forgotten_sweep(201, 3)) == 3
    known = [read(store, lambda tx, n=n: tx.forgotten(make_id(n))) for n in (1, 2, 3, 4)]  # type: ignore[misc]
    assert [row is not None for row in known].count(True) == 1
    assert known[0] is None
    assert known[1] is None
    assert store.write(lambda tx: tx.forgotten_sweep(201, 3)) == 1


def test_P6_an_id_can_be_known_whose_entry_was_never_here(store: Store) -> None:
    fill(store, 3)
    store.write(lambda tx: tx.log_truncate(2, 100, 100))
    before = read(store, lambda tx: tx.forgotten(make_id(1)))
    for _ in range(2):
        store.write(lambda tx: tx.forgotten_add(make_id(9), b"f" * 32, 300))
        store.write(lambda tx: tx.forgotten_add(make_id(1), b"g" * 32, 300))
    assert read(store, lambda tx: tx.forgotten(make_id(9))) == (0, b"f" * 32)
    assert read(store, lambda tx: tx.forgotten(make_id(1))) == before, "what is known stays"
    assert read(store, lambda tx: tx.log_bounds()) == (2, 3)
    assert store.write(lambda tx: tx.forgotten_sweep(301, 10)) == 2


def test_S13_the_epoch_of_a_log_is_one_until_it_is_set(store: Store) -> None:
    assert read(store, lambda tx: tx.epoch()) == 1
    store.write(lambda tx: tx.set_epoch(4))
    store.write(lambda tx: tx.set_epoch(5))
    assert read(store, lambda tx: tx.epoch()) == 5


def test_S3_ids_are_known_while_their_entries_stand_and_while_they_are_remembered(
    store: Store,
) -> None:
    with_mesh(store)
    for number in range(1, 5):
        store.write(lambda tx, number=number: append(tx, number, now_ms=number))  # type: ignore[misc]
    store.write(lambda tx: tx.log_truncate(3, 10, 9))
    asked = [make_id(number) for number in (1, 2, 3, 4, 7)]
    assert read(store, lambda tx: tx.ids_known(asked)) == set(asked[:4])
    assert read(store, lambda tx: tx.ids_known([])) == set()
    store.write(lambda tx: tx.forgotten_sweep(10, 1))
    assert read(store, lambda tx: tx.ids_known(asked)) == set(asked[1:4])
