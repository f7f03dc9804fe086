"""The intake: every envelope from outside comes into the log here, and nowhere else.

Links, brokers, imports and the pipeline differ only in how the bytes reach this point. All checks
of an envelope come before its first change, so that a refused one leaves nothing behind and does
not disturb the others of its batch.

Facts come by the thousand and touch no table but the log. A run of plain, new facts is appended in
one go. If that is not possible, because one of them is known or needs a closer look, the facts of
the run are taken one by one. Values and memories are taken in runs too (`runs/plain_arrivals`).
All ways have the same results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, overload

import msgspec

from holdfast.node.core.change import (
    Receipt,
    known_receipt,
    refuse_undecided,
)
from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.fold import (
    current_version,
    fold,
    is_live,
    model_of,
    refuse_forked_event,
)
from holdfast.node.core.operations import refused_send, set_aside
from holdfast.node.core.streams import PlacedInStreams
from holdfast.rules.arrivals import (
    Arrival,
    Arrivals,
    Arrived,
    header_of,
    parts_of,
    read_arrivals,
)
from holdfast.rules.bodies import AuditAppend, Body, MessageSend, family_of
from holdfast.rules.broker_sync import is_forged
from holdfast.rules.data_classes import is_decided
from holdfast.rules.envelope import UNCOUNTED, Envelope, decode_trusted
from holdfast.rules.errors import (
    BadEnvelope,
    ForgedOrigin,
    HoldfastError,
    IdReused,
    MeshDeleted,
    NotCommitted,
    Refused,
    SenderBlocked,
    TooOld,
    UnknownMesh,
)
from holdfast.rules.fact_columns import FactColumns, highest_by_origin, stamps_by_mesh
from holdfast.rules.ids import id_text
from holdfast.rules.lamport import check_incoming, highest_taken, tick
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.merge import DELETES, version_of
from holdfast.rules.order import Version, is_newer
from holdfast.rules.quorum.commit_record import intent_of
from holdfast.rules.reconcile import Outcome
from holdfast.rules.retention import buried_name, is_too_old
from holdfast.rules.rows import Entry, InboxRow, MeshRow, OutboxRow, PeerRow
from holdfast.storage.ports import Reader, Transaction

if TYPE_CHECKING:
    from holdfast.node.core.runs.plain_arrivals import Plain

_NEVER_OLD: Final = ("task.", "fact.", "message.", "audit.")
"""Ops that cannot bring back what was deleted, however old they are."""

_RUN_AGAIN: Final = 64
"""A run in which some id is known is tried again in pieces of this size: most have no known id."""


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


class AppliedFacts(Sequence[Applied]):
    """What became of facts in columns that were appended as a whole: all are new."""

    __slots__ = ("_facts", "_first")

    def __init__(self, facts: FactColumns, first: int) -> None:
        self._facts, self._first = facts, first

    def __len__(self) -> int:
        return len(self._facts)

    @overload
    def __getitem__(self, at: int) -> Applied: ...
    @overload
    def __getitem__(self, at: slice) -> list[Applied]: ...
    def __getitem__(self, at: int | slice) -> Applied | list[Applied]:
        if isinstance(at, slice):
            return [self._one(place) for place in range(len(self))[at]]
        return self._one(range(len(self))[at])

    def _one(self, place: int) -> Applied:
        return Applied(self._facts.id(place), Outcome.APPLIED, self._first + place)


class _Clock:
    """A mesh's clock while a batch is applied. The stamps that move it are stored together."""

    __slots__ = (
        "_mesh",
        "_now_ms",
        "_stamps",
        "forgotten_floor",
        "forgotten_lamport",
        "on_bus",
        "value",
    )

    def __init__(self, row: MeshRow, now_ms: int) -> None:
        self._mesh, self._now_ms = row.slug, now_ms
        self._stamps: list[int] = []
        self.value = row.lamport
        self.on_bus = row.on_bus
        self.forgotten_lamport = row.forgotten_lamport
        self.forgotten_floor = row.forgotten_floor

    def check(self, lamport: int) -> None:
        """Raises BadStamp for a stamp that this clock does not merge."""
        check_incoming(self.value, lamport, self._now_ms)

    def merge(self, lamport: int) -> None:
        self.value = tick(self.value, lamport)
        self._stamps.append(lamport)

    def surely_takes(self, stamps: Sequence[int]) -> bool:
        """Whether no stamp is too far ahead, in whatever order they come, and the clock does not
        run over.
        """
        highest = max(stamps)
        last = max(self.value, highest) + len(stamps)
        return highest <= highest_taken(self.value, self._now_ms) and last < LAMPORT_MAX

    def write(self, tx: Transaction, stamps: Sequence[int] = ()) -> None:
        """Stores the stamps that were merged so far, and then `stamps`."""
        if self._stamps or stamps:
            self.value = tx.tick_merged_run(self._mesh, [*self._stamps, *stamps], self._now_ms)
            self._stamps = []


