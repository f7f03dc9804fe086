"""A piece of the log as Arrow: whole columns in, an IPC stream out.

Nothing is done per row in Python. A column of texts is its values joined to one buffer and the
running sum of their lengths; both are made by C code. nanoarrow puts the buffers into messages as
the Arrow format wants them.

A stream is a schema, batches, and an end mark. A reader knows by the end mark that the stream is
whole, so the mark is a part of its own and is written only when everything before it went out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import nanoarrow
from nanoarrow.c_array_stream import CArrayStream
from nanoarrow.ipc import StreamWriter

from holdfast.rules.ids import ID_BYTES
from holdfast.rules.rows import Columns

FORMAT: Final = "1"
"""The format of the columns below. A column may be added at the end; anything else is a new
format.
"""

_INT64: Final = nanoarrow.int64(nullable=False)
_ID: Final = nanoarrow.fixed_size_binary(16, nullable=False)
_TEXT: Final = nanoarrow.string(nullable=False)
_TIME: Final = nanoarrow.timestamp("ms", timezone="UTC", nullable=False)
_BYTES: Final = nanoarrow.binary(nullable=False)

COLUMNS: Final[dict[str, Any]] = {
    "offset": _INT64,
    "id": _ID,
    "mesh": _TEXT,
    "op": _TEXT,
    "entity": _TEXT,
    "origin": _TEXT,
    "lamport": _INT64,
    "recorded_at": _TIME,
    "raw": _BYTES,
}


class ArrowStream:
    """One stream: each call returns the next bytes of it."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        described = {"holdfast.format": FORMAT, **metadata}
        plain = nanoarrow.c_schema(nanoarrow.struct(COLUMNS, nullable=False))
        self._schema = plain.modify(
            metadata={key.encode(): text.encode() for key, text in described.items()}
        )
        self._out = _Collected()
        self._writer = StreamWriter.from_writable(self._out)

    def begin(self) -> bytes:
        """The schema. A stream without batches is whole, too."""
        nothing = CArrayStream.from_c_arrays([], self._schema)
        self._writer.write_stream(nothing, write_schema=True)
        return self._out.take()

    def batch(self, columns: Columns) -> bytes:
        """One record batch."""
        rows = len(columns.offset)
        parts = [
            _numbers(_INT64, columns.offset),
            _array(_ID, rows, _ids(columns.id)),
            _texts(columns.mesh),
            _texts(columns.op),
            _texts(columns.entity),
            _texts(columns.origin),
            _numbers(_INT64, columns.lamport),
            _numbers(_TIME, columns.recorded_at),
            _varying(_BYTES, columns.raw, b"".join(columns.raw)),
        ]
        batch = nanoarrow.c_array_from_buffers(
            self._schema, rows, [None], null_count=0, children=parts, move=True
        )
        self._writer.write_array(batch, write_schema=False)
        return self._out.take()

    def end(self) -> bytes:
        """The mark by which a reader knows that nothing is missing."""
        self._writer.close()
        return self._out.take()


class _Collected:
    """Collects what the writer writes. Each piece is copied, because the writer uses its buffer
    again after the call.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: Any) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _array(kind: Any, rows: int, *buffers: Any) -> Any:
    return nanoarrow.c_array_from_buffers(kind, rows, [None, *buffers], null_count=0)


def _numbers(kind: Any, values: Iterable[int]) -> Any:
    packed = array("q", values)
    return _array(kind, len(packed), packed)


def _ids(ids: Sequence[bytes]) -> bytes:
    """All ids, joined. One that a damaged store holds with another length is given as zeroes, which
    no id is: in a joined column it would move all that follow.
    """
    joined = b"".join(ids)
    if any(len(id) != ID_BYTES for id in ids):
        joined = b"".join(id if len(id) == ID_BYTES else bytes(ID_BYTES) for id in ids)
    return joined


def _texts(values: Sequence[str]) -> Any:
    joined = "".join(values)
    if joined.isascii():  # a byte per character, so the lengths are those of the texts
        return _varying(_TEXT, values, joined.encode())
    encoded = list(map(str.encode, values))
    return _varying(_TEXT, encoded, b"".join(encoded))


def _varying(kind: Any, values: Sequence[Any], joined: bytes) -> Any:
    assert len(joined) < 2**31, "a batch has a limit in bytes, far below what 32 bits count"
    places = array("i", [0, *accumulate(map(len, values))])
    return _array(kind, len(values), places, joined)
