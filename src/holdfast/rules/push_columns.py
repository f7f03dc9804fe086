"""What a member pushes, in columns: one value for hundreds of envelopes, as a store wants them.

Nearly all that a broker takes comes in runs: many envelopes of one sender, to one destination,
accepted as a whole. Written out one by one, each would be an object when it is read, another when
it is judged and a third when it is answered. So ids, fingerprints, stamps and broker ids lie side
by side, envelopes are spans of the frame in which they came, and what many have in common stands
once for each run of them.

Who wants the envelopes themselves gets them: columns are a sequence of `PushedEnvelope`, and
`Created` of `AcceptResult`, each made when it is asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self, TypeVar, overload

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.envelope import Priority
from holdfast.rules.fingerprint import FINGERPRINT_BYTES
from holdfast.rules.ids import ID_BYTES

T = TypeVar("T")

SPAN_BITS: Final = 31
"""A span is one number: an offset, and below it a length of so many bits."""
SPAN_MASK: Final = (1 << SPAN_BITS) - 1
NUMBER_BYTES: Final = 8
"""Spans and stamps are whole numbers of so many bytes, in the order of the machine."""

_COMMON: Final = attrgetter("mesh", "sender", "epoch")
_RUN: Final = attrgetter("kind", "ref", "origin", "priority")


class Run(NamedTuple):
    """What envelopes that follow each other have in common, and how many they are."""

    kind: str
    ref: str
    origin: str
    priority: Priority
    length: int


def packed(numbers: Iterable[int]) -> bytes:
    return array("q", numbers).tobytes()


def unpacked(column: bytes) -> memoryview[int]:
    return memoryview(column).cast("q")


def spans_of(raws: Iterable[bytes]) -> bytes:
    """Where envelopes lie that are joined."""
    sizes = [len(raw) for raw in raws]
    begins = accumulate(sizes, initial=0)
    return packed([begin << SPAN_BITS | size for begin, size in zip(begins, sizes, strict=False)])


class PushColumns(Sequence[PushedEnvelope]):
    """Envelopes that one sender pushed into one mesh, read and checked."""

    __slots__ = (
        *("base", "epoch", "highest", "ids", "mesh", "payload", "prints", "runs", "sender"),
        *("size", "spans", "stamps", "tickets"),
    )

    def __init__(
        self,
        *,
        mesh: str,
        sender: bytes,
        epoch: int,
        payload: bytes,
        spans: bytes,
        ids: tuple[bytes, ...],
        prints: bytes,
        stamps: bytes,
        runs: Sequence[Run],
        highest: int,
        tickets: bytes,
        size: int,
        base: int = 0,
    ) -> None:
        """`payload` holds what the spans name, from the offset `base` on. `prints` and `tickets`
        are fingerprints and broker ids, joined; `highest` is the highest of the stamps; `size`
        counts the bytes of the envelopes.
        """
        count = len(ids)
        assert len(spans) == len(stamps) == NUMBER_BYTES * count, "each has a span and a stamp"
        assert len(prints) == FINGERPRINT_BYTES * count, "each has a fingerprint"
        assert len(tickets) == ID_BYTES * count, "each has a broker id"
        self.mesh, self.sender, self.epoch = mesh, sender, epoch
        self.payload, self.base, self.spans = payload, base, spans
        self.ids, self.prints, self.stamps, self.tickets = ids, prints, stamps, tickets
        self.runs, self.highest, self.size = runs, highest, size

    @classmethod
    def of(cls, envelopes: Sequence[PushedEnvelope]) -> Self:
        """The columns of envelopes of one sender and mesh; there is one at least."""
        raws = [one.raw for one in envelopes]
        payload = raws[0] if len(raws) == 1 else b"".join(raws)
        first = envelopes[0]
        stamps = [one.lamport for one in envelopes]
        return cls(
            mesh=first.mesh,
            sender=first.sender,
            epoch=first.epoch,
            payload=payload,
            spans=spans_of(raws),
            ids=tuple([one.id for one in envelopes]),
            prints=b"".join([one.fingerprint for one in envelopes]),
            stamps=packed(stamps),
            runs=[Run(*what, len(list(those))) for what, those in groupby(envelopes, _RUN)],
            highest=max(stamps),
            tickets=b"".join([one.broker_id for one in envelopes]),
            size=len(payload),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[PushedEnvelope]:
        at = 0
        spans, stamps = unpacked(self.spans), unpacked(self.stamps)
        for run in self.runs:
            for place in range(at, at + run.length):
                yield self._one(place, run, spans[place], stamps[place])
            at += run.length

    @overload
    def __getitem__(self, at: int) -> PushedEnvelope: ...
    @overload
    def __getitem__(self, at: slice) -> Self: ...
    def __getitem__(self, at: int | slice) -> PushedEnvelope | Self:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "columns are cut, not thinned"
            return self if end - begin == len(self) else self._cut(begin, max(begin, end))
        place = range(len(self))[at]
        ends = accumulate(run.length for run in self.runs)
        run = next(run for run, end in zip(self.runs, ends, strict=True) if place < end)
        return self._one(place, run, unpacked(self.spans)[place], unpacked(self.stamps)[place])

    def firsts(self) -> Iterator[PushedEnvelope]:
        """The first envelope of each run."""
        at = 0
        spans, stamps = unpacked(self.spans), unpacked(self.stamps)
        for run in self.runs:
            yield self._one(at, run, spans[at], stamps[at])
            at += run.length

    def in_runs(self) -> Iterator[Self]:
        """Each run as columns of its own."""
        at = 0
        for run in self.runs:
            end = at + run.length
            yield self if end - at == len(self) else self._cut(at, end, [run])
            at = end

    def _one(self, at: int, run: Run, span: int, stamp: int) -> PushedEnvelope:
        offset = (span >> SPAN_BITS) - self.base
        prints, tickets = FINGERPRINT_BYTES * at, ID_BYTES * at
        return PushedEnvelope(
            mesh=self.mesh,
            id=self.ids[at],
            fingerprint=self.prints[prints : prints + FINGERPRINT_BYTES],
            kind=run.kind,
            ref=run.ref,
            origin=run.origin,
            sender=self.sender,
            priority=run.priority,
            raw=self.payload[offset : offset + (span & SPAN_MASK)],
            broker_id=self.tickets[tickets : tickets + ID_BYTES],
            epoch=self.epoch,
            lamport=stamp,
        )

    def _cut(self, begin: int, end: int, runs: Sequence[Run] | None = None) -> Self:
        """Some of the rows. What is not theirs of the payload is left behind; `runs` are theirs, if
        it is known which.
        """
        spans = unpacked(self.spans)[begin:end]
        stamps = unpacked(self.stamps)[begin:end]
        first = spans[0] >> SPAN_BITS if end > begin else 0
        stop = (spans[-1] >> SPAN_BITS) + (spans[-1] & SPAN_MASK) if end > begin else 0
        return type(self)(
            mesh=self.mesh,
            sender=self.sender,
            epoch=self.epoch,
            payload=self.payload[first - self.base : stop - self.base],
            base=first,
            spans=spans.tobytes(),
            ids=self.ids[begin:end],
            prints=self.prints[FINGERPRINT_BYTES * begin : FINGERPRINT_BYTES * end],
            stamps=stamps.tobytes(),
            runs=_cut_runs(self.runs, begin, end) if runs is None else runs,
            highest=max(stamps, default=0),
            tickets=self.tickets[ID_BYTES * begin : ID_BYTES * end],
            size=sum([span & SPAN_MASK for span in spans]),
        )


def _cut_runs(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
    found: list[Run] = []
    at = 0
    for run in runs:
        length = min(at + run.length, end) - max(at, begin)
        if length > 0:
            found.append(run._replace(length=length))
        at += run.length
    return found


class Created(Sequence[AcceptResult]):
    """The answers for envelopes that were created one after another: a seq each, without gaps."""

    __slots__ = ("epoch", "first_seen_at", "seq", "tickets")

    def __init__(self, epoch: int, seq: int, tickets: bytes, first_seen_at: int) -> None:
        """`seq` is that of the first, `tickets` are the broker ids, joined."""
        self.epoch, self.seq, self.tickets = epoch, seq, tickets
        self.first_seen_at = first_seen_at

    def __len__(self) -> int:
        return len(self.tickets) // ID_BYTES

    @overload
    def __getitem__(self, at: int) -> AcceptResult: ...
    @overload
    def __getitem__(self, at: slice) -> Created: ...
    def __getitem__(self, at: int | slice) -> AcceptResult | Created:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "answers are cut, not thinned"
            tickets = self.tickets[ID_BYTES * begin : ID_BYTES * end]
            return Created(self.epoch, self.seq + begin, tickets, self.first_seen_at)
        place = range(len(self))[at]
        return AcceptResult(
            verdict=AcceptVerdict.CREATED,
            epoch=self.epoch,
            message_epoch=self.epoch,
            seq=self.seq + place,
            broker_id=self.tickets[ID_BYTES * place : ID_BYTES * (place + 1)],
            first_seen_at=self.first_seen_at,
        )


class Parts(Sequence[T]):
    """Sequences one behind the other, without copying them."""

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Sequence[Sequence[T]]) -> None:
        self.parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return list(self)[at]
        place = range(len(self))[at]
        part = bisect_right(self._ends, place)
        return self.parts[part][place - (self._ends[part - 1] if part else 0)]


def beside(
    batch: Sequence[PushedEnvelope], answers: Sequence[T]
) -> Iterable[tuple[Sequence[PushedEnvelope], Sequence[T]]]:
    """The parts of a batch, each with the part of the answers that belongs to it."""
    if not isinstance(batch, Parts):
        return [(batch, answers)]
    if len(batch.parts) == 1:
        return [(batch.parts[0], answers)]
    if isinstance(answers, Parts) and list(map(len, batch.parts)) == list(map(len, answers.parts)):
        return zip(batch.parts, answers.parts, strict=True)
    return _cut_beside(batch, answers)


def _cut_beside(batch: Parts[PushedEnvelope], answers: Sequence[T]) -> Iterator[Any]:
    rest = list(answers)
    at = 0
    for part in batch.parts:
        yield part, rest[at : at + len(part)]
        at += len(part)


def in_columns(batch: Sequence[PushedEnvelope]) -> list[PushColumns]:
    """A batch in columns, in its order. Envelopes that came one by one share columns as far as one
    sender's follow each other.
    """
    found: list[PushColumns] = []
    loose: list[PushedEnvelope] = []
    for part in batch.parts if isinstance(batch, Parts) else [batch]:
        if isinstance(part, PushColumns):
            found += _of_loose(loose)
            found.append(part)
            loose.clear()
        else:
            loose.extend(part)
    return found + _of_loose(loose)


def _of_loose(envelopes: Iterable[PushedEnvelope]) -> list[PushColumns]:
    return [PushColumns.of(list(those)) for _, those in groupby(envelopes, _COMMON)]


def byte_count(batch: Sequence[PushedEnvelope]) -> int:
    if isinstance(batch, PushColumns):
        return batch.size
    if isinstance(batch, Parts):
        return sum(map(byte_count, batch.parts))
    return sum([len(one.raw) for one in batch])


def highest_stamp(batch: Sequence[PushedEnvelope]) -> int:
    if isinstance(batch, PushColumns):
        return batch.highest
    return max([one.lamport for one in batch])
