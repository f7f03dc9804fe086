"""Q14: audit streams with the order of their origins, gaps, and forks with evidence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.rules.audit_chain import (
    ACTIVITY_LOG,
    BEFORE_ALL,
    AuditChain,
    AuditRow,
    Neighbours,
    check_event,
    next_event,
    refuse_fork,
)
from holdfast.rules.errors import AuditForked, BadChecksum, BadEnvelope, BadKey, OverLimit
from holdfast.rules.limits import AUDIT_EVENT_BYTES_MAX, AUDIT_STREAM_BYTES_MAX
from support.envelopes import make_id

CHAIN = AuditChain("team", ACTIVITY_LOG, "ana", 1)


def made(last: AuditRow | None, number: int, payload: bytes = b"1") -> AuditRow:
    return next_event(CHAIN, last, id=make_id(number), at=number, payload=payload)


def chain(length: int) -> list[AuditRow]:
    events: list[AuditRow] = []
    for number in range(length):
        events.append(made(events[-1] if events else None, number))
    return events


def beside(events: list[AuditRow], event: AuditRow) -> Neighbours:
    by_seq = {one.seq: one for one in events}
    return Neighbours(*(by_seq.get(event.seq + step) for step in (0, -1, 1)))


def test_Q14_events_number_their_chain_and_fit_to_their_neighbours_in_any_order() -> None:
    events = chain(4)
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[0].previous == BEFORE_ALL
    for event in events:
        check_event(event)
        refuse_fork(event, beside(events, event))
        refuse_fork(event, Neighbours(None, None, None))


def test_Q14_a_fork_is_refused_with_both_hashes() -> None:
    events = chain(3)
    for place in range(3):
        before = events[place - 1] if place else None
        other = made(before, 70 + place, b'"another"')
        with pytest.raises(AuditForked) as caught:
            refuse_fork(other, beside(events, other))
        assert events[place].hash.hex() in caught.value.message
        assert other.hash.hex() in caught.value.message
    stray = made(made(events[1], 80, b"2"), 81)
    with pytest.raises(AuditForked, match=events[2].hash.hex()):
        refuse_fork(stray, beside(events, stray))
    early = made(None, 90, b"3")
    with pytest.raises(AuditForked, match=events[1].previous.hex()):
        refuse_fork(early, Neighbours(None, None, events[1]))


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": b'{"n":9}'},
        {"at": 8},
        {"origin": "bob"},
        {"stream": "mine"},
        {"mesh": "other"},
        {"epoch": 2},
        {"seq": 3},
        {"id": make_id(5)},
        {"previous": b"\1" * 32},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_Q14_an_event_that_was_changed_does_not_hash_to_what_it_bears(
    changed: dict[str, Any],
) -> None:
    event = chain(2)[1]
    with pytest.raises(BadChecksum):
        check_event(msgspec.structs.replace(event, **changed))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"previous": b"\1" * 32}, BadEnvelope),
        ({"previous": b""}, BadEnvelope),
        ({"seq": 0}, BadEnvelope),
        ({"seq": 2}, BadEnvelope),
        ({"epoch": -1}, BadEnvelope),
        ({"at": -1}, BadEnvelope),
        ({"stream": ""}, BadKey),
        ({"stream": "x" * (AUDIT_STREAM_BYTES_MAX + 1)}, OverLimit),
        ({"payload": b"1" * (AUDIT_EVENT_BYTES_MAX + 1)}, OverLimit),
    ],
)
def test_Q14_what_is_no_event_is_refused(changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        check_event(msgspec.structs.replace(chain(1)[0], **changed))
