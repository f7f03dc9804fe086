"""How much of one stream of a link may be under way.

The receiver of a stream has a window of so many bytes. Whatever it has not handed on fills it. A
sender sends while the window is not full, so the last frame may exceed it: a frame larger than the
window gets through, and the receiver never holds more than the window and one frame. When half of
the window was handed on, the receiver grants it anew, with one frame for many messages.
"""

from __future__ import annotations

from holdfast.rules.errors import BadAnswer, OverLimit


class SendingCredit:
    """One stream, as its sender counts."""

    __slots__ = ("_window", "under_way")

    def __init__(self, window: int) -> None:
        self._window = window
        self.under_way = 0
        """Bytes that were sent and not granted anew."""

    @property
    def left(self) -> int:
        """How many bytes may go; one frame may be larger, if any may."""
        return max(0, self._window - self.under_way)

    def sent(self, size: int) -> None:
        assert self.under_way < self._window, "whoever sends waits for room first"
        self.under_way += size

    def granted(self, size: int) -> None:
        """Raises BadAnswer if that is more than was sent."""
        if size > self.under_way:
            raise BadAnswer(
                f"a peer grants {size} bytes of a stream that has {self.under_way} under way"
            )
        self.under_way -= size


class ReceivingCredit:
    """One stream, as its receiver counts."""

    __slots__ = ("_taken", "_window", "held")

    def __init__(self, window: int) -> None:
        self._window = window
        self.held = 0
        """Bytes that came and were not taken."""
        self._taken = 0
        """Bytes that were taken and not granted anew."""

    def received(self, size: int) -> None:
        """Raises OverLimit if the sender ought to have waited."""
        if self.held + self._taken >= self._window:
            raise OverLimit(f"a peer sends on a stream whose window of {self._window} is full")
        self.held += size

    def taken(self, size: int) -> int:
        """What to grant now; 0: nothing yet."""
        assert 0 <= size <= self.held, "more was taken than came"
        self.held -= size
        self._taken += size
        if self._taken * 2 < self._window:
            return 0
        grant, self._taken = self._taken, 0
        return grant
