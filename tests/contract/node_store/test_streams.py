"""What a store keeps of the streams of a mesh that is shared over the bus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.bus.meshes.coverage import StreamName, ranges_of
from holdfast.rules.bus.meshes.streams import (
    NO_ENTRIES,
    Placed,
    StreamRow,
    digest_of,
    lanes_of,
    place_of,
)
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.frontier import Frontier
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import BUS_COMPARE_BLOCK
from holdfast.storage.ports import Store, Transaction
from holdfast.storage.sqlite.store import SqliteStore
from support.envelopes import MESH, fact_append, make_id
from support.nodes import KINDS
from support.stores import make_store, read, with_mesh

BOB = StreamName(MESH, "bob", 1)


def put(tx: Transaction, number: int, seq: int, name: StreamName = BOB) -> Placed:
    raw = fact_append(
        "k", "is", number, id=make_id(number), lamport=number, origin=name.origin, seq=seq
    )
    offset = tx.log_append(
        make_id(number), MESH, "fact.append", "k", name.origin, number, 1000, raw
    )
    return seq, offset, leaf_of(raw)


def add(store: Store, *pairs: tuple[int, int], name: StreamName = BOB) -> None:
    """Appends entries, given as the number of the id and the number in the stream."""

    def work(tx: Transaction) -> None:
        tx.stream_add(name, [put(tx, number, seq, name) for number, seq in pairs])

    store.write(work)


def row_of(store: Store, name: StreamName = BOB) -> StreamRow:
    row = read(store, lambda tx: tx.stream_get(name))
    assert row is not None
    return row


def test_B4_appends_cover_their_numbers_and_are_found_by_them(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 1))
    add(store, (2, 2))
    add(store, (5, 5), (3, 3), (9, 9))
    row = row_of(store)
    assert row.covered == Frontier(3, ((5, 6), (9, 10)))
    assert (row.entries, row.name) == (5, BOB)
    page = read(store, lambda tx: tx.stream_page(row.number, 2, 9, 10, 10**6))
    assert page.seqs == [2, 3, 5]
    places = [place_of(raw) for raw in page.raws]
    assert [(one.mesh, one.origin, one.epoch, one.seq) for one in places] == [
        (*BOB, seq) for seq in (2, 3, 5)
    ]
    assert page.upto == 8, "up to there nothing else is here"
    assert read(store, lambda tx: tx.stream_list(MESH)) == [row]
    assert read(store, lambda tx: tx.stream_list("other")) == []
    assert read(store, lambda tx: tx.stream_get(StreamName(MESH, "bob", 2))) is None


def test_B4_the_digest_does_not_depend_on_the_order(store: Store) -> None:
    with_mesh(store)
    for number, seq in ((1, 1), (2, 2), (3, 3)):
        add(store, (number, seq))
    for number, seq in ((3, 3), (1, 1), (2, 2)):
        add(store, (number + 10, seq), name=StreamName(MESH, "cyd", 1))
    leaves = [leaf for _, leaf in read(store, lambda tx: tx.stream_leaves(1, 0, 99))]
    assert row_of(store).digest == digest_of(lanes_of(leaves)) != NO_ENTRIES
    others = [leaf for _, leaf in read(store, lambda tx: tx.stream_leaves(2, 0, 99))]
    assert row_of(store, StreamName(MESH, "cyd", 1)).digest == digest_of(lanes_of(others[::-1]))


def test_B4_a_page_is_cut_by_rows_and_bytes_and_one_always_fits(store: Store) -> None:
    with_mesh(store)
    add(store, *((number, number) for number in range(1, 8)))
    number = row_of(store).number
    page = read(store, lambda tx: tx.stream_page(number, 1, 99, 3, 10**6))
    assert (page.seqs, page.upto) == ([1, 2, 3], 3)
    page = read(store, lambda tx: tx.stream_page(number, 4, 99, 9, 1))
    assert (page.seqs, page.upto) == ([4], 4)
    page = read(store, lambda tx: tx.stream_page(number, 50, 60, 9, 1))
    assert (page.seqs, page.upto) == ([], 59)


def test_B4_a_message_covers_its_number_and_is_not_sent_on(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 1))
    store.write(lambda tx: tx.stream_add(BOB, [(2, 0, b"")]))
    add(store, (3, 3))
    row = row_of(store)
    assert (row.covered, row.entries) == (Frontier(3), 2)
    assert read(store, lambda tx: tx.stream_page(row.number, 1, 9, 9, 10**6)).seqs == [1, 3]


def test_B4_a_page_without_entries_covers_numbers_too(store: Store) -> None:
    with_mesh(store)
    row = store.write(lambda tx: tx.stream_cover(BOB, [(3, 5)], base=1, key=b"k" * 32))
    assert (row.covered, row.base, row.key) == (Frontier(1, ((3, 5),)), 1, b"k" * 32)
    again = store.write(lambda tx: tx.stream_cover(BOB, [(2, 3)]))
    assert (again.covered, again.base, again.key, again.entries) == (Frontier(4), 1, b"k" * 32, 0)
    assert row_of(store) == again


def test_B4_streams_of_a_mesh_can_be_forgotten_and_counted_anew(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 1), (2, 2))
    assert read(store, lambda tx: tx.stream_lost()) == {}
    store.write(lambda tx: tx.stream_add(BOB, [(3, 77, b"l" * 32)]))
    assert read(store, lambda tx: tx.stream_lost()) == {row_of(store).number: 1}
    store.write(lambda tx: tx.stream_drop("other"))
    assert row_of(store).entries == 3
    store.write(lambda tx: tx.stream_drop(MESH))
    assert read(store, lambda tx: (tx.stream_list(MESH), tx.stream_lost())) == ([], {})
    add(store, (3, 1))
    assert (row_of(store).covered, row_of(store).entries) == (Frontier(1), 1)


def test_B4_a_floor_rises_and_never_sinks(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 6))
    row = store.write(lambda tx: tx.stream_cover(BOB, [(1, 5)], floor=4))
    assert (row.covered, row.floor, row.entries) == (Frontier(4, ((6, 7),)), 4, 1)
    assert store.write(lambda tx: tx.stream_cover(BOB, [], floor=2)).floor == 4
    assert row_of(store).floor == 4


def test_B4_streams_are_counted_by_mesh_and_origin(store: Store) -> None:
    with_mesh(store)
    for name in (BOB, StreamName(MESH, "bob", 2), StreamName(MESH, "cyd", 1)):
        store.write(partial(_covered, name))
    counts = read(
        store,
        lambda tx: (tx.stream_count(MESH), *map(partial(tx.stream_count, MESH), ("bob", "x"))),
    )
    assert counts == (3, 2, 0)


def _covered(name: StreamName, tx: Transaction) -> None:
    tx.stream_cover(name, [(1, 2)])


def test_B4_two_contents_under_one_number_are_a_finding(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 1), (2, 2))
    before = row_of(store)
    add(store, (9, 2))
    row = row_of(store)
    assert "number 2 has two contents, at offsets 2 and 3" in row.trouble
    assert (row.entries, row.digest) == (before.entries, before.digest), "the first one stays"
    store.write(lambda tx: tx.stream_trouble(BOB, ""))
    assert row_of(store).trouble == ""


def test_B4_numbers_far_apart_in_one_page_are_counted_and_found_like_others(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 1), (2, 2), (3, 1_000_000))
    row = row_of(store)
    assert (row.entries, row.covered) == (3, Frontier(2, ((1_000_000, 1_000_001),)))
    add(store, (4, 3), (5, 1_000_000))
    row = row_of(store)
    assert row.entries == 4
    assert "number 1000000 has two contents" in row.trouble


def test_B4_an_entry_that_is_counted_again_changes_nothing(store: Store) -> None:
    with_mesh(store)
    placed = store.write(lambda tx: [put(tx, n, n) for n in (1, 2, 3)])
    store.write(lambda tx: tx.stream_add(BOB, placed[1:]))
    store.write(lambda tx: tx.stream_add(BOB, placed))
    before = row_of(store)
    store.write(lambda tx: tx.stream_add(BOB, placed))
    assert row_of(store) == before
    assert (before.entries, before.trouble, before.covered) == (3, "", Frontier(3))


def test_B4_truncation_raises_the_floor_and_keeps_what_is_covered(store: Store) -> None:
    with_mesh(store)
    add(store, (1, 1), (2, 2), (3, 3), (4, 4))
    before = row_of(store)
    assert store.write(lambda tx: tx.log_truncate(4, 10, 90)) == 3
    row = row_of(store)
    assert (row.floor, row.covered, row.digest) == (3, before.covered, before.digest)
    assert read(store, lambda tx: tx.stream_page(row.number, 1, 9, 9, 10**6)).seqs == [4]
    assert read(store, lambda tx: tx.stream_lowest(row.number, [(1, 4)])) is None


def test_B4_the_lowest_offset_of_what_a_peer_lacks_is_found(store: Store) -> None:
    with_mesh(store)
    add(store, (5, 5), (4, 4), (1, 1), (9, 9))
    number = row_of(store).number
    assert read(store, lambda tx: tx.stream_lowest(number, [(1, 3)])) == 3
    assert read(store, lambda tx: tx.stream_lowest(number, [(1, 5), (9, 10)])) == 2
    assert read(store, lambda tx: tx.stream_lowest(number, [])) is None


def test_B4_blocks_of_numbers_have_digests_of_their_own(store: Store) -> None:
    with_mesh(store)
    seqs = (1, BUS_COMPARE_BLOCK - 1, BUS_COMPARE_BLOCK, 5 * BUS_COMPARE_BLOCK)
    add(store, *((at, seq) for at, seq in enumerate(seqs, 1)))
    number = row_of(store).number
    blocks = read(store, lambda tx: tx.stream_blocks(number, 0, 5))
    assert [(one.block, one.entries) for one in blocks] == [(0, 2), (1, 1)]
    assert blocks[1].digest == digest_of(
        lanes_of([leaf for _, leaf in read(store, lambda tx: tx.stream_leaves(number, 1024, 1025))])
    )
    assert read(store, lambda tx: tx.stream_blocks(number, 5, 1))[0].entries == 1


def test_B4_a_damaged_entry_is_not_passed_on(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data.db", sync="normal")
    with_mesh(store)
    add(store, (1, 1), (2, 2))
    store.write(lambda tx: tx._con.execute("UPDATE log SET raw = x'00' WHERE offset = 2"))  # type: ignore[attr-defined]
    with pytest.raises(EntryDamaged):
        read(store, lambda tx: tx.stream_page(1, 1, 9, 9, 10**6))
    store.stop()


batches = st.lists(st.lists(st.integers(1, 40), max_size=8, unique=True), max_size=12)


@settings(max_examples=60)
@pytest.mark.parametrize("kind", KINDS)
@given(batches, st.lists(st.integers(0, 30), max_size=3))
def test_B4_any_history_is_covered_as_a_set_says(
    kind: str, history: list[list[int]], cuts: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        store = make_store(kind, Path(folder))
        with_mesh(store)
        held: set[int] = set()
        count = 0
        for batch in history:
            fresh = [seq for seq in batch if seq not in held]
            pairs = [(count + at, seq) for at, seq in enumerate(fresh, 1)]
            count += len(fresh)
            add(store, *pairs)
            held |= set(batch)
        for below in cuts:
            store.write(partial(_truncate, below))
        row = read(store, lambda tx: tx.stream_get(BOB))
        covered = (
            set()
            if row is None
            else {seq for start, end in ranges_of(row.covered) for seq in range(start, end)}
        )
        assert covered == held
        if row is not None:
            assert row.entries == len(held)
            page = read(store, lambda tx: tx.stream_page(row.number, 1, 99, 99, 10**6))
            left = {place_of(e.raw).seq for e in read(store, lambda tx: tx.log_range(0, 99, 99))}
            assert set(page.seqs) == left
            assert {seq for seq in held if seq > row.floor} <= left
        store.stop()


def _truncate(below: int, tx: Transaction) -> int:
    return tx.log_truncate(below, 99, 90)