class Intake:
    """A batch of arrivals. Calling it with a transaction applies them in order, and returns what
    became of each.
    """

    def __init__(
        self,
        ctx: NodeContext,
        batch: Iterable[bytes],
        via: int = 0,
        delivered: Mapping[bytes, bytes] | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """`via` is the number of the zone that brought them.

        `delivered` maps the bytes of each envelope that a broker brought to its id at the broker.
        Messages among those are for us and go to the inbox. A message that came in another way goes
        into the log only.

        `counts`: the numbers of new entries in their streams are noted. A caller that knows them
        already does so by itself.
        """
        self._counts = counts
        self._ctx = ctx
        self._via = via
        self._delivered = delivered or {}
        self._arrivals = read_arrivals(batch)
        self._clocks: dict[str, _Clock | None] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._placed = PlacedInStreams()
        self._blocked: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        ctx: NodeContext,
        arrivals: Arrivals,
        via: int = 0,
        delivered: Mapping[bytes, bytes] | None = None,
        *,
        counts: bool = True,
    ) -> Intake:
        """An intake of arrivals that are decoded already."""
        intake = cls(ctx, (), via, delivered, counts=counts)
        intake._arrivals = arrivals
        return intake

    def __call__(self, tx: Transaction) -> Sequence[Applied]:
        self._clocks, self._seen, self._placed = {}, {}, PlacedInStreams()
        self._blocked = None
        parts = [self._take_part(tx, part) for part in parts_of(self._arrivals)]
        results = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        for clock in self._clocks.values():
            if clock is not None:
                clock.write(tx)
        self._placed.write(tx)
        if not isinstance(results, AppliedFacts):
            _count_dropped(tx, results)
        now = self._ctx.now_ms()
        for (mesh, peer), lamport in self._seen.items():
            tx.peer_seen(PeerRow(mesh=mesh, peer=peer, last_seen_at=now, last_lamport=lamport))
        return results

    # --- many at once ------------------------------------------------------------------------

    def _take_part(self, tx: Transaction, part: Arrivals) -> Sequence[Applied]:
        if isinstance(part, FactColumns):
            return self._take_facts(tx, part)
        results: list[Applied] = []
        for _, group in groupby(part, type):
            members = list(group)
            facts = [member for member in members if isinstance(member, tuple)]
            if facts:
                results += self._take_facts(tx, facts)
            else:
                changes = [member for member in members if isinstance(member, Arrival)]
                results += self._take_changes(tx, changes)
        return results

    def _take_facts(self, tx: Transaction, run: Sequence[Arrived]) -> Sequence[Applied]:
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

    def _take_run(self, tx: Transaction, run: Sequence[Arrived]) -> Sequence[Applied] | None:
        """Appends all of them, or does nothing and returns None."""
        stamps = stamps_by_mesh(run)
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
            if clock.on_bus and self._counts:
                for offset, fact in enumerate(run, first):
                    if fact[1] == mesh:
                        self._placed.add(fact[-1], offset)
        for (mesh, origin), highest in highest_by_origin(run).items():
            self._hear(mesh, origin, highest)
        if isinstance(run, FactColumns):
            return AppliedFacts(run, first)
        return [Applied(fact[0], Outcome.APPLIED, offset) for offset, fact in enumerate(run, first)]

    def _take_changes(self, tx: Transaction, batch: list[Arrival]) -> list[Applied]:
        if len(batch) == 1:
            return [self._take(tx, batch[0])]
        # Here, because a command that writes takes nothing in and should not pay for it.
        from holdfast.node.core.runs.plain_arrivals import plain_runs

        results: list[Applied] = []
        for members, run in plain_runs(tx, batch):
            done = None if run is None else self._take_plain(tx, run)
            results += [self._take(tx, one) for one in members] if done is None else done
        return results

    def _take_plain(self, tx: Transaction, run: Sequence[Plain]) -> list[Applied] | None:
        """Takes all of them, or does nothing and returns None."""
        from holdfast.node.core.runs.plain_arrivals import take_plain

        clock = self._clock(tx, run[0][0].mesh)
        stamps = [envelope.lamport for envelope, _, _ in run]
        if clock is None or min(stamps) <= clock.forgotten_lamport:
            return None
        taken = take_plain(tx, self._ctx, run, self._via) if clock.surely_takes(stamps) else None
        if taken is None:
            return None
        for (envelope, _, raw), (offset, _) in zip(run, taken, strict=True):
            clock.merge(envelope.lamport)
            self._hear(envelope.mesh, envelope.origin, envelope.lamport)
            if clock.on_bus and self._counts:
                self._placed.add(raw, offset)
        return [
            Applied(envelope.id, outcome, offset)
            for (envelope, _, _), (offset, outcome) in zip(run, taken, strict=True)
        ]

    # --- one by one --------------------------------------------------------------------------

    def _take_fact(self, tx: Transaction, fact: Arrived) -> Applied:
        entry = tx.log_find(fact[0])
        if entry is not None and entry.raw == fact[-1]:  # the same to the byte
            self._hear(entry.mesh, entry.origin, entry.lamport)
            return Applied(entry.id, Outcome.NOOP_ALREADY_APPLIED, entry.offset)
        return self._take(tx, Arrival(fact[-1]))

    def _take(self, tx: Transaction, arrival: Arrival) -> Applied:
        envelope = arrival.envelope
        if envelope is None:
            return Applied(None, None, error=arrival.error)
        if arrival.error is not None:
            return self._refuse(tx, envelope, arrival.error)
        if self._is_for_us(arrival) and self._is_blocked(tx, envelope):
            return Applied(
                envelope.id, None, error=SenderBlocked(f"{envelope.origin} is blocked here")
            )
        try:
            known, displaced = self._known(tx, arrival, envelope)
            if known is not None:
                self._hear(envelope.mesh, envelope.origin, envelope.lamport)
                if self._is_for_us(arrival) and tx.log_get(known.offset) is not None:
                    # So far only the log had it, or it is delivered again: then the inbox has it.
                    self._put_into_inbox(tx, arrival, known.offset)
                return Applied(envelope.id, known.outcome, known.offset)
            clock, current = self._examine(tx, envelope, arrival.body)
        except Refused as error:
            return Applied(envelope.id, None, error=error)
        if displaced is not None:
            set_aside(tx, *displaced)
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
        if clock.on_bus and self._counts:
            self._placed.add(arrival.raw, offset)
        outcome = fold(tx, self._ctx, envelope, arrival.body, offset, current)
        if self._is_for_us(arrival):
            self._put_into_inbox(tx, arrival, offset)
        return Applied(envelope.id, outcome, offset)

    def _is_blocked(self, tx: Transaction, envelope: Envelope) -> bool:
        """Whether its sender is; then the message is counted. One that is here already stays."""
        if self._blocked is None:
            self._blocked = frozenset(row.peer for row in tx.blocked_list())
        if envelope.origin not in self._blocked or tx.log_find(envelope.id) is not None:
            return False
        tx.blocked_dropped(envelope.origin, 1)
        return True

    def _refuse(self, tx: Reader, envelope: Envelope, error: HoldfastError) -> Applied:
        """A strong envelope without its record may be one that we have folded with it."""
        if isinstance(error, NotCommitted):
            commit = tx.commit_of(envelope.mesh, envelope.id)
            if commit is not None and intent_of(commit.record).fingerprint == envelope.fingerprint:
                return Applied(envelope.id, Outcome.NOOP_ALREADY_APPLIED, commit.offset)
        return Applied(envelope.id, None, error=error)

    def _known(
        self, tx: Reader, arrival: Arrival, envelope: Envelope
    ) -> tuple[Receipt | None, tuple[Entry, OutboxRow] | None]:
        """The receipt of an envelope that is here already. Else None, and our own message that has
        to give its id back to this one, if there is one.
        """
        try:
            return known_receipt(tx, envelope.id, envelope.fingerprint, envelope.mesh), None
        except IdReused:
            entry = tx.log_find(envelope.id)
            if entry is None or envelope.origin == self._ctx.peer:
                raise
            brought = arrival.raw in self._delivered and entry.mesh == envelope.mesh
            row = refused_send(tx, entry, self._ctx.peer, broker_has_another=brought)
            if row is None:
                raise
            return None, (entry, row)

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
        """Makes the checks that need the store; raises what refuses the envelope. Returns the clock
        that it moves and the version that it meets.
        """
        clock = self._clock(tx, envelope.mesh)
        if clock is None:
            raise _no_mesh(tx, envelope.mesh)
        clock.check(envelope.lamport)
        if body is None:
            return clock, None
        if is_decided(family_of(envelope.op)):
            refuse_undecided(tx, envelope.mesh, envelope.op)
        if isinstance(body, AuditAppend):
            refuse_forked_event(tx, body.event(envelope))
        if family_of(envelope.op) == "task":
            _check_task_not_forgotten(tx, envelope)
        current = current_version(tx, envelope, body)
        _check_not_forgotten(tx, envelope, body, current, clock)
        return clock, current

    def _clock(self, tx: Reader, mesh: str) -> _Clock | None:
        if mesh not in self._clocks:
            row = tx.mesh_get(mesh)
            self._clocks[mesh] = None if row is None else _Clock(row, self._ctx.now_ms())
        return self._clocks[mesh]

    def _hear(self, mesh: str, origin: str, lamport: int) -> None:
        if origin != self._ctx.peer:
            key = (mesh, origin)
            self._seen[key] = max(self._seen.get(key, 0), lamport)


