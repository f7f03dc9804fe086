"""Reading what a member hands in: everything that can be said about an envelope by itself.

What passes here is well formed, belongs to the mesh that it was handed in for, and bears the
fingerprint of its content. Whether the sender may, and whether there is such a destination, is
asked in the transaction that accepts it.

Reading costs time, and meanwhile no other connection is served. So a push is read in slices
(`slice_size`), each is handed in by itself, and others have their turn in between. Envelopes that
are plain are read by the compiled part, if there is one, as far as they follow each other; what it
leaves is read here, and only here is anything refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from holdfast.broker.pushes.push_frame import PackedAcks, PackedPush
from holdfast.broker.verdicts import Outcome, answer_of
from holdfast.protocol.frames import Acks, PushAnswer
from holdfast.rules import compiled, limits
from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.envelope import Envelope, Priority, decode
from holdfast.rules.errors import BadEnvelope, HoldfastError
from holdfast.rules.message import CHANGE, check_arriving
from holdfast.rules.push_columns import (
    SPAN_BITS,
    SPAN_MASK,
    Created,
    PushColumns,
    Run,
    packed,
    unpacked,
)

NewId = Callable[[], bytes]
"""Makes UUIDs of version 7."""

SLICE_ITEMS: Final = 256
"""Items that are read in one turn of the loop: others wait meanwhile."""
_HALF_MIN: Final = 32
"""Fewer are not worth a commit of their own."""


def slice_size(items: int, *, by_halves: bool) -> int:
    """How many items of a push are read in one turn, and handed in together.

    A member that waits for answers before it sends more would have this process and that of the
    store take turns. So while the store is quick, each half of what it sends is read, or answered,
    while the other is written. Where a commit takes its time two of them would cost more than the
    turns do, and a store in this process would gain little.
    """
    wanted = (items + 1) // 2 if by_halves and items >= 2 * _HALF_MIN else items
    return max(1, min(SLICE_ITEMS, wanted))


class Sender:
    """Who pushes: the key that it has proved, and the name that it gave with it."""

    __slots__ = ("key", "name")

    def __init__(self, key: bytes, name: str = "") -> None:
        self.key, self.name = key, name


class PushSlice:
    """Items that are handed in together: the good ones, and why the bad ones are, by their place.

    `size` counts the bytes of the frames that have their answer with this slice.
    """

    __slots__ = ("bad", "good", "mesh", "numbers", "size")

    def __init__(
        self,
        mesh: str,
        numbers: Sequence[int],
        good: Sequence[PushedEnvelope],
        bad: dict[int, HoldfastError],
        size: int,
    ) -> None:
        self.mesh, self.numbers, self.good, self.bad, self.size = mesh, numbers, good, bad, size

    def acks(self, outcomes: Sequence[Outcome]) -> Acks | PackedAcks:
        """The answer to all items, from the outcomes of the good ones."""
        if isinstance(outcomes, Created) and not self.bad:
            return PackedAcks.of(self.mesh, self.numbers, outcomes)
        if self.bad:
            rest = iter(outcomes)
            outcomes = [self.bad.get(at) or next(rest) for at in range(len(self.numbers))]
        epoch = 0
        answers: list[PushAnswer] = []
        for number, outcome in zip(self.numbers, outcomes, strict=True):
            if not isinstance(outcome, HoldfastError):
                epoch = outcome.epoch
            answers.append(answer_of(number, outcome))
        return Acks(self.mesh, epoch, answers)


def decode_slice(
    push: PackedPush, begin: int, end: int, size: int, sender: Sender, new_id: NewId
) -> PushSlice:
    """Reads the items of a push from `begin` to before `end`."""
    end = min(end, len(push))
    reading = _Reading(push)
    at = begin
    while at < end:
        at += reading.compiled(at, end, sender.name)
        if at < end:
            upto = end if compiled.part is None else at + 1
            reading.in_python(range(at, upto), begin)
            at = upto
    good = reading.columns(sender.key, new_id, begin, end)
    return PushSlice(push.mesh, push.numbers[begin:end], good, reading.bad, size)


class _Reading:
    """Columns that grow, and what was refused."""

    def __init__(self, push: PackedPush) -> None:
        self._push = push
        self._may_compile = compiled.part is not None and _is_epoch(push.epoch)
        self.bad: dict[int, HoldfastError] = {}
        self._ids: list[tuple[bytes, ...]] = []
        self._prints: list[bytes] = []
        self._stamps: list[bytes] = []
        self._spans: list[bytes] = []
        self._runs: list[Run] = []
        self._highest = self._size = 0

    def compiled(self, begin: int, end: int, name: str) -> int:
        """Reads plain envelopes, as far as they follow each other; returns how many."""
        if not self._may_compile:
            return 0
        push = self._push
        assert compiled.part is not None
        ids, prints, stamps, runs, highest, size = compiled.part.read_envelopes(
            push.payload, push.spans, begin, end, push.mesh, name
        )
        spans = unpacked(push.spans)[begin : begin + len(ids)].tobytes()
        self._add(ids, prints, stamps, spans, [Run(*run) for run in runs], highest, size)
        return len(ids)

    def in_python(self, places: range, begin: int) -> None:
        """Reads each of these, or notes why it is refused."""
        push = self._push
        mesh, epoch, payload = push.mesh, push.epoch, push.payload
        good: list[Envelope] = []
        whither: list[tuple[str, str, str, Priority]] = []
        at: list[int] = []
        size = 0
        spans = unpacked(push.spans)[places.start : places.stop]
        for place, span in enumerate(spans, places.start - begin):
            offset = span >> SPAN_BITS
            raw = payload[offset : offset + (span & SPAN_MASK)]
            try:
                envelope, kind, ref = _read(raw, mesh, epoch)
            except HoldfastError as error:
                self.bad[place] = error
                continue
            good.append(envelope)
            whither.append((kind, ref, envelope.origin, envelope.priority))
            at.append(span)
            size += len(raw)
        if not good:
            return
        stamps = [one.lamport for one in good]
        self._add(
            tuple([one.id for one in good]),
            b"".join([one.fingerprint for one in good]),
            packed(stamps),
            packed(at),
            [Run(*what, len(list(those))) for what, those in groupby(whither)],
            max(stamps),
            size,
        )

    def _add(
        self,
        ids: tuple[bytes, ...],
        prints: bytes,
        stamps: bytes,
        spans: bytes,
        runs: list[Run],
        highest: int,
        size: int,
    ) -> None:
        self._ids.append(ids)
        self._prints.append(prints)
        self._stamps.append(stamps)
        self._spans.append(spans)
        self._runs += runs
        self._highest = max(self._highest, highest)
        self._size += size

    def columns(
        self, sender: bytes, new_id: NewId, begin: int, end: int
    ) -> PushColumns | tuple[()]:
        ids = tuple([id for those in self._ids for id in those])
        if not ids:
            return ()
        push = self._push
        payload, base = push.part(begin, end)
        return PushColumns(
            mesh=push.mesh,
            sender=sender,
            epoch=push.epoch,
            payload=payload,
            base=base,
            spans=b"".join(self._spans),
            ids=ids,
            prints=b"".join(self._prints),
            stamps=b"".join(self._stamps),
            runs=self._runs,
            highest=self._highest,
            tickets=b"".join([new_id() for _ in ids]),
            size=self._size,
        )


def decode_push(raw: bytes, mesh: str, sender: bytes, epoch: int, new_id: NewId) -> PushedEnvelope:
    envelope, kind, ref = _read(raw, mesh, epoch)
    return PushedEnvelope(
        mesh=mesh,
        id=envelope.id,
        fingerprint=envelope.fingerprint,
        kind=kind,
        ref=ref,
        origin=envelope.origin,
        sender=sender,
        priority=envelope.priority,
        raw=raw,
        broker_id=new_id(),
        epoch=epoch,
        lamport=envelope.lamport,
    )


def _read(raw: bytes, mesh: str, epoch: int) -> tuple[Envelope, str, str]:
    """The envelope, and kind and name of where it goes."""
    if not _is_epoch(epoch):
        # A store that cannot count so far would refuse all that shares its transaction.
        raise BadEnvelope(f"{epoch} is no epoch of a mesh")
    envelope = decode(raw)
    if envelope.mesh != mesh:
        raise BadEnvelope(f"the envelope is of mesh {envelope.mesh!r}, not {mesh!r}")
    kind, ref = check_arriving(envelope)
    if kind == CHANGE and envelope.op.startswith("message."):
        raise BadEnvelope("a message names no destination")
    return envelope, kind, ref


def _is_epoch(epoch: int) -> bool:
    return 0 <= epoch <= limits.LAMPORT_MAX
