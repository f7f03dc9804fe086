"""Intents: what is asked of a quorum, and the checks that need nothing but the envelope's bytes.

An intent is an envelope of the write class `strong`. Its `intent` is its own id, its `state` is
`intent`, and it has no fence: who made it cannot know one. It counts in no stream of its origin
(its epoch is `UNCOUNTED`), because whether and when it is committed is not for its origin to say:
docs/decisions, 0075.

    entity.change    puts, patches and deletes entities: all of them or none
    intent.abandon   an intent is given up: void for ever, unless it was committed before
    lease.acquire    a user's lease is asked for, with or without waiting
    lease.renew      its holder goes on
    lease.release    its holder gives it back, or somebody who waits goes away
    lease.expire     the coordinator ends one that was not renewed in time
    node.lost        a node is declared lost, after a silence
    node.back        it is back
    order.move       the order ends here, and goes on with another engine
    task.adopt       a task from before there were voters is decided by them from now on
    task.handoff     a task of a lost node gets another holder, or none
    task.*           the turns of tasks, as in every mesh; here commit order decides them

Settings of the project and of the mesh are entities. The same checks run where an intent is made,
so that a bad one is refused before anybody votes, and where it is folded, because a liar's voter
may have let it through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from holdfast.rules import limits, names
from holdfast.rules.bodies import (
    Body,
    Nothing,
    check_value,
    decode_body,
    decode_trusted_body,
    encode_body,
)
from holdfast.rules.canonical import check_packed_form, check_spelling
from holdfast.rules.envelope import UNCOUNTED, VERSION, Envelope, IntentId
from holdfast.rules.errors import BadEnvelope, BadInput, OverLimit
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.ids import check_id, id_text
from holdfast.rules.order import Version, order_key
from holdfast.rules.quorum.entities import (
    base_missing,
    check_given,
    check_name,
    check_type,
    needs_base,
    refuse_inexact,
)
from holdfast.rules.quorum.fence import FenceOrder, check_order
from holdfast.rules.quorum.log_rows import TAG_BYTES

OperationKind = Literal["put", "patch", "delete"]
Engine = Literal["embedded", "etcd"]
"""Who keeps the order of a mesh: voters among its nodes, or an etcd."""
NO_FIELDS: Final = b"{}"


class Guard(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A user's lease that must still be held under this fence when the change is committed."""

    lease: str
    incarnation: int
    lease_epoch: int
    sequence: int

    @property
    def order(self) -> FenceOrder:
        return FenceOrder(self.incarnation, self.lease_epoch, self.sequence)


class EntityOperation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What an intent does to one entity."""

    kind: OperationKind
    type: str
    id: str
    base: int | None = None
    """The revision that the writer saw: 0 if the entity must not exist, None if it may be any."""
    fields: bytes = NO_FIELDS
    """A JSON object: all fields of a put, the changed ones of a patch."""
    removed: tuple[str, ...] = ()
    """Fields that a patch takes away."""
    expected_epoch: int | None = None
    """The lease epoch under which it must be committed."""
    guard: Guard | None = None


class EntityChange(Body, frozen=True):
    operations: tuple[EntityOperation, ...]


class IntentAbandon(Body, frozen=True):
    intent: IntentId


class LeaseAcquire(Body, frozen=True):
    """The id of its envelope becomes the session of whoever asks."""

    ttl_ms: int
    wait: bool = False


class LeaseRenew(Body, frozen=True):
    session: IntentId
    ttl_ms: int


class LeaseRelease(Body, frozen=True):
    session: IntentId


class LeaseExpire(Body, frozen=True):
    """Names the entry after which the lease was not renewed."""

    incarnation: int
    lease_epoch: int
    sequence: int

    @property
    def order(self) -> FenceOrder:
        return FenceOrder(self.incarnation, self.lease_epoch, self.sequence)


class NodeLost(Body, frozen=True):
    silent_ms: int
    """For how long its coordinator had not heard of it."""


class OrderMove(Body, frozen=True):
    """Ends an incarnation of the order; the next one is kept by another engine."""

    incarnation: int
    """The one that ends. Where another one decides by now, nothing happens."""
    engine: Engine
    """Which keeps the next one."""
    tag: bytes
    """Tells the next incarnation from any other."""


class AdoptedTurn(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A turn of a task that stamps have decided, as its origin made it."""

    version: Version
    kind: str
    generation: int
    event_time: int
    title: str = ""
    description: str = ""


class TaskAdopt(Body, frozen=True):
    """All turns of a task that the adopting node has, in stamp order."""

    turns: tuple[AdoptedTurn, ...]


class TaskHandoff(Body, frozen=True):
    """Takes a task from a lost holder. `to` gets it, or it is open again if that is empty."""

    holder: str
    generation: int
    to: str = ""


def entity_name(type: str, id: str) -> str:
    """What the envelope of a change says it is about: the first entity that it changes."""
    return f"{type}/{id}"


