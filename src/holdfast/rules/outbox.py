"""What a node sends to the broker next, and what it does with what the broker refuses.

Every change of a shared mesh has a row in the outbox from the moment it is written, in the lane of
its mesh, until the broker has it:

    pending → inflight → done        the broker has it
       ↑         ├──→ pending        the answer is not known, or the node may try again
       │         └──→ dead           the broker will never accept it as it is
       └── retry ──── dead           an operator removed the cause
    pending, dead ──→ aborted        an operator gave it up

A lane's **policy** says what waits behind an item that the broker refuses:

    halt         everything that was written after it
    park         what is about the same entity
    quarantine   nothing

Messages have no entity in this sense: none of them changes what another did. Changes of one entity
leave in the order in which they were written, whatever their priority.

A network that fails, or a broker that is busy, is no refusal of an item: the lane waits, and no
item loses an attempt. But one item may be what the broker fails at: it answers that it failed,
hangs up or falls silent each time that the item is in a group. So after a group has failed as a
whole the lane sends less, down to one item at a time (`Trial`). An item that fails alone is set
aside while others go. Only if the broker takes others before and after it is the item charged with
an attempt: a broker that takes nothing is no item's fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from holdfast.rules.backoff import backoff_ms, longest_ms
from holdfast.rules.bodies import family_of
from holdfast.rules.destinations import rank
from holdfast.rules.envelope import Priority
from holdfast.rules.limits import (
    BACKOFF_MS_MAX,
    FAILURES_ALONE_MIN,
    HOUR_MS,
    OUTBOX_ATTEMPTS_MAX,
    REASON_CHARS_MAX,
    SUSPECTS_MAX,
    SYNC_PUSH_ITEMS,
)
from holdfast.rules.rows import OutboxRow


class OutboxState(StrEnum):
    PENDING = "pending"
    INFLIGHT = "inflight"
    DONE = "done"
    DEAD = "dead"
    ABORTED = "aborted"


class Policy(StrEnum):
    HALT = "halt"
    QUARANTINE = "quarantine"
    PARK = "park"


class Policies(msgspec.Struct, frozen=True):
    """The policy of each lane."""

    usual: Policy = Policy.PARK
    by_mesh: dict[str, Policy] = {}

    def of(self, mesh: str) -> Policy:
        return self.by_mesh.get(mesh, self.usual)


PARK: Final = Policies()

MESSAGE_EXPIRED: Final = "message_expired"
"""The code of a message of the bus whose time ran out before its peer came."""
EXPIRED: Final = "outbox_expired"
"""The code of a message that waited for longer than the broker would know its id."""
DROPPED: Final = "dropped"
REPLACED: Final = "replaced"
"""The codes of an item that an operator gave up, and of a message that was requeued."""

_LANE: Final = "broker:"
_PEER_LANE: Final = "peer:"
QUORUM_LANES: Final = "quorum:"
"""What the names of the lanes of quorums begin with. Their rows are kept: they tell what became of
each write."""
_FAILED: Final = 502
_ANOTHER_TIME: Final = frozenset({401, 403, 404, 408, 425, 429})
"""HTTP statuses of refusals that may pass later without a change: a member gets a grant, a topic is
declared. So may all statuses from 500 on."""


def lane_of(mesh: str) -> str:
    """The lane for the changes and messages of a shared mesh."""
    return f"{_LANE}{mesh}"


def is_lane(name: str) -> bool:
    return name.startswith(_LANE)


def mesh_of(lane: str) -> str:
    return lane.removeprefix(_LANE)


def peer_lane_of(peer: str) -> str:
    """The lane for messages of the bus to a peer, by its name."""
    return f"{_PEER_LANE}{peer}"


def is_peer_lane(name: str) -> bool:
    return name.startswith(_PEER_LANE)


def peer_of(lane: str) -> str:
    return lane.removeprefix(_PEER_LANE)


def quorum_lane_of(mesh: str) -> str:
    """The lane for strong writes of a mesh that wait for its quorum."""
    return f"{QUORUM_LANES}{mesh}"


def is_quorum_lane(name: str) -> bool:
    return name.startswith(QUORUM_LANES)


def entity_of(op: str, owner: str, entity: str) -> str:
    """The key of the changes that must keep their order; empty for messages, which have none."""
    family = family_of(op)
    return "" if family == "message" else f"{family}/{owner}/{entity}"


class ForOutbox(Protocol):
    """What an envelope and the change that it is made of both say of themselves."""

    @property
    def id(self) -> bytes: ...
    @property
    def mesh(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def entity(self) -> str: ...
    @property
    def priority(self) -> Priority: ...


def outbox_row(lane: str, envelope: ForOutbox, offset: int, now_ms: int) -> OutboxRow:
    """The row of an envelope that is in this node's log at `offset`."""
    return OutboxRow(
        lane=lane,
        id=envelope.id,
        mesh=envelope.mesh,
        entity=entity_of(envelope.op, envelope.owner, envelope.entity),
        rank=rank(envelope.priority),
        offset=offset,
        created_at=now_ms,
    )


