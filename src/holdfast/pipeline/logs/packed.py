"""msgpack values of many byte strings at once, by NumPy over the one buffer that they lie in.

A `Walk` stands in every string at some place. Each step reads the next value of all strings: its
first byte says by a table how long the value is, and the walk moves on behind it. A string whose
next value is not of the wanted kind no longer fits; it is walked on with the others, over whatever
follows, and nothing that is found there counts. Places only grow, so a walk that left its string
does not come back: it ends beyond the string's end, where a caller looks for it.

Forms are taken that a reader of msgpack takes, the shortest or not. Rare ones are not taken: the
caller has slower code for every string that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

T = TypeVar("T")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

NIL: Final = 0xC0
_WORD_BYTES: Final = 8
_WORD_BITS: Final = 64


def _table(*ranges: tuple[int, int, int]) -> Bytes:
    """By first byte, a number; 0 for all that are in no range (first, last, number)."""
    table = np.zeros(256, dtype=np.uint8)
    for first, last, number in ranges:
        table[first : last + 1] = number
    return table


_TEXT: Final = _table((0xA0, 0xBF, 1), (0xD9, 0xD9, 2), (0xDA, 0xDA, 3), (0xDB, 0xDB, 5))
"""How many bytes the head of a text has: one that holds the size too, or one and the size."""
_BINARY: Final = _table((0xC4, 0xC4, 2), (0xC5, 0xC5, 3), (0xC6, 0xC6, 5))
_COUNT: Final = _table(
    *((0x00, 0x7F, 1), (0xCC, 0xCC, 2), (0xCD, 0xCD, 3), (0xCE, 0xCE, 5), (0xCF, 0xCF, 9))
)
"""How many bytes a number of 0 or more has: one that is the number, or one and the number."""
_SHORT_TEXT_MASK: Final = 0x1F
_SHIFT: Final = np.array([0, 0, 56, 48, 0, 32, 0, 0, 0, 0], dtype=np.uint64)
"""By bytes of a head: how far a word is shifted to be the number behind the head's first byte."""


class Spans(NamedTuple):
    """Where a value begins and ends, in every string."""

    begin: Numbers
    end: Numbers

    @property
    def sizes(self) -> Numbers:
        return self.end - self.begin

    def of(self, rows: Numbers | Mask) -> Spans:
        return Spans(self.begin[rows], self.end[rows])


