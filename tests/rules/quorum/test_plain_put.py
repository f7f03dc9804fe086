"""Q5: the short way of the usual write says what the long way says, of every intent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import Refused
from holdfast.rules.quorum.entity_change import rule_any_change, rule_change
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import (
    EntityChange,
    Guard,
    LeaseAcquire,
    OperationKind,
    decode_intent,
)
from holdfast.rules.quorum.view import Ruling, View
from support.quorum_state import QuorumState, change, fence, intent, operation

Rule = Callable[[View, Envelope, EntityChange, FenceToken, int], Ruling]
LATER = fence(50, 3)
TYPES = ("mission", "milestone", "task", "project_settings", "agent_definition")
KINDS: tuple[OperationKind, ...] = ("put", "patch", "delete")
FIELDS = {"title": "b", "name": "b", "missionId": "p", "a": 1}
HELD, LOST = Guard("held", 1, 1, 1), Guard("free", 1, 1, 1)


def standing() -> QuorumState:
    """Of each type one entity that lives, at revision 2, and one that was deleted."""
    state = QuorumState()
    state.fold(intent("lease.acquire", "held", LeaseAcquire(60_000)))
    state.fold(change(operation("put", "mission", "p", {"title": "parent"})))
    for type in TYPES:
        for id in ("lives", "gone"):
            state.fold(change(operation("put", type, id, {**FIELDS, "a": 0})))
            state.fold(change(operation("patch", type, id, {"z": 1})))
        state.fold(change(operation("delete", type, "gone")))
    assert {(row.revision, row.deleted) for row in state.entities.values()} == {
        *((1, False), (2, False), (3, True)),
    }
    return state


def _said(rule: Rule, state: QuorumState, envelope: Envelope, body: EntityChange) -> object:
    try:
        return rule(state, envelope, body, LATER, 7)
    except Refused as error:
        return type(error), error.message


def test_Q5_the_short_way_of_a_put_decides_as_the_long_way() -> None:
    state = standing()
    compared = 0
    for kind, type, id, base, epoch, guard in product(
        KINDS,
        TYPES,
        ("new", "lives", "gone"),
        (None, 0, 1, 2, 3, 4),
        (None, LATER.lease_epoch, LATER.lease_epoch - 1),
        (None, HELD, LOST),
    ):
        fields = {} if kind == "delete" else FIELDS
        one = operation(kind, type, id, fields, base=base, epoch=epoch, guard=guard)
        for operations in ((one,), (one, operation("put", "mission", "another", FIELDS))):
            envelope = change(*operations, lamport=100)
            try:
                body = decode_intent(envelope)
            except Refused:
                continue  # No decision ever sees it.
            assert isinstance(body, EntityChange)
            short, long = (
                _said(rule, state, envelope, body) for rule in (rule_change, rule_any_change)
            )
            assert short == long
            compared += 1
    assert compared > 2000
