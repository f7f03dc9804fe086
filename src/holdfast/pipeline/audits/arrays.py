"""Columns of Arrow as arrays of numbers, so that whole shares of the lake are sorted and compared
at once.

Texts become numbers in the order of their bytes, ids two words of 64 bits, times milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.ids import id_text

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

NONE: Final = np.iinfo(np.int64).min
"""Stands for null in arrays of numbers."""
_DASHES: Final = (8, 13, 18, 23)
_ID_CHARS: Final = 36
_DIGITS: Final = [at for at in range(_ID_CHARS) if at not in _DASHES]
_NIBBLES: Final = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


# --- from columns to numbers ---------------------------------------------------------------------


def whole(column: pa.ChunkedArray) -> pa.Array:
    """All chunks of a column as one array."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)


def coded(*columns: pa.ChunkedArray) -> tuple[list[Numbers], list[str]]:
    """The texts of some columns as numbers that sort as the texts do, -1 for null; and the texts by
    their numbers.
    """
    parts = [_encoded(column) for column in columns]
    texts = pc.unique(pa.concat_arrays([part.dictionary for part in parts])).drop_null()
    texts = texts.take(pc.sort_indices(texts))
    found: list[Numbers] = []
    for part in parts:
        places = pc.fill_null(pc.index_in(part.dictionary, value_set=texts), -1).to_numpy()
        # An index of -1 means null, and takes the last place.
        to = np.append(places.astype(np.int64), np.int64(-1))
        found.append(to[pc.fill_null(part.indices, -1).to_numpy(zero_copy_only=False)])
    return found, texts.to_pylist()


def numbered(*columns: pa.ChunkedArray) -> Numbers:
    """For each row a number; rows have the same one if all these columns are the same."""
    numbers: Numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        part = _encoded(column)
        numbers = numbers * (len(part.dictionary) + 1)
        numbers += pc.fill_null(part.indices, -1).to_numpy(zero_copy_only=False) + 1
        again = pa.array(numbers).dictionary_encode()
        numbers = again.indices.to_numpy().astype(np.int64)
    return numbers


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    flat = whole(column)
    return flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()


def texted(numbers: Numbers, texts: Sequence[str]) -> pa.DictionaryArray:
    """The texts with these numbers; -1 is null."""
    places = pa.array(numbers.astype(np.int32), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(texts, pa.string()))


def ints(column: pa.ChunkedArray) -> Numbers:
    """Whole numbers; `NONE` for null."""
    filled = pc.fill_null(column, NONE) if column.null_count else column
    found: Numbers = filled.to_numpy()
    return found


def millis(column: pa.ChunkedArray) -> Numbers:
    """Times as milliseconds; `NONE` for null."""
    times = ints(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    return np.where(times == NONE, NONE, times // 1000)


def nullable(numbers: Numbers) -> pa.Array:
    return pa.array(numbers, mask=numbers == NONE)


def id_words(column: pa.ChunkedArray) -> tuple[Words, Words]:
    """Ids as two words each, which sort as the ids do."""
    parts = [_id_bytes(chunk) for chunk in column.chunks if len(chunk)]
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    words = np.concatenate(parts).view(">u8").astype(np.uint64)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


def _id_bytes(ids: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    count = len(ids)
    ends = np.frombuffer(ids.buffers()[1], np.int32)[ids.offset : ids.offset + count + 1]
    if ids.null_count or (np.diff(ends) != _ID_CHARS).any():
        raise StoreCorrupt("bronze or sightings have an id that is not a UUID")
    chars = np.frombuffer(ids.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(count, _ID_CHARS)
    nibbles = _NIBBLES[chars[:, _DIGITS]]
    if (nibbles == _NIBBLES[0]).any():
        raise StoreCorrupt("bronze or sightings have an id that is not a UUID")
    return np.ascontiguousarray((nibbles[:, 0::2] << 4) | nibbles[:, 1::2])


def id_of(high: int, low: int) -> str:
    return id_text(((int(high) << 64) | int(low)).to_bytes(16, "big"))


def rows_at(rows: pa.Table, places: Sequence[int] | Numbers) -> list[dict[str, Any]]:
    """A few rows, with times as milliseconds."""
    few = rows.take(pa.array(places, pa.int64()))
    found = {
        name: [None if ms == NONE else ms for ms in millis(few[name]).tolist()]
        if pa.types.is_timestamp(few[name].type)
        else few[name].to_pylist()
        for name in few.column_names
    }
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


# --- neighbours ----------------------------------------------------------------------------------


def starts(*sorted_columns: np.ndarray[Any, Any]) -> Flags:
    """Of sorted rows: whether a row has another value than the one before in one of the columns."""
    first: Flags = np.ones(len(sorted_columns[0]), np.bool_)
    first[1:] = False
    for column in sorted_columns:
        first[1:] |= column[1:] != column[:-1]
    return first


def shifted(values: Numbers, by: int = 1) -> Numbers:
    """Each row's value of the row before (1), two before (2) or after (-1); `NONE` at the ends."""
    found: Numbers = np.full(len(values), NONE)
    if by > 0:
        found[by:] = values[:-by]
    else:
        found[:by] = values[-by:]
    return found


def reach(groups: Numbers, values: Numbers) -> Numbers:
    """For each row the highest value of the rows before it in its group; `NONE` for the first. The
    rows of a group are neighbours, and its numbers grow.
    """
    if not len(values):
        return values
    known, rank = np.unique(values, return_inverse=True)
    top = np.maximum.accumulate(groups * len(known) + rank)
    found = shifted(known[top % len(known)])
    found[starts(groups)] = NONE
    return found


Spans = Mapping[tuple[Any, ...], Sequence[tuple[int, int]]]
"""By group: first and last values of ranges."""


def among_spans(
    groups: Numbers, names: Sequence[tuple[Any, ...]], values: Numbers, spans: Spans
) -> tuple[Flags, Numbers]:
    """Which rows have a value in one of the ranges of their group, and how many ranges begin up to
    the value. `names`: groups by number.
    """
    found: Flags = np.zeros(len(values), np.bool_)
    begun: Numbers = np.zeros(len(values), np.int64)
    places = {name: number for number, name in enumerate(names)}
    for name, ranges in spans.items():
        if name in places:
            here = np.flatnonzero(groups == places[name])
            lows = np.array([low for low, _ in ranges])
            highs = np.array([high for _, high in ranges])
            begun[here] = np.searchsorted(lows, values[here], side="right")
            found[here] = (begun[here] > 0) & (values[here] <= highs[begun[here] - 1])
    return found, begun


def joined_spans(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same ranges, sorted and without overlaps."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found
