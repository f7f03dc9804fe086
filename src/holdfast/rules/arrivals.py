"""Envelopes as they arrive from outside: decoded once, and checked as far as that needs no store.

An arrival comes in one of two forms. A plain fact is a tuple with just what the log stores of it
(`Arrived`), because facts come by the hundred thousand. Everything else, bad envelopes included,
is an `Arrival` with its decoded envelope and body, or with the error that refuses it.

Where there is a compiled part, plain facts that follow each other are columns (`fact_columns`). So
a batch is one of three: a list, columns, or parts of both one behind the other. Whoever looks at
each arrival need not know; whoever asks about all of them asks `parts_of` or `kinds_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple, overload

from holdfast.rules import compiled
from holdfast.rules.bodies import Body, Fact, FileShare, MessageSend, decode_body
from holdfast.rules.commit_fields import check_commit_fields
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import (
    HoldfastError,
    Refused,
)
from holdfast.rules.fact_columns import FactColumns, read_columns
from holdfast.rules.fact_decoder import FACT, read_fact
from holdfast.rules.message import check_fingerprint

Arrived = tuple[bytes, str, str, str, str, int, bytes]
"""What the log stores of an entry: id, mesh, op, entity, origin, lamport, raw."""


class Arrival:
    """One envelope with its body, decoded and checked; `error` says why it is refused."""

    __slots__ = ("body", "envelope", "error", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.envelope: Envelope | None = None
        self.body: Body | None = None
        self.error: HoldfastError | None = None
        try:
            self.envelope = decode(raw)
            check_commit_fields(self.envelope)
            self.body = decode_body(self.envelope)
            if isinstance(self.body, MessageSend):
                check_fingerprint(self.envelope, self.body)
        except Refused as error:
            self.error = error


Arrivals = Sequence[Arrived | Arrival]
"""A batch in the order in which it arrived."""
Kind = tuple[str, str, str]
"""Mesh, op and origin of an envelope."""

_RUN_MIN: Final = 8
"""Facts that are worth columns of their own: each costs a store a statement."""


class Parted(Sequence[Arrived | Arrival]):
    """Parts of a batch one behind the other: columns of facts, and lists of all else."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[Arrivals]) -> None:
        self.parts = parts
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Arrived | Arrival]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, at: int) -> Arrived | Arrival: ...
    @overload
    def __getitem__(self, at: slice) -> Arrivals: ...
    def __getitem__(self, at: int | slice) -> Arrived | Arrival | Arrivals:
        if isinstance(at, int):
            place = range(self._size)[at]
            return next(iter(self[place : place + 1]))
        begin, end, step = at.indices(self._size)
        assert step == 1, "batches are cut, not thinned"
        if end - begin == self._size:
            return self
        found: list[Arrivals] = []
        for part in self.parts:
            piece = part[max(begin, 0) : max(end, 0)]
            if len(piece):
                found.append(piece)
            begin, end = begin - len(part), end - len(part)
        return Parted(found)


def read_arrivals(batch: Iterable[bytes]) -> Arrivals:
    """Decodes and checks a batch of envelopes. Bad ones are in the result with their error."""
    raws = tuple(map(bytes, batch))
    if compiled.part is None or len(raws) < _RUN_MIN:
        return [_read(raw) for raw in raws]
    first = read_fact(raws[0])
    odd, facts = read_columns(raws, "" if first is None else first[4])
    if len(facts) < _RUN_MIN * (len(facts.runs) + len(odd)):  # they hardly follow each other
        return _in_list(odd, facts, raws)
    return facts if not odd else _in_parts(odd, facts, raws)


def _read(raw: bytes) -> Arrived | Arrival:
    return read_fact(raw) or Arrival(raw)


def _in_list(odd: Sequence[int], facts: FactColumns, raws: Sequence[bytes]) -> Arrivals:
    others, rest = frozenset(odd), iter(facts)
    return [_read(raw) if at in others else next(rest) for at, raw in enumerate(raws)]


def _in_parts(odd: Sequence[int], facts: FactColumns, raws: Sequence[bytes]) -> Arrivals:
    """The facts before, between and behind all else: long runs of them as columns."""
    parts: list[Arrivals] = []
    others: list[Arrived | Arrival] = []
    done = 0
    for before, place in pairwise((-1, *odd, len(raws))):
        run = facts[done : done + place - before - 1]
        done += len(run)
        if len(run) < _RUN_MIN:
            others += run
        else:
            parts += (others, run) if others else (run,)
            others = []
        if place < len(raws):
            others.append(_read(raws[place]))
    if others:
        parts.append(others)
    return parts[0] if len(parts) == 1 else Parted(parts)


def parts_of(arrivals: Arrivals) -> Sequence[Arrivals]:
    """A batch as columns of facts, and lists of what is not in columns."""
    if isinstance(arrivals, Parted):
        return arrivals.parts
    return (arrivals,) if len(arrivals) else ()


def kinds_of(arrivals: Arrivals) -> set[Kind]:
    """The kinds of envelopes of a batch; what cannot be decoded has none."""
    kinds: set[Kind] = set()
    for part in parts_of(arrivals):
        if isinstance(part, FactColumns):
            kinds.update([(run.mesh, FACT, run.origin) for run in part.runs])
        else:
            kinds.update([(one[1], one[2], one[4]) for one in headers_of(part)])
    return kinds


def not_in_columns(arrivals: Arrivals) -> Iterable[Arrived | Arrival]:
    """All of a batch but the facts that are in columns."""
    return chain.from_iterable(
        [part for part in parts_of(arrivals) if not isinstance(part, FactColumns)]
    )


def raw_of(arrival: Arrived | Arrival) -> bytes:
    """The bytes of an envelope as they came."""
    return arrival[-1] if isinstance(arrival, tuple) else arrival.raw


def header_of(arrival: Arrived | Arrival) -> Arrived | None:
    """What the log would store of an arrival; None if its envelope cannot be decoded."""
    if isinstance(arrival, tuple):
        return arrival
    e = arrival.envelope
    if e is None:
        return None
    return e.id, e.mesh, e.op, e.entity, e.origin, e.lamport, arrival.raw


def headers_of(arrivals: Arrivals) -> Iterator[Arrived]:
    """The headers of all that can be decoded."""
    return (header for one in arrivals if (header := header_of(one)) is not None)


class Named(NamedTuple):
    """An object that an entry names."""

    sha256: str
    size: int | None
    """None if the entry does not tell it."""


def objects_of(arrivals: Arrivals) -> list[Named]:
    """The objects that a batch names, each once. They must be on this node before the batch is
    applied. A refused arrival names nothing.
    """
    objects: dict[str, Named] = {}
    for arrival in not_in_columns(arrivals):
        if isinstance(arrival, tuple) or arrival.error is not None:
            continue  # a plain fact names nothing
        if isinstance(arrival.body, FileShare) and arrival.body.content is None:
            sha = arrival.body.sha256.hex()
            objects.setdefault(sha, Named(sha, arrival.body.size))
        elif isinstance(arrival.body, Fact):
            for sha in (digest.hex() for digest in arrival.body.objects):
                objects.setdefault(sha, Named(sha, None))
    return list(objects.values())
