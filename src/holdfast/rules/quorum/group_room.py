"""How much a group of voters holds for others at a time, so that none takes the room of all.

A leader appends what members propose, and holds it until it is committed. Each member has room of
its own there, in entries and in bytes: one that proposes without end waits for itself. A member of
the group holds what its disk has not got yet. The stream of a leader is faster than a disk may be,
so beyond a limit entries are not taken: the leader sends them again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.rules.limits import (
    QUORUM_MEMBER_ENTRIES_MAX,
    QUORUM_MEMBER_PROPOSED_BYTES,
    QUORUM_UNSYNCED_BYTES,
    QUORUM_UNSYNCED_MAX,
)
from holdfast.rules.quorum.raft.messages import AppendEntries, Message


class _Run(NamedTuple):
    last: int
    origin: int
    entries: int
    size: int


class ProposalRoom:
    """What a leader has appended for each member and not committed."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._held: dict[int, tuple[int, int]] = {}
        """By member: entries and bytes."""

    def is_full(self, origin: int) -> bool:
        """Whether nothing more of that member is appended for now. Of one that has room a whole
        message is taken, so that nothing is ever too large for it.
        """
        entries, size = self._held.get(origin, (0, 0))
        return entries >= QUORUM_MEMBER_ENTRIES_MAX or size >= QUORUM_MEMBER_PROPOSED_BYTES

    def holds(self, origin: int) -> bool:
        """Whether something of that member is held that it does not know to be committed."""
        return origin in self._held

    def took(self, origin: int, last: int, entries: int, size: int) -> None:
        """Entries of that member were appended, up to the index `last`."""
        self._runs.append(_Run(last, origin, entries, size))
        before = self._held.get(origin, (0, 0))
        self._held[origin] = (before[0] + entries, before[1] + size)

    def committed(self, index: int) -> None:
        while self._runs and self._runs[0].last <= index:
            run = self._runs.popleft()
            entries, size = self._held[run.origin]
            if entries == run.entries:
                del self._held[run.origin]
            else:
                self._held[run.origin] = (entries - run.entries, size - run.size)

    def clear(self) -> None:
        """This node does not lead any more."""
        self._runs.clear()
        self._held.clear()


def is_too_much(message: Message, unsynced: int, unsynced_bytes: int) -> bool:
    """Whether a message is passed over, because the disk of this node is so many writes and bytes
    behind. It is as if it had been lost, and what matters of it is sent again.
    """
    if unsynced >= QUORUM_UNSYNCED_MAX:
        return True
    return isinstance(message, AppendEntries) and unsynced_bytes >= QUORUM_UNSYNCED_BYTES
