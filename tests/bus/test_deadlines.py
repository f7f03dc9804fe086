"""Many deadlines with one timer. The loop is set by hand: no test waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from holdfast.bus.deadlines import Deadlines


class SetLoop:
    """As much of an event loop as deadlines need."""

    def __init__(self) -> None:
        self.now = 0.0
        self._set: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Handles tell their loop."""

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, call, args, cast(asyncio.AbstractEventLoop, self))
        self._set.append(handle)
        return handle

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        return [handle for handle in self._set if not handle.cancelled()]

    def go_to(self, now: float) -> None:
        self.now = now
        for handle in [one for one in self.timers if one.when() <= now]:
            self._set.remove(handle)
            handle._run()


def made() -> tuple[SetLoop, Deadlines]:
    loop = SetLoop()
    return loop, Deadlines(cast(asyncio.AbstractEventLoop, loop))


def test_B5_deadlines_come_in_their_order_once_each_with_one_timer() -> None:
    loop, deadlines = made()
    came: list[int] = []
    for at in (3, 1, 2, 9):
        deadlines.add(at, lambda at=at: came.append(at))  # type: ignore[misc]
    assert len(loop.timers) == 1
    loop.go_to(0.5)
    assert came == []
    loop.go_to(2)
    assert came == [1, 2]
    loop.go_to(4)
    assert came == [1, 2, 3]
    assert [timer.when() for timer in loop.timers] == [9]
    loop.go_to(20)
    assert came == [1, 2, 3, 9]
    assert (len(loop.timers), len(deadlines)) == (0, 0)


def test_B5_a_deadline_that_was_called_off_never_comes() -> None:
    loop, deadlines = made()
    came: list[str] = []
    first = deadlines.add(1, lambda: came.append("first"))
    second = deadlines.add(2, lambda: came.append("second"))
    deadlines.add(2, lambda: second.cancel())
    deadlines.add(2, lambda: came.append("last"))
    first.cancel()
    first.cancel()
    loop.go_to(1)
    assert came == []
    loop.go_to(2)
    assert came == ["second", "last"], "what has come cannot be called off"
    third = deadlines.add(4, lambda: came.append("third"))
    deadlines.add(4, lambda: came.append("fourth"))
    deadlines.add(3, third.cancel)
    loop.go_to(4)
    assert came == ["second", "last", "fourth"], "called off by one that came with it"


def test_B5_deadlines_that_were_called_off_take_no_room() -> None:
    loop, deadlines = made()
    came: list[int] = []
    deadlines.add(500, lambda: came.append(500))
    for at in range(10_000):
        deadlines.add(30_000 + at, lambda: came.append(0)).cancel()
        assert len(deadlines) <= 200
    assert len(loop.timers) == 1
    loop.go_to(100_000)
    assert came == [500]
    assert len(deadlines) == 0


def test_B5_after_the_end_no_deadline_comes() -> None:
    loop, deadlines = made()
    deadlines.add(1, lambda: None)
    deadlines.close()
    assert not loop.timers
