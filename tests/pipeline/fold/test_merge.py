"""Merging by Arrow is the rule of the nodes, whatever the hashes of keys are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.fold import merge
from holdfast.pipeline.fold.buckets import key_hashes, places_of
from holdfast.pipeline.fold.merge import newest, once, taken, with_live
from holdfast.pipeline.fold.sieve import passing
from holdfast.pipeline.fold.spark_hash import Hashes
from holdfast.rules.order import Version, is_newer

SCHEMA = pa.schema(
    {
        "mesh": pa.string(),
        "key": pa.string(),
        "value": pa.string(),
        "lamport": pa.int64(),
        "peer": pa.string(),
        "id": pa.string(),
        "tombstone": pa.bool_(),
        "live": pa.bool_(),
    }
)
KEY = ("mesh", "key")
Row = tuple[str, str, str, int, str, str, bool, None]
Key = tuple[str, str]

NAMES = st.sampled_from(["", "a", "b", "ä", "b\U0001f40d", "b￿"])
ROWS = st.lists(
    st.tuples(
        *(NAMES, NAMES, NAMES, st.integers(0, 2), NAMES, st.sampled_from("0123")),
        *(st.booleans(), st.none()),
    ),
    min_size=1,
)


def real(table: pa.Table) -> Hashes:
    return key_hashes([table[key] for key in KEY])


def two(table: pa.Table) -> Hashes:
    """Keys that a peer has chosen: many of them have the same hash."""
    return real(table) % np.uint64(2)


HASHES = st.sampled_from([real, two])
Hashing = Callable[[pa.Table], Hashes]


def table_of(rows: list[Row], size: int) -> pa.Table:
    """The rows in pieces of this size."""
    arrays = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)
    ]
    whole = pa.Table.from_arrays(arrays, schema=SCHEMA)
    return pa.concat_tables([whole.slice(at, size) for at in range(0, len(rows), size)])


def rows_of(tables: list[pa.Table]) -> list[Row]:
    return [row for table in tables for row in zip(*table.to_pydict().values(), strict=True)]


def version_of(row: Row) -> Version:
    return Version(row[3], row[4], row[5].encode())


def by_the_rule(rows: list[Row]) -> dict[Key, Row]:
    best: dict[Key, Row] = {}
    for row in rows:
        key = row[:2]
        if key not in best or is_newer(version_of(row), version_of(best[key])):
            best[key] = row
    return best


@given(ROWS, st.integers(1, 7), HASHES)
def test_P3_the_newest_row_of_each_key_stays(rows: list[Row], size: int, hashing: Hashing) -> None:
    table = table_of(rows, size)
    places = places_of(hashing(table), 1024)
    chosen = newest(table, places, KEY)
    assert (np.diff(places[chosen].astype(np.float64)) >= 0).all()
    found = rows_of(list(taken(table, chosen)))
    # Rows that agree in their version are one change: which copy stays is all one.
    assert {(row[:2], version_of(row)) for row in found} == {
        (key, version_of(row)) for key, row in by_the_rule(rows).items()
    }
    assert len(found) == len(by_the_rule(rows))
    assert set(found) <= set(rows)


@given(ROWS, st.integers(1, 7), HASHES)
def test_P3_rows_that_are_the_same_thing_stay_once(
    rows: list[Row], size: int, hashing: Hashing
) -> None:
    table = table_of(rows, size)
    found = rows_of(list(taken(table, once(table, places_of(hashing(table), 64), KEY))))
    assert sorted(row[:2] for row in found) == sorted({row[:2] for row in rows})


@given(ROWS, st.integers(1, 7), HASHES)
def test_P3_every_version_stays_once_and_the_newest_lives(
    rows: list[Row], size: int, hashing: Hashing
) -> None:
    # An id names one change, so all its copies are equal.
    first = {row[5]: row for row in reversed(rows)}
    rows = [first[row[5]] for row in rows]
    table = table_of(rows, size)
    found = rows_of(list(with_live(table, places_of(hashing(table), 64), KEY)))
    best = by_the_rule(rows)
    assert sorted(row[5] for row in found) == sorted({row[5] for row in rows})
    for row in found:
        assert row[7] == (version_of(row) == version_of(best[row[:2]]) and not row[6])


@given(ROWS, st.integers(1, 7), HASHES)
def test_P3_the_sieve_keeps_rows_with_the_highest_time_of_their_key(
    rows: list[Row], size: int, hashing: Hashing
) -> None:
    table = table_of(rows, size)
    few = table.set_column(0, "mesh", table["mesh"].dictionary_encode())
    flags = passing(hashing(table), table["lamport"].to_numpy(), [few[key] for key in KEY])
    top: dict[Key, int] = {}
    for row in rows:
        top[row[:2]] = max(row[3], top.get(row[:2], 0))
    expected = [row[3] == top[row[:2]] for row in rows]
    if hashing is real:
        assert flags.tolist() == expected
    assert all(passed for passed, wins in zip(flags, expected, strict=True) if wins)


def test_P3_rows_of_any_size_are_taken_in_pieces_that_fit_a_row_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = ["x" * 100, "", "y" * 5_000, "z", "", "", ""]
    rows: list[Row] = [
        ("m", f"{at}", text, 1, "p", f"{at}", False, None) for at, text in enumerate(texts)
    ]
    order = np.array([6, 2, 0, 3, 1, 5, 4])
    monkeypatch.setattr(merge, "LAKE_GROUP_BYTES", 1_000)
    monkeypatch.setattr(merge, "LAKE_GROUP_ROWS", 3)
    for size in (1, 2, 7):
        pieces = list(taken(table_of(rows, size), order))
        assert [row[1] for row in rows_of(pieces)] == [str(at) for at in order]
        assert len(pieces) > 2
        assert max(piece.num_rows for piece in pieces) <= 3
    assert list(taken(table_of(rows, 2), order[:0])) == []