def _no_mesh(tx: Reader, mesh: str) -> UnknownMesh | MeshDeleted:
    if tx.ended_mesh(mesh) is None:
        return UnknownMesh(f"there is no mesh {mesh!r}")
    return MeshDeleted(f"the mesh {mesh!r} was deleted here", mesh=mesh)


def _count_dropped(tx: Transaction, results: Sequence[Applied]) -> None:
    dropped = Counter(one.error.mesh for one in results if isinstance(one.error, MeshDeleted))
    for mesh, count in dropped.items():
        tx.ended_mesh_dropped(mesh, count)


def is_news(ctx: NodeContext, raw: bytes, tx: Reader) -> bool | None:
    """Whether the intake would add an envelope: False if it is known, None if it would be
    refused.
    """
    arrival = Arrival(raw)
    envelope = arrival.envelope
    if envelope is None or arrival.error is not None:
        return None
    intake = Intake(ctx, ())
    try:
        if intake._known(tx, arrival, envelope)[0] is not None:
            return False
        intake._examine(tx, envelope, arrival.body)
    except Refused:
        return None
    return True


def _check_not_forgotten(
    tx: Reader, envelope: Envelope, body: Body, current: Version | None, mesh: _Clock
) -> None:
    """Refuses a write that could bring back what a tombstone had deleted that is gone."""
    lamport = envelope.lamport
    if lamport > mesh.forgotten_lamport or envelope.op.startswith(_NEVER_OLD):
        return
    if current is not None and not is_newer(version_of(envelope), current):
        return  # it changes nothing
    name = buried_name(
        family_of(envelope.op), envelope.owner, envelope.entity, model_of(body) or ""
    )
    if is_too_old(
        lamport=lamport,
        deletes=envelope.op in DELETES,
        replaces_live=current is not None and is_live(tx, envelope, body),
        floor=mesh.forgotten_floor,
        buried=tx.buried(envelope.mesh, name),
    ):
        raise TooOld(
            f"{envelope.op} {envelope.entity!r} of {envelope.origin} has stamp {lamport}, and "
            f"deletions up to {mesh.forgotten_lamport} were forgotten here, perhaps of this; at "
            f"{envelope.origin}: `holdfast mesh restamp {envelope.mesh} "
            f"--past {mesh.forgotten_lamport}`",
        )