# --- what goes next ------------------------------------------------------------------------------


class LanePlan(msgspec.Struct, frozen=True):
    """Which of the due rows of a lane go now, and what holds up the others."""

    go: list[OutboxRow]
    """The rows to send, in this order."""
    blocked: dict[int, int]
    """By the number of a row: the number of the row that it waits for."""


def plan(
    due: Sequence[OutboxRow],
    failing: Iterable[OutboxRow],
    policy: Policy,
    room: int,
    inflight: Iterable[OutboxRow] = (),
) -> LanePlan:
    """Which of the rows that are due to send, at most `room` of them.

    `due` comes by rank and number. `failing` are the first failing rows of each of their entities,
    or of the lane (see the store's `outbox_failing`). A row that is tried again also waits for rows
    of its entity that were `inflight` when it was refused: they were sent after it.
    """
    first = _first_failing(failing, policy)
    later = _last_of_each(inflight)
    ahead = _in_order(due)
    go: list[OutboxRow] = []
    blocked: dict[int, int] = {}
    for row in due:
        waits_for: int | None = None
        for item in ahead.pop(row.entity, ()) if row.entity else (row,):
            blocker = first.get("" if policy is Policy.HALT else item.entity)
            if waits_for is None and blocker is not None and blocker < item.number:
                waits_for = blocker
            if waits_for is None and later.get(item.entity, 0) > item.number:
                waits_for = later[item.entity]
            if waits_for is not None:  # and later rows of its entity wait with it
                blocked[item.number] = waits_for
            elif len(go) < room:
                go.append(item)
    return LanePlan(go, blocked)


def _first_failing(failing: Iterable[OutboxRow], policy: Policy) -> dict[str, int]:
    """The lowest failing number by entity, or for the whole lane under the empty key."""
    lowest: dict[str, int] = {}
    if policy is Policy.QUARANTINE:
        return lowest
    for row in failing:
        key = "" if policy is Policy.HALT else row.entity
        if policy is Policy.HALT or row.entity:
            lowest[key] = min(row.number, lowest.get(key, row.number))
    return lowest


def _last_of_each(inflight: Iterable[OutboxRow]) -> dict[str, int]:
    last: dict[str, int] = {}
    for row in inflight:
        if row.entity:
            last[row.entity] = max(row.number, last.get(row.entity, 0))
    return last


def _in_order(due: Sequence[OutboxRow]) -> dict[str, list[OutboxRow]]:
    """The rows of each entity in the order in which they were written. All of them go at the place
    of the first, because an urgent one must not overtake an earlier one.
    """
    by_entity: dict[str, list[OutboxRow]] = {}
    for row in due:
        if row.entity:
            by_entity.setdefault(row.entity, []).append(row)
    for rows in by_entity.values():
        rows.sort(key=lambda row: row.number)
    return by_entity


