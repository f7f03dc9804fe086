"""Pieces of the log for readers that ask for a part: both stores give what the rule says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.filters import CLASSES, EVERYTHING, Filter
from holdfast.rules.rows import Columns, Entry, Page
from holdfast.storage.memory import log_pages as memory_pages
from holdfast.storage.ports import Reader, Store, Transaction
from holdfast.storage.sqlite import log_pages
from support.envelopes import MESH, make_id
from support.nodes import KINDS
from support.stores import append, arrived, make_store, read, with_mesh, zone_row

ALL = 1 << 40
SCAN = 9
"""In place of SCAN_ROWS_MAX, so that short logs are longer than one look."""
MESHES = ("team", "teams", "Team")
ORIGINS = ("ana", "bob", "zoe", "Zoë")
ENTITIES = (
    *("a", "A", "ab", "a%", "a_c", "abc", "aé", "é", "\ud7ff", "\ue000x", "a\ud7ff", "a\ue000"),
    *("\uffff", "a\uffff", "\U00010000", "\U0010ffff", "a\U0010ffff", "\U0010ffff\U0010ffffb"),
)
OPS = ("state.set", "message.send", "memory.set", "fact.append", "task.claim", "later.op")


class Written(NamedTuple):
    mesh: str
    op: str
    entity: str
    origin: str
    via: int
    size: int


class Asked(NamedTuple):
    start: int
    end: int
    limit: int
    bytes_max: int
    filter: Filter


def some(choices: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    few = st.lists(st.sampled_from(choices), max_size=3).map(tuple)
    return st.just(()) | few


written = st.builds(
    Written,
    st.sampled_from(MESHES),
    st.sampled_from(OPS),
    st.sampled_from(ENTITIES),
    st.sampled_from(ORIGINS),
    st.integers(0, 2),
    st.integers(1, 40),
)
asked = st.builds(
    Asked,
    st.integers(-2, 45),
    st.integers(-2, 45) | st.just(ALL),
    st.integers(0, 12) | st.just(ALL),
    st.integers(0, 120) | st.just(ALL),
    st.just(EVERYTHING)
    | st.builds(
        Filter,
        meshes=some(MESHES),
        subjects=some((*ENTITIES, "a\ud7ffz", "")),
        classes=some(tuple(CLASSES)),
        origins=some(ORIGINS),
        beyond=st.sampled_from(["", "zoe", "yan", "ana", "nobody"]),
        without_messages=st.booleans(),
    ),
)


def naive(reader: Reader, via: dict[int, str], ask: Asked) -> tuple[list[Entry], int]:
    """The words of the port, one entry at a time."""
    taken: list[Entry] = []
    size = 0
    stop = min(ask.end, ask.start + SCAN)
    if ask.limit < 1:
        return [], ask.start - 1
    for entry in reader.log_range(ask.start, stop, ALL):
        if not ask.filter.passes(
            entry.mesh, entry.op, entry.entity, entry.origin, via[entry.offset]
        ):
            continue
        size += len(entry.raw)
        if taken and size > ask.bytes_max:
            return taken, taken[-1].offset
        taken.append(entry)
        if len(taken) == ask.limit or size > ask.bytes_max:
            return taken, taken[-1].offset
    return taken, max(ask.start - 1, min(stop - 1, reader.log_bounds()[1]))


def as_page(entries: list[Entry], upto: int) -> Page:
    return Page([entry.offset for entry in entries], [entry.raw for entry in entries], upto)


def as_columns(entries: list[Entry], upto: int) -> Columns:
    names = [name for name in Columns.__struct_fields__ if name != "upto"]
    return Columns(*([getattr(entry, name) for entry in entries] for name in names), upto)  # type: ignore[arg-type, call-arg]


@contextmanager
def one_store(kind: str) -> Iterator[Store]:
    with TemporaryDirectory() as folder:
        store = make_store(kind, Path(folder))
        yield store
        store.stop()


def fill(store: Store, log: list[Written]) -> dict[int, str]:
    """A log that came from here and through two zones; the zone of each offset."""

    def work(tx: Transaction) -> None:
        zones = [0, *(tx.zone_put(zone_row(name)).number for name in ("yan", "zoe"))]
        for number, entry in enumerate(log, start=1):
            tx.log_append(
                make_id(number),
                entry.mesh,
                entry.op,
                entry.entity,
                entry.origin,
                number,
                number,
                b"x" * entry.size,
                zones[entry.via],
            )

    store.write(work)
    return {number: ("", "yan", "zoe")[e.via] for number, e in enumerate(log, start=1)}


@pytest.mark.parametrize("kind", KINDS)
@given(
    log=st.lists(written, max_size=40),
    asks=st.lists(asked, min_size=1, max_size=12),
    truncated=st.integers(0, 12),
)
@settings(max_examples=60, deadline=None)
def test_Z1_a_piece_of_the_log_is_what_the_filter_lets_pass(
    kind: str, log: list[Written], asks: list[Asked], truncated: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, one_store(kind) as store:
        patch.setattr(log_pages, "SCAN_ROWS_MAX", SCAN)
        patch.setattr(memory_pages, "SCAN_ROWS_MAX", SCAN)
        patch.setattr("holdfast.storage.sqlite.log.decode_trusted", lambda raw: FINGERPRINTED)
        patch.setattr("holdfast.storage.memory.log.decode_trusted", lambda raw: FINGERPRINTED)
        via = fill(store, log)
        store.write(lambda tx: tx.log_truncate(truncated + 1, ALL, 1))
        with store.read() as reader:
            for ask in asks:
                expected = naive(reader, via, ask)
                assert reader.log_page(*ask) == as_page(*expected)
                assert reader.log_columns(*ask) == as_columns(*expected)


class _Fingerprinted:
    fingerprint = b"f" * 32


FINGERPRINTED = _Fingerprinted()
"""In place of an envelope: the bytes here are none, so that they can be as short as they like."""


def test_Z1_reading_on_from_where_a_piece_ends_gives_everything_once(store: Store) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        for number in range(1, 101):
            append(tx, number, f"{'even' if number % 2 else 'odd'}/{number}")

    store.write(work)
    size = len(read(store, lambda tx: tx.log_get(50)).raw)  # type: ignore[union-attr]
    even = Filter(subjects=("even/",))
    for limit, bytes_max in ((7, ALL), (ALL, 5 * size), (1, ALL), (ALL, 0), (100, 100 * size)):
        found: list[int] = []
        at, rounds = 1, 0
        while at <= 100:
            with store.read() as reader:
                page = reader.log_page(at, ALL, limit, bytes_max, even)
            assert page.upto >= at
            found += page.offsets
            at, rounds = page.upto + 1, rounds + 1
        assert found == list(range(1, 101, 2))
        assert rounds <= 51


def test_Z1_an_entry_that_is_larger_than_a_piece_comes_alone(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: [append(tx, number) for number in range(1, 41)])
    page = read(store, lambda tx: tx.log_page(5, ALL, 100, 1, EVERYTHING))
    assert (page.offsets, page.upto) == ([5], 5)


def test_Z1_at_the_end_of_the_log_a_piece_is_empty_and_moves_nobody(store: Store) -> None:
    assert read(store, lambda tx: tx.log_page(1, ALL, 9, ALL, EVERYTHING)) == Page([], [], 0)
    with_mesh(store)
    store.write(lambda tx: append(tx, 1))
    assert read(store, lambda tx: tx.log_page(2, ALL, 9, ALL, EVERYTHING)) == Page([], [], 1)
    # Whoever asks from beyond the end is not told that there is anything up to there.
    assert read(store, lambda tx: tx.log_page(7, ALL, 9, ALL, EVERYTHING)).upto == 6


def test_Z6_what_came_through_a_zone_is_not_given_back_to_it(store: Store) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        zoe = tx.zone_put(zone_row("zoe")).number
        yan = tx.zone_put(zone_row("yan")).number
        append(tx, 1, origin="ana")
        append(tx, 2, origin="zoe", via=zoe)
        append(tx, 3, origin="bob", via=zoe)
        append(tx, 4, origin="zoe", via=yan)
        append(tx, 5, origin="bob", via=yan)
        assert tx.log_append_new([arrived(6, origin="cyd")], 1000, zoe) == 6

    store.write(work)

    def beyond(zone: str) -> tuple[list[int], int]:
        page = read(store, lambda tx: tx.log_page(1, ALL, 99, ALL, Filter(beyond=zone)))
        return page.offsets, page.upto

    # What is left out counts as read.
    assert beyond("zoe") == ([1, 5], 6)
    assert beyond("yan") == ([1, 2, 3, 6], 6)
    assert beyond("ana") == ([2, 3, 4, 5, 6], 6)
    assert beyond("nobody") == ([1, 2, 3, 4, 5, 6], 6)


def test_Z1_entries_of_an_entity_are_found_without_its_facts(store: Store) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        append(tx, 1, "k")
        tx.log_append_new([arrived(2, "k"), arrived(3, "other")], 1000)
        append(tx, 4, "k")

    store.write(work)
    found = read(store, lambda tx: tx.log_of(MESH, "k", 99))
    assert [entry.offset for entry in found] == [1, 4]
