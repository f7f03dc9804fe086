"""Q2, Q5: what an intent may say, before any state is looked at."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.rules import limits
from holdfast.rules.bodies import Body, Nothing
from holdfast.rules.errors import (
    BadEnvelope,
    BadFence,
    BadInput,
    BadKey,
    BadValue,
    BaseRequired,
    OverLimit,
    UnknownEntityType,
)
from holdfast.rules.ids import id_text
from holdfast.rules.order import Version
from holdfast.rules.quorum.entities import canonical
from holdfast.rules.quorum.intents import (
    QUORUM_OPS,
    AdoptedTurn,
    EntityChange,
    EntityOperation,
    Guard,
    IntentAbandon,
    LeaseAcquire,
    LeaseExpire,
    LeaseRelease,
    LeaseRenew,
    NodeLost,
    OrderMove,
    TaskAdopt,
    TaskHandoff,
    decode_intent,
)
from support.envelopes import TASK, make_id
from support.quorum_state import change, intent, operation

ID = make_id(3)
CREATED = AdoptedTurn(Version(1, "bob", make_id(4)), "create", 0, 5, "build", "it")
CLAIMED = AdoptedTurn(Version(2, "cyd", make_id(5)), "claim", 0, 6)
PUT = operation("put", "mission", "m", {"title": "a"})


def with_(**fields: Any) -> EntityOperation:
    return msgspec.structs.replace(PUT, **fields)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (with_(type="nonsense"), UnknownEntityType),
        (with_(type="x" * 5000), UnknownEntityType),
        (with_(id=""), BadKey),
        (with_(id="x" * (limits.ENTITY_ID_BYTES_MAX + 1)), OverLimit),
        (with_(base=-1), BadEnvelope),
        (with_(base=2**63), BadEnvelope),
        (with_(expected_epoch=-1), BadEnvelope),
        (with_(guard=Guard("", 1, 1, 1)), BadKey),
        (with_(guard=Guard("x", 0, 1, 1)), BadFence),
        (with_(guard=Guard("x" * (limits.LEASE_NAME_BYTES_MAX + 1), 1, 1, 1)), OverLimit),
        (with_(fields=b"[]"), BadEnvelope),
        (with_(fields=b"{"), BadValue),
        (with_(fields=b'{"title": "a"}'), BadValue),
        (with_(fields=b'{"title":"a","title":"b"}'), BadValue),
        (with_(removed=("goal",)), BadEnvelope),
        (with_(kind="delete"), BadEnvelope),
        (with_(kind="delete", fields=b"{}", base=0), BadEnvelope),
        (with_(kind="patch", base=0), BadEnvelope),
        (with_(kind="patch", fields=b"{}"), BadEnvelope),
        (with_(kind="patch", removed=("title",)), BadEnvelope),
        (with_(kind="patch", removed=("x", "x")), BadEnvelope),
        (with_(kind="patch", removed=("",)), BadKey),
        (with_(type="task_metadata", fields=b"{}"), BaseRequired),
    ],
)
def test_Q5_an_operation_that_no_state_could_allow_is_refused(
    bad: EntityOperation, error: type[BadInput]
) -> None:
    with pytest.raises(error):
        decode_intent(change(bad))


def test_Q5_an_intent_has_one_to_so_many_entities_each_once() -> None:
    many = [operation("put", "mission", f"m{n}", {"title": "a"}) for n in range(33)]
    assert len(many) == limits.INTENT_OPERATIONS_MAX + 1
    assert decode_intent(change(*many[:-1]))
    with pytest.raises(OverLimit):
        decode_intent(change(*many))
    with pytest.raises(OverLimit):
        decode_intent(intent("entity.change", "mission/m", EntityChange(())))
    with pytest.raises(BadEnvelope, match="twice"):
        decode_intent(change(PUT, PUT))


def test_Q5_an_intent_has_a_greatest_size() -> None:
    fields = {"title": "a", "note": "x" * (limits.ENTITY_BYTES_MAX - 40)}
    some = [operation("put", "mission", f"m{n}", fields) for n in range(5)]
    with pytest.raises(OverLimit):
        decode_intent(change(*some))
    assert decode_intent(change(*some[:3]))


OTHERS: list[tuple[str, str, Body, bool]] = [
    ("intent.abandon", id_text(ID), IntentAbandon(ID), True),
    ("intent.abandon", id_text(make_id(4)), IntentAbandon(ID), False),
    ("lease.acquire", "deploy", LeaseAcquire(5_000, True), True),
    ("lease.acquire", "deploy", LeaseAcquire(limits.LEASE_TTL_MS_MIN - 1), False),
    ("lease.acquire", "deploy", LeaseAcquire(limits.LEASE_TTL_MS_MAX + 1), False),
    ("lease.acquire", "x" * 257, LeaseAcquire(5_000), False),
    ("lease.renew", "deploy", LeaseRenew(ID, 5_000), True),
    ("lease.renew", "deploy", LeaseRenew(bytes(16), 5_000), False),
    ("lease.release", "deploy", LeaseRelease(ID), True),
    ("lease.release", "deploy", LeaseRelease(bytes(16)), False),
    ("lease.expire", "deploy", LeaseExpire(1, 1, 1), True),
    ("lease.expire", "deploy", LeaseExpire(0, 1, 1), False),
    ("node.lost", "cyd", NodeLost(60_000), True),
    ("node.lost", " cyd", NodeLost(60_000), False),
    ("node.lost", "cyd", NodeLost(-1), False),
    ("node.back", "cyd", Nothing(), True),
    ("node.back", " cyd", Nothing(), False),
    ("order.move", "order", OrderMove(1, "etcd", b"t" * 16), True),
    ("order.move", "another", OrderMove(1, "etcd", b"t" * 16), False),
    ("task.adopt", TASK, TaskAdopt((CREATED, CLAIMED)), True),
    ("task.adopt", TASK, TaskAdopt((CLAIMED, CREATED)), False),
    ("task.adopt", TASK, TaskAdopt((CREATED, CREATED)), False),
    ("task.adopt", TASK, TaskAdopt((CLAIMED,)), False),
    ("task.adopt", TASK, TaskAdopt(()), False),
    ("task.adopt", TASK, TaskAdopt((msgspec.structs.replace(CREATED, kind="steal"),)), False),
    ("task.adopt", TASK, TaskAdopt((msgspec.structs.replace(CREATED, event_time=-1),)), False),
    ("task.adopt", TASK, TaskAdopt((CREATED, msgspec.structs.replace(CLAIMED, title="t"))), False),
    ("task.handoff", TASK, TaskHandoff("cyd", 0, "bob"), True),
    ("task.handoff", TASK, TaskHandoff("cyd", -1, "bob"), False),
    ("task.handoff", TASK, TaskHandoff("cyd", 0, "cyd"), False),
    ("task.handoff", TASK, TaskHandoff("cyd", 0, " "), False),
    ("task.complete", TASK, Nothing(), True),
    ("task.complete", "no task", Nothing(), False),
]


@pytest.mark.parametrize(("op", "entity", "body", "good"), OTHERS)
def test_Q2_every_op_of_the_quorum_checks_what_it_carries(
    op: str, entity: str, body: Body, good: bool
) -> None:
    made = intent(op, entity, body)
    if good:
        assert decode_intent(made) == body
        more = msgspec.structs.replace(made, body=made.body + b"\0")
        with pytest.raises(BadEnvelope):
            decode_intent(more)
    else:
        with pytest.raises(BadInput):
            decode_intent(made)


def test_Q2_every_op_is_tried_here() -> None:
    tried = {op for op, _, _, good in OTHERS if good} | {"entity.change"}
    turns = {"task.create", "task.claim", "task.release", "task.cancel"}
    assert tried | turns == QUORUM_OPS


def test_Q2_giving_itself_up_is_refused() -> None:
    with pytest.raises(BadEnvelope):
        decode_intent(intent("intent.abandon", id_text(ID), IntentAbandon(ID), id=ID))


def test_Q2_a_body_of_a_later_minor_version_is_read_and_its_fields_kept() -> None:
    made = change(PUT)
    fields = msgspec.msgpack.decode(made.body)
    later = msgspec.msgpack.encode([*fields, "more"])
    with pytest.raises(BadEnvelope):
        decode_intent(msgspec.structs.replace(made, body=later))
    assert decode_intent(msgspec.structs.replace(made, body=later, version="1.4"))


def test_Q2_equal_values_have_equal_bytes() -> None:
    assert canonical({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":1}'