# --- after a group has failed --------------------------------------------------------------------


FAILS_ALONE: Final = "fails_alone"
"""The code of an item that the broker fails at while it takes others."""


class Suspect(msgspec.Struct, frozen=True):
    """A row that has failed alone. It is left out while others go, and tried again alone."""

    row: OutboxRow
    failures: int
    """How many times it has failed alone."""
    not_before: int
    why: str
    between: int = 0
    """How many of these lay between two groups that passed."""


class Trial(msgspec.Struct, frozen=True):
    """What a lane may send after groups of it have failed as a whole."""

    most: int = SYNC_PUSH_ITEMS
    """So many rows at a time. If that is less than all, one group at a time."""
    suspects: dict[int, Suspect] = {}
    """By number."""
    passes: bool = False
    """The broker has taken the group before this one."""
    accused: int | None = None
    """The row that has just failed alone, after another group had passed."""

    @property
    def is_careful(self) -> bool:
        """Groups go one by one: the next one when the last is answered."""
        return self.most < SYNC_PUSH_ITEMS

    def failed(self, rows: Sequence[OutboxRow], why: str, now_ms: int, jitter: float) -> Trial:
        """Nobody knows what became of these rows, which were under way together."""
        assert rows, "nothing was under way"
        if len(rows) > 1:
            most = max(1, min(self.most, len(rows)) // 2)
            return msgspec.structs.replace(self, most=most, passes=False, accused=None)
        row = rows[0]
        before = self.suspects.get(row.number)
        failures = 1 if before is None else before.failures + 1
        between = 0 if before is None else before.between
        suspect = Suspect(row, failures, now_ms + backoff_ms(failures, jitter), why, between)
        suspects = {**self.suspects, row.number: suspect}
        while len(suspects) > SUSPECTS_MAX:
            del suspects[next(iter(suspects))]  # it goes with others again, and is found again
        accused = row.number if self.passes else None
        # The others may go in groups as before: this says nothing of them.
        return Trial(most=self.most, suspects=suspects, passes=False, accused=accused)

    def passed(self, numbers: Iterable[int]) -> tuple[Trial, Suspect | None]:
        """The broker has taken these rows, or refused them for what they are. Returns also the row
        that this convicts: it has failed alone between two groups that passed, and not only once.
        """
        suspects = dict(self.suspects)
        for number in numbers:
            suspects.pop(number, None)
        convict = None if self.accused is None else suspects.get(self.accused)
        if convict is not None:
            convict = msgspec.structs.replace(convict, between=convict.between + 1)
            suspects[convict.row.number] = convict
            if convict.between < FAILURES_ALONE_MIN:
                convict = None  # a line may break at any moment
        most = min(SYNC_PUSH_ITEMS, self.most * 2)
        return Trial(most=most, suspects=suspects, passes=True), convict

    def forget(self, number: int) -> Trial:
        """A row that is dead, or gone, is no suspect."""
        suspects = {at: suspect for at, suspect in self.suspects.items() if at != number}
        return msgspec.structs.replace(self, suspects=suspects)

    def due(self, now_ms: int) -> Suspect | None:
        """The suspect whose turn it is, the one that has waited longest."""
        found = [one for one in self.suspects.values() if one.not_before <= now_ms]
        return min(found, key=lambda one: (one.not_before, one.row.number), default=None)

    def next_at(self, now_ms: int) -> int | None:
        """When the next suspect may be tried."""
        later = [one.not_before for one in self.suspects.values() if one.not_before > now_ms]
        return min(later, default=None)


def after_conviction(
    suspect: Suspect, row: OutboxRow, *, now_ms: int, jitter: float, policy: Policy
) -> OutboxRow:
    """The row after the broker has failed at it alone once more: it has cost an attempt."""
    return after_refusal(
        row,
        status=_FAILED,
        code=FAILS_ALONE,
        message=f"the broker fails at this one alone, and takes others: {suspect.why}",
        now_ms=now_ms,
        jitter=jitter,
        policy=policy,
    )


# --- what becomes of a row -----------------------------------------------------------------------


def is_permanent(status: int) -> bool:
    """Whether a broker that refused an item with this status would refuse it every time."""
    return status < 500 and status not in _ANOTHER_TIME


def after_refusal(
    row: OutboxRow,
    *,
    status: int,
    code: str,
    message: str,
    now_ms: int,
    jitter: float,
    policy: Policy = Policy.PARK,
) -> OutboxRow:
    """The row after the broker has refused it."""
    attempts = row.attempts + 1
    worn_out = attempts >= OUTBOX_ATTEMPTS_MAX
    tried = msgspec.structs.replace(
        row, attempts=attempts, tried_at=now_ms, code=code, error=message[:REASON_CHARS_MAX]
    )
    if is_permanent(status) or (worn_out and policy is not Policy.HALT):
        return msgspec.structs.replace(tried, state=OutboxState.DEAD.value, ended_at=now_ms)
    # A lane that halts does not give up an item by itself: all later ones wait for it to pass.
    wait_ms = longest_ms(jitter) if worn_out else backoff_ms(attempts, jitter)
    return msgspec.structs.replace(
        tried, state=OutboxState.PENDING.value, not_before=now_ms + wait_ms
    )


def waits_until(not_before_ms: int, now_ms: int) -> int:
    """Until when an item waits that must not go before a time. No item waits for longer than the
    longest backoff: a time further ahead is one of a clock that was wrong, and is over.
    """
    return now_ms if not_before_ms - now_ms > BACKOFF_MS_MAX else not_before_ms


def is_expired(row: OutboxRow, now_ms: int, max_age_hours: int, old_upto: int) -> bool:
    """Whether a message has waited for so long that the broker may have forgotten its id. Changes
    never expire: every node knows from its state which ones it has.

    `old_upto` is the last offset of the log that is as old: if the clock was wrong when the message
    was added, its time says nothing, but its place in the log does.
    """
    if row.entity or row.offset > old_upto:
        return False
    age_ms = now_ms - row.created_at
    return age_ms > max_age_hours * HOUR_MS or age_ms < 0


def after_expiry(row: OutboxRow, now_ms: int, max_age_hours: int) -> OutboxRow:
    return msgspec.structs.replace(
        row,
        state=OutboxState.DEAD.value,
        attempts=max(row.attempts, 1),
        ended_at=now_ms,
        code=EXPIRED,
        error=f"it has waited for more than {max_age_hours} hours: the broker could not tell any "
        "more whether it came before",
    )


def gives_id_back(row: OutboxRow | None, *, broker_has_another: bool = False) -> bool:
    """Whether the id of a message that this node sent is free for another message.

    A refused send consumes nothing: when the broker has refused a message for good, its id is as if
    it had never been used. While a message still waits, its id is free only for what the broker
    itself brings: then `broker_has_another` message under this id, and will refuse ours. A message
    that expired may have arrived, so it keeps its id.
    """
    if row is None or row.state == OutboxState.DONE:
        return False
    return broker_has_another or (row.state == OutboxState.DEAD and row.code != EXPIRED)


def after_retry(row: OutboxRow) -> OutboxRow:
    """The row after an operator asked for another attempt at once."""
    return msgspec.structs.replace(
        row, state=OutboxState.PENDING.value, attempts=0, not_before=0, ended_at=None
    )


def after_abort(row: OutboxRow, now_ms: int, note: str, code: str = DROPPED) -> OutboxRow:
    """The row after it was given up; its error still says why it failed before."""
    before = f"; before that {row.code}: {row.error}" if row.code else ""
    return msgspec.structs.replace(
        row,
        state=OutboxState.ABORTED.value,
        ended_at=now_ms,
        code=code,
        error=f"{note}{before}"[:REASON_CHARS_MAX],
    )
