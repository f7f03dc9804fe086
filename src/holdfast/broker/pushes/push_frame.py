"""A push as its broker handles it: without an object for each item.

`PackedPush` is a Push frame of which only the outline was read: the numbers of its items, and where
their envelopes lie in it. `PackedAcks` is an Acks frame for envelopes that were created one after
another. On the wire both are the frames of `frames`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, Self

import msgspec

from holdfast.protocol.frames import Acks, Push, encode_frame, read_from_broker
from holdfast.rules import compiled
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.push_columns import (
    SPAN_BITS,
    SPAN_MASK,
    Created,
    packed,
    spans_of,
    unpacked,
)

_CREATED: Final = 201
_ACKS: Final = 6
_encode: Final = msgspec.msgpack.Encoder().encode


class PackedPush:
    """A Push frame: `spans` say where in the payload each envelope lies."""

    __slots__ = ("epoch", "mesh", "numbers", "payload", "spans")

    def __init__(
        self, mesh: str, epoch: int, payload: bytes, numbers: Sequence[int], spans: bytes
    ) -> None:
        self.mesh, self.epoch = mesh, epoch
        self.payload, self.numbers, self.spans = payload, numbers, spans

    @classmethod
    def of(cls, frame: Push) -> Self:
        raws = [item.raw for item in frame.items]
        numbers = [item.number for item in frame.items]
        return cls(frame.mesh, frame.epoch, b"".join(raws), numbers, spans_of(raws))

    def __len__(self) -> int:
        return len(self.numbers)

    def part(self, begin: int, end: int) -> tuple[bytes, int]:
        """The payload of some of the items, and where it begins in the whole."""
        if end - begin == len(self):
            return self.payload, 0
        spans = unpacked(self.spans)
        first, last = spans[begin], spans[end - 1]
        start = first >> SPAN_BITS
        return self.payload[start : (last >> SPAN_BITS) + (last & SPAN_MASK)], start


def read_push(raw: bytes) -> PackedPush | None:
    """A plain Push frame; None for everything else, which `read_from_node` reads or refuses."""
    if compiled.part is None:
        return None
    found = compiled.part.scan_push(raw)
    if found is None:
        return None
    mesh, epoch, numbers, spans = found
    return PackedPush(mesh, epoch, raw, unpacked(numbers), spans)


def joined_pushes(pushes: Sequence[PackedPush]) -> PackedPush:
    """Pushes of one mesh and epoch as one."""
    first = pushes[0]
    if len(pushes) == 1:
        return first
    spans: list[int] = []
    before = 0
    for push in pushes:
        begin = before << SPAN_BITS
        spans += [span + begin for span in unpacked(push.spans)]
        before += len(push.payload)
    payload = b"".join([push.payload for push in pushes])
    numbers = list(chain.from_iterable([push.numbers for push in pushes]))
    return PackedPush(first.mesh, first.epoch, payload, numbers, packed(spans))


class PackedAcks:
    """Answers to envelopes that were created one after another."""

    __slots__ = ("_answers", "count", "epoch", "mesh")

    def __init__(self, mesh: str, epoch: int, count: int, answers: bytes) -> None:
        self.mesh, self.epoch, self.count, self._answers = mesh, epoch, count, answers

    @classmethod
    def of(cls, mesh: str, numbers: Sequence[int], created: Created) -> Self:
        return cls(mesh, created.epoch, len(numbers), packed_answers(numbers, created))

    def encoded(self) -> bytes:
        """The frame on the wire."""
        head = _encode((_ACKS, self.mesh, self.epoch))[1:]
        return b"\x94%b%b%b" % (head, _array_head(self.count), self._answers)

    def opened(self) -> Acks:
        """The frame as whoever gets it reads it."""
        frame = read_from_broker(self.encoded())
        assert isinstance(frame, Acks)
        return frame

    def followed_by(self, others: Sequence[PackedAcks]) -> PackedAcks:
        """One frame for what several of one mesh and epoch say."""
        answers = b"".join([self._answers, *[one._answers for one in others]])
        count = self.count + sum([one.count for one in others])
        return PackedAcks(self.mesh, self.epoch, count, answers)


def packed_answers(numbers: Sequence[int], created: Created) -> bytes:
    """A `PushAnswer` for each, as the encoder of frames writes it."""
    if compiled.part is not None and isinstance(numbers, memoryview):
        return compiled.part.created_answers(
            numbers.tobytes(), created.tickets, created.epoch, created.seq, created.first_seen_at
        )
    tickets, epoch, seen = created.tickets, created.epoch, created.first_seen_at
    answers: list[Any] = [
        (number, _CREATED, epoch, seq, tickets[at : at + ID_BYTES], True, seen, None)
        for number, seq, at in zip(
            numbers,
            range(created.seq, created.seq + len(numbers)),
            range(0, len(tickets), ID_BYTES),
            strict=True,
        )
    ]
    return _encode(answers)[len(_array_head(len(answers))) :]


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def encoded(frame: Any) -> bytes:
    """A frame of a broker on the wire."""
    return frame.encoded() if isinstance(frame, PackedAcks) else encode_frame(frame)
