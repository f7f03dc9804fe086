"""Q14: audit streams with the order of their origins, dedupe, gaps, and forks with evidence."""

from __future__ import annotations

import random
from zlib import crc32

import msgspec
import pytest

from holdfast.rules.errors import (
    AuditForked,
    AuditGap,
    BadChecksum,
    BadEnvelope,
    BadKey,
    BadValue,
    OverLimit,
)
from holdfast.rules.limits import AUDIT_EVENT_BYTES_MAX, AUDIT_STREAM_BYTES_MAX
from holdfast.rules.quorum.audit_chain import (
    ACTIVITY_LOG,
    BEFORE_ALL,
    RUN_AUDIT_EVENTS,
    AuditEvent,
    ChainHead,
    decode_event,
    encode_event,
    head_after,
    next_event,
    take_event,
)
from support.envelopes import make_id


class Stored:
    """What a node has, in lists."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def head(self, stream: str, origin: str) -> ChainHead:
        mine = [one for one in self.events if (one.stream, one.origin) == (stream, origin)]
        return head_after(mine[-1]) if mine else ChainHead()

    def event_at(self, stream: str, origin: str, seq: int) -> AuditEvent | None:
        wanted = (stream, origin, seq)
        return next((o for o in self.events if (o.stream, o.origin, o.seq) == wanted), None)

    def event_by_id(self, id: bytes) -> AuditEvent | None:
        return next((one for one in self.events if one.id == id), None)

    def take(self, event: AuditEvent) -> str:
        found = take_event(self, decode_event(encode_event(event)))
        if found == "new":
            self.events.append(event)
        return found


def chain(length: int, origin: str = "ana", stream: str = ACTIVITY_LOG) -> list[AuditEvent]:
    events: list[AuditEvent] = []
    head = ChainHead()
    for number in range(length):
        event = next_event(
            head,
            stream=stream,
            origin=origin,
            id=make_id(crc32(f"{origin} {stream}".encode()) * 1000 + number),
            at=number,
            payload={"n": number},
        )
        head = head_after(event)
        events.append(event)
    return events


def test_Q14_events_of_each_origin_and_stream_are_taken_in_their_order_once() -> None:
    stored = Stored()
    chains = [
        chain(5, origin, stream)
        for origin in ("ana", "bob")
        for stream in (ACTIVITY_LOG, RUN_AUDIT_EVENTS, "mine")
    ]
    draw = random.Random(4)
    waiting = [event for events in chains for event in events] * 2
    while waiting:
        event = waiting.pop(draw.randrange(len(waiting)))
        try:
            stored.take(event)
        except AuditGap:
            waiting.append(event)
    assert len(stored.events) == 30
    for events in chains:
        mine = [one for one in stored.events if one in events]
        assert mine == events
    assert all(stored.take(event) == "duplicate" for events in chains for event in events)


def test_Q14_a_gap_is_named_and_nothing_is_taken() -> None:
    stored, events = Stored(), chain(4)
    with pytest.raises(AuditGap, match="from 1 on"):
        stored.take(events[2])
    stored.take(events[0])
    with pytest.raises(AuditGap, match="from 2 on"):
        stored.take(events[3])
    assert stored.events == events[:1]


def other(events: list[AuditEvent], place: int, id: bytes | None = None) -> AuditEvent:
    """Another event in the place of one, as a copied home makes it."""
    head = head_after(events[place - 1]) if place else ChainHead()
    return next_event(
        head,
        stream=ACTIVITY_LOG,
        origin="ana",
        id=make_id(77) if id is None else id,
        at=9,
        payload="another",
    )


def test_Q14_a_fork_is_refused_with_both_hashes_and_the_first_stands() -> None:
    stored, events = Stored(), chain(3)
    for event in events:
        stored.take(event)
    for place in (0, 2):
        fork = other(events, place)
        with pytest.raises(AuditForked) as caught:
            stored.take(fork)
        assert events[place].hash.hex() in caught.value.message
        assert fork.hash.hex() in caught.value.message
    # The next number, behind another past than ours.
    behind = next_event(
        head_after(other(events, 2)),
        stream=ACTIVITY_LOG,
        origin="ana",
        id=make_id(78),
        at=9,
        payload=1,
    )
    with pytest.raises(AuditForked):
        stored.take(behind)
    # An id that is taken.
    with pytest.raises(AuditForked):
        stored.take(other(events, 3, id=events[0].id))
    assert stored.events == events


def test_Q14_a_fork_is_found_at_the_head_also_where_events_were_forgotten() -> None:
    stored, events = Stored(), chain(3)
    for event in events:
        stored.take(event)
    fork = other(events, 2)

    class Forgetful(Stored):
        def event_at(self, stream: str, origin: str, seq: int) -> AuditEvent | None:
            return None

    bare = Forgetful()
    bare.events = stored.events
    with pytest.raises(AuditForked):
        take_event(bare, fork)
    assert take_event(bare, events[0]) == "duplicate"


def test_Q14_an_event_that_was_changed_does_not_hash_to_what_it_bears() -> None:
    event = chain(2)[1]
    for changed in (
        {"payload": b'{"n":9}'},
        {"at": 8},
        {"origin": "bob"},
        {"stream": "mine"},
        {"seq": 3},
        {"id": make_id(5)},
        {"previous": b"\1" * 32},
    ):
        with pytest.raises(BadChecksum):
            decode_event(encode_event(msgspec.structs.replace(event, **changed)))


def test_Q14_what_is_no_event_is_refused() -> None:
    event = chain(1)[0]
    raw = encode_event(event)
    for bad in (b"", b"\x90", raw[:-1], raw + b"\0"):
        with pytest.raises(BadEnvelope):
            decode_event(bad)
    with pytest.raises(BadEnvelope, match="none before"):
        decode_event(encode_event(msgspec.structs.replace(event, previous=b"\1" * 32)))
    with pytest.raises(BadEnvelope, match="none before"):
        decode_event(encode_event(msgspec.structs.replace(event, seq=2, previous=BEFORE_ALL)))

    def make(stream: str = "s", payload: object = 1) -> AuditEvent:
        return next_event(
            ChainHead(), stream=stream, origin="ana", id=make_id(1), at=1, payload=payload
        )

    with pytest.raises(BadKey):
        make(stream="")
    with pytest.raises(OverLimit):
        make(stream="x" * (AUDIT_STREAM_BYTES_MAX + 1))
    with pytest.raises(OverLimit):
        make(payload="x" * AUDIT_EVENT_BYTES_MAX)
    with pytest.raises(BadValue):
        make(payload=float("nan"))