class Packed:
    """Byte strings that lie one after another in a buffer."""

    def __init__(self, strings: pa.Array) -> None:
        assert strings.type == pa.binary(), strings.type
        offsets, data = strings.buffers()[1:]
        self.data = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
        self._buffer = data
        count = len(strings)
        found = np.frombuffer(offsets, dtype=np.int32) if count else np.zeros(1, dtype=np.int32)
        places = found[strings.offset : strings.offset + count + 1].astype(np.int64)
        self.strings = Spans(places[:-1], places[1:])
        self.last_word = len(self.data) - _WORD_BYTES
        """Where the last eight bytes begin; negative if there are fewer."""
        self._words = np.ndarray(
            (max(0, self.last_word + 1),), dtype=">u8", buffer=self.data, strides=(1,)
        )

    def words(self, at: Numbers) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The eight bytes from these places on as numbers. A place from which there are fewer gives
        any number.
        """
        return self._words[np.minimum(at, self.last_word)].astype(np.uint64)

    def fixed(self, at: Numbers, size: int) -> bytes:
        """As many bytes from each of these places on, joined."""
        if not len(at):
            return b""
        pieces = np.ndarray(
            (len(self.data) - size + 1,), dtype=f"V{size}", buffer=self.data, strides=(1,)
        )
        return pieces[at].tobytes()

    def cut(self, spans: Spans) -> pa.Array:
        """The bytes of these spans, which lie one after another, as an array."""
        count = len(spans.begin)
        if not count:
            return pa.array([], pa.binary())
        # An array of the spans and of what lies between them, over the same buffer; then every
        # second of its values is taken.
        places = np.empty(2 * count, dtype=np.int32)
        places[0::2], places[1::2] = spans
        both = pa.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(places), self._buffer]
        )
        return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


class Walk:
    """One place in each of many strings."""

    def __init__(self, packed: Packed, at: Numbers) -> None:
        self._packed = packed
        self.at = at
        self.fits: Mask = np.ones(len(at), dtype=np.bool_)
        """The strings that had the wanted values so far."""

    def next_bytes(self) -> Bytes:
        return self._packed.data.take(self.at, mode="clip")

    def literal(self, spelled: bytes) -> None:
        """At most eight bytes that all strings must have here."""
        shift = _WORD_BITS - 8 * len(spelled)
        found = self._packed.words(self.at) >> np.uint64(shift)
        self.fits &= found == int.from_bytes(spelled)
        self.fits &= self.at <= self._packed.last_word
        self.at = self.at + len(spelled)

    def text(self) -> Spans:
        lead = self.next_bytes()
        return self._sized(_TEXT.take(lead), lead & np.uint8(_SHORT_TEXT_MASK))

    def binary(self) -> Spans:
        lead = self.next_bytes()
        return self._sized(_BINARY.take(lead), lead)

    def count(self) -> Numbers:
        """A number of 0 or more that 63 bits can hold."""
        lead = self.next_bytes()
        heads = _COUNT.take(lead)
        values = np.where(heads == 1, lead, _numbers(self._packed, self.at, heads))
        # So near the end of all strings, none of ours has a number of several bytes.
        near = self.at >= self._packed.last_word
        self.fits &= (heads > 0) & (values >= 0) & ~(near & (heads > 1))
        self.at = self.at + heads
        return values

    def _sized(self, heads: Bytes, short: Bytes) -> Spans:
        begin = self.at + heads
        sizes = short.astype(np.int64)
        if not (heads == 1).all():
            byte = self._packed.data.take(self.at + 1, mode="clip")
            sizes = np.where(heads == 1, sizes, byte)
            long = np.flatnonzero(heads > 2)
            if len(long):
                at = self.at[long]
                sizes[long] = _numbers(self._packed, at, heads[long])
                self.fits[long] &= at < self._packed.last_word
            self.fits &= heads > 0
        self.at = begin + sizes
        return Spans(begin, self.at)

    def part(self, rows: Numbers) -> Walk:
        return Walk(self._packed, self.at[rows])

    def rejoin(self, rows: Numbers, part: Walk) -> None:
        """Takes over where the part that was walked alone has arrived."""
        self.at = self.at.copy()
        self.at[rows] = part.at
        self.fits[rows] &= part.fits


def _numbers(packed: Packed, at: Numbers, heads: Bytes) -> Numbers:
    """The numbers behind the first byte of each head; a head of one byte or none gives any."""
    return (packed.words(at + 1) >> _SHIFT.take(heads)).astype(np.int64)


class Words(Generic[T]):
    """Values of which there are few different ones: each of them is read once."""

    def __init__(self, values: pa.Array, read: Callable[[bytes], T | None]) -> None:
        encoded = values.dictionary_encode()
        self.known: list[T | None] = [read(value) for value in encoded.dictionary.to_pylist()]
        """What was read of each different value; None for one that was refused."""
        self.numbers: Numbers = encoded.indices.to_numpy().astype(np.int64)
        """By row: which of the known ones it has."""

    @property
    def fits(self) -> Mask:
        fits: Mask = self.of(lambda value: True, False, np.bool_)
        return fits

    def of(self, get: Callable[[T], Any], otherwise: Any, kind: Any) -> Any:
        """Something of each row's value, in an array of NumPy."""
        found = [otherwise if value is None else get(value) for value in self.known]
        return np.array(found, dtype=kind)[self.numbers] if found else np.zeros(0, dtype=kind)

    def column(self, get: Callable[[T], Any], kind: pa.DataType) -> pa.Array:
        """Something of each row's value, as a column; null where the value was refused."""
        found = [None if value is None else get(value) for value in self.known]
        return pa.array(found, kind).take(pa.array(self.numbers))


def sound_texts(texts: pa.Array) -> Mask:
    """Which of these bytes are text in UTF-8 without a NUL."""
    fine = np.ones(len(texts), dtype=np.bool_)
    offsets, data = texts.buffers()[1:]
    if data is None or not len(texts):
        return fine
    places = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    joined = np.frombuffer(data, dtype=np.uint8)[places[0] : places[-1]]
    if not len(joined) or (joined.min() > 0 and joined.max() < 0x80):
        return fine
    odd = np.flatnonzero((joined == 0) | (joined >= 0x80)) + places[0]
    for row in np.unique(np.searchsorted(places, odd, side="right") - 1).tolist():
        fine[row] = is_text(texts[row].as_py())
    return fine


def is_text(value: bytes) -> bool:
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


# --- some rows at once, the others one by one ----------------------------------------------------


def others(rows: Numbers, count: int) -> Numbers:
    """The rows of so many that are not among these."""
    left = np.ones(count, dtype=np.bool_)
    left[rows] = False
    return np.flatnonzero(left)


def merged(
    rows: Numbers, columns: Sequence[pa.Array], rest: Numbers, of_rest: Sequence[pa.Array]
) -> list[pa.Array]:
    """The columns of some rows and those of the rest as columns of all rows."""
    if not len(rows):
        return list(of_rest)
    places = np.empty(len(rows) + len(rest), dtype=np.int64)
    places[np.concatenate([rows, rest])] = np.arange(len(places))
    order = pa.array(places)
    pairs = zip(columns, of_rest, strict=True)
    return [pa.concat_arrays(pair).take(order) for pair in pairs]
