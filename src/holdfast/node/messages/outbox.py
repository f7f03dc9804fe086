"""The outbox for operators: what waits for the broker, what failed and why, what waits for what.

    retry    try it again at once, after the operator has removed the cause
    requeue  send a message again under a new id, to the same destination; the old one is given up
    drop     give it up

Every node knows a change by its id, so a change cannot be requeued under a new one: write it again
instead. Dropping a change means that other nodes will not get it from this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.messages.send import MessageChange, Sent
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.bodies import MessageSend, decode_trusted_body
from holdfast.rules.bus.message import bus_subject
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BadInput, Conflict, IdempotencyKeyReused, UnknownMessage
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text, is_aside, parse_row_id
from holdfast.rules.limits import OUTBOX_PAGE_ROWS
from holdfast.rules.listed import listed
from holdfast.rules.message import MESSAGE
from holdfast.rules.outbox import (
    EXPIRED,
    MESSAGE_EXPIRED,
    PARK,
    REPLACED,
    OutboxState,
    Policies,
    Policy,
    after_abort,
    after_retry,
    is_peer_lane,
    lane_of,
    mesh_of,
    peer_of,
    plan,
)
from holdfast.rules.rows import Entry, OutboxRow
from holdfast.rules.shown import Shown, ShownFace
from holdfast.rules.structs import copy_to
from holdfast.storage.ports import Reader, Transaction

FAILED = (OutboxState.DEAD,)
_NOT_DONE = tuple(state for state in OutboxState if state is not OutboxState.DONE)


class OutboxItem(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """One envelope on its way to the broker."""

    number: int
    lane: str
    id: str
    """The id of its envelope; or, if it has given that back, the one that names it since."""
    mesh: str
    op: str
    """Empty if the log no longer holds the envelope; `bus.send`, `bus.request` or `bus.publish` for
    a message of the bus."""
    entity: str
    """The key, path or task that it changes; for a message its destination, as `topic/news`; for
    one of the bus its topic or service."""
    priority: str
    state: str
    attempts: int
    created_at: int
    retry_at: int | None
    """When this node tries it again, by its own clock."""
    tried_at: int | None
    ended_at: int | None
    code: str
    error: str
    broker_id: str | None
    broker_epoch: int
    broker_seq: int
    replaces: str | None
    """The id of the failed message that this one was requeued for."""
    blocked_by: str | None = None
    """The id of the failed item that it waits for."""
    sent_as: str | None = None
    """The id under which it was sent, if it has given that back: another message may have it."""


class LaneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One lane: how many items are in which state, and what holds it up."""

    lane: str
    mesh: str
    policy: str
    pending: int
    inflight: int
    done: int
    dead: int
    aborted: int
    oldest_at: int | None
    """When the oldest item that the broker does not have yet was written."""
    failing: str | None
    """The id of the first item that the broker refused; None if it refused none."""
    problem: str | None
    """Why the broker refused it."""
    blocks: str
    """What waits behind it: `everything after it`, `what is about the same entity`, or nothing."""


_BLOCKS = {
    Policy.HALT: "everything after it",
    Policy.PARK: "what is about the same entity",
    Policy.QUARANTINE: "",
}


