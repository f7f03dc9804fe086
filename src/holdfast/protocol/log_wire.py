"""What travels between a reader of a log and the node that serves it.

People and their tools get JSON. Nodes ask for msgpack, in which the canonical bytes of the
envelopes pass through untouched: the source reads them from its database and sends them, and only
the receiver decodes them, to check them.
"""

from __future__ import annotations

from itertools import islice
from operator import lt
from typing import Final

import msgspec

from holdfast.rules.errors import BadAnswer, HoldfastError
from holdfast.rules.filters import Filter
from holdfast.rules.limits import FETCH_ROWS_DEFAULT, LAMPORT_MAX

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"


class Fetch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader asks for the next entries of its consumer."""

    consumer: str
    limit: int = FETCH_ROWS_DEFAULT
    wait_ms: int = 0
    """How long to wait for something new before answering with nothing."""
    start: int | None = msgspec.field(name="from", default=None)
    """The first offset to read, without moving the consumer: for a reader that keeps its own place
    and reads ahead. Without it, the first offset that is not confirmed."""
    confirm: int | None = None
    """Confirms up to this offset first, which saves a steady reader one call per batch."""
    epoch: int | None = None
    """The epoch that `from` and `confirm` count in; the fetch is refused if the log's is
    another.
    """


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader registers its consumer, or finds the one that is registered."""

    consumer: str
    start: str | int = msgspec.field(name="from", default="start")
    filter: Filter = Filter()
    retire_ms: int | None = None
    retire_lag: int | None = None


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader confirms what it has stored: everything up to an offset, or half-open ranges."""

    consumer: str
    offset: int | None = None
    ranges: list[tuple[int, int]] | None = None
    epoch: int | None = None


class Batch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A piece of a log on its way."""

    epoch: int
    first: int
    """The first offset that the log still holds."""
    head: int
    """The last offset of the log when this piece was read."""
    start: int
    """Where this piece begins."""
    upto: int
    """Where it ends: entries of [start, upto] that are not here did not pass the filter."""
    offsets: list[int]
    raws: list[bytes]


class BatchCut(Exception):
    """The line broke in the middle of a batch. `batch` is what had arrived whole, None if nothing
    had; `entry` the offset and the size of the entry that was cut, if that had arrived.
    """

    def __init__(
        self, error: HoldfastError, batch: Batch | None, entry: tuple[int, int] | None
    ) -> None:
        super().__init__(error.message)
        self.error, self.batch, self.entry = error, batch, entry


_FIXINT_END: Final = 0x80
_FIXARRAY: Final = 0x90
_UINTS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_BINS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""By the first byte in msgpack: how many bytes the number, or the length, has that follows."""

_batch: Final = msgspec.msgpack.Decoder(Batch)
encode_batch: Final = msgspec.msgpack.Encoder().encode


def batch_cut(error: HoldfastError, raw: bytes) -> BatchCut:
    """What is whole of a batch of which only the beginning has come. Its offsets stand before its
    entries, so the entries that are here are known by their offsets.
    """
    reader = _Reader(raw)
    fields: list[int] = []
    offsets: list[int] = []
    raws: list[bytes] = []
    try:
        fields = [reader.array(), *(reader.whole() for _ in range(5))]
        offsets = [reader.whole() for _ in range(reader.array())]
        reader.array()
        for _ in offsets:
            raws.append(reader.bin())
    except (IndexError, ValueError):
        pass  # it ends here, or is no batch
    entry = None
    if reader.cut_bytes is not None and len(raws) < len(offsets):
        entry = (offsets[len(raws)], reader.cut_bytes)
    if not raws:
        return BatchCut(error, None, entry)
    _, epoch, first, head, start, _ = fields
    some = offsets[: len(raws)]
    part = Batch(epoch, first, head, start, some[-1], some, raws)
    return BatchCut(error, decode_batch(encode_batch(part)), entry)


class _Reader:
    """Reads msgpack as far as it goes: whole numbers, the heads of arrays, bytes. IndexError where
    it ends, ValueError where something else stands.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0
        self.cut_bytes: int | None = None
        """The size of the bytes that were cut."""

    def whole(self) -> int:
        kind = self._take(1)[0]
        return kind if kind < _FIXINT_END else self._number(kind, _UINTS)

    def array(self) -> int:
        kind = self._take(1)[0]
        return kind & 0x0F if kind & 0xF0 == _FIXARRAY else self._number(kind, _ARRAYS)

    def bin(self) -> bytes:
        size = self._number(self._take(1)[0], _BINS)
        if self._at + size > len(self._raw):
            self.cut_bytes = size
        return self._take(size)

    def _number(self, kind: int, sizes: dict[int, int]) -> int:
        if kind not in sizes:
            raise ValueError(kind)
        return int.from_bytes(self._take(sizes[kind]), "big")

    def _take(self, size: int) -> bytes:
        found = self._raw[self._at : self._at + size]
        if len(found) < size:
            raise IndexError
        self._at += size
        return found


def decode_batch(raw: bytes) -> Batch:
    """Reads a batch from outside and checks that it hangs together."""
    try:
        batch = _batch.decode(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"the batch cannot be read: {error}") from None
    offsets = batch.offsets
    is_ordered = (
        1 <= batch.epoch <= LAMPORT_MAX
        and batch.start >= 1
        and batch.start - 1 <= batch.upto <= batch.head <= LAMPORT_MAX
        and 1 <= batch.first <= batch.head + 1
        and len(offsets) == len(batch.raws)
        and (not offsets or (batch.start <= offsets[0] and offsets[-1] <= batch.upto))
        and all(map(lt, offsets, islice(offsets, 1, None)))
    )
    if not is_ordered:
        raise BadAnswer("the batch does not hang together: its offsets are out of order")
    return batch
