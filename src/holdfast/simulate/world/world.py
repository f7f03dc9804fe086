"""Time and chance from one seed: a world in which a failing run can be run again exactly.

Everything that happens in a `World` is an event on its calendar. The world takes the earliest one,
sets its clock to that moment and calls it; the event may change things and put more events on the
calendar. Nothing waits, so hours pass in milliseconds, and nothing is drawn but from the seed, so
the same seed gives the same story. The digest of the event log shows that it did:

    >>> def story(seed):
    ...     world = World(seed)
    ...     delivered = []
    ...     def send(message):
    ...         delay = world.rng.randrange(1, 500)
    ...         world.at(delay, delivered.append, message, name=f"deliver {message}")
    ...     for message in ("a", "b", "c"):
    ...         send(message)
    ...     world.run()
    ...     return delivered, world.digest
    >>> story(7) == story(7)
    True
    >>> story(7) == story(8)
    False

There are two clocks, as in life. `ticks` are milliseconds that only go forward: delays, timeouts
and leases count in them. `now_ms` is what the wall clock shows; a test may set it, forward or back,
at any moment. Code under test gets its time from `world.clock()`, its ids from `world.new_id` and
its randomness from `world.rng` or `world.fork(...)`. It must not ask the real clock, use threads,
or go through a set whose order differs from run to run. The digest tells such runs apart only where
they differ in the log, so `note` what matters.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from holdfast.rules.ids import uuid7

START_MS: Final = 1_700_000_000_000
"""When the wall clock of a new world starts: a round moment in November 2023."""
LOG_LINES_MAX: Final = 1000
"""How many of the last lines are kept to be read; the digest covers all of them."""


class ScheduledEvent:
    """Something that will happen, unless it is cancelled before."""

    __slots__ = ("_act", "cancelled", "name", "tick")

    def __init__(self, tick: int, name: str, act: Callable[[], object]) -> None:
        self.tick = tick
        self.name = name
        self.cancelled = False
        self._act = act

    def cancel(self) -> None:
        """Takes the event off the calendar. Doing so too late or twice does no harm."""
        self.cancelled = True

    def happen(self) -> None:
        self._act()


class World:
    """A calendar, two clocks, a source of chance and a log, all from one seed."""

    def __init__(self, seed: int, *, now_ms: int = START_MS) -> None:
        self.seed: Final = seed
        self.rng: Final = random.Random(f"world {seed}")
        self.ticks = 0
        self.events = 0
        """How many events have happened."""
        self.log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._wall_start_ms = now_ms
        self._calendar: list[tuple[int, int, ScheduledEvent]] = []
        self._planned = 0
        self._digest = sha256()

    @property
    def now_ms(self) -> int:
        """What the wall clock shows. Set it to let it jump; the ticks go on as before."""
        return self._wall_start_ms + self.ticks

    @now_ms.setter
    def now_ms(self, shown: int) -> None:
        self.note(f"wall clock jumps by {shown - self.now_ms}")
        self._wall_start_ms = shown - self.ticks

    @property
    def digest(self) -> str:
        """The SHA-256 of every line of the log so far: equal digests mean the same story."""
        return self._digest.hexdigest()

    def clock(self, *, skew_ms: int = 0) -> Callable[[], int]:
        """The wall clock as a function, for one node; `skew_ms` sets it apart from the world's."""
        return lambda: self.now_ms + skew_ms

    def fork(self, name: str) -> random.Random:
        """A source of chance for one part of the world, which others' draws do not disturb."""
        return random.Random(f"world {self.seed} {name}")

    def new_id(self) -> bytes:
        """A UUID of version 7, from the wall clock and the seed."""
        return uuid7(self.now_ms, self.rng.randbytes(10))

    def note(self, text: str) -> None:
        """Writes a line into the log. Write what matters, but nothing that differs between runs."""
        line = f"{self.ticks} {text}"
        self.log.append(line)
        self._digest.update(line.encode())
        self._digest.update(b"\n")

    def at(
        self, delay: int, act: Callable[..., object], *args: Any, name: str | None = None
    ) -> ScheduledEvent:
        """Plans a call so many ticks from now; calls for the same tick keep their order.

        The name stands in the log. Without one it is the function's own.
        """
        assert delay >= 0, "the past cannot be changed"
        shown = name if name is not None else getattr(act, "__qualname__", type(act).__name__)
        event = ScheduledEvent(self.ticks + delay, shown, (lambda: act(*args)) if args else act)
        self._planned += 1
        heapq.heappush(self._calendar, (event.tick, self._planned, event))
        return event

    def step(self) -> bool:
        """Lets the next event happen; False if there is none."""
        while self._calendar:
            tick, number, event = heapq.heappop(self._calendar)
            if event.cancelled:
                continue
            self.ticks = tick
            self.events += 1
            self.note(f"#{number} {event.name}")
            try:
                event.happen()
            except Exception as error:
                error.add_note(f"in the world of seed {self.seed}, {self.log[-1]}")
                raise
            return True
        return False

    def run(self, until: int | None = None) -> int:
        """Lets everything happen up to this tick, and says how many events that were.

        Without a tick it goes on until nothing is planned any more; a story that always plans its
        next event needs one. The clock then stands at the tick even if nothing happened there.
        """
        before = self.events
        while (tick := self._next_tick()) is not None and (until is None or tick <= until):
            self.step()
        if until is not None:
            self.ticks = max(self.ticks, until)
        return self.events - before

    def _next_tick(self) -> int | None:
        while self._calendar and self._calendar[0][2].cancelled:
            heapq.heappop(self._calendar)
        return self._calendar[0][0] if self._calendar else None
