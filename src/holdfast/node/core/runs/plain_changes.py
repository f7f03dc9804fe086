"""Local changes that wait at the same time, carried out together.

A run of them takes its stamps by one step of the mesh's clock, looks up what stands under all its
keys at once, and goes into the log and into each table as a whole. What comes of it is what would
come of the changes one after the other: the same rows, receipts, errors and order.

A run is of one mesh, and ends before whatever must see what an earlier change of it has left
behind: the same id once more, or the same key, unless it is a plain value of the shared state. The
next run begins there. What is no `PlainChange`, or of a family that is not asked for in sets, is
carried out by itself, in its place.

Only what a check refuses is refused within a run, and then it has changed nothing.
Everything else raises out of the run: the writer undoes the whole group and carries it out one by
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from holdfast.node.core import ledger
from holdfast.node.core.change import Change, Receipt
from holdfast.node.core.fold import memory_row_of
from holdfast.rules.bodies import StateSet
from holdfast.rules.errors import Refused
from holdfast.rules.limits import RUN_BYTES_MAX, RUN_CHANGES_MAX
from holdfast.rules.order import Version
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import MemoryRow, StateRow

if TYPE_CHECKING:
    from holdfast.rules.arrivals import Arrived
    from holdfast.storage.ports import Reader, Transaction

_STATE, _MEMORY, _FACT, _MESSAGE = "state", "memory", "fact", "message"
_FAMILIES: Final = {
    "state.set": _STATE,
    "state.delete": _STATE,
    "memory.set": _MEMORY,
    "memory.forget": _MEMORY,
    "fact.append": _FACT,
    "message.send": _MESSAGE,
}
"""The ops that are carried out in sets."""
_STATES: Final = frozenset(op for op, family in _FAMILIES.items() if family is _STATE)
_KEYED: Final = frozenset(op for op, family in _FAMILIES.items() if family in (_STATE, _MEMORY))
_FEWEST: Final = 2

Answer = Receipt | Refused


class PlainChange(Change):
    """A change that may be carried out together with others."""

    __slots__ = ()
    answers_alone: ClassVar[bool] = False
    """Whether one whose id is known goes by itself: its answer may change something."""
    ready_by_mesh: ClassVar[bool] = False
    """Whether what `make_ready` looks at is its mesh, which is the same for all of a run."""

    @staticmethod
    def together(tx: Transaction, changes: Iterable[PlainChange]) -> Sequence[Answer]:
        """Carries out as many of these changes, from the first, as can be carried out as one; says
        what became of each. None may be: then nothing has happened.
        """
        run = _Run(changes)
        return run.carry_out(tx) if len(run.changes) >= _FEWEST else ()

    def make_ready_on(self, tx: Reader, row: MemoryRow | None) -> None:
        """As `make_ready`, where it is known what this peer remembers under the key."""
        self.make_ready(tx)


_Versions = dict[str, Version]
"""By the key under which they stand."""


class _Run:
    """The first of some changes, up to one that must see what another of them has left behind."""

    def __init__(self, changes: Iterable[PlainChange]) -> None:
        self.changes: list[PlainChange] = []
        self._keys: dict[str, set[str]] = {_STATE: set(), _MEMORY: set()}
        self._ids: set[bytes] = set()
        """Those that callers gave, which may be known."""
        self._twice: set[str] = set()
        """Keys of the shared state that are written more than once."""
        self._looks = False
        """Whether some change has something to look at before it."""
        self._collect(changes)

    def _collect(self, changes: Iterable[PlainChange]) -> None:
        run, size, mesh, ctx = self.changes, 0, "", None
        for change in changes:
            family = _FAMILIES.get(change.op)
            if ctx is None:
                mesh, ctx = change.mesh, change.ctx
            if family is None or change.mesh != mesh or change.ctx is not ctx:
                return
            plain = type(change) is PlainChange
            if change.given and change.id in self._ids:
                return
            keys = self._keys.get(family)
            if keys is not None:
                if change.entity in keys:
                    if not plain:
                        return
                    self._twice.add(change.entity)
                keys.add(change.entity)
            if change.given:
                self._ids.add(change.id)
            elif not plain:
                self._looks = True
            run.append(change)
            size += len(change.encoded)
            if size > RUN_BYTES_MAX or len(run) == RUN_CHANGES_MAX:
                return

    def carry_out(self, tx: Transaction) -> Sequence[Answer]:
        first = self.changes[0]
        mesh, me = first.mesh, first.ctx.peer
        states = tx.state_version_many(mesh, keys) if (keys := self._keys[_STATE]) else {}
        rows = tx.memory_get_many(mesh, me, keys) if (keys := self._keys[_MEMORY]) else {}
        answers: dict[int, Answer] = {}
        if self._looks or self._ids:
            self._look(tx, rows, answers)
        if self._twice:
            self._end_before_disputed(me, states, answers)
        left = [at for at in range(len(self.changes)) if at not in answers]
        if not left:
            return [answers[at] for at in range(len(self.changes))]
        memories = {key: row.version for key, row in rows.items()}
        changes = [self.changes[at] for at in left] if answers else self.changes
        receipts = _Stamping(tx, changes, self._twice).carry_out(states, memories)
        if not receipts:
            return [answers[at] for at in range(left[0])]
        if not answers:
            return receipts
        answers.update(zip(left, receipts, strict=True))
        return [answers[at] for at in range(len(self.changes))]

    def _look(
        self, tx: Transaction, rows: Mapping[str, MemoryRow], answers: dict[int, Answer]
    ) -> None:
        """Answers those that are known or refused."""
        known = tx.ids_known(self._ids)
        ready = False
        for at, change in enumerate(self.changes):
            try:
                if change.id in known:
                    receipt = None if change.answers_alone else change.known(tx)
                    if receipt is None:  # or its mesh was deleted with what it was, and made again
                        del self.changes[at:]
                        return
                    answers[at] = receipt
                elif not (ready and change.ready_by_mesh):
                    change.make_ready_on(tx, rows.get(change.entity))
                    ready = change.ready_by_mesh
            except Refused as error:
                answers[at] = error

    def _end_before_disputed(
        self, me: str, states: _Versions, answers: Mapping[int, Answer]
    ) -> None:
        """Ends the run where a key is written for the second time under which another peer's
        version stands: what the ledger says of the first depends on what the log has of the key.
        """
        disputed = {key for key in self._twice if key in states and states[key].peer != me}
        met: set[str] = set()
        for at, change in enumerate(self.changes):
            if change.entity in disputed and change.op in _STATES and at not in answers:
                if change.entity in met:
                    del self.changes[at:]
                    return
                met.add(change.entity)


class _Stamping:
    """Changes that nothing refuses any more, on their way into the log and the tables."""

    def __init__(self, tx: Transaction, changes: Sequence[PlainChange], twice: set[str]) -> None:
        self._tx, self._changes, self._twice = tx, changes, twice
        self._mesh, self._ctx, self._now = changes[0].mesh, changes[0].ctx, changes[0].ctx.now_ms()

    def carry_out(self, states: _Versions, memories: _Versions) -> list[Receipt]:
        """Carries them out on what stands under their keys. Empty, and nothing has changed, if
        there is no such mesh or its clock is worn out.
        """
        tx, changes, mesh, me = self._tx, self._changes, self._mesh, self._ctx.peer
        try:
            self._lamport, self._seq, lane, on_bus = tx.tick_many(mesh, len(changes))
        except Refused:
            return []
        arrivals, disputed = self._stamped(states, memories)
        first = tx.log_append_new(arrivals, self._now)
        assert first is not None, "ids that were just made, or looked for in this transaction"
        if on_bus:
            # Here and below, because a mesh of this node alone needs neither.
            from holdfast.node.core.streams import placed
            from holdfast.rules.bus.meshes.coverage import StreamName

            name = StreamName(mesh, me, self._ctx.epoch)
            numbered = enumerate(arrivals)
            places = [placed(one[2], self._seq + at, first + at, one[-1]) for at, one in numbered]
            tx.stream_add(name, places)
        beaten = {at for at, current in disputed.items() if not self._settle(at, current)}
        self._put(first, beaten)
        if lane is not None:
            from holdfast.rules.outbox import outbox_row

            rows = [outbox_row(lane, one, at, self._now) for at, one in enumerate(changes, first)]
            tx.outbox_add(rows)
        applied, stamp, superseded = Outcome.APPLIED, self._lamport, Outcome.SUPERSEDED
        return [
            Receipt(
                *(change.id, first + at, stamp + at, me, False),
                superseded if at in beaten else applied,
            )
            for at, change in enumerate(changes)
        ]

    def _stamped(
        self, states: _Versions, memories: _Versions
    ) -> tuple[list[Arrived], dict[int, Version]]:
        """What goes into the log; and which versions of other peers are replaced, by which."""
        mesh, me, now, twice = self._mesh, self._ctx.peer, self._now, self._twice
        stamp, ahead = self._lamport, self._seq - self._lamport
        arrivals: list[Arrived] = []
        disputed: dict[int, Version] = {}
        for change in self._changes:
            op, entity, current = change.op, change.entity, None
            if op in _KEYED:
                current = (memories if change.owner else states).get(entity)
                if current is not None:
                    assert current.lamport < stamp, "our clock is past everything we hold"
                    if current.peer != me and not change.owner:
                        disputed[len(arrivals)] = current
                if entity in twice and not change.owner:
                    states[entity] = Version(stamp, me, change.id)
            raw = change.encode(stamp + ahead, stamp, now, current)
            arrivals.append((change.id, mesh, op, entity, me, stamp, raw))
            stamp += 1
        return arrivals, disputed

    def _settle(self, at: int, current: Version) -> bool:
        """Keeps the ledger; says whether the change is applied."""
        seq, lamport = self._seq + at, self._lamport + at
        envelope = self._changes[at].envelope(seq, lamport, self._now, current)
        return ledger.settle(self._tx, self._ctx, envelope, current)

    def _put(self, first: int, beaten: set[int]) -> None:
        mesh, me, now = self._mesh, self._ctx.peer, self._now
        states: list[StateRow] = []
        memories: list[MemoryRow] = []
        for at, change in enumerate(self._changes):
            body, offset, stamp = change.body, first + at, self._lamport + at
            if change.owner:
                version = Version(stamp, me, change.id)
                row = memory_row_of(mesh, me, change.entity, body, version, offset, now)
                memories.append(row)
            elif change.op in _STATES and at not in beaten:
                value = body.value if isinstance(body, StateSet) else None
                # Spelled out: `state_row_of` costs three times as much.
                states.append(
                    StateRow(
                        mesh=mesh,
                        key=change.entity,
                        value=value or b"null",
                        lamport=stamp,
                        peer=me,
                        id=change.id,
                        offset=offset,
                        updated_at=now,
                        tombstone=value is None,
                    )
                )
        if states:
            self._tx.state_put_many(states)
        if memories:
            self._tx.memory_put_many(memories)