@checks_arguments()
class Outbox(ShownFace):
    """What this node has to send, of all meshes."""

    def __init__(self, engine: NodeEngine, policies: Policies = PARK) -> None:
        self._engine = engine
        self._policies = policies

    # --- looking -----------------------------------------------------------------------------

    @listed(OutboxItem)
    @checked
    def list(
        self, *, failed: bool = False, lane: str | None = None, after: int = 0
    ) -> Iterator[OutboxItem]:
        """The items after a number, in order; reads a page at a time. `failed`: only dead ones.

        >>> [item.code for item in node.outbox.list(failed=True)]
        [...]
        """
        states = FAILED if failed else ()
        place = after
        while True:
            items = self.page(states=states, lane=lane, after=place, limit=OUTBOX_PAGE_ROWS)
            yield from items
            if len(items) < OUTBOX_PAGE_ROWS:
                return
            place = items[-1].number

    def page(
        self, *, states: Collection[str], lane: str | None, after: int, limit: int
    ) -> Sequence[OutboxItem]:
        """At most `limit` items behind the number `after`, of these states or of all.

        >>> node.outbox.page(states=["pending"], lane="fleet", after=0, limit=10)
        """
        wanted = {_state(name) for name in states}

        def read(tx: Reader) -> Sequence[OutboxItem]:
            rows = tx.outbox_list(_lane(lane), wanted, after, limit)
            blocked = self._blocked(tx, rows)
            return [_item(tx, row, blocked.get(row.number)) for row in rows]

        return self._engine.read("outbox.list", read)

    def get(self, id: str) -> OutboxItem:
        """One item by the id of its change or message.

        >>> sent = fleet.send("soon", topic="news")
        >>> node.outbox.get(sent.id).state
        'pending'
        """

        def read(tx: Reader) -> OutboxItem:
            row = _require(tx, parse_row_id(id))
            return _item(tx, row, self._blocked(tx, [row]).get(row.number))

        return self._engine.read("outbox.get", read)

    def lanes(self) -> Sequence[LaneInfo]:
        """The lane of every shared mesh, and every other lane that holds an item.

        >>> [lane.mesh for lane in node.outbox.lanes()]
        ['fleet'...]
        """

        counts = self._engine.message_count.latest().outbox

        def read(tx: Reader) -> Sequence[LaneInfo]:
            lanes = {lane for lane, _ in counts}
            lanes |= {lane_of(row.slug) for row in tx.mesh_list() if row.shared}
            return [self._lane_info(tx, lane, counts) for lane in sorted(lanes)]

        return self._engine.read("outbox.lanes", read)

    # --- acting ------------------------------------------------------------------------------

    def retry(self, id: str) -> OutboxItem:
        """Tries an item again at once, when what was wrong is put right.

        >>> sent = fleet.send("soon", topic="news")
        >>> node.outbox.retry(sent.id).state
        'pending'
        """

        def change(tx: Transaction, row: OutboxRow) -> OutboxRow:
            if row.code == EXPIRED and row.state == OutboxState.DEAD:
                raise Conflict(
                    f"{id_text(row.id)} has waited for too long: the broker could not tell any "
                    "more whether it came before",
                    hint=f"holdfast outbox requeue --new-id {id_text(row.id)}",
                )
            if row.code == MESSAGE_EXPIRED:
                raise Conflict(
                    f"the time of {id_text(row.id)} ran out before {peer_of(row.lane)} came",
                    hint="send it again, with more time",
                )
            if row.code == REPLACED or row.state in (OutboxState.DONE, OutboxState.INFLIGHT):
                why = row.error if row.code == REPLACED else f"is {row.state}"
                raise Conflict(f"{id_text(row.id)} {why}: there is nothing to try again")
            return after_retry(row)

        return self._change("outbox.retry", id, change)

    def drop(self, id: str) -> OutboxItem:
        """Gives an item up: the broker does not get it from this node.

        >>> sent = fleet.send("never mind", topic="news")
        >>> node.outbox.drop(sent.id).state
        'aborted'
        """
        now = self._engine.ctx.now_ms()

        def change(tx: Transaction, row: OutboxRow) -> OutboxRow:
            if row.state == OutboxState.ABORTED:
                return row
            if row.state not in (OutboxState.DEAD, OutboxState.PENDING):
                raise Conflict(
                    f"{id_text(row.id)} is {row.state}",
                    hint="what the broker has cannot be taken back; what is in flight has an "
                    "answer soon",
                )
            return after_abort(row, now, "given up by an operator")

        return self._change("outbox.drop", id, change)

    def requeue(self, id: str, *, new_id: str | None = None) -> Sent:
        """Sends a failed message again under a new id, and gives the old one up.

        >>> failed = fleet.send("again", topic="news")
        >>> node.outbox.drop(failed.id)
        >>> node.outbox.requeue(failed.id).state
        'pending'
        """
        engine, now = self._engine, self._engine.ctx.now_ms()
        raw_id = parse_row_id(id)
        minted = engine.ctx.new_id()

        def work(tx: Transaction) -> Sent:
            old = _require(tx, raw_id)
            old_id = old.id
            if is_peer_lane(old.lane):
                raise BadInput(
                    f"{id_text(old_id)} goes to {peer_of(old.lane)} over the bus",
                    hint="holdfast outbox retry; or send it again",
                )
            fresh_id = minted if new_id is None else id_of_key(new_id, old.mesh, engine.ctx.peer)
            if old.code == REPLACED:
                return _replaced(tx, old, fresh_id)
            if old.state not in (OutboxState.DEAD, OutboxState.ABORTED):
                raise Conflict(
                    f"{id_text(old_id)} is {old.state}: it may yet arrive, and then twice",
                    hint="drop it first if it is pending; wait for its answer if it is in flight",
                )
            receipt = _again(engine, tx, old, fresh_id)(tx)
            new = tx.outbox_get(old.lane, fresh_id)
            if receipt.duplicate or new is None:
                raise IdempotencyKeyReused(f"id {receipt.id} was used before")
            tx.outbox_put(msgspec.structs.replace(new, replaces=old_id))
            tx.outbox_put(after_abort(old, now, f"sent again as {receipt.id}", REPLACED))
            return _sent(tx, new, duplicate=False)

        return engine.write("message.send", work)

    # --- inside ------------------------------------------------------------------------------

    def _change(
        self, name: str, id: str, change: Callable[[Transaction, OutboxRow], OutboxRow]
    ) -> OutboxItem:
        raw_id = parse_row_id(id)

        def work(tx: Transaction) -> OutboxItem:
            row = change(tx, _require(tx, raw_id))
            tx.outbox_put(row)
            return _item(tx, row, self._blocked(tx, [row]).get(row.number))

        return self._engine.write(name, work)

    def _blocked(self, tx: Reader, rows: Sequence[OutboxRow]) -> dict[int, bytes]:
        """By the number of a pending row: the id of the failed item that it waits for."""
        found: dict[int, bytes] = {}
        for lane in {row.lane for row in rows}:
            waiting = [row for row in rows if row.lane == lane and row.state == OutboxState.PENDING]
            if not waiting:
                continue
            policy = self._policy(lane)
            entities = None if policy is Policy.HALT else {r.entity for r in waiting if r.entity}
            failing = {row.number: row for row in tx.outbox_failing(lane, entities)}
            planned = plan(waiting, failing.values(), policy, len(waiting))
            found |= {number: failing[by].id for number, by in planned.blocked.items()}
        return found

    def _policy(self, lane: str) -> Policy:
        """What a peer of the bus refuses holds up nothing: messages do not depend on each other."""
        return Policy.QUARANTINE if is_peer_lane(lane) else self._policies.of(mesh_of(lane))

    def _lane_info(self, tx: Reader, lane: str, counts: dict[tuple[str, str], int]) -> LaneInfo:
        mesh = "" if is_peer_lane(lane) else lane.partition(":")[2]
        policy = self._policy(lane)
        first = next(iter(tx.outbox_failing(lane, None)), None)
        by_state = {str(state): counts.get((lane, str(state)), 0) for state in OutboxState}
        return LaneInfo(
            lane=lane,
            mesh=mesh,
            policy=str(policy),
            **by_state,
            oldest_at=tx.outbox_oldest(lane),
            failing=None if first is None else id_text(first.id),
            problem=None if first is None else f"{first.code}: {first.error}",
            blocks="" if first is None else _BLOCKS[policy],
        )

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()


