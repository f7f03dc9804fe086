"""The one door in: whatever arrives from outside passes here.

Broker, bus, zone, import and pipeline differ only in how bytes reach this point. Every check comes
before the first change, so that a refused envelope leaves nothing behind and its neighbours in the
batch are not disturbed.

Facts come by the thousand and touch no table but the log. A run of them that are plain and new is
appended at once; as soon as anything about a run needs a second look, its entries go the long way
one by one. Both ways give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeVar

import msgspec

from holdfast.node.core.change import known_receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.fold import current_version, fold
from holdfast.rules.arrivals import Arrival, Arrivals, Arrived, read_arrivals
from holdfast.rules.bodies import Body, MessageSend
from holdfast.rules.broker_sync import is_forged
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import (
    BadEnvelope,
    ForgedOrigin,
    HoldfastError,
    Refused,
    TooOld,
    UnknownMesh,
)
from holdfast.rules.ids import id_text
from holdfast.rules.lamport import check_incoming, tick
from holdfast.rules.limits import (
    LAMPORT_LEAP_MAX,
    LAMPORT_MAX,
)
from holdfast.rules.merge import version_of
from holdfast.rules.order import Version, is_newer
from holdfast.rules.rebuild import UNCOUNTED
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import InboxRow, MeshRow, PeerRow
from holdfast.storage.ports import Reader, Transaction

T = TypeVar("T")

_NEVER_OLD: Final = ("task.", "fact.", "message.")
"""Ops that cannot bring back what was deleted, however old they are."""

_RUN_AGAIN: Final = 64
"""A run in which an id is known is tried again in pieces of this size: often only a few are."""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """What became of one envelope: an outcome and its place in our log, or the error that refused
    it.
    """

    raw_id: bytes | None
    outcome: Outcome | None
    offset: int | None = None
    error: HoldfastError | None = None

    @property
    def id(self) -> str | None:
        return None if self.raw_id is None else id_text(self.raw_id)


class _Clock:
    """A mesh's clock while a batch passes: stamps that moved it are written together."""

    __slots__ = ("_mesh", "_stamps", "forgotten_lamport", "value")

    def __init__(self, row: MeshRow) -> None:
        self._mesh = row.slug
        self._stamps: list[int] = []
        self.value = row.lamport
        self.forgotten_lamport = row.forgotten_lamport

    def merge(self, lamport: int) -> None:
        self.value = tick(self.value, lamport)
        self._stamps.append(lamport)

    def surely_takes(self, stamps: Sequence[int]) -> bool:
        """None of them is absurd, wherever it stands among the others, and the clock lasts."""
        highest = max(stamps)
        last = max(self.value, highest) + len(stamps)
        return highest - self.value <= LAMPORT_LEAP_MAX and last < LAMPORT_MAX

    def write(self, tx: Transaction, stamps: Sequence[int] = ()) -> None:
        """What moved it so far, and then these stamps."""
        if self._stamps or stamps:
            self.value = tx.tick_merged_run(self._mesh, [*self._stamps, *stamps])
            self._stamps = []