def intent_fingerprint(op: str, entity: str, body: bytes) -> bytes:
    """What a caller asked for: under one id, the same fingerprint is the same intent. Of tasks it
    is the one that they have without voters: a task is named by the id of its creation, and the
    generation in a turn follows from the state.
    """
    if op == "task.create":
        return fingerprint(kind=op, ref="-", body=body)
    return fingerprint(kind=op, ref=entity, body=b"" if op in TASK_OPS else body)


# --- reading an intent ---------------------------------------------------------------------------


def decode_intent(envelope: Envelope) -> Body:
    """The body of an intent, with every check that needs no state. Raises a typed error."""
    if envelope.write_class != "strong" or envelope.intent != envelope.id:
        raise BadEnvelope("an intent is of the class strong and bears its own id as intent")
    if envelope.state != "intent" or envelope.fence or envelope.committed_at is not None:
        raise BadEnvelope("an intent says nothing about its commit: that is for the commit record")
    if envelope.epoch != UNCOUNTED:
        raise BadEnvelope("an intent counts in no stream of its origin")
    known = _BODIES.get(envelope.op)
    if known is None:
        body = decode_body(envelope) if envelope.op in TASK_OPS else None
        if body is None:
            raise BadEnvelope(f"{envelope.op} is not decided by a quorum")
        return body
    decoder, check = known
    if len(envelope.body) > limits.INTENT_BYTES_MAX:
        raise OverLimit(
            f"the intent has {len(envelope.body)} bytes; the most is {limits.INTENT_BYTES_MAX}"
        )
    if envelope.owner or envelope.to is not None or envelope.reply_to:
        raise BadEnvelope(f"{envelope.op} has neither owner nor destination")
    try:
        body = decoder.decode(envelope.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEnvelope(f"the body of {envelope.op} cannot be read: {error}") from None
    try:
        check(envelope, body)
    except BadInput as error:
        about = f"{envelope.op} {envelope.entity!r}: {error.message}"
        raise type(error)(about, hint=error.hint) from None
    newer = envelope.version != VERSION
    check_packed_form(envelope.body, encode_body(body), "its body", newer=newer)
    return body


def decode_trusted_intent(envelope: Envelope) -> Body | None:
    """The body of an intent that was checked when it was committed; None for an op that this
    version does not know.
    """
    known = _BODIES.get(envelope.op)
    return decode_trusted_body(envelope) if known is None else known[0].decode(envelope.body)


def check_operation(operation: EntityOperation) -> None:
    """Raises unless this can be done to an entity of some state."""
    check_type(operation.type)
    check_name(operation.type, operation.id)
    if operation.base is not None:
        least = 0 if operation.kind == "put" else 1
        if not least <= operation.base < limits.LAMPORT_MAX:
            raise BadEnvelope(f"a {operation.kind} cannot have the base revision {operation.base}")
    elif needs_base(operation.type):
        raise base_missing(operation.type)
    if operation.expected_epoch is not None and not (
        0 <= operation.expected_epoch < limits.LAMPORT_MAX
    ):
        raise BadEnvelope(f"there is no lease epoch {operation.expected_epoch}")
    if operation.guard is not None:
        check_lease_name(operation.guard.lease)
        check_order(operation.guard.order)
    _check_fields(operation)


def _check_fields(operation: EntityOperation) -> None:
    fields = check_value(operation.fields)
    if not isinstance(fields, dict):
        raise BadEnvelope("the fields of an entity are not an object")
    check_spelling(operation.fields, fields)
    refuse_inexact(operation.fields, fields)
    if operation.kind == "delete" and (fields or operation.removed):
        raise BadEnvelope("a delete has no fields")
    if operation.kind == "put" and operation.removed:
        raise BadEnvelope("a put removes what it does not name; it cannot name what it removes")
    if operation.kind == "patch":
        if not fields and not operation.removed:
            raise BadEnvelope("a patch changes nothing")
        if len(set(operation.removed)) != len(operation.removed) or any(
            name in fields for name in operation.removed
        ):
            raise BadEnvelope("a patch names a field twice")
        for name in operation.removed:
            names.check_key(name, "name of a field")
    if operation.kind != "delete":
        check_given(operation.type, fields, whole=operation.kind == "put")


def _check_change(envelope: Envelope, body: EntityChange) -> None:
    count = len(body.operations)
    if not 1 <= count <= limits.INTENT_OPERATIONS_MAX:
        raise OverLimit(f"{count} entities; an intent changes 1 to {limits.INTENT_OPERATIONS_MAX}")
    seen: set[tuple[str, str]] = set()
    for operation in body.operations:
        check_operation(operation)
        seen.add((operation.type, operation.id))
    if len(seen) != count:
        raise BadEnvelope("an intent names one entity twice")
    first = body.operations[0]
    if envelope.entity != entity_name(first.type, first.id):
        raise BadEnvelope("an intent is about the first entity that it changes")


def _check_abandon(envelope: Envelope, body: IntentAbandon) -> None:
    check_id(body.intent)
    if envelope.entity != id_text(body.intent):
        raise BadEnvelope("giving up an intent is about that intent")
    if body.intent == envelope.id:
        raise BadEnvelope("an intent gives itself up")


def _check_acquire(envelope: Envelope, body: LeaseAcquire) -> None:
    check_lease_name(envelope.entity)
    check_ttl(body.ttl_ms)


def _check_renew(envelope: Envelope, body: LeaseRenew) -> None:
    check_lease_name(envelope.entity)
    check_id(body.session)
    check_ttl(body.ttl_ms)


def _check_release(envelope: Envelope, body: LeaseRelease) -> None:
    check_lease_name(envelope.entity)
    check_id(body.session)


def _check_expire(envelope: Envelope, body: LeaseExpire) -> None:
    check_lease_name(envelope.entity)
    check_order(body.order)


def _check_lost(envelope: Envelope, body: NodeLost) -> None:
    names.check_peer(envelope.entity)
    if not 0 <= body.silent_ms < limits.LAMPORT_MAX:
        raise BadEnvelope(f"{body.silent_ms} ms is no silence")


def _check_back(envelope: Envelope, body: Nothing) -> None:
    names.check_peer(envelope.entity)


def _check_move(envelope: Envelope, body: OrderMove) -> None:
    if envelope.entity != ORDER:
        raise BadEnvelope(f"a move is about {ORDER!r}, not {envelope.entity!r}")
    if not 1 <= body.incarnation < limits.INCARNATION_MAX:
        raise BadEnvelope(f"behind incarnation {body.incarnation} there is no other")
    if len(body.tag) != TAG_BYTES:
        raise BadEnvelope(f"the tag of an order has {TAG_BYTES} bytes, not {len(body.tag)}")


def _check_adopt(envelope: Envelope, body: TaskAdopt) -> None:
    names.check_key(envelope.entity, "task")
    if not body.turns or all(turn.kind != "create" for turn in body.turns):
        raise BadEnvelope("a task is adopted with the turn that creates it")
    for turn in body.turns:
        if turn.kind not in TURN_KINDS:
            raise BadEnvelope(f"{turn.kind!r} is no turn of a task")
        lamport, peer, id = turn.version
        names.check_peer(peer)
        check_id(id)
        for number in (lamport, turn.generation, turn.event_time):
            if not 0 <= number < limits.LAMPORT_MAX:
                raise BadEnvelope(f"a turn of a task has the number {number}")
        if turn.kind != "create" and (turn.title or turn.description):
            raise BadEnvelope("only the turn that creates a task names it")
    order = [order_key(turn.version) for turn in body.turns]
    if order != sorted(set(order)):
        raise BadEnvelope("the turns of a task are not in stamp order")


def _check_handoff(envelope: Envelope, body: TaskHandoff) -> None:
    names.check_peer(body.holder)
    if body.to:
        names.check_peer(body.to)
    if body.to == body.holder:
        raise BadEnvelope("a task is handed to the node that lost it")
    if not 0 <= body.generation < limits.LAMPORT_MAX:
        raise BadEnvelope(f"claim generation {body.generation} is not possible")


def check_lease_name(name: str) -> str:
    return names.check_key(name, "name of a lease", limits.LEASE_NAME_BYTES_MAX)


def check_ttl(ttl_ms: int) -> int:
    least, most = limits.LEASE_TTL_MS_MIN, limits.LEASE_TTL_MS_MAX
    if not least <= ttl_ms <= most:
        raise OverLimit(f"a lease of {ttl_ms} ms; it may last {least} to {most} ms")
    return ttl_ms


TURN_KINDS: Final = frozenset({"create", "claim", "release", "complete", "cancel"})
ADOPT: Final = "task.adopt"
MOVE: Final = "order.move"
ORDER: Final = "order"
"""What a move is about: there is one order in a mesh."""
TASK_OPS: Final = frozenset(
    {"task.create", "task.claim", "task.release", "task.complete", "task.cancel"}
)
_CHECKS: Final[dict[str, tuple[type[Body], Callable[[Envelope, Any], None]]]] = {
    "entity.change": (EntityChange, _check_change),
    "intent.abandon": (IntentAbandon, _check_abandon),
    "lease.acquire": (LeaseAcquire, _check_acquire),
    "lease.renew": (LeaseRenew, _check_renew),
    "lease.release": (LeaseRelease, _check_release),
    "lease.expire": (LeaseExpire, _check_expire),
    "node.lost": (NodeLost, _check_lost),
    "node.back": (Nothing, _check_back),
    MOVE: (OrderMove, _check_move),
    ADOPT: (TaskAdopt, _check_adopt),
    "task.handoff": (TaskHandoff, _check_handoff),
}
_BODIES: Final = {
    op: (msgspec.msgpack.Decoder(kind), check) for op, (kind, check) in _CHECKS.items()
}
QUORUM_OPS: Final = frozenset(_CHECKS) | TASK_OPS
