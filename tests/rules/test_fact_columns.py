"""Facts in columns are the facts that arrived: the compiled reader and the one in Python agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import compiled, limits
from holdfast.rules.arrivals import (
    Arrival,
    Arrivals,
    Arrived,
    Parted,
    kinds_of,
    not_in_columns,
    parts_of,
    raw_of,
    read_arrivals,
)
from holdfast.rules.fact_columns import FactColumns, highest_by_origin, stamps_by_mesh
from holdfast.rules.fact_decoder import read_fact
from holdfast.rules.leaf import leaf_of
from support import envelopes as e
from support.odd_envelopes import every_change, random_envelope
from support.plain_facts import FACTS
from support.seeds import seeds

pytestmark = pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")

MANY: Final = [e.fact_append(f"s{n % 7}", "is", n, lamport=n + 1) for n in range(100)]


@contextmanager
def pure() -> Iterator[None]:
    kept = compiled.part
    compiled.part = None  # type: ignore[assignment]
    try:
        yield
    finally:
        compiled.part = kept


def told(one: Arrived | Arrival) -> tuple[Any, ...]:
    """All that one can see of an arrival."""
    if isinstance(one, tuple):
        return one
    return one.raw, one.envelope, one.body, type(one.error), one.error and one.error.message


def read_by_both(raws: Sequence[bytes]) -> Arrivals:
    mine = read_arrivals(raws)
    with pure():
        reference = read_arrivals(raws)
    assert isinstance(reference, list)
    assert list(map(told, mine)) == list(map(told, reference))
    assert kinds_of(mine) == kinds_of(reference)
    assert [told(one) for part in parts_of(mine) for one in part] == list(map(told, reference))
    for part in parts_of(mine):
        if isinstance(part, FactColumns):
            check_columns(part)
    return mine


def check_columns(facts: FactColumns) -> None:
    rows = list(facts)
    assert facts.all_ids() == [row[0] for row in rows]
    assert facts.sizes() == [len(row[-1]) for row in rows]
    assert facts.leaves == b"".join(leaf_of(row[-1]) for row in rows)
    assert facts.digits == b"".join(b"%019d" % row[5] for row in rows)
    assert {of: list(stamps) for of, stamps in stamps_by_mesh(facts).items()} == stamps_by_mesh(
        rows
    )
    assert highest_by_origin(facts) == highest_by_origin(rows)
    assert sum(run.length for run in facts.runs) == len(rows)


def is_plain(raw: bytes) -> bool:
    """Whether the compiled reader takes it by itself."""
    assert compiled.part is not None
    return not compiled.part.read_facts((raw,), "")[0]


@pytest.mark.parametrize("raw", FACTS)
def test_Z7_facts_as_nodes_write_them_go_into_columns(raw: bytes) -> None:
    assert is_plain(raw)
    assert isinstance(read_by_both([raw] * 9), FactColumns)


def test_Z7_a_batch_of_facts_is_columns_and_is_cut_without_a_difference() -> None:
    raws = [*MANY[:40], *(e.fact_append("s", "is", n, origin="ana") for n in range(40)), *MANY[40:]]
    found = read_by_both(raws)
    assert isinstance(found, FactColumns)
    assert [(run.origin, run.length) for run in found.runs] == [
        ("bob", 40),
        ("ana", 40),
        ("bob", 60),
    ]
    rows = list(found)
    assert [found[at] for at in range(len(rows))] == rows
    assert found[:] is found
    for begin, end in ((0, 3), (2, 41), (39, 81), (5, 5), (100, len(rows))):
        part = found[begin:end]
        assert list(part) == rows[begin:end]
        assert list(part[1:]) == rows[begin:end][1:]
        if rows[begin:end]:
            check_columns(part)


def test_Z7_what_is_no_plain_fact_stands_between_the_columns() -> None:
    odd = [e.state_set("k", 1), b"nonsense", e.fact_append("s", "is", 1e99)]
    raws = [*MANY[:30], *odd, *MANY[30:33], odd[0], *MANY[33:60], odd[1]]
    found = read_by_both(raws)
    assert isinstance(found, Parted)
    assert [(type(part).__name__, len(part)) for part in found.parts] == [
        ("FactColumns", 30),
        ("list", 7),
        ("FactColumns", 27),
        ("list", 1),
    ]
    assert [raw_of(one) for one in not_in_columns(found)] == [*raws[30:37], odd[1]]
    for begin, end in ((0, 31), (29, 38), (64, 65), (7, 7), (0, 65)):
        assert list(map(told, found[begin:end])) == list(map(told, found))[begin:end]
    assert [told(found[at]) for at in range(-3, 4)] == [
        told(list(found)[at]) for at in range(-3, 4)
    ]
    assert parts_of(found[7:7]) == []


def test_Z7_facts_that_hardly_follow_each_other_are_no_columns() -> None:
    """Each run would be a statement of its own."""
    among = [raw for n, fact in enumerate(MANY) for raw in (fact, e.state_set("k", n))]
    of_many = [e.fact_append("s", "is", n, origin=f"o{n % 50}") for n in range(100)]
    for raws in (among, of_many, MANY[:3]):
        assert isinstance(read_by_both(raws), list)


def test_Z7_a_name_of_any_script_goes_into_columns_once_it_was_checked() -> None:
    raws = [e.fact_append("s", "is", n, origin="zoë", lamport=n + 1) for n in range(50)]
    assert not is_plain(raws[0])
    assert isinstance(read_by_both(raws), FactColumns)
    decomposed = [e.changed(raw, origin="zoe\u0308") for raw in raws]
    assert not any(isinstance(one, tuple) for one in read_by_both(decomposed))


def test_Z7_columns_end_where_a_span_could_not_say_more() -> None:
    large = [e.fact_append("s", "is", "x" * 1_000_000, lamport=n + 1) for n in range(20)]
    found = read_by_both([*large, *MANY[:40]])
    assert isinstance(found, Parted)
    assert [len(part) for part in found.parts] == [16, 4, 40]


@pytest.mark.parametrize("raw", FACTS[:5])
def test_Z7_both_readers_say_the_same_of_every_harm(raw: bytes) -> None:
    changed = list(every_change(raw))
    for at in range(0, len(changed), 500):
        read_by_both(changed[at : at + 500])


@pytest.mark.parametrize("seed", seeds(4))
def test_Z7_both_readers_say_the_same_of_random_batches(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        raws = [random_envelope(random) for _ in range(50)]
        at = random.randrange(50)
        raws[at:at] = random.sample(MANY, random.randrange(30)) + random.sample(FACTS, 3)
        read_by_both(raws)


@given(st.lists(st.text(max_size=140) | st.text("ab\x7f\0 é._-", max_size=66), min_size=1))
def test_Z7_both_readers_say_the_same_of_every_name(names: list[str]) -> None:
    for field in ("mesh", "origin", "entity", "owner"):
        read_by_both([*MANY[:8], *(e.changed(FACTS[0], **{field: name}) for name in names)])
    read_by_both([*MANY[:8], *(e.fact_append("s", name, 1) for name in names)])


def test_Z7_the_compiled_reader_takes_bytes_only() -> None:
    assert compiled.part is not None
    for given_wrong in ((["a"], ""), ((1,), ""), (("text",), ""), ((b"",), 5)):
        with pytest.raises(TypeError):
            compiled.part.read_facts(*given_wrong)
    assert compiled.part.read_facts((), "")[1:] == (b"", b"", b"", b"", b"", b"", [])


def test_Z7_the_longest_mesh_and_no_longer_one_is_plain() -> None:
    for size in (limits.MESH_SLUG_CHARS_MAX, limits.MESH_SLUG_CHARS_MAX + 1):
        raw = e.fact_append("s", "is", 1, mesh="m" * size)
        assert is_plain(raw) == (read_fact(raw) is not None) == (size == limits.MESH_SLUG_CHARS_MAX)
        read_by_both([raw] * 8)
