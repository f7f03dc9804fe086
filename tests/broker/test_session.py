"""The decisions of a broker's session: what is read together, what may wait, and what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.broker.effects import Accept, Effect, HangUp, Listen, Proved, SendFrames
from holdfast.broker.pushes.decode_push import SLICE_ITEMS, slice_size
from holdfast.broker.session import Session
from holdfast.broker.verdicts import Outcome
from holdfast.protocol.frames import (
    Acks,
    Follow,
    FromNode,
    Hello,
    Item,
    Push,
    Unfollow,
    encode_frame,
)
from holdfast.rules import close_codes, limits
from holdfast.rules.errors import OutcomeUnknown
from support.envelopes import MESH, state_set
from support.nodes import Nodes
from support.source import HandClock
from support.sync_wire import Brokerage, Laptop, now


@pytest.fixture
def ana(tmp_path: Path) -> Laptop:
    clock = HandClock()
    node = Nodes("memory", tmp_path, clock).open("ana")
    laptop = Laptop(node, Brokerage(tmp_path / "broker", clock), tmp_path / "ana")
    laptop.share()
    return laptop


@pytest.fixture
def session(ana: Laptop) -> Session:
    """After the hello."""
    made = ana.broker.talk().session
    trust, welcome = step(made, hello(ana, made))
    assert isinstance(trust, Proved)
    assert isinstance(welcome, SendFrames)
    return made


def hello(ana: Laptop, session: Session) -> Hello:
    return ana.sync.hello(session.opening())


def step(session: Session, *frames: FromNode) -> list[Effect]:
    for frame in frames:
        assert session.receive(encode_frame(frame)) == []
    return now(session.step())


def push(first: int, count: int, *, epoch: int = 0) -> Push:
    items = [Item(n, state_set(f"k{n}", n)) for n in range(first, first + count)]
    return Push(MESH, epoch, items)


def numbers(effects: Sequence[Effect]) -> list[int]:
    """Of the items that are to be accepted."""
    (accept,) = effects
    assert isinstance(accept, Accept)
    return list(accept.slice.numbers)


def unknown(accept: Effect) -> tuple[Accept, list[Outcome]]:
    assert isinstance(accept, Accept)
    return accept, [OutcomeUnknown("who knows")] * len(accept.slice.good)


def test_D15_a_push_before_the_hello_ends_the_connection(ana: Laptop) -> None:
    session = ana.broker.talk().session
    assert step(session, push(0, 1)) == [HangUp(close_codes.NOT_TRUSTED, "say hello first")]
    assert not session.has_work(may_page=True)


def test_D4_small_pushes_of_one_mesh_are_read_together_and_large_ones_in_slices(
    session: Session,
) -> None:
    assert numbers(step(session, push(0, 2), push(2, 1), push(3, 1, epoch=1))) == [0, 1, 2]
    assert numbers(now(session.step())) == [3], "another epoch is another push"
    first = numbers(step(session, push(0, SLICE_ITEMS + 1)))
    assert len(first) == SLICE_ITEMS
    assert session.in_push
    assert numbers(now(session.step())) == [SLICE_ITEMS]
    assert not session.in_push


def test_D2_while_the_store_is_quick_a_push_is_handed_in_by_halves() -> None:
    assert slice_size(100, by_halves=True) == 50
    assert slice_size(100, by_halves=False) == 100
    assert slice_size(9, by_halves=True) == 9, "so few are not worth two commits"
    assert slice_size(10**4, by_halves=True) == SLICE_ITEMS
    assert slice_size(0, by_halves=True) == 1, "an empty push has its answer, too"


def test_D5_what_has_no_answer_counts_until_it_has(session: Session) -> None:
    (accept,) = step(session, push(0, limits.CONNECTION_ITEMS_MAX))
    while session.in_push:
        now(session.step())
    assert not session.is_full
    session.receive(encode_frame(push(0, 1)))
    assert session.is_full
    session.accepted(*unknown(accept))
    assert not session.is_full


def test_D14_a_broker_that_stops_answers_what_was_pushed_before_it_hangs_up(
    session: Session,
) -> None:
    (accept,) = step(session, push(0, 2))
    assert session.stop() == []
    assert session.receive(encode_frame(push(2, 1))) == [], "too late"
    replied, closed = session.accepted(*unknown(accept))
    assert isinstance(replied, SendFrames)
    assert [type(frame) for frame in replied.frames] == [Acks]
    assert closed == HangUp(close_codes.GOING_AWAY, "this broker stops")
    assert session.stop() == [], "once"


def test_D11_a_connection_listens_to_what_it_follows(session: Session) -> None:
    assert step(session, Follow(MESH, 1, 0)) == [Listen(frozenset({MESH}), frozenset())]
    assert step(session, Unfollow(MESH)) == [Listen(frozenset(), frozenset())]
