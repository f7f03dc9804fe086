"""The columns of a log as Arrow, as every kind of log gives them.

All of it works on whole columns: ids are written as digits all together, and cut where the dashes
of their text stand.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.rows import Columns
from holdfast.storage.sqlite.log_columns import SEPARATOR, Joined

TIME: Final = pa.timestamp("us", tz="UTC")
"""As Spark keeps times; a log has milliseconds."""

LOG: Final = pa.schema(
    {
        "log": pa.string(),
        "epoch": pa.int64(),
        "offset": pa.int64(),
        "id": pa.string(),
        "mesh": pa.string(),
        "op": pa.string(),
        "entity": pa.string(),
        "origin": pa.string(),
        "lamport": pa.int64(),
        "recorded_at": TIME,
        "raw": pa.binary(),
    }
)
"""`schema.LOG`, as Arrow says it."""

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_ID_BYTES: Final = 16
_TEXT_CHARS: Final = 36
_GROUPS: Final = ((0, 8, 0), (9, 13, 8), (14, 18, 12), (19, 23, 16), (24, 36, 20))
"""Where digits stand in the text, and where they begin among the 32."""


def uuid_texts(ids: bytes | memoryview | pa.Buffer) -> pa.Array:
    """The ids that lie in a buffer one after the other, as canonical text."""
    digits = np.frombuffer(hexlify(ids), dtype=np.uint8).reshape(-1, 2 * _ID_BYTES)
    rows = len(digits)
    text = np.full((rows, _TEXT_CHARS), ord("-"), dtype=np.uint8)
    for begin, end, digit in _GROUPS:
        text[:, begin:end] = digits[:, digit : digit + end - begin]
    places = np.arange(0, (rows + 1) * _TEXT_CHARS, _TEXT_CHARS, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(places), pa.py_buffer(text.reshape(-1)))


def times(milliseconds: pa.Array) -> pa.Array:
    """Numbers of milliseconds as times. One that cannot be a time raises ArrowInvalid."""
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(TIME)


def place_columns(log: str, epoch: int, rows: int) -> list[pa.Array]:
    return [pa.repeat(pa.scalar(log, pa.string()), rows), pa.repeat(pa.scalar(epoch), rows)]


def from_joined(log: str, epoch: int, joined: Joined) -> pa.RecordBatch:
    """A batch of entries that SQLite joined; damage is told, never guessed around."""
    expected = np.arange(joined.start, joined.start + joined.rows, dtype=np.int64)
    texts = [_texts(part) for part in (joined.mesh, joined.op, joined.entity, joined.origin)]
    lamport, recorded_at = _numbers(joined.lamport), _numbers(joined.recorded_at)
    ends = np.cumsum(_numbers(joined.lengths))
    whole = (
        np.array_equal(_numbers(joined.offset), expected)
        and len(joined.id) == joined.rows * _ID_BYTES
        and all(len(part) == joined.rows for part in (*texts, lamport, recorded_at, ends))
        and ends[-1] == len(joined.raw)
    )
    if not whole:
        raise StoreCorrupt(
            f"the log has a gap or a name with a NUL in the entries from {joined.start} on"
        )
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


def from_columns(log: str, epoch: int, columns: Columns) -> pa.RecordBatch:
    """A batch of entries that were read through a filter."""
    if any(len(id) != _ID_BYTES for id in columns.id):
        raise StoreCorrupt("the log holds an id that has not 16 bytes")
    return from_lists(log, epoch, columns, uuid_texts(b"".join(columns.id)))


def from_lists(log: str, epoch: int, columns: Columns, ids: pa.Array) -> pa.RecordBatch:
    def array(values: Sequence[object], name: str) -> pa.Array:
        return pa.array(values, LOG.field(name).type)

    return pa.RecordBatch.from_arrays(
        [
            *place_columns(log, epoch, len(columns.offset)),
            array(columns.offset, "offset"),
            ids,
            array(columns.mesh, "mesh"),
            array(columns.op, "op"),
            array(columns.entity, "entity"),
            array(columns.origin, "origin"),
            array(columns.lamport, "lamport"),
            times(pa.array(columns.recorded_at, pa.int64())),
            array(columns.raw, "raw"),
        ],
        schema=LOG,
    )


def in_order(offsets: pa.Array, start: int, stop: int) -> bool:
    """Do they grow, and lie in [start, stop)?"""
    found = offsets.to_numpy()
    if not len(found):
        return True
    return bool(start <= found[0] and found[-1] < stop and (np.diff(found) > 0).all())


def _texts(joined: str) -> pa.Array:
    return pc.split_pattern(pa.array([joined]), SEPARATOR).values


def _numbers(joined: str) -> _Numbers:
    """None at all if one of them is no number: whoever asks counts them."""
    try:
        return np.fromstring(joined, dtype=np.int64, sep=",")
    except ValueError:
        return np.zeros(0, dtype=np.int64)
