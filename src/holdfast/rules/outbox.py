"""What goes to the broker next, and what becomes of what it refuses.

Every change of a shared mesh stands in the spool from the moment it is written, in the lane of its
mesh, until the broker has it:

    pending → inflight → done        the broker has it
       ↑         ├──→ pending        its answer is not known, or it may be tried again
       │         └──→ dead           the broker will never take it as it is
       └── retry ──── dead           an operator put right what was wrong
    pending, dead ──→ aborted        an operator gave it up

A lane's **policy** says what waits behind an item that the broker refuses:

    halt         everything that was written after it
    park         what is about the same entity
    quarantine   nothing

Messages are about no entity in this sense: none of them changes what another did. What is about one
entity leaves in the order in which it was written, whatever its priority.

A network that fails, or a broker that is busy, is no refusal of an item: the lane waits, and it
costs none of its items an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from holdfast.rules.backoff import backoff_ms, longest_ms
from holdfast.rules.bodies import family_of
from holdfast.rules.destinations import rank
from holdfast.rules.envelope import Envelope
from holdfast.rules.limits import HOUR_MS, OUTBOX_ATTEMPTS_MAX, REASON_CHARS_MAX
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
    """What happens behind an item that fails, in each lane."""

    usual: Policy = Policy.PARK
    by_mesh: dict[str, Policy] = {}

    def of(self, mesh: str) -> Policy:
        return self.by_mesh.get(mesh, self.usual)


PARK: Final = Policies()

EXPIRED: Final = "outbox_expired"
"""The code of a message that waited for longer than the broker would know its id."""
DROPPED: Final = "dropped"
REPLACED: Final = "replaced"
"""The codes of what an operator gave up, and of what was sent again under a new id."""

_LANE: Final = "broker:"
_ANOTHER_TIME: Final = frozenset({401, 403, 404, 408, 425, 429})
"""What the broker refuses by these may pass later as it is: a member gets a grant, a topic is
declared. Everything from 500 on, too."""


def lane_of(mesh: str) -> str:
    """The lane by which the changes of a shared mesh leave."""
    return f"{_LANE}{mesh}"


def is_lane(name: str) -> bool:
    return name.startswith(_LANE)


def mesh_of(lane: str) -> str:
    return lane.removeprefix(_LANE)


def entity_of(op: str, owner: str, entity: str) -> str:
    """What must keep its order; empty for messages, which have none."""
    family = family_of(op)
    return "" if family == "message" else f"{family}/{owner}/{entity}"


def outbox_row(lane: str, envelope: Envelope, offset: int, now_ms: int) -> OutboxRow:
    """The row of an envelope that stands in our log at `offset`."""
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
    """Which rows of a lane go now, and what holds up the others that were looked at."""

    go: list[OutboxRow]
    """In this order."""
    blocked: dict[int, int]
    """By the number of a row: the number of the one that it waits for."""


def plan(
    due: Sequence[OutboxRow],
    failing: Iterable[OutboxRow],
    policy: Policy,
    room: int,
    inflight: Iterable[OutboxRow] = (),
) -> LanePlan:
    """What to send of the rows that are due, at most `room` of them.

    `due` comes by rank and number. `failing` are the first that fail, of each entity among them or
    of the lane (see the store's `outbox_failing`). A row that is tried again also waits for those
    of its entity that were `inflight` when it was refused: they were sent after it.
    """
    first = _first_failing(failing, policy)
    later = _last_of_each(inflight)
    ahead = _in_order(due)
    go: list[OutboxRow] = []
    blocked: dict[int, int] = {}
    for row in due:
        waits_for: int | None = None
        for one in ahead.pop(row.entity, ()) if row.entity else (row,):
            blocker = first.get("" if policy is Policy.HALT else one.entity)
            if waits_for is None and blocker is not None and blocker < one.number:
                waits_for = blocker
            if waits_for is None and later.get(one.entity, 0) > one.number:
                waits_for = later[one.entity]
            if waits_for is not None:  # and those of its entity that come after it wait with it
                blocked[one.number] = waits_for
            elif len(go) < room:
                go.append(one)
    return LanePlan(go, blocked)


def _first_failing(failing: Iterable[OutboxRow], policy: Policy) -> dict[str, int]:
    """The lowest number that fails, by what waits for it."""
    found: dict[str, int] = {}
    if policy is Policy.QUARANTINE:
        return found
    for row in failing:
        key = "" if policy is Policy.HALT else row.entity
        if policy is Policy.HALT or row.entity:
            found[key] = min(row.number, found.get(key, row.number))
    return found


def _last_of_each(inflight: Iterable[OutboxRow]) -> dict[str, int]:
    last: dict[str, int] = {}
    for row in inflight:
        if row.entity:
            last[row.entity] = max(row.number, last.get(row.entity, 0))
    return last


def _in_order(due: Sequence[OutboxRow]) -> dict[str, list[OutboxRow]]:
    """The rows of each entity as they were written: where the first of them stands, all of them go,
    since an urgent one must not overtake an earlier one.
    """
    found: dict[str, list[OutboxRow]] = {}
    for row in due:
        if row.entity:
            found.setdefault(row.entity, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.number)
    return found


# --- what becomes of a row -----------------------------------------------------------------------


def is_permanent(status: int) -> bool:
    """Whether what was refused by this status would be refused again and again."""
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
    told = msgspec.structs.replace(
        row, attempts=attempts, tried_at=now_ms, code=code, error=message[:REASON_CHARS_MAX]
    )
    if is_permanent(status) or (worn_out and policy is not Policy.HALT):
        return msgspec.structs.replace(told, state=OutboxState.DEAD.value, ended_at=now_ms)
    # A lane that halts does not give up an item by itself: all the others wait for it to pass.
    wait_ms = longest_ms(jitter) if worn_out else backoff_ms(attempts, jitter)
    return msgspec.structs.replace(
        told, state=OutboxState.PENDING.value, not_before=now_ms + wait_ms
    )


def is_expired(row: OutboxRow, now_ms: int, max_age_hours: int) -> bool:
    """Whether a message has waited for so long that the broker may have forgotten its id. Changes
    never expire: they are what the mesh's state is made of, and known by it.
    """
    is_message = not row.entity
    return is_message and now_ms - row.created_at > max_age_hours * HOUR_MS


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


def after_retry(row: OutboxRow) -> OutboxRow:
    """The row when an operator wants it to be tried again at once."""
    return msgspec.structs.replace(
        row, state=OutboxState.PENDING.value, attempts=0, not_before=0, ended_at=None
    )


def after_abort(row: OutboxRow, now_ms: int, note: str, code: str = DROPPED) -> OutboxRow:
    """The row when it is given up; why it failed before is still told."""
    before = f"; before that {row.code}: {row.error}" if row.code else ""
    return msgspec.structs.replace(
        row,
        state=OutboxState.ABORTED.value,
        ended_at=now_ms,
        code=code,
        error=f"{note}{before}"[:REASON_CHARS_MAX],
    )
