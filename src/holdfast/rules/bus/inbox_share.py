"""How much of the inbox one peer may fill.

What nobody has taken yet is bounded, in messages and in bytes, and senders wait when there is no
room. If the first one could take all of it, a peer that floods would shut out every other. So a
peer may have no more there than it leaves free: one that floods gets half of the inbox, two get a
third each, and there is always room for the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import BusInboxFull
from holdfast.rules.limits import BUS_INBOX_BYTES_MAX, BUS_INBOX_MAX


class InboxShare:
    """What lies in the inbox, by sender."""

    def __init__(self, most: int = BUS_INBOX_MAX, bytes_max: int = BUS_INBOX_BYTES_MAX) -> None:
        self._most, self._bytes_max = most, bytes_max
        self._of: dict[PeerKey, tuple[int, int]] = {}
        self.count = 0
        self.bytes = 0

    def fill(self, shares: Iterable[tuple[PeerKey, int, int]]) -> None:
        """What an earlier life has left there: sender, messages, bytes."""
        self._of, self.count, self.bytes = {}, 0, 0
        for sender, count, size in shares:
            self._add(sender, count, size)

    def take(self, sender: PeerKey, count: int, size: int) -> None:
        """Makes room for so many messages of a sender. Raises BusInboxFull if there is none."""
        if not count:
            return
        mine, mine_bytes = self._of.get(sender, (0, 0))
        free, free_bytes = self._most - self.count, self._bytes_max - self.bytes
        # A sender that has nothing there may take what is free: a batch is never too large for it.
        fits = mine + count <= free and mine_bytes + size <= free_bytes
        if not fits and (mine or count > free or (self.count and size > free_bytes)):
            raise BusInboxFull(
                f"{self.count} messages of {self.bytes} bytes wait for handlers, {mine} of this "
                f"sender, and {count} more came; there is room for {self._most}"
            )
        self._add(sender, count, size)

    def give_back(self, sender: PeerKey, count: int, size: int) -> None:
        """So much of a sender is not in the inbox any more."""
        self._add(sender, -count, -size)

    def _add(self, sender: PeerKey, count: int, size: int) -> None:
        mine, mine_bytes = self._of.pop(sender, (0, 0))
        left, left_bytes = max(0, mine + count), max(0, mine_bytes + size)
        if left:
            self._of[sender] = (left, left_bytes)
        else:
            left_bytes = 0
        self.count += left - mine
        self.bytes += left_bytes - mine_bytes
