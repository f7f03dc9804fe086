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

from holdfast.rules.errors import BadAnswer
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


_batch: Final = msgspec.msgpack.Decoder(Batch)
encode_batch: Final = msgspec.msgpack.Encoder().encode


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
