"""Words of a leader that something is committed, kept back for a moment.

The next entries that a member gets tell it the same. Under load they follow within milliseconds,
and a word of its own costs both sides as much as the entries do. So it waits for them, but not for
long; and not at all for a member that has callers who wait for what was committed.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.quorum.embedded.ports import GroupHooks
from holdfast.rules.limits import QUORUM_WORD_WAIT_MS
from holdfast.rules.quorum.group_room import ProposalRoom
from holdfast.rules.quorum.raft.messages import NO_ROUND, Heartbeat, Message


class CommitWords:
    """Of one driver, whose `send` is called with words that have waited long enough."""

    def __init__(self, hooks: GroupHooks, send: Callable[[Message], None]) -> None:
        self._later, self._send = hooks.later, send
        self._waiting: dict[int, Heartbeat] = {}
        self._due = False

    def keep(self, message: Message, room: ProposalRoom) -> bool:
        """Whether this waits. A newer word takes the place of one that does; a beat that is
        answered says all of it.
        """
        if not isinstance(message, Heartbeat):
            return False
        if self._later is None or message.round != NO_ROUND or room.holds(message.to):
            self._waiting.pop(message.to, None)
            return False
        self._waiting[message.to] = message
        if not self._due:
            self._due = True
            self._later(QUORUM_WORD_WAIT_MS, self._say)
        return True

    def carried(self, to: int) -> None:
        """Entries have left for that member, and with them what is committed by now."""
        self._waiting.pop(to, None)

    def _say(self) -> None:
        self._due = False
        waiting, self._waiting = self._waiting, {}
        for message in waiting.values():
            self._send(message)
