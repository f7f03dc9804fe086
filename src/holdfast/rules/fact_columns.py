"""Plain facts as they arrive, in columns: one value for thousands of them, as the log wants them.

Facts come by the hundred thousand, and nearly all that one batch brings are of one mesh and one
origin. As a tuple each is a dozen objects until it is stored. So the compiled part reads a batch
into columns (`_facts.h`): envelopes lie one after another, ids, stamps and leaf hashes side by
side, and mesh and origin stand once for each run of facts that share them. A store takes the rows
out of these by SQL (`storage/sqlite/log.py`).

Who wants facts one by one gets them: columns are a sequence of `Arrived`, each made when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar, overload

from holdfast.rules import compiled
from holdfast.rules.fact_decoder import FACT
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.leaf import LEAF_BYTES

if TYPE_CHECKING:
    from holdfast.rules.arrivals import Arrived

T = TypeVar("T")

SUBJECT_BITS: Final = 11
SIZE_BITS: Final = 22
"""A span is one number: where an envelope begins, below it how long it is, and below that how long
its subject is.
"""
SUBJECT_MASK: Final = (1 << SUBJECT_BITS) - 1
SIZE_MASK: Final = (1 << SIZE_BITS) - 1
STAMP_DIGITS: Final = 19
_NUMBER_BYTES: Final = 8


class FactRun(NamedTuple):
    """What facts that follow each other have in common, and how many they are."""

    mesh: str
    origin: str
    subject_at: int
    """Where in an envelope a subject begins if one byte says its length; a longer one has one byte
    more before it, or two."""
    length: int
    highest: int
    """Of their stamps."""


class FactColumns(Sequence["Arrived"]):
    """Facts that were read and checked, in the order in which they arrived."""

    __slots__ = ("digits", "ids", "leaves", "payload", "runs", "spans", "stamps")

    def __init__(
        self,
        payload: bytes,
        ids: bytes,
        spans: bytes,
        stamps: bytes,
        digits: bytes,
        leaves: bytes,
        runs: Sequence[FactRun],
    ) -> None:
        """`spans` lead into `payload`. Spans and stamps are numbers of the machine, eight bytes
        each; `digits` are the stamps once more, as text.
        """
        self.payload, self.ids, self.spans = payload, ids, spans
        self.stamps, self.digits, self.leaves = stamps, digits, leaves
        self.runs = runs

    def __len__(self) -> int:
        return len(self.ids) // ID_BYTES

    def __iter__(self) -> Iterator[Arrived]:
        at = 0
        spans, stamps = self.numbers(self.spans), self.numbers(self.stamps)
        for run in self.runs:
            for place in range(at, at + run.length):
                yield self._one(run, place, spans[place], stamps[place])
            at += run.length

    @overload
    def __getitem__(self, at: int) -> Arrived: ...
    @overload
    def __getitem__(self, at: slice) -> Self: ...
    def __getitem__(self, at: int | slice) -> Arrived | Self:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            assert step == 1, "columns are cut, not thinned"
            return self if end - begin == len(self) else self._cut(begin, max(begin, end))
        place = range(len(self))[at]
        return next(iter(self._cut(place, place + 1)))

    @staticmethod
    def numbers(column: bytes) -> memoryview[int]:
        return memoryview(column).cast("q")

    def id(self, place: int) -> bytes:
        return self.ids[ID_BYTES * place : ID_BYTES * (place + 1)]

    def all_ids(self) -> list[bytes]:
        return [self.ids[at : at + ID_BYTES] for at in range(0, len(self.ids), ID_BYTES)]

    def sizes(self) -> list[int]:
        """How long each envelope is."""
        return [span >> SUBJECT_BITS & SIZE_MASK for span in self.numbers(self.spans)]

    def _one(self, run: FactRun, place: int, span: int, stamp: int) -> Arrived:
        begin = span >> SIZE_BITS + SUBJECT_BITS
        size, about = span >> SUBJECT_BITS & SIZE_MASK, span & SUBJECT_MASK
        subject = begin + run.subject_at + (about > 31) + (about > 0xFF)
        return (
            self.id(place),
            run.mesh,
            FACT,
            self.payload[subject : subject + about].decode(),
            run.origin,
            stamp,
            self.payload[begin : begin + size],
        )

    def _cut(self, begin: int, end: int) -> Self:
        """Some of the rows; the payload stays whole."""
        stamps = self.stamps[_NUMBER_BYTES * begin : _NUMBER_BYTES * end]
        return type(self)(
            self.payload,
            self.ids[ID_BYTES * begin : ID_BYTES * end],
            self.spans[_NUMBER_BYTES * begin : _NUMBER_BYTES * end],
            stamps,
            self.digits[STAMP_DIGITS * begin : STAMP_DIGITS * end],
            self.leaves[LEAF_BYTES * begin : LEAF_BYTES * end],
            _cut_runs(self.runs, begin, end, self.numbers(stamps)),
        )


def _cut_runs(
    runs: Sequence[FactRun], begin: int, end: int, stamps: Sequence[int]
) -> list[FactRun]:
    found: list[FactRun] = []
    at = done = 0
    for run in runs:
        length = min(at + run.length, end) - max(at, begin)
        if length > 0:
            highest = max(stamps[done : done + length])
            found.append(run._replace(length=length, highest=highest))
            done += length
        at += run.length
    return found


def read_columns(batch: tuple[bytes, ...], origin: str) -> tuple[Sequence[int], FactColumns]:
    """The plain facts of a batch, and before them the places of all that is not surely one.
    `origin` is a name that was checked, or empty. There is a compiled part.
    """
    assert compiled.part is not None
    odd, payload, ids, spans, stamps, digits, leaves, runs = compiled.part.read_facts(batch, origin)
    common = [FactRun(*run) for run in runs]
    found = FactColumns(payload, ids, spans, stamps, digits, leaves, common)
    return FactColumns.numbers(odd), found


# --- of facts, in columns or not -----------------------------------------------------------------


def stamps_by_mesh(facts: Sequence[Arrived]) -> dict[str, Sequence[int]]:
    """The stamps of facts by their mesh, in order."""
    if not isinstance(facts, FactColumns):
        return _stamps_by(itemgetter(1), facts)
    stamps = facts.numbers(facts.stamps)
    if len(facts.runs) == 1:
        return {facts.runs[0].mesh: stamps}
    found: dict[str, list[int]] = {}
    at = 0
    for run in facts.runs:
        found.setdefault(run.mesh, []).extend(stamps[at : at + run.length])
        at += run.length
    return {**found}


def highest_by_origin(facts: Sequence[Arrived]) -> dict[tuple[str, str], int]:
    """The highest stamp of each origin in each mesh."""
    if not isinstance(facts, FactColumns):
        by_origin = _stamps_by(itemgetter(1, 4), facts)
        return {of: max(stamps) for of, stamps in by_origin.items()}
    found: dict[tuple[str, str], int] = {}
    for run in facts.runs:
        of = (run.mesh, run.origin)
        found[of] = max(run.highest, found.get(of, 0))
    return found


def _stamps_by(key: Callable[[Arrived], T], facts: Sequence[Arrived]) -> dict[T, Sequence[int]]:
    keys = list(map(key, facts))
    if keys.count(keys[0]) == len(keys):  # nearly always: one mesh, one origin
        return {keys[0]: [fact[5] for fact in facts]}
    found: dict[T, list[int]] = {}
    for of, fact in zip(keys, facts, strict=True):
        found.setdefault(of, []).append(fact[5])
    return {**found}
