"""Digests: rows that differ have other bytes, and sums do not depend on how they were made."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules import digests
from holdfast.rules.digests import DigestTally, columns_of
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import DIGEST_SHOWN_BYTES_MAX
from holdfast.rules.rows import Entry, StateRow, TaskRow, VectorRow
from support.held_rows import LONGS, ROWS, VERSIONS

LOCAL = {"offset", "applied_at", "recorded_at"}
"""What is true of one node only."""


def same_everywhere(row: Any) -> Any:
    said = {name: value for name, value in msgspec.structs.asdict(row).items() if name not in LOCAL}
    if isinstance(row, Entry):
        # All else that it says stands in its bytes.
        said = {name: said[name] for name in ("id", "mesh", "raw")}
    return said


@pytest.mark.parametrize("table", digests.TABLES)
@settings(max_examples=30)
@given(data=st.data())
def test_P3_rows_have_the_same_bytes_only_if_all_that_travels_is_the_same(
    table: str, data: st.DataObject
) -> None:
    one, other = data.draw(ROWS[table]), data.draw(ROWS[table])
    if data.draw(st.booleans()):
        # Alike but for one field: the neighbours that are hardest to tell apart.
        name = data.draw(st.sampled_from(one.__struct_fields__))
        other = msgspec.structs.replace(one, **{name: getattr(other, name)})
    (found, first), (_, second) = digests.values_of(one), digests.values_of(other)
    assert found == table
    assert len(first) == len(columns_of(table))
    same = digests.row_bytes(table, first) == digests.row_bytes(table, second)
    assert same == (same_everywhere(one) == same_everywhere(other))
    assert same == (digests.row_digest(table, first) == digests.row_digest(table, second))


def test_P3_what_runs_from_one_column_into_the_next_is_told_apart() -> None:
    def row(key: str, value: str) -> digests.Values:
        return ("m", key, value, 1, "ana", "00" * 16, 0, False)

    ambiguous = [row("ab", "c"), row("a", "bc"), row("", "abc"), row("abc", "")]
    assert len({digests.row_bytes("state", values) for values in ambiguous}) == 4
    assert digests.row_bytes("state", row("a", "b")) != digests.row_bytes("memory", row("a", "b"))
    blank = [(None,), ("None",), ("",), (b"",), (0,), (False,), ((),), ("0",)]
    assert len({digests.row_bytes("state", values) for values in blank}) == len(blank)


@pytest.mark.parametrize("table", digests.TABLES)
@settings(max_examples=30)
@given(data=st.data())
def test_P3_a_sum_is_the_same_in_any_order_and_in_any_parts(
    table: str, data: st.DataObject
) -> None:
    rows = [digests.values_of(row)[1] for row in data.draw(st.lists(ROWS[table], max_size=12))]
    whole, shuffled = DigestTally(), DigestTally()
    parts = [DigestTally() for _ in range(3)]
    for n, values in enumerate(rows):
        for tally in (whole, parts[n % 3]):
            tally.add(digests.bucket_of(table, values), digests.row_digest(table, values))
    for values in random.Random(len(rows)).sample(rows, len(rows)):
        shuffled.add(digests.bucket_of(table, values), digests.row_digest(table, values))
    together = DigestTally()
    for bucket in whole.counts:
        # As an engine does that only knows small integers.
        lanes = [sum(lane) for lane in zip(*(part.lanes(bucket) for part in parts), strict=True)]
        together.add_lanes(bucket, sum(part.counts[bucket] for part in parts), lanes)
    assert whole.digests() == shuffled.digests() == together.digests()
    assert whole.rows == together.rows == len(rows)


def test_P3_a_row_that_is_there_twice_does_not_look_as_if_it_were_not_there() -> None:
    tally = DigestTally()
    for _ in range(2):
        tally.add(7, b"\xff" * 32)
    assert tally.digests() == {"07": (b"\xff" * 31 + b"\xfe").hex()}
    assert tally.rows == 2


@pytest.mark.parametrize("table", digests.TABLES)
@settings(max_examples=30)
@given(data=st.data())
def test_P3_columns_give_what_rows_give(table: str, data: st.DataObject) -> None:
    rows = [digests.values_of(row)[1] for row in data.draw(st.lists(ROWS[table], max_size=8))]
    bound = data.draw(LONGS)
    covered = [values for values in rows if digests.is_covered(table, values, bound)]
    columns = list(zip(*rows, strict=True)) or [()] * len(columns_of(table))
    assert digests.digest_columns(table, columns, bound) == (
        [digests.bucket_of(table, values) for values in covered],
        [digests.row_digest(table, values) for values in covered],
    )


@given(ROWS["state"], ROWS["vectors"], ROWS["tasks"], LONGS)
def test_P3_only_what_is_dead_and_old_is_left_out(
    state: StateRow, vector: VectorRow, task: TaskRow, forgotten: int
) -> None:
    assert digests.is_covered(*digests.values_of(state), forgotten) == (
        not state.tombstone or state.lamport > forgotten
    )
    assert digests.is_covered(*digests.values_of(vector), forgotten) == (
        vector.live or vector.lamport > forgotten
    )
    assert digests.is_covered(*digests.values_of(task), forgotten) == (
        task.ended is None or task.last.lamport > forgotten
    )


def test_P3_what_was_forgotten_is_left_out_up_to_that_stamp_and_not_beyond() -> None:
    for lamport, covered in ((6, False), (7, False), (8, True)):
        dead = ("m", "k", "null", lamport, "ana", "00" * 16, 0, True)
        assert digests.is_covered("state", dead, 7) == covered
        found, _ = digests.digest_columns("state", [[value] for value in dead], 7)
        assert bool(found) == covered


@pytest.mark.parametrize("table", ["state", "memory", "files", "vectors"])
@settings(max_examples=30)
@given(data=st.data())
def test_P3_a_newer_version_stays_in_its_bucket(table: str, data: st.DataObject) -> None:
    row, newer = data.draw(ROWS[table]), data.draw(VERSIONS)
    later = msgspec.structs.replace(
        row, lamport=newer.lamport, peer=newer.peer, id=newer.id, tombstone=not row.tombstone
    )
    assert digests.bucket_of(*digests.values_of(row)) == digests.bucket_of(
        *digests.values_of(later)
    )


def test_P3_buckets_are_of_even_size() -> None:
    sizes = [0] * digests.BUCKETS
    for n in range(25_600):
        sizes[digests.bucket_of("state", ("m", f"key/{n}"))] += 1
    assert 50 < min(sizes) <= max(sizes) < 160


def test_P3_a_row_is_shown_as_people_know_it() -> None:
    id = bytes(range(16))
    long = "x" * (DIGEST_SHOWN_BYTES_MAX + 1)
    values = ("m", "k", long, 5, "ana", id.hex(), 9, False)
    said = digests.shown("state", values)
    assert said["id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert said["value"].startswith(f"{len(long)} bytes, SHA-256 ")
    assert (said["key"], said["lamport"], said["tombstone"]) == ("k", 5, False)
    assert digests.shown("log", ("m", id.hex(), b"\x01"))["raw"] == "01"


@pytest.mark.parametrize("text", ["", "a", "aaa", "AA", "0x", "ä0"])
def test_P3_a_bucket_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        digests.parse_bucket(text)
    assert digests.parse_bucket("a7") == 0xA7
    with pytest.raises(BadInput):
        digests.check_table("models")
