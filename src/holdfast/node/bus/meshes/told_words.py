"""What the peer of one link tells of streams, worked off so much in a turn of the loop.

To unite what a peer has told of a stream with what it tells now takes as long as there are holes in
it, and a peer may tell of another hole with every fifty bytes. So what is too much for a turn waits
for the next one, in its order, and keeps its credit: others have their turn in between, and the
peer can send only so much more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sized

from holdfast.protocol.bus_mesh import StreamTold
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.errors import HoldfastError, OverLimit
from holdfast.rules.limits import BUS_TOLD_RANGES_A_TURN

Told = tuple[StreamName, StreamTold]


class ToldWords:
    """The words of one link that wait."""

    def __init__(
        self,
        hear: Callable[[StreamName, StreamTold], int],
        taken: Callable[[int], None],
        refuse: Callable[[HoldfastError], None],
    ) -> None:
        """`hear` works one off, and returns how many ranges it looked at; `taken` gives the credit
        of a word back.
        """
        self._hear, self._taken, self._refuse = hear, taken, refuse
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[deque[Told], int]] = deque()
        self._looked_at = 0
        """Ranges, in this turn of the loop."""
        self._next: asyncio.Handle | None = None

    def came(self, word: Iterable[Told], size: int) -> None:
        """Works a word off, now or in a later turn; then its credit is given back."""
        self._waiting.append((deque(word), size))
        if len(self._waiting) == 1:
            self._work_off()

    def drop(self) -> None:
        """Nothing is heard any more."""
        while self._waiting:
            self._taken(self._waiting.popleft()[1])
        if self._next is not None:
            self._next.cancel()

    def _work_off(self) -> None:
        if self._next is None:
            self._next = self._loop.call_soon(self._next_turn)
        try:
            while self._waiting and self._looked_at < BUS_TOLD_RANGES_A_TURN:
                streams, size = self._waiting[0]
                if streams:
                    self._looked_at += 1 + self._hear(*streams.popleft())
                else:
                    self._waiting.popleft()
                    self._taken(size)
        except HoldfastError as error:
            self._refuse(error)

    def _next_turn(self) -> None:
        self._next, self._looked_at = None, 0
        if self._waiting:
            self._work_off()


def check_room(waiting: Sized, most: int) -> None:
    """Raises OverLimit if a peer has said more than it may before it is worked off."""
    if len(waiting) >= most:
        raise OverLimit(f"a peer sent more than {most} words that wait to be worked off")
