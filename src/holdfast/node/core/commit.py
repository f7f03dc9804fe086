"""The fold of what a quorum has committed: the way of its entries through the door.

An engine brings a total order of envelopes, each with the fence under which it was committed, and
with the engine's own index. In one transaction the entries of a run are decided by
`rules/quorum/decide.py`, their envelopes appended to the log, the rows that follow written, a
commit record put beside each envelope, and the index moved. A crash leaves all of it or nothing, so
an entry that comes again after a restart is known by its index; and if an engine counted wrongly,
by the id of its intent.

The fence is looked at here, inside the transaction that writes: a coordinator that was deposed
while it slept finds a newer one in the store, and changes nothing.

An intent may have waited in the log before it was committed: in the lane of the quorum, whose rows
point into the log. Then the envelope is not appended again; it gets its record, and its row of the
outbox ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Final, NamedTuple, overload

import msgspec

from holdfast.node.core.commit_view import CommittedState
from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold_tasks import note_replaced
from holdfast.node.core.read_intents import ReadIntent
from holdfast.node.core.runs.plain_columns import (
    ColumnsFolded,
    CommittedColumns,
    fold_columns,
)
from holdfast.node.core.runs.plain_commits import PlainCommit, fold_plain, read_all_plain
from holdfast.node.core.runs.reading import read_body, read_envelope, shown
from holdfast.node.core.write_queue import queue_get, queue_put
from holdfast.rules.bodies import Body
from holdfast.rules.commit_columns import TYPE, cut
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import (
    CommitForked,
    FenceTooOld,
    IntentAbandoned,
    NoVoters,
    Refused,
)
from holdfast.rules.ids import ID_BYTES, aside_id, id_text
from holdfast.rules.lamport import highest_taken
from holdfast.rules.merge import version_of
from holdfast.rules.push_columns import unpacked
from holdfast.rules.quorum.commit_record import decode_stored_record, encode_record
from holdfast.rules.quorum.decide import Decision, as_recorded, commit_record, decide
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import MOVE
from holdfast.rules.quorum.plain_intents import CHANGE, PlainPut
from holdfast.rules.quorum.state_rows import CommitRow, QuorumRow
from holdfast.rules.quorum.view import Clash, EntityRevision, PutTask
from holdfast.rules.quorum.write_queue import WriteStatus, decided
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import MeshRow, PeerRow, WarningRow
from holdfast.storage.ports import Transaction

_HANDOFF: Final = "task.handoff"
_WAITS: Final = frozenset({WriteStatus.PENDING, WriteStatus.REPLAYING})


class CommittedEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry that an engine has committed."""

    raw: bytes
    fence: FenceToken
    committed_at: int
    index: int
    """The engine's own count of entries, which grows and may have gaps."""
    told: bytes | None = None
    """The record of its commit, where it came from somebody who has folded it before; None if an
    engine brings it.
    """


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What became of one entry."""

    raw_id: bytes | None
    outcome: Outcome | None
    """None: it was refused for good, for the `reason`."""
    reason: str = ""
    """The code of an error, where there is one."""
    detail: str = ""
    number: int | None = None
    """Of its commit; None for an entry that is not part of the order, or was so before."""
    offset: int | None = None
    revisions: tuple[EntityRevision, ...] = ()
    clashes: tuple[Clash, ...] = ()
    op: str = ""
    entity: str = ""
    """What it was about, for those who wait for it."""
    fence: FenceToken | None = None
    """Of its commit; of an intent that was decided before, that of the first time."""
    diverged: str = ""
    """What our own rules made of it, where its record says otherwise. The record stands."""

    @property
    def ends_order(self) -> bool:
        """Whether the order has ended with this entry, to go on with another engine."""
        return self.op == MOVE and self.outcome is Outcome.APPLIED and self.number is not None

    @property
    def id(self) -> str | None:
        return None if self.raw_id is None else id_text(self.raw_id)


class AppliedRun(Sequence[Committed]):
    """What became of a run of plain entries that was applied as a whole. Nobody waits for such
    entries but who proposed them, so each of these is made when it is asked for.
    """

    def __init__(self, run: CommittedColumns, folded: ColumnsFolded) -> None:
        self._run, self._folded = run, folded
        self._names = run.columns.name_list()

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> Committed: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Committed]: ...
    def __getitem__(self, at: int | slice) -> Committed | Sequence[Committed]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        name, folded = self._names[place], self._folded
        revision = EntityRevision(TYPE, name[len(TYPE) + 1 :], folded.revisions[place])
        return Committed(
            raw_id=self.id_at(place),
            outcome=Outcome.APPLIED,
            number=folded.number + place,
            offset=folded.offset + place,
            revisions=(revision,),
            op=CHANGE,
            entity=name,
            fence=self._run.fence_at(place),
        )

    def id_at(self, place: int) -> bytes:
        return self._run.columns.ids[place * ID_BYTES : (place + 1) * ID_BYTES]

    def told(self) -> Iterator[tuple[int, bytes, Committed]]:
        """Each with the engine's index of its entry and with its bytes: for those who look at all
        of them.
        """
        columns, fence, folded = self._run.columns, self._run.fence, self._folded
        raws = map(cut, repeat(columns.payload), unpacked(columns.spans))
        rows = zip(columns.id_list(), self._names, raws, folded.revisions, strict=True)
        incarnation, epoch, coordinator = fence.incarnation, fence.lease_epoch, fence.coordinator
        number, offset, begin = folded.number, folded.offset, len(TYPE) + 1
        for place, (id, name, raw, revision) in enumerate(rows):
            index = fence.sequence + place
            made = Committed(
                id,
                Outcome.APPLIED,
                "",
                "",
                number + place,
                offset + place,
                (EntityRevision(TYPE, name[begin:], revision),),
                (),
                CHANGE,
                name,
                FenceToken(incarnation, epoch, coordinator, index),
            )
            yield index, raw, made


def notable(results: Sequence[Committed]) -> Sequence[Committed]:
    """Those of a run that may concern others than who waits for them: what was put as a whole into
    an entity that stands alone does not.
    """
    return () if isinstance(results, AppliedRun) else results


class _Counted(NamedTuple):
    """An entry that is part of the order."""

    entry: CommittedEntry
    envelope: Envelope
    decision: Decision
    number: int


class CommitRun:
    """A run of committed entries of a mesh. Calling it with a transaction folds them in order, and
    returns what became of each.
    """

    repeatable = True
    in_no_stream = True
    """Intents count in no stream of their origins: who spreads those need not look."""

    def __init__(
        self,
        ctx: NodeContext,
        mesh: str,
        entries: Sequence[CommittedEntry],
        upto: int = 0,
        columns: CommittedColumns | None = None,
    ) -> None:
        """`upto` is the engine's index up to which there is nothing else: entries of its own follow
        the last envelope. `columns` are the same entries, if they could be read so: then nobody
        looks at them one by one, as long as nothing is the matter with the run.
        """
        self._ctx, self._mesh, self._upto = ctx, mesh, upto
        self._given, self._columns = entries, columns
        self._entries: list[CommittedEntry] = []
        self._plain: list[PlainCommit] | None = None
        """The run, as long as every entry of it is surely plain."""
        self._read: list[Envelope | Refused] = []
        self._bodies: list[Body | None] = []
        """Those of intents that break no rule: of others, the decision says why."""
        self._diverged: dict[bytes, str] = {}
        if columns is None:
            self._look_through()

    def _look_through(self) -> None:
        """Reads the entries one by one."""
        self._entries = list(self._given)
        indexes = [entry.index for entry in self._entries]
        assert all(a < b for a, b in pairwise(indexes)), "an engine gives entries in order"
        raws = [entry.raw for entry in self._entries]
        known = self._ctx.read_intents.take(raws)
        puts = None
        if not any([entry.told for entry in self._entries]):
            puts = read_all_plain(self._mesh, raws, known)
        if puts is None:
            self._read_each(known)
        else:
            self._plain = [
                PlainCommit(put, entry.fence, entry.committed_at)
                for put, entry in zip(puts, self._entries, strict=True)
            ]

    def _read_each(self, known: Sequence[ReadIntent | PlainPut | None]) -> None:
        for entry, found in zip(self._entries, known, strict=True):
            if isinstance(found, ReadIntent) and found.envelope.mesh == self._mesh:
                self._read.append(found.envelope)
                self._bodies.append(found.body)
                continue
            envelope = read_envelope(self._mesh, entry.raw)
            self._read.append(envelope)
            self._bodies.append(read_body(envelope))

    def __call__(self, tx: Transaction) -> Sequence[Committed]:
        standing = tx.quorum_get(self._mesh)
        mesh = tx.mesh_get(self._mesh)
        if standing is None or mesh is None:
            raise NoVoters(f"the mesh {self._mesh!r} has no voters")
        if self._columns is not None:
            applied = self._fold_columns(tx, standing, mesh, self._columns)
            if applied is not None:
                return applied
            self._columns = None
            self._look_through()
        if self._plain:
            results = self._fold_plain(tx, standing, mesh, self._plain)
            if results is not None:
                return results
            self._plain = None
            self._read_each([None] * len(self._entries))
        self._diverged = {}
        ids = [one.id for one in self._read if isinstance(one, Envelope)]
        state = CommittedState(tx, standing, ids, self._bodies)
        decided: list[Decision | Refused] = []
        counted: list[_Counted] = []
        for entry, envelope, body in zip(self._entries, self._read, self._bodies, strict=True):
            if isinstance(envelope, Refused):
                decided.append(envelope)
                continue
            decision = _decided(state, entry, envelope, body)
            if entry.told is not None:
                decision = self._as_told(state, entry, envelope, decision)
            decided.append(decision)
            if decision.counts:
                number = state.take(envelope, entry.fence, decision)
                counted.append(_Counted(entry, envelope, decision, number))
        offsets, waited = self._append(tx, counted)
        results = self._results(decided, offsets, standing.number)
        state.store(tx, offsets, self._ctx.now_ms())
        self._follow(tx, mesh, counted, state)
        self._end_queued(tx, results, waited)
        self._end_voided(tx, state.voids)
        tx.quorum_put(_moved(state.standing, self._entries, counted, self._upto))
        return results

    def _fold_plain(
        self, tx: Transaction, standing: QuorumRow, mesh: MeshRow, plain: list[PlainCommit]
    ) -> list[Committed] | None:
        """Folds a run of plain entries in sets; None if one of them needs a second look."""
        entries = self._entries
        if entries[0].index <= standing.applied:
            return None
        folded = fold_plain(tx, standing, plain, self._ctx.now_ms())
        if folded is None:
            return None
        puts = [one.put for one in plain]
        self._hear(tx, mesh, [put.lamport for put in puts], [put.origin for put in puts])
        last = entries[-1]
        tx.quorum_put(
            msgspec.structs.replace(
                standing,
                applied=max(self._upto, last.index),
                number=folded.number + len(entries) - 1,
                fence=last.fence,
                committed_at=last.committed_at,
            )
        )
        number, offset = folded.number, folded.offset
        return [
            Committed(
                *(put.id, Outcome.APPLIED, "", "", number + place, offset + place),
                *((revision,), (), CHANGE, put.name, fence),
            )
            for place, ((put, fence, _), revision) in enumerate(
                zip(plain, folded.revisions, strict=True)
            )
        ]

    def _fold_columns(
        self, tx: Transaction, standing: QuorumRow, mesh: MeshRow, run: CommittedColumns
    ) -> AppliedRun | None:
        """Folds a run that came in columns; None if one of its entries needs a second look."""
        first = run.fence.sequence
        if first <= standing.applied:
            return None
        folded = fold_columns(tx, standing, run, self._ctx.now_ms())
        if folded is None:
            return None
        columns = run.columns
        self._hear(tx, mesh, unpacked(columns.stamps), columns.origin_list())
        place = columns.size - 1
        tx.quorum_put(
            msgspec.structs.replace(
                standing,
                applied=max(self._upto, first + place),
                number=folded.number + place,
                fence=run.fence_at(place),
                committed_at=unpacked(columns.times)[place],
            )
        )
        return AppliedRun(run, folded)

    def committed(self) -> None:
        """The writer has committed it: who spreads commits finds the mesh when it is told."""
        self._ctx.commits_of.add(self._mesh)

    def _results(
        self, decided: list[Decision | Refused], offsets: dict[int, int], number: int
    ) -> list[Committed]:
        """What became of each entry; numbers are given in the order of the entries that count."""
        results: list[Committed] = []
        for entry, envelope, one in zip(self._entries, self._read, decided, strict=True):
            if isinstance(one, Refused) or isinstance(envelope, Refused):
                assert isinstance(one, Refused), "what cannot be read is not decided"
                results.append(_refused(one))
                continue
            counts = one.counts
            number += counts
            first = None if one.first is None else one.first.fence
            results.append(
                Committed(
                    envelope.id,
                    one.outcome,
                    one.reason,
                    one.detail,
                    number if counts else None,
                    offsets[number] if counts else None,
                    one.revisions,
                    one.clashes,
                    envelope.op,
                    envelope.entity,
                    entry.fence if counts else first,
                    self._diverged.get(envelope.id, "") if counts else "",
                )
            )
        return results

    def _as_told(
        self, state: CommittedState, entry: CommittedEntry, envelope: Envelope, ours: Decision
    ) -> Decision:
        """The decision that the record of an entry tells. The quorum has decided: where our own
        rules come to something else, they change nothing, and the caller hears of it. CommitForked
        for an entry that is no part of the order that we know.
        """
        assert entry.told is not None
        record, number = decode_stored_record(entry.told), state.number + 1
        if not ours.counts or record.number != number:
            raise CommitForked(
                f"commit {record.number} of {self._mesh}, the intent {id_text(envelope.id)}, does "
                f"not follow commit {state.number} here: {ours.detail or ours.reason or 'decided'}"
            )
        made = commit_record(envelope, entry.fence, entry.committed_at, number, ours)
        if msgspec.structs.replace(made, version=record.version) == record:
            return ours
        self._diverged[envelope.id] = shown(ours)
        return as_recorded(record)

    # --- into the log ------------------------------------------------------------------------

    def _append(
        self, tx: Transaction, counted: list[_Counted]
    ) -> tuple[dict[int, int], frozenset[bytes]]:
        """Puts the envelopes into the log, those that are not there, and a record beside each.
        Returns the offsets by commit number, and the ids of those that had waited in the log.
        """
        if not counted:
            return {}, frozenset()
        arrivals = [
            (e.id, e.mesh, e.op, e.entity, e.origin, e.lamport, one.entry.raw)
            for one in counted
            for e in (one.envelope,)
        ]
        now = self._ctx.now_ms()
        first = tx.log_append_new(arrivals, now)
        offsets: list[int]
        if first is not None:
            head = end = first - 1
            offsets = list(range(first, first + len(counted)))
        else:
            head = end = tx.log_bounds()[1]
            offsets = [append_committed(tx, one.envelope, one.entry.raw, now) for one in counted]
        rows: list[CommitRow] = []
        for (entry, envelope, decision, number), offset in zip(counted, offsets, strict=True):
            head = max(head, offset)
            raw = entry.told
            if raw is None:
                record = commit_record(envelope, entry.fence, entry.committed_at, number, decision)
                raw = encode_record(record)
            rows.append(CommitRow(offset, envelope.mesh, number, envelope.id, head, raw))
        tx.commits_add(rows)
        waited = frozenset(row.id for row in rows if row.offset <= end)
        return {row.number: row.offset for row in rows}, waited

    # --- what follows, here ------------------------------------------------------------------

    def _follow(
        self, tx: Transaction, mesh: MeshRow, counted: list[_Counted], state: CommittedState
    ) -> None:
        """Moves our clock past the stamps, notes whom we have heard, and tells this node's user of
        tasks that were taken from it.
        """
        told = [one.envelope for one in counted]
        self._hear(tx, mesh, [one.lamport for one in told], [one.origin for one in told])
        for row, task in state.replaced():
            by = next(one.envelope for one in counted if one.envelope.entity == row.task)
            note_replaced(tx, self._ctx, row, task, version_of(by))
        for one in counted:
            if one.envelope.op == _HANDOFF and one.decision.outcome is Outcome.APPLIED:
                self._warn(tx, one)

    def _hear(
        self, tx: Transaction, mesh: MeshRow, lamports: Iterable[int], origins: Iterable[str]
    ) -> None:
        now = self._ctx.now_ms()
        # A stamp that is absurd is committed all the same; it may not wear out our clock.
        most = highest_taken(mesh.lamport, now)
        stamps: list[int] = []
        heard: dict[str, int] = {}
        for lamport, origin in zip(lamports, origins, strict=True):
            if lamport > most:
                continue
            stamps.append(lamport)
            if lamport > heard.get(origin, 0):
                heard[origin] = lamport
        heard.pop(self._ctx.peer, None)
        if stamps:
            tx.tick_merged_run(self._mesh, stamps, now)
        for peer, lamport in heard.items():
            tx.peer_seen(
                PeerRow(mesh=self._mesh, peer=peer, last_seen_at=now, last_lamport=lamport)
            )

    def _warn(self, tx: Transaction, one: _Counted) -> None:
        turns = [write for write in one.decision.writes if isinstance(write, PutTask)]
        if turns[0].judged.turn.version.peer != self._ctx.peer:
            return
        tx.warning_add(
            WarningRow(
                mesh=self._mesh,
                type="task_claim_superseded",
                entity=one.envelope.entity,
                by_peer=turns[-1].judged.turn.version.peer
                if len(turns) > 1
                else one.envelope.origin,
                at_lamport=one.envelope.lamport,
            )
        )

    def _end_queued(
        self, tx: Transaction, results: list[Committed], waited: frozenset[bytes]
    ) -> None:
        """Ends the rows of the outbox whose intents were decided: those that had waited in the log,
        or were decided before.
        """
        for envelope, result in zip(self._read, results, strict=True):
            if isinstance(envelope, Refused):
                continue
            if result.number is not None and envelope.id not in waited:
                continue  # as nearly always
            if result.outcome is Outcome.REJECTED_FENCED and result.number is None:
                continue  # it was not decided: somebody with authority may still commit it
            self._end_row(tx, envelope.id, result.outcome, result.reason, result.detail)

    def _end_voided(self, tx: Transaction, voids: Sequence[bytes]) -> None:
        for id in voids:
            self._end_row(tx, id, None, IntentAbandoned.code, "it was given up")

    def _end_row(
        self, tx: Transaction, id: bytes, outcome: Outcome | None, reason: str, detail: str
    ) -> None:
        write = queue_get(tx, self._mesh, id)
        if write is not None and write.status in _WAITS:
            queue_put(tx, decided(write, outcome, self._ctx.now_ms(), reason, detail))


def append_committed(tx: Transaction, envelope: Envelope, raw: bytes, now_ms: int) -> int:
    """Where a committed envelope stands in the log: from now on, if it did not."""
    entry = tx.log_find(envelope.id)
    if entry is not None:
        if entry.raw == raw:
            return entry.offset  # our own intent, which waited here
        # What the quorum has committed under this id is what all nodes have. Something else that
        # only we have keeps its place, under an id that is computed from it.
        tx.log_set_aside(entry.offset, aside_id(entry.raw))
    return tx.log_append(
        envelope.id,
        envelope.mesh,
        envelope.op,
        envelope.entity,
        envelope.origin,
        envelope.lamport,
        now_ms,
        raw,
    )


def _decided(
    state: CommittedState, entry: CommittedEntry, envelope: Envelope, body: Body | None
) -> Decision:
    standing = state.standing  # an entry before this one may have ended the order
    known = state.intent(envelope.id)
    if known is None and entry.index <= standing.applied:
        return Decision(
            outcome=Outcome.REJECTED_FENCED,
            reason=FenceTooOld.code,
            detail=f"entries up to {standing.applied} were folded before",
        )
    if known is None and entry.fence.incarnation != standing.incarnation:
        # Before the first entry of an incarnation there is no fence of it to compare with.
        return Decision(
            outcome=Outcome.REJECTED_FENCED,
            reason=FenceTooOld.code,
            detail=f"the voters are of incarnation {standing.incarnation}, and it was committed by "
            f"those of {entry.fence.incarnation}",
        )
    return decide(state, envelope, entry.fence, entry.committed_at, body)


def _refused(error: Refused) -> Committed:
    """An entry that cannot be read has no id to be known by: it is passed over."""
    return Committed(None, None, error.code, error.message)


def _moved(
    standing: QuorumRow, entries: Sequence[CommittedEntry], counted: Sequence[_Counted], upto: int
) -> QuorumRow:
    """Where we stand after the run. What comes of an order that has ended moves nothing: the next
    one has indexes of its own.
    """
    applied = standing.applied
    if all(entry.fence.incarnation == standing.incarnation for entry in entries[-1:]):
        applied = max([applied, upto, *(entry.index for entry in entries[-1:])])
    if not counted:
        return msgspec.structs.replace(standing, applied=applied)
    last = counted[-1]
    return msgspec.structs.replace(
        standing,
        applied=applied,
        number=last.number,
        fence=last.entry.fence,
        committed_at=last.entry.committed_at,
    )
