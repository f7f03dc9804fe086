"""How far a long command has got, on stderr, for people at a terminal only.

    exported lines: 12,000 of 48,000 (25 %), 9,100/s, 4 s left

One line that is written over, with the mean rate since the work began and what is left by it. Off a
terminal nothing is written. Whoever presses Ctrl-C reads what that leaves behind, on a terminal or
not: the next command depends on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

from holdfast.apps.cli import output, times
from holdfast.apps.cli.lists import columns
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.limits import SECOND_MS

_EVERY_S = 0.1
_RATED_S = 0.5
"""Before that a rate says nothing."""


class Progress:
    """One line that is written over; it disappears when the work ends. `leaves` says what is there
    if it is interrupted, and what to type then.
    """

    def __init__(
        self, session: CommandSession, what: str, *, leaves: str = "", in_bytes: bool = False
    ) -> None:
        self._what, self._leaves, self._in_bytes = what, leaves, in_bytes
        self._talks = not session.as_json
        self._live = sys.stderr.isatty() and self._talks
        self._next = 0.0
        self._begun: tuple[float, int] | None = None
        self._shown = False

    def to(self, done: int, total: int | None = None) -> None:
        if not self._live:
            return
        now = monotonic()
        if self._begun is None:
            # Work that goes on where it stopped does not begin with nothing.
            self._begun = (now, done)
        if now < self._next:
            return
        self._next = now + _EVERY_S
        self._shown = True
        since, before = self._begun
        shown = line(self._what, done, total, done - before, now - since, in_bytes=self._in_bytes)
        # A line that the terminal broke in two could not be written over.
        self._write(f"\r\x1b[K{columns.cut(shown, columns.room() - 1)}")

    def step(self, name: str, done: int, total: int) -> None:
        """One of a few steps has begun."""
        if self._live:
            self._shown = True
            shown = f"{self._what} {name} ({done} of {total})"
            self._write(f"\r\x1b[K{columns.cut(shown, columns.room() - 1)}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self._shown:
            self._write("\r\x1b[K")
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if interrupted and self._leaves and self._talks:
            output.talk(f"interrupted: {self._leaves}")

    def _write(self, text: str) -> None:
        sys.stderr.buffer.write(text.encode())
        sys.stderr.buffer.flush()


def line(
    what: str,
    done: int,
    total: int | None,
    came: int,
    elapsed_s: float,
    *,
    in_bytes: bool = False,
) -> str:
    """How far it is, at what rate, and how long it takes on. `came` is what was done in this time;
    a count that falls has no rate.
    """
    amount: Callable[[int], str] = times.size if in_bytes else "{:,}".format
    shown = f"{what} {amount(done)}"
    if total:
        shown += f" of {amount(total)} ({100 * done // total} %)"
    if elapsed_s < _RATED_S or came <= 0:
        return shown
    rate = came / elapsed_s
    shown += f", {amount(round(rate))}/s" if rate >= 1 else f", {60 * rate:.1f} a minute"
    if total and total > done:
        shown += f", {left(round((total - done) / rate * SECOND_MS))} left"
    return shown


def left(ms: int) -> str:
    """A time to wait, as coarse as it is known."""
    seconds = max(1, round(ms / SECOND_MS))
    if seconds < 100:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{round(minutes / 60)} h"