def _check_task_not_forgotten(tx: Reader, envelope: Envelope) -> None:
    """Refuses a turn that could bring back a task which ended and was forgotten."""
    mesh, task = envelope.mesh, envelope.entity
    if tx.task_get(mesh, task) is None and tx.task_forgotten(mesh, task):
        raise TooOld(
            f"{envelope.op} of {envelope.origin} is about the task {task}, which ended and was "
            "forgotten here, or may have been",
            hint="nothing is to be done: what has ended stays so; for new work make a new task",
        )


def objection(
    engine: NodeEngine, slug: str, arrival: Arrived | Arrival, tx: Reader
) -> HoldfastError | None:
    """Why an envelope that a broker brought for the mesh `slug` is refused; None if it is not.
    These are reasons that the intake cannot know: another mesh, or our own name without our writing
    it.
    """
    header = header_of(arrival)
    if header is None:
        return None  # the intake refuses it
    id, mesh, _, _, origin, _, raw = header
    if mesh != slug:
        return BadEnvelope(f"an envelope of the mesh {mesh!r} came with those of {slug!r}")
    if origin != engine.ctx.peer or tx.log_find(id) is not None or tx.forgotten(id) is not None:
        return None
    envelope = decode_trusted(raw)
    ended = tx.ended_mesh(mesh)
    if ended is not None and ended.was_ours(envelope.epoch, envelope.seq):
        return None  # it went when the mesh was deleted here, and comes back with it
    if envelope.epoch == UNCOUNTED:
        return None  # another node exported what we wrote once: our own number is not in it
    if is_forged(False, envelope.epoch, tx.epoch()):
        return ForgedOrigin(
            f"an entry in our own name, {envelope.seq} of epoch {envelope.epoch}, is "
            "not the one that we wrote",
            hint="two nodes use one name and key, or somebody makes up entries; see the quarantine",
        )
    return None
