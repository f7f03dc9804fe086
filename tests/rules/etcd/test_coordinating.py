"""When a node takes over."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.etcd.coordinating import CoordinatorSeen, is_let_go, seen, takes_over
from holdfast.rules.etcd.entry import OrderState, StoredBeat

LOST_MS = 15_000


def state(version: int = 3, coordinator: str = "ana") -> OrderState:
    return OrderState(
        incarnation=1,
        epoch_base=0,
        incarnation_value=b"n",
        epoch_version=version,
        coordinator=coordinator,
        floor_version=0,
        floor=0,
        ids_before_ms=0,
    )


def asked(
    me: str,
    order: OrderState,
    beat: StoredBeat | None = None,
    *,
    silent_ms: int = 0,
    first: bool = False,
) -> bool:
    last = CoordinatorSeen(order.epoch_version, 1, 1_000)
    return takes_over(me, order, beat, last, first=first, now_ms=1_000 + silent_ms, lost_ms=LOST_MS)


@pytest.mark.parametrize(
    ("me", "order", "options", "takes"),
    [
        ("bo", state(0, ""), {}, True),
        ("bo", state(), {}, False),
        ("bo", state(), {"first": True}, False),
        ("ana", state(), {"first": True}, True),
        ("ana", state(), {}, False),
        ("bo", state(), {"silent_ms": LOST_MS - 1}, False),
        ("bo", state(), {"silent_ms": LOST_MS}, True),
        ("bo", state(), {"beat": StoredBeat(1, 3, True)}, True),
        ("ana", state(), {"beat": StoredBeat(1, 3, True)}, False),
        ("bo", state(), {"beat": StoredBeat(1, 2, True)}, False),
        ("bo", state(), {"beat": StoredBeat(1, 3, True, "cy")}, False),
        ("cy", state(), {"beat": StoredBeat(1, 3, True, "cy")}, True),
        ("bo", state(), {"beat": StoredBeat(1, 3, True, "cy"), "silent_ms": LOST_MS}, True),
    ],
)
def test_Q4_a_node_takes_over_where_nobody_coordinates_or_shows_signs_of_life(
    me: str, order: OrderState, options: dict[str, Any], takes: bool
) -> None:
    assert asked(me, order, **options) is takes


def test_Q4_silence_counts_from_the_last_sign_of_life() -> None:
    first = seen(None, state(), 7, 100)
    assert seen(first, state(), 7, 200) == first
    assert seen(first, state(), 8, 200).since_ms == 200
    assert seen(first, state(4), 7, 200).since_ms == 200


def test_Q4_a_wish_of_an_earlier_epoch_says_nothing() -> None:
    assert is_let_go(state(), StoredBeat(1, 3, True))
    assert not is_let_go(state(), StoredBeat(1, 2, True))
    assert not is_let_go(state(), StoredBeat(1, 3))
    assert not is_let_go(state(), None)
