"""How much of what a broker sent was read and is not stored yet, over all meshes of a connection.

An honest broker has a few frames under way for each mesh and waits for our word. The meshes may be
many, and a broker need not be honest. So what waits is counted in bytes, and while it is too much
nothing more is read from the line: then the other side has to wait.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import SYNC_WAITING_BYTES

F = TypeVar("F")


class WaitingBytes:
    """The count of one connection."""

    def __init__(self, most: int = SYNC_WAITING_BYTES) -> None:
        self._most = most
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes > self._most


class WaitingFrames(Generic[F]):
    """Frames of one kind in their order. Those that are taken count until they are `released`: they
    are held until they are stored.
    """

    def __init__(self, count: WaitingBytes, most: int) -> None:
        self._count, self._most = count, most
        self._frames: deque[tuple[F, int]] = deque()
        self._taken = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def first(self) -> F | None:
        return self._frames[0][0] if self._frames else None

    @property
    def has_room(self) -> bool:
        return len(self._frames) < self._most

    def add(self, frame: F, size: int) -> None:
        if not self.has_room:
            raise BadAnswer("the broker sends more than was asked for")
        self._frames.append((frame, size))
        self._count.bytes += size

    def take(self) -> F:
        frame, size = self._frames.popleft()
        self._taken += size
        return frame

    def released(self) -> None:
        """What was taken is stored."""
        self._count.bytes -= self._taken
        self._taken = 0
