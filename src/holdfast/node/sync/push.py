"""What goes to a broker, and what becomes of it.

Rows are marked as in flight before the first byte of them is sent, and that is durable: before and
after a crash the outbox shows what the broker may have. An answer that never comes leaves a
row in flight; when the connection is gone it is pending again, and goes once more under its id.

A row whose envelope names objects waits until the broker has those. Others pass it, except what is
about the same entity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.sync.mesh_state import FIRST, Held, MeshState
from holdfast.protocol.frames import Acks, Item, Push, PushAnswer, WireError
from holdfast.rules.arrivals import objects_of, read_arrivals
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.broker_sync import Cursor, Meaning, meaning_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import IdempotencyKeyReused, NotGranted
from holdfast.rules.fingerprint import PREFIX_BYTES
from holdfast.rules.ids import id_text
from holdfast.rules.limits import (
    OUTBOX_ATTEMPTS_MAX,
    SYNC_PUSH_BYTES,
    SYNC_WINDOW_ITEMS,
)
from holdfast.rules.outbox import (
    OutboxState,
    Policy,
    Suspect,
    after_abort,
    after_conviction,
    after_refusal,
    plan,
    waits_until,
)
from holdfast.rules.rows import Entry, OutboxRow
from holdfast.storage.ports import Reader, Transaction
from holdfast.transport.remote_errors import error_by_code

log = logging.getLogger("holdfast")

_ABOUT_THE_ROW = (Meaning.DONE, Meaning.REFUSED)
"""Answers of a broker that has read the row and knows what to do with it."""
_BROKER_FAILED = 500
_KNOWN, _CREATED = 200, 201
_DONE = Meaning.DONE
_NAMING = ("file.share", "fact.append")
"""Ops whose envelopes may name objects."""
_PAGES = 16
"""How many pages of due rows that all have to wait are looked through in one transaction."""
_PAGE_ROWS_MIN = 64
_READ_ROWS = 64
"""How many envelopes are read at a time: a few large ones fill a push."""
_DENSE = 4
"""Entries are read as a range of the log if the range has at most this many times as many."""


class _Chosen(msgspec.Struct):
    rows: list[OutboxRow]
    raws: list[bytes]
    held: list[Held]
    lost: list[OutboxRow]
    """Rows whose envelope is gone."""


def next_push(engine: NodeEngine, mesh: MeshState, policy: Policy, room: int) -> Push | None:
    """Marks the rows that are due and fit as in flight; None if there are none, or no room."""
    room = min(room, mesh.trial.most, SYNC_WINDOW_ITEMS - len(mesh.inflight))
    now = engine.ctx.now_ms()
    if room <= 0 or not mesh.may_send or now < waits_until(mesh.not_before, now):
        return None
    if mesh.inflight and (mesh.trial.is_careful or mesh.trial.due(now) is not None):
        return None  # one group at a time: so it is known which one fails
    if mesh.retry_at is not None and waits_until(mesh.retry_at, now) <= now:
        mesh.retry_at = None
    first = engine.read("sync.due", lambda tx: tx.outbox_next_at(mesh.lane))
    if first is None and not mesh.inflight:
        for number in list(mesh.trial.suspects):
            mesh.forget_suspect(number)  # an operator was faster
    if first is None or waits_until(first, now) > now:
        return None
    chosen = engine.write("sync.push", partial(_choose, engine, mesh, policy, room, now))
    for lost in chosen.lost:
        _tell_dead(mesh, lost, b"")
    for held in chosen.held:
        mesh.held[held.row.number] = held
    if (again := mesh.trial.next_at(now)) is not None:
        mesh.retry_at = min(again, mesh.retry_at or again)
    if not chosen.rows:
        return None
    for row in chosen.rows:
        mesh.inflight[row.number] = row
    items = [Item(row.number, raw) for row, raw in zip(chosen.rows, chosen.raws, strict=True)]
    return Push(mesh.slug, mesh.cursor.epoch, items)


def _choose(
    engine: NodeEngine, mesh: MeshState, policy: Policy, room: int, now: int, tx: Transaction
) -> _Chosen:
    chosen = _Chosen([], [], [], [])
    row = tx.mesh_get(mesh.slug)
    if row is None or row.sync_paused:
        # What we last looked at may be older than the answer that somebody got who paused it.
        mesh.paused = True
        return chosen
    if mesh.trial.passes and _try_suspect(engine, mesh, policy, chosen, now, tx):
        return chosen
    set_aside = {*mesh.held, *mesh.trial.suspects}
    after, page = mesh.looked_to, max(room, _PAGE_ROWS_MIN)
    for _ in range(_PAGES):
        due = tx.outbox_due(mesh.lane, now, page, after)
        free = [row for row in due if row.number not in set_aside]
        failing = _failing(mesh, policy, free, tx)
        rows = plan(free, failing, policy, room, list(mesh.inflight.values())).go
        _fill(engine, mesh, chosen, rows, now, tx)
        after = (due[-1].rank, due[-1].number) if len(due) == page else FIRST
        if chosen.rows or after == FIRST:
            break
    # Where all that was looked at has to wait, the next look begins behind it.
    mesh.looked_to = FIRST if chosen.rows else after
    if not chosen.rows and not mesh.held and not chosen.held:
        # Nothing else can go, and nothing waits for objects on this connection: try it again.
        _try_suspect(engine, mesh, policy, chosen, now, tx)
    tx.outbox_inflight(mesh.lane, [row.number for row in chosen.rows])
    return chosen


def _try_suspect(
    engine: NodeEngine,
    mesh: MeshState,
    policy: Policy,
    chosen: _Chosen,
    now: int,
    tx: Transaction,
) -> bool:
    """Chooses the row that failed alone and whose turn it is, and nothing beside it."""
    while (suspect := mesh.trial.due(now)) is not None:
        row = tx.outbox_get(mesh.lane, suspect.row.id)
        if row is None or row.state != OutboxState.PENDING:
            mesh.forget_suspect(suspect.row.number)  # an operator was faster
            continue
        failing = _failing(mesh, policy, [row], tx)
        if row.not_before > now or not plan([row], failing, policy, 1).go:
            return False
        _fill(engine, mesh, chosen, [row], now, tx)
        tx.outbox_inflight(mesh.lane, [row.number for row in chosen.rows])
        return bool(chosen.rows)
    return False


def _fill(
    engine: NodeEngine,
    mesh: MeshState,
    chosen: _Chosen,
    rows: Sequence[OutboxRow],
    now: int,
    tx: Transaction,
) -> None:
    size = 0
    stuck: set[str] = set()
    for at in range(0, len(rows), _READ_ROWS):
        some = rows[at : at + _READ_ROWS]
        entries = _entries(some, tx)
        for row in some:
            entry = entries.get(row.offset)
            if entry is None:
                tx.outbox_put(lost := _lost(row, now))
                chosen.lost.append(lost)
                continue
            if row.entity and row.entity in stuck:
                continue
            missing = _objects(engine, mesh, entry)
            if missing:
                chosen.held.append(Held(row, frozenset(missing)))
                stuck.add(row.entity)
                continue
            size += len(entry.raw)
            if chosen.rows and size > SYNC_PUSH_BYTES:
                return
            chosen.rows.append(row)
            chosen.raws.append(entry.raw)


def _failing(
    mesh: MeshState, policy: Policy, due: Sequence[OutboxRow], tx: Reader
) -> list[OutboxRow]:
    """The rows that may hold others up: those that were refused, also while they are tried again,
    and those that wait for objects.
    """
    held = [one.row for one in list(mesh.held.values())]
    held += [suspect.row for suspect in mesh.trial.suspects.values()]
    held += [row for row in list(mesh.inflight.values()) if row.attempts]
    if policy is Policy.HALT:
        return [*tx.outbox_failing(mesh.lane, None), *held]
    return [*tx.outbox_failing(mesh.lane, {row.entity for row in due if row.entity}), *held]


def _entries(rows: Sequence[OutboxRow], tx: Reader) -> dict[int, Entry]:
    """The log entries of rows, by offset. Rows that follow each other often do so in the log."""
    if not rows:
        return {}
    offsets = [row.offset for row in rows]
    first, last = min(offsets), max(offsets)
    if last - first < _DENSE * len(rows):
        wanted = set(offsets)
        span = tx.log_range(first, last + 1, last - first + 1)
        return {entry.offset: entry for entry in span if entry.offset in wanted}
    found = (tx.log_get(offset) for offset in offsets)
    return {entry.offset: entry for entry in found if entry is not None}


def _objects(engine: NodeEngine, mesh: MeshState, entry: Entry) -> list[str]:
    """Objects that an envelope names, that are here, and that the broker may not have."""
    if entry.op not in _NAMING:
        return []
    named = [found.sha256 for found in objects_of(read_arrivals((entry.raw,)))]
    return [sha for sha in named if sha not in mesh.brought and engine.blobs.exists(sha)]


def release(mesh: MeshState, objects: Iterable[str]) -> None:
    """The broker has these objects: rows that wait for nothing else become free."""
    mesh.brought.update(objects)
    for number, held in list(mesh.held.items()):
        if held.objects <= mesh.brought:
            del mesh.held[number]


def _lost(row: OutboxRow, now: int) -> OutboxRow:
    return msgspec.structs.replace(
        row,
        state=str(OutboxState.DEAD),
        code="truncated",
        error="its envelope is no longer in the log",
        tried_at=now,
        ended_at=now,
    )


# --- answers -------------------------------------------------------------------------------------


def ack_rows(
    engine: NodeEngine, mesh: MeshState, acks: Acks, policy: Policy, chance: Callable[[], float]
) -> list[Meaning]:
    """Turns the broker's answers into states of their rows, in one transaction. Returns what they
    meant; an answer about a row that is not in flight means nothing.

    An answer of an epoch that is over may no longer be true: such rows go again.
    """
    found = [
        (mesh.inflight[answer.number], answer)
        for answer in acks.answers
        if answer.number in mesh.inflight
    ]
    if not found:
        return []
    answers = [
        # Nearly all are the first, and there are many.
        (row, answer, _DONE if answer.status == _CREATED else _meaning(answer))
        for row, answer in found
    ]
    settling = _Settling(engine, mesh, acks.epoch, answers, policy, chance)
    engine.write("sync.acks", settling)
    answers = settling.answers
    meanings = {meaning for _, _, meaning in answers}
    if meanings & {Meaning.LATER, Meaning.AGAIN}:
        # Again, too: an epoch that is not taken up would refuse them as fast as they are sent.
        mesh.busy += 1
        mesh.not_before = engine.ctx.now_ms() + backoff_ms(mesh.busy, chance())
    elif Meaning.DONE in meanings:
        mesh.busy = 0
    if 0 < acks.epoch < mesh.cursor.epoch:
        log.warning(
            "an answer about %s is of epoch %d, and epoch %d has begun: it is passed over",
            mesh.slug,
            acks.epoch,
            mesh.cursor.epoch,
        )
    mesh.paused = settling.paused
    mesh.advance(settling.cursor)
    for row, _ in found:
        mesh.inflight.pop(row.number, None)
    _judge(engine, mesh, answers, policy, chance)
    _count(mesh, answers, engine.ctx.now_ms())
    _tell_duplicates(mesh, answers)
    for dead, why in settling.dead:
        _tell_dead(mesh, dead, why)
    return [meaning for _, _, meaning in answers]


def _judge(
    engine: NodeEngine,
    mesh: MeshState,
    answers: list[tuple[OutboxRow, PushAnswer, Meaning]],
    policy: Policy,
    chance: Callable[[], float],
) -> None:
    """What the lane may send next. A broker that answers that it failed, as to a whole group, may
    have failed at one of its rows.
    """
    now = engine.ctx.now_ms()
    passed = [row.number for row, _, meaning in answers if meaning in _ABOUT_THE_ROW]
    failed = [
        (row, f"the broker answers {answer.status} {_code(answer)}".rstrip())
        for row, answer, meaning in answers
        if meaning is Meaning.LATER and answer.status >= _BROKER_FAILED
    ]
    why = failed[0][1] if failed else ""
    convict = mesh.judge(passed, [row for row, _ in failed], why, now, chance())
    if convict is not None:
        _convict(engine, mesh, convict, policy, chance())
    if (again := mesh.trial.next_at(now)) is not None:
        mesh.retry_at = min(again, mesh.retry_at or again)


def _convict(
    engine: NodeEngine, mesh: MeshState, convict: Suspect, policy: Policy, jitter: float
) -> None:
    """Others passed before and after a row failed alone: that costs it an attempt."""
    now = engine.ctx.now_ms()

    def work(tx: Transaction) -> OutboxRow | None:
        row = tx.outbox_get(mesh.lane, convict.row.id)
        if row is None or row.state != OutboxState.PENDING:
            return None  # an operator was faster
        after = after_conviction(convict, row, now_ms=now, jitter=jitter, policy=policy)
        tx.outbox_put(after)
        return after

    after = engine.write("sync.convict", work)
    if after is None or after.state != OutboxState.PENDING:
        mesh.forget_suspect(convict.row.number)
    if after is not None:
        log.warning(
            "%s of %s fails alone for the %d. time, and others pass: %s",
            *(id_text(after.id), mesh.lane, after.attempts, convict.why),
        )
        if after.state == OutboxState.DEAD:
            mesh.on_dead(after)


def _meaning(answer: PushAnswer) -> Meaning:
    return meaning_of(answer.status, _code(answer))


def _code(answer: PushAnswer) -> str:
    return "" if answer.problem is None else answer.problem.code


def _count(mesh: MeshState, answers: list[tuple[OutboxRow, PushAnswer, Meaning]], now: int) -> None:
    for _, answer, meaning in answers:
        if meaning is Meaning.DONE:
            mesh.pushed += 1
            mesh.pruned += not answer.history_available
        elif meaning is Meaning.REFUSED:
            mesh.refused += 1
        elif meaning is Meaning.OUT and answer.problem is not None:
            problem = answer.problem
            mesh.refuse(error_by_code(problem.code, problem.message, problem.hint), now)


def _tell_duplicates(mesh: MeshState, answers: list[tuple[OutboxRow, PushAnswer, Meaning]]) -> None:
    """What the broker had already is no news to anybody. That it no longer holds it is: whoever has
    not got it by now does not get it any more.
    """
    again = [(row, answer) for row, answer, _ in answers if answer.status == _KNOWN]
    pruned = [row for row, answer in again if not answer.history_available]
    if pruned:
        log.warning(
            "%s: the broker has taken %d of what was sent again before, and holds it no longer "
            "(the first is %s)",
            *(mesh.slug, len(pruned), id_text(pruned[0].id)),
        )
    if len(again) > len(pruned):
        log.info(
            "%s: the broker had %d of what was sent again already (the first is %s)",
            *(mesh.slug, len(again) - len(pruned), id_text(again[0][0].id)),
        )


def _tell_dead(mesh: MeshState, row: OutboxRow, fingerprint: bytes) -> None:
    """A row has died: said aloud, and an event for whoever listens."""
    if row.code == IdempotencyKeyReused.code:
        log.warning(
            "%s: message %s, whose fingerprint begins with %s, is refused for good: %s",
            *(mesh.slug, id_text(row.id), fingerprint[:PREFIX_BYTES].hex(), row.error),
        )
    else:
        log.warning(
            "%s: %s is dead (%s: %s); see: holdfast outbox list --failed",
            *(mesh.slug, id_text(row.id), row.code, row.error),
        )
    mesh.on_dead(row)


class _Settling:
    """The transaction that stores answers."""

    def __init__(
        self,
        engine: NodeEngine,
        mesh: MeshState,
        epoch: int,
        answers: list[tuple[OutboxRow, PushAnswer, Meaning]],
        policy: Policy,
        chance: Callable[[], float],
    ) -> None:
        self._engine, self._mesh, self._epoch = engine, mesh, epoch
        self.answers, self._policy, self._chance = answers, policy, chance
        self.paused, self.cursor = mesh.paused, mesh.cursor
        self.dead: list[tuple[OutboxRow, bytes]] = []
        """Rows that died, with the fingerprint of their envelopes."""

    def __call__(self, tx: Transaction) -> None:
        now = self._engine.ctx.now_ms()
        self.dead = []
        lane = self._mesh.lane
        # Looked at here and not before: another thread may be putting back what an epoch lost,
        # and would not see what is written down as done in it behind its back.
        if 0 < self._epoch < max(self._mesh.ahead, self._mesh.cursor.epoch):
            self.answers = [(row, answer, Meaning.AGAIN) for row, answer, _ in self.answers]
        done = [(row, answer) for row, answer, meaning in self.answers if meaning is Meaning.DONE]
        tx.outbox_done([(row.number, a.broker_id, a.message_epoch, a.seq) for row, a in done], now)
        positions = [(a.seq, row.offset) for row, a in done if a.history_available]
        tx.broker_positions_add(self._mesh.slug, self._epoch, positions)
        seqs = {seq for seq, _ in positions}
        halted = False
        for row, answer, meaning in self.answers:
            if meaning is Meaning.DONE:
                continue
            # By its number: it may have given its id back to what the broker brought meanwhile.
            known = next(iter(tx.outbox_list(lane, (), row.number - 1, 1)), None)
            if known is None or (known.number, known.state) != (row.number, OutboxState.INFLIGHT):
                continue  # an operator was faster
            if meaning is Meaning.REFUSED:
                after = self._refused(known, answer, now, tx)
                if after.state == OutboxState.PENDING:
                    before = self._mesh.retry_at or after.not_before
                    self._mesh.retry_at = min(before, after.not_before)
                halted = halted or (
                    self._policy is Policy.HALT and after.attempts >= OUTBOX_ATTEMPTS_MAX
                )
            else:
                after = msgspec.structs.replace(known, state=str(OutboxState.PENDING), tried_at=now)
            tx.outbox_put(after)
            if after.state == OutboxState.DEAD:
                entry = tx.log_get(after.offset)
                mark = b"" if entry is None else decode_trusted(entry.raw).fingerprint
                self.dead.append((after, mark))
        self._note(tx, now, seqs, halted=halted)

    def _refused(self, row: OutboxRow, answer: PushAnswer, now: int, tx: Reader) -> OutboxRow:
        problem = answer.problem or WireError("refused", f"the broker answers {answer.status}")
        entry = tx.log_get(row.offset)
        ours = entry is None or entry.origin == self._engine.ctx.peer
        if problem.code == NotGranted.code and not ours:
            # Brought again because the broker had lost it, and not ours to bring: no one's fault.
            return after_abort(row, now, f"{problem.code}: {problem.message}")
        return after_refusal(
            row,
            status=answer.status,
            code=problem.code,
            message=problem.message,
            now_ms=now,
            jitter=self._chance(),
            policy=self._policy,
        )

    def _note(self, tx: Transaction, now: int, seqs: set[int], *, halted: bool) -> None:
        row = tx.mesh_get(self._mesh.slug)
        if row is None:
            return
        seq = row.broker_seq
        while row.broker_epoch == self._epoch and seq + 1 in seqs:
            seq += 1  # what lies right behind the cursor is our own: nothing else can be there
        paused = row.sync_paused or halted
        tx.mesh_change(
            msgspec.structs.replace(row, broker_seq=seq, last_sync_at=now, sync_paused=paused)
        )
        self.cursor = Cursor(row.broker_epoch, seq)
        self.paused = paused
