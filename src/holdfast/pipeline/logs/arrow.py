"""The columns of a log as Arrow, as every kind of log gives them.

Everything works on whole columns: all ids of a batch become hex digits in one step, and the dashes
of their text are put between by copying columns of digits.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake import schema
from holdfast.rules.leaf import LEAF_BYTES, leaves_of
from holdfast.rules.limits import SOURCE_TIME_MS_MAX
from holdfast.rules.rows import Columns
from holdfast.storage.sqlite.log_columns import SEPARATOR, Joined
from holdfast.storage.sqlite.log_leaves import refuse_damaged

LOG: Final = schema.arrow_schema(schema.LOG)
TIME: Final = LOG.field("recorded_at").type
"""Microseconds, as Spark keeps times; a log has milliseconds."""

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_ID_BYTES: Final = 16
_TEXT_CHARS: Final = 36
_NO_ID: Final = bytes(_ID_BYTES)
"""In the place of an id that is none. No envelope has it, so its row becomes a problem."""
_INT64: Final = range(-(2**63), 2**63)
_GROUPS: Final = ((0, 8, 0), (9, 13, 8), (14, 18, 12), (19, 23, 16), (24, 36, 20))
"""Of each group of digits: where it begins and ends in the text, and its first of the 32 digits."""


def uuid_texts(ids: bytes | memoryview | pa.Buffer) -> pa.Array:
    """The ids that lie in a buffer one after another, as canonical text."""
    digits = np.frombuffer(hexlify(ids), dtype=np.uint8).reshape(-1, 2 * _ID_BYTES)
    rows = len(digits)
    text = np.full((rows, _TEXT_CHARS), ord("-"), dtype=np.uint8)
    for begin, end, digit in _GROUPS:
        text[:, begin:end] = digits[:, digit : digit + end - begin]
    places = np.arange(0, (rows + 1) * _TEXT_CHARS, _TEXT_CHARS, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(places), pa.py_buffer(text.reshape(-1)))


def times(milliseconds: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as times; null where that is no time that a table can hold."""
    fits = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, SOURCE_TIME_MS_MAX))
    if not pc.all(fits, skip_nulls=False).as_py():
        milliseconds = pc.if_else(fits, milliseconds, pa.scalar(None, pa.int64()))
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(TIME)


def texts(values: pa.Array) -> pa.Array:
    """The same texts, with the mark for unknown characters where another process sent what is no
    UTF-8. ArrowInvalid if it is no column at all.
    """
    spelled = values.view(pa.binary())
    spelled.validate(full=True)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        found = spelled.to_pylist()
        readable = [None if text is None else text.decode(errors="replace") for text in found]
        return pa.array(readable, pa.string())
    return values


def place_columns(log: str, epoch: int, rows: int) -> list[pa.Array]:
    return [pa.repeat(pa.scalar(log, pa.string()), rows), pa.repeat(pa.scalar(epoch), rows)]


def from_joined(log: str, epoch: int, joined: Joined) -> pa.RecordBatch | None:
    """A batch from columns that SQLite joined into texts. None if they do not have exactly the
    expected number of values, as with a name that holds a NUL: which belong together cannot be
    guessed.
    """
    expected = np.arange(joined.start, joined.start + joined.rows, dtype=np.int64)
    texts = [_texts(part) for part in (joined.mesh, joined.op, joined.entity, joined.origin)]
    lamport, recorded_at = _numbers(joined.lamport), _numbers(joined.recorded_at)
    ends = np.cumsum(_numbers(joined.lengths))
    whole = (
        np.array_equal(_numbers(joined.offset), expected)
        and len(joined.id) == joined.rows * _ID_BYTES
        and all(len(part) == joined.rows for part in (*texts, lamport, recorded_at, ends))
        and ends[-1] == len(joined.raw)
        and len(joined.leaf) == joined.rows * LEAF_BYTES
    )
    if not whole:
        return None
    _refuse_damaged(joined, ends)
    places = np.zeros(joined.rows + 1, dtype=np.int32)
    places[1:] = ends
    raw = pa.Array.from_buffers(
        pa.binary(), joined.rows, [None, pa.py_buffer(places), pa.py_buffer(joined.raw)]
    )
    return pa.RecordBatch.from_arrays(
        [
            *place_columns(log, epoch, joined.rows),
            pa.array(expected),
            uuid_texts(joined.id),
            *texts,
            pa.array(lamport),
            times(pa.array(recorded_at)),
            raw,
        ],
        schema=LOG,
    )


def _refuse_damaged(joined: Joined, ends: _Numbers) -> None:
    """EntryDamaged if the bytes of an entry have changed since they were written: a lake would keep
    them for ever.
    """
    leaves = leaves_of(joined.raw, ends.tolist())
    if leaves == joined.leaf:
        return
    found, written = (
        np.frombuffer(column, dtype=np.uint64).reshape(joined.rows, -1)
        for column in (leaves, joined.leaf)
    )
    # One without a hash is from before there were hashes.
    for row in np.flatnonzero((found != written).any(axis=1) & written.any(axis=1)).tolist():
        raw = joined.raw[ends[row - 1] if row else 0 : ends[row]]
        leaf = joined.leaf[row * LEAF_BYTES : (row + 1) * LEAF_BYTES]
        refuse_damaged(joined.start + row, raw, leaf)


def from_columns(log: str, epoch: int, columns: Columns) -> pa.RecordBatch:
    """A batch from lists of column values, as a filtered read gives them."""
    ids = [id if len(id) == _ID_BYTES else _NO_ID for id in columns.id]
    return from_lists(log, epoch, columns, uuid_texts(b"".join(ids)))


def from_lists(log: str, epoch: int, columns: Columns, ids: pa.Array) -> pa.RecordBatch:
    """A batch from lists of column values, with ids that are text already."""

    def array(values: Sequence[object], name: str) -> pa.Array:
        return pa.array(values, LOG.field(name).type)

    arrays = [
        *place_columns(log, epoch, len(columns.offset)),
        array(columns.offset, "offset"),
        ids,
        *(array(getattr(columns, name), name) for name in LOG.names[4:8]),
        _int64(columns.lamport),
        times(_int64(columns.recorded_at)),
        array(columns.raw, "raw"),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG)


def _int64(numbers: Sequence[int]) -> pa.Array:
    """Numbers; null for one that 64 bits cannot hold, as a line of JSON may have."""
    try:
        return pa.array(numbers, pa.int64())
    except OverflowError:
        return pa.array([n if n in _INT64 else None for n in numbers], pa.int64())


def in_order(offsets: pa.Array, start: int, stop: int) -> bool:
    """Whether the offsets grow and lie in [start, stop)."""
    numbers = offsets.to_numpy()
    if not len(numbers):
        return True
    return bool(start <= numbers[0] and numbers[-1] < stop and (np.diff(numbers) > 0).all())


def _texts(joined: str) -> pa.Array:
    return pc.split_pattern(pa.array([joined]), SEPARATOR).values


def _numbers(joined: str) -> _Numbers:
    """The numbers in a text; an empty array if one is not a number, which fails the count check."""
    try:
        return np.fromstring(joined, dtype=np.int64, sep=",")
    except ValueError:
        return np.zeros(0, dtype=np.int64)