def _require(tx: Reader, id: bytes) -> OutboxRow:
    rows = tx.outbox_find(id)
    row = rows[0] if rows else _set_aside(tx, id)
    if row is None:
        raise UnknownMessage(f"nothing with the id {id_text(id)} is in the outbox")
    return row


def _set_aside(tx: Reader, id: bytes) -> OutboxRow | None:
    """The newest row that was sent under this id and has given it back."""
    found: OutboxRow | None = None
    after = 0
    while page := tx.outbox_list(None, _NOT_DONE, after, OUTBOX_PAGE_ROWS):
        for row in page:
            if is_aside(row.id) and (envelope := _envelope(tx, row)) and envelope.id == id:
                found = row
        after = page[-1].number
    return found


def _again(engine: NodeEngine, tx: Reader, old: OutboxRow, new_id: bytes) -> MessageChange:
    envelope = _envelope(tx, old)
    if envelope is None:
        raise UnknownMessage(f"the content of {id_text(old.id)} is gone with the old log")
    body = decode_trusted_body(envelope)
    if envelope.op != MESSAGE or not isinstance(body, MessageSend) or envelope.to is None:
        raise BadInput(
            f"{id_text(old.id)} is {envelope.op}, which is known everywhere by its id",
            hint="put right what was wrong, then: holdfast outbox retry; or write it again",
        )
    kind, ref = envelope.to
    return MessageChange(
        engine.ctx,
        envelope.mesh,
        kind,
        ref,
        body.content,
        content_type=body.content_type,
        meta=envelope.meta,
        priority=envelope.priority,
        reply_to=envelope.reply_to,
        id=id_text(new_id),
    )