class Intake:
    """A batch of arrivals, applied in order in one transaction: call it with one."""

    def __init__(
        self,
        ctx: NodeContext,
        batch: Iterable[bytes],
        via: int = 0,
        delivered: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """`via` is the number of the zone that brought them.

        `delivered` holds, by their bytes, those that a broker brought, each with its id there: the
        messages among them are for us and go to the inbox. By whatever other way a message comes,
        it is history, and only the log has it.
        """
        self._ctx = ctx
        self._via = via
        self._delivered = delivered or {}
        self._arrivals = read_arrivals(batch)
        self._clocks: dict[str, _Clock | None] = {}
        self._seen: dict[tuple[str, str], int] = {}

    @classmethod
    def of(
        cls,
        ctx: NodeContext,
        arrivals: Arrivals,
        via: int = 0,
        delivered: Mapping[bytes, bytes] | None = None,
    ) -> Intake:
        """For arrivals that are read already."""
        intake = cls(ctx, (), via, delivered)
        intake._arrivals = arrivals
        return intake

    def __call__(self, tx: Transaction) -> list[Applied]:
        self._clocks, self._seen = {}, {}
        results: list[Applied] = []
        for _, group in groupby(self._arrivals, type):
            members = list(group)
            facts = [member for member in members if isinstance(member, tuple)]
            if facts:
                results += self._take_facts(tx, facts)
            else:
                results += [self._take(tx, one) for one in members if isinstance(one, Arrival)]
        for clock in self._clocks.values():
            if clock is not None:
                clock.write(tx)
        now = self._ctx.now_ms()
        for (mesh, peer), lamport in self._seen.items():
            tx.peer_seen(PeerRow(mesh=mesh, peer=peer, last_seen_at=now, last_lamport=lamport))
        return results

    # --- many at once ------------------------------------------------------------------------

    def _take_facts(self, tx: Transaction, run: list[Arrived]) -> list[Applied]:
        done = self._take_run(tx, run)
        if done is not None:
            return done
        results: list[Applied] = []
        for start in range(0, len(run), _RUN_AGAIN):
            piece = run[start : start + _RUN_AGAIN]
            again = len(piece) < len(run) and tx.log_find(piece[0][0]) is None
            done = self._take_run(tx, piece) if again else None
            results += [self._take_fact(tx, fact) for fact in piece] if done is None else done
        return results

    def _take_run(self, tx: Transaction, run: list[Arrived]) -> list[Applied] | None:
        """Appends all of them, or does nothing and says None."""
        stamps: dict[str, list[int]] = _stamps_by(itemgetter(1), run)
        for mesh, lamports in stamps.items():
            clock = self._clock(tx, mesh)
            if clock is None or not clock.surely_takes(lamports):
                return None
        first = tx.log_append_new(run, self._ctx.now_ms(), self._via)
        if first is None:
            return None
        for mesh, lamports in stamps.items():
            clock = self._clock(tx, mesh)
            assert clock is not None
            clock.write(tx, lamports)
        for (mesh, origin), lamports in _stamps_by(itemgetter(1, 4), run).items():
            self._hear(mesh, origin, max(lamports))
        return [Applied(fact[0], Outcome.APPLIED, offset) for offset, fact in enumerate(run, first)]

    # --- one by one --------------------------------------------------------------------------

    def _take_fact(self, tx: Transaction, fact: Arrived) -> Applied:
        entry = tx.log_find(fact[0])
        if entry is not None and entry.raw == fact[-1]:  # to the byte, so nothing else can differ
            self._hear(entry.mesh, entry.origin, entry.lamport)
            return Applied(entry.id, Outcome.NOOP_ALREADY_APPLIED, entry.offset)
        return self._take(tx, Arrival(fact[-1]))

    def _take(self, tx: Transaction, arrival: Arrival) -> Applied:
        envelope = arrival.envelope
        if envelope is None:
            return Applied(None, None, error=arrival.error)
        if arrival.error is not None:
            return Applied(envelope.id, None, error=arrival.error)
        try:
            known = known_receipt(tx, envelope.id, envelope.fingerprint, envelope.mesh)
            if known is not None:
                self._hear(envelope.mesh, envelope.origin, envelope.lamport)
                if self._is_for_us(arrival) and tx.log_get(known.offset) is not None:
                    # It was history until now; or it is a redelivery, which the inbox knows.
                    self._put_into_inbox(tx, arrival, known.offset)
                return Applied(envelope.id, known.outcome, known.offset)
            clock, current = self._examine(tx, envelope, arrival.body)
        except Refused as error:
            return Applied(envelope.id, None, error=error)
        clock.merge(envelope.lamport)
        self._hear(envelope.mesh, envelope.origin, envelope.lamport)
        offset = tx.log_append(
            envelope.id,
            envelope.mesh,
            envelope.op,
            envelope.entity,
            envelope.origin,
            envelope.lamport,
            self._ctx.now_ms(),
            arrival.raw,
            self._via,
        )
        outcome = fold(tx, self._ctx, envelope, arrival.body, offset, current)
        if self._is_for_us(arrival):
            self._put_into_inbox(tx, arrival, offset)
        return Applied(envelope.id, outcome, offset)

    def _is_for_us(self, arrival: Arrival) -> bool:
        return (
            isinstance(arrival.body, MessageSend)
            and arrival.raw in self._delivered
            and arrival.envelope is not None
            and arrival.envelope.origin != self._ctx.peer
        )

    def _put_into_inbox(self, tx: Transaction, arrival: Arrival, offset: int) -> None:
        envelope = arrival.envelope
        assert envelope is not None
        assert envelope.to is not None, "checked with the body"
        kind, ref = envelope.to
        tx.inbox_add(
            InboxRow(
                id=envelope.id,
                mesh=envelope.mesh,
                kind=kind,
                ref=ref,
                sender=envelope.origin,
                priority=envelope.priority,
                offset=offset,
                broker_id=self._delivered[arrival.raw],
                received_at=self._ctx.now_ms(),
            )
        )

    def _examine(
        self, tx: Reader, envelope: Envelope, body: Body | None
    ) -> tuple[_Clock, Version | None]:
        """Every check that needs the store. Returns the clock that the envelope moves and the
        version that it meets.
        """
        clock = self._clock(tx, envelope.mesh)
        if clock is None:
            raise UnknownMesh(f"there is no mesh {envelope.mesh!r}")
        check_incoming(clock.value, envelope.lamport)
        if body is None:
            return clock, None
        current = current_version(tx, envelope, body)
        _check_not_forgotten(envelope, body, current, clock.forgotten_lamport)
        return clock, current

    def _clock(self, tx: Reader, mesh: str) -> _Clock | None:
        if mesh not in self._clocks:
            row = tx.mesh_get(mesh)
            self._clocks[mesh] = None if row is None else _Clock(row)
        return self._clocks[mesh]

    def _hear(self, mesh: str, origin: str, lamport: int) -> None:
        if origin != self._ctx.peer:
            key = (mesh, origin)
            self._seen[key] = max(self._seen.get(key, 0), lamport)


def is_news(ctx: NodeContext, raw: bytes, tx: Reader) -> bool | None:
    """Whether an envelope would be taken in: False if it is known, None if it would be refused."""
    arrival = Arrival(raw)
    envelope = arrival.envelope
    if envelope is None or arrival.error is not None:
        return None
    try:
        if known_receipt(tx, envelope.id, envelope.fingerprint, envelope.mesh) is not None:
            return False
        Intake(ctx, ())._examine(tx, envelope, arrival.body)
    except Refused:
        return None
    return True


def _stamps_by(key: Callable[[Arrived], T], run: list[Arrived]) -> dict[T, list[int]]:
    """The lamports of a run in order, for each value of a key."""
    keys = list(map(key, run))
    if keys.count(keys[0]) == len(keys):  # nearly always: one mesh, one origin
        return {keys[0]: [fact[5] for fact in run]}
    found: dict[T, list[int]] = {}
    for name, fact in zip(keys, run, strict=True):
        found.setdefault(name, []).append(fact[5])
    return found


def _check_not_forgotten(
    envelope: Envelope, body: Body, current: Version | None, forgotten_lamport: int
) -> None:
    """A write older than removed tombstones could bring back what one of them had deleted."""
    if envelope.lamport > forgotten_lamport or envelope.op.startswith(_NEVER_OLD):
        return
    if current is None or is_newer(version_of(envelope), current):
        raise TooOld(
            f"{envelope.op} {envelope.entity!r} of {envelope.origin} has stamp {envelope.lamport}; "
            f"this node has forgotten deletions up to {forgotten_lamport}"
        )


def objection(
    engine: NodeEngine, slug: str, arrival: Arrived | Arrival, tx: Reader
) -> HoldfastError | None:
    """What only one who knows where it came from can say against an envelope."""
    if isinstance(arrival, tuple):
        mesh, origin, id = arrival[1], arrival[4], arrival[0]
    elif arrival.envelope is not None:
        envelope = arrival.envelope
        mesh, origin, id = envelope.mesh, envelope.origin, envelope.id
    else:
        return None  # the intake says what is wrong with it
    if mesh != slug:
        return BadEnvelope(f"an envelope of the mesh {mesh!r} came with those of {slug!r}")
    if origin != engine.ctx.peer or tx.log_find(id) is not None or tx.forgotten(id) is not None:
        return None
    found = Arrival(arrival[-1]) if isinstance(arrival, tuple) else arrival
    assert found.envelope is not None
    if found.envelope.epoch == UNCOUNTED:
        return None  # somebody told again what we wrote once: our own number is not in it
    if is_forged(False, found.envelope.epoch, tx.epoch()):
        return ForgedOrigin(
            f"an entry in our own name, {found.envelope.seq} of epoch {found.envelope.epoch}, is "
            "not the one that we wrote",
            hint="two nodes use one name and key, or somebody makes up entries; see the quarantine",
        )
    return None
