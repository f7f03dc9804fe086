"""Looking at audit streams: which chains are here, whether they are whole, and what was refused.

An event that does not fit to its chain never gets into it (`rules/audit_chain.py`). It goes to the
quarantine of whatever brought it, with both hashes in the reason: that is the evidence, and here it
is found again by its code. So three things can be wrong with a chain, and each is told apart:
events are missing (they may still come), somebody has given one place to two events, or what is
stored here was changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.rules.audit_chain import (
    AuditChainRow,
    AuditRow,
    Neighbours,
    is_whole,
    named,
    refuse_fork,
)
from holdfast.rules.bodies import AuditAppend, decode_trusted_body, decode_value
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import AuditForked, BadInput, HoldfastError
from holdfast.rules.ids import id_text
from holdfast.rules.limits import AUDIT_GAPS_SHOWN_MAX, CHUNK_ROWS
from holdfast.rules.shown import Shown
from holdfast.storage.audit_port import AuditPlace
from holdfast.storage.ports import Reader


class AuditEntry(Shown, msgspec.Struct, frozen=True):
    """One event of an audit stream."""

    stream: str
    origin: str
    epoch: int
    seq: int
    id: str
    at: int
    payload: Any
    previous: str
    hash: str

    @classmethod
    def of(cls, row: AuditRow) -> AuditEntry:
        return cls(
            stream=row.stream,
            origin=row.origin,
            epoch=row.epoch,
            seq=row.seq,
            id=id_text(row.id),
            at=row.at,
            payload=decode_value(row.payload),
            previous=row.previous.hex(),
            hash=row.hash.hex(),
        )


class AuditFork(msgspec.Struct, frozen=True):
    """An event that was refused because its chain has another one there."""

    stream: str
    origin: str
    epoch: int
    seq: int
    id: str
    by: str
    """The link or lane that brought it; it lies in the quarantine of that."""
    number: int
    """Of the row in quarantine."""
    evidence: str


class AuditVerdict(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """What one chain comes to."""

    stream: str
    origin: str
    epoch: int
    last: int
    events: int
    missing: tuple[tuple[int, int], ...] = ()
    """Runs of numbers that are not here, the first and last of each; the first of many."""
    broken: str = ""
    """The first event here that is not what it says, or does not bind to the one before it."""
    forks: tuple[AuditFork, ...] = ()

    @property
    def gapless(self) -> bool:
        return self.events == self.last

    @property
    def sound(self) -> bool:
        return not self.broken and not self.forks


def place_of(row: AuditEntry | AuditRow) -> str:
    """Where an event stands in its stream, for whoever wants to go on behind it."""
    return f"{row.epoch}.{row.seq}.{row.origin}"


def read_place(text: str) -> tuple[str, int, int]:
    """Origin, epoch and number. BadInput if it is no place."""
    if not text:
        return ("", -1, 0)
    epoch, _, rest = text.partition(".")
    seq, _, origin = rest.partition(".")
    if not all(one.isascii() and one.isdecimal() and len(one) < 19 for one in (epoch, seq)):
        raise BadInput(
            f"{text!r} is no place in an audit stream", hint="give what a page ends with"
        )
    return (origin, int(epoch), int(seq))


def chains(tx: Reader, mesh: str, stream: str | None = None) -> Iterator[AuditChainRow]:
    """Every chain of a mesh, or of one stream of it, by stream, origin and epoch."""
    after = ("" if stream is None else stream, "", -1)
    while page := tx.audit_chains(mesh, after, CHUNK_ROWS):
        for row in page:
            if stream is not None and row.stream != stream:
                return
            yield row
        last = page[-1]
        after = (last.stream, last.origin, last.epoch)


def verdicts(tx: Reader, mesh: str, stream: str | None = None) -> Iterator[AuditVerdict]:
    """Reads every event again: does each hash to what it bears, and bind to the one before it?"""
    forks = list(forks_of(tx, mesh))
    for row in chains(tx, mesh, stream):
        theirs = tuple(
            one for one in forks if (one.stream, one.origin, one.epoch) == tuple(row.chain[1:])
        )
        yield AuditVerdict(
            stream=row.stream,
            origin=row.origin,
            epoch=row.epoch,
            last=row.last,
            events=row.events,
            missing=_missing(tx, row),
            broken=_broken(tx, row),
            forks=theirs,
        )


def forks_of(tx: Reader, mesh: str) -> Iterator[AuditFork]:
    """Events of a mesh that were refused, as the quarantine has them."""
    after = 0
    while page := tx.quarantine_list(None, after, CHUNK_ROWS):
        for row in page:
            event = _refused(row.raw) if row.code == AuditForked.code else None
            if event is not None and event.mesh == mesh:
                yield AuditFork(
                    stream=event.stream,
                    origin=event.origin,
                    epoch=event.epoch,
                    seq=event.seq,
                    id=id_text(event.id),
                    by=row.link,
                    number=row.number,
                    evidence=row.message,
                )
        after = page[-1].number


def _refused(raw: bytes) -> AuditRow | None:
    try:
        envelope = decode_trusted(raw)
        body = decode_trusted_body(envelope)
    except (HoldfastError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return body.event(envelope) if isinstance(body, AuditAppend) else None


def _missing(tx: Reader, row: AuditChainRow) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    after = 0
    while row.events < row.last and len(found) < AUDIT_GAPS_SHOWN_MAX:
        gap = tx.audit_gap(row.chain, after)
        if gap is None:
            break
        found.append(gap)
        after = gap[1]
    return tuple(found)


def _broken(tx: Reader, chain: AuditChainRow) -> str:
    before: AuditRow | None = None
    count = 0
    for row in _events(tx, chain):
        count += 1
        if not is_whole(row):
            return f"{named(row)} does not hash to what it bears"
        follows = before is not None and before.seq + 1 == row.seq
        try:
            refuse_fork(row, Neighbours(None, before if follows else None, None))
        except AuditForked as error:
            return error.message
        before = row
    if (count, 0 if before is None else before.seq) != (chain.events, chain.last):
        return f"{count} events are here, and {chain.events} up to {chain.last} were counted"
    return ""


def _events(tx: Reader, chain: AuditChainRow) -> Iterator[AuditRow]:
    after: AuditPlace = (chain.stream, chain.origin, chain.epoch, 0)
    while page := tx.audit_scan(chain.mesh, chain.stream, chain.origin, after, CHUNK_ROWS):
        for row in page:
            if row.epoch != chain.epoch:
                return
            yield row
        last = page[-1]
        after = (last.stream, last.origin, last.epoch, last.seq)