def _replaced(tx: Reader, old: OutboxRow, new_id: bytes) -> Sent:
    """The answer to a requeue that was done before: a caller that missed the answer asks again with
    the same new id.
    """
    new = tx.outbox_get(old.lane, new_id)
    if new is None or new.replaces != old.id:
        raise Conflict(f"{id_text(old.id)} was {old.error}")
    return _sent(tx, new, duplicate=True)


def _sent(tx: Reader, row: OutboxRow, *, duplicate: bool) -> Sent:
    envelope = _envelope(tx, row)
    kind, ref = ("", "") if envelope is None or envelope.to is None else envelope.to
    given = {"id": id_text(row.id), "kind": kind, "ref": ref, "state": str(row.state)}
    return copy_to(Sent, row, **given, duplicate=duplicate)


def _envelope(tx: Reader, row: OutboxRow) -> Envelope | None:
    entry = tx.log_get(row.offset)
    return None if entry is None or entry.id != row.id else decode_trusted(entry.raw)


def _item(tx: Reader, row: OutboxRow, blocked_by: bytes | None) -> OutboxItem:
    entry = tx.log_get(row.offset)
    known = entry if entry is not None and entry.id == row.id else None
    op, entity = ("", "") if known is None else (known.op, known.entity)
    if is_peer_lane(row.lane) and (head := tx.bus_head(row.number)) is not None:
        op, entity = bus_subject(head)
    return copy_to(
        OutboxItem,
        row,
        id=id_text(row.id),
        op=op,
        entity=entity,
        priority=PRIORITIES[row.rank],
        state=str(row.state),
        retry_at=row.not_before or None,
        broker_id=None if row.broker_id is None else row.broker_id.hex(),
        replaces=None if row.replaces is None else id_text(row.replaces),
        blocked_by=None if blocked_by is None else id_text(blocked_by),
        sent_as=_sent_as(row, known),
    )


def _sent_as(row: OutboxRow, entry: Entry | None) -> str | None:
    return id_text(decode_trusted(entry.raw).id) if entry and is_aside(row.id) else None


def _lane(lane: str | None) -> str | None:
    """The full name of a lane, which may be given by the name of its mesh."""
    return lane if lane is None or ":" in lane else lane_of(lane)


def _state(name: str) -> str:
    try:
        return OutboxState(name).value
    except ValueError:
        known = ", ".join(OutboxState)
        raise BadInput(f"{name!r} is no state of the outbox", hint=f"use one of: {known}") from None
