"""Reads that must see everything that was committed before they began.

Callers that come before the machine is asked share one number. The leader confirms an index for it,
after they came; each is served when this node has applied that much. Only a few numbers are asked
for at a time: who comes meanwhile shares the next one. A read that cannot be confirmed is asked for
again until its caller's time is over: it has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.rules.errors import TooMany
from holdfast.rules.limits import QUORUM_OPEN_READS_MAX, QUORUM_READS_ASKED

ReadAnswered = Callable[[int | None], None]
"""Gets an index up to which this node has applied everything, or None when time is over."""


class _OpenRead(msgspec.Struct):
    answered: ReadAnswered
    ticks_left: int


class OpenReads:
    """By number; those that wait for an index; those that have no number yet."""

    def __init__(self) -> None:
        self._new: list[_OpenRead] = []
        self._asked: dict[int, list[_OpenRead]] = {}
        self._ready: list[tuple[int, _OpenRead]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._ready) + sum(map(len, self._asked.values()))

    def add(self, ticks: int, answered: ReadAnswered) -> None:
        """Raises TooMany if as many wait as there is room for."""
        if len(self) >= QUORUM_OPEN_READS_MAX:
            raise TooMany(f"{QUORUM_OPEN_READS_MAX} reads wait for a confirmation on this node")
        self._new.append(_OpenRead(answered, ticks))

    def ask(self) -> int | None:
        """A number under which all that have come are to be asked for; None if there are none, or
        enough are asked for.
        """
        if not self._new or len(self._asked) >= QUORUM_READS_ASKED:
            return None
        self._number += 1
        self._asked[self._number], self._new = self._new, []
        return self._number

    @property
    def is_due(self) -> bool:
        """Whether there are some that are not asked for yet, and may be."""
        return bool(self._new) and len(self._asked) < QUORUM_READS_ASKED

    def confirmed(self, number: int, index: int, applied: int) -> None:
        """The leader has confirmed that index for this number; `applied` is how far we are."""
        self._ready += [(index, read) for read in self._asked.pop(number, ())]
        self.applied(applied)

    def failed(self, number: int) -> None:
        """They are asked for again, under another number."""
        self._new += self._asked.pop(number, ())

    def again(self) -> None:
        """Whoever was asked may never answer: all are asked for again."""
        for number in list(self._asked):
            self.failed(number)

    def applied(self, index: int) -> None:
        ready = [read for needed, read in self._ready if needed <= index]
        self._ready = [(needed, read) for needed, read in self._ready if needed > index]
        for read in ready:
            read.answered(index)

    def tick(self) -> None:
        """Ends those whose time is over."""
        ended = [read for read in self._all() if self._is_over(read)]
        if not ended:
            return
        self._new = [read for read in self._new if read.ticks_left > 0]
        self._ready = [pair for pair in self._ready if pair[1].ticks_left > 0]
        for number, reads in list(self._asked.items()):
            self._asked[number] = [read for read in reads if read.ticks_left > 0]
        for read in ended:
            read.answered(None)

    def end_all(self) -> None:
        ended = self._all()
        self._new, self._ready, self._asked = [], [], {}
        for read in ended:
            read.answered(None)

    def _all(self) -> list[_OpenRead]:
        asked = [read for reads in self._asked.values() for read in reads]
        return [*self._new, *asked, *(read for _, read in self._ready)]

    @staticmethod
    def _is_over(read: _OpenRead) -> bool:
        read.ticks_left -= 1
        return read.ticks_left <= 0
