"""Changes of members and transfers of leadership that callers wait for.

A change is answered when this node has applied its entry, or when the leader refuses it. If another
leader has cut its entry off, the caller hears that; if nobody can tell any more (time is over, the
log was replaced by a snapshot), it hears None, and the members of the group tell what became of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from holdfast.rules.quorum.raft.effects import ChangeOutcome, RoleChange

ChangeAnswered = Callable[[ChangeOutcome | None], None]
TransferAnswered = Callable[[bool], None]
"""Gets whether another voter leads now."""


class _OpenChange(msgspec.Struct):
    answered: ChangeAnswered
    ticks_left: int
    outcome: ChangeOutcome | None = None
    """What the leader has appended; None: the machine was not asked yet."""
    term: int = 0


class _OpenTransfer(msgspec.Struct):
    answered: TransferAnswered
    ticks_left: int


class OpenChanges:
    """In the order in which they came; the machine answers each at once, in the same order."""

    def __init__(self) -> None:
        self._asked: deque[_OpenChange] = deque()
        self._appended: list[_OpenChange] = []

    def __len__(self) -> int:
        return len(self._asked) + len(self._appended)

    def add(self, ticks: int, answered: ChangeAnswered) -> None:
        """The next change that the machine is asked for is this caller's."""
        self._asked.append(_OpenChange(answered, ticks))

    def judged(self, outcome: ChangeOutcome, term: int) -> None:
        """What the machine says to the oldest one: it stands in the log of this term, or not."""
        one = self._asked.popleft()
        if outcome.index:
            one.outcome, one.term = outcome, term
            self._appended.append(one)
        else:
            one.answered(outcome)

    def applied(self, index: int, term_at: Callable[[int], int]) -> None:
        """This node has applied everything up to `index`; `term_at` is -1 where that is unknown."""
        if not self._appended:
            return
        for one in self._take(lambda one: _index(one) <= index):
            assert one.outcome is not None, "only those with an entry stand here"
            term = term_at(one.outcome.index)
            if term == one.term:
                one.answered(one.outcome)
            elif term < 0:
                one.answered(None)
            else:
                one.answered(ChangeOutcome(0, "leader_changed", one.outcome.id))

    def tick(self) -> None:
        """Ends those whose time is over."""
        for one in self._appended:
            one.ticks_left -= 1
        for one in self._take(lambda one: one.ticks_left <= 0):
            one.answered(None)

    def end_all(self) -> None:
        for one in self._take(lambda one: True):
            one.answered(None)

    def _take(self, which: Callable[[_OpenChange], bool]) -> list[_OpenChange]:
        taken: list[_OpenChange] = []
        kept: list[_OpenChange] = []
        for one in self._appended:
            (taken if which(one) else kept).append(one)
        self._appended = kept
        return taken


class OpenTransfers:
    """Those who wait until another voter leads."""

    def __init__(self) -> None:
        self._open: list[_OpenTransfer] = []

    def __len__(self) -> int:
        return len(self._open)

    def add(self, ticks: int, answered: TransferAnswered) -> None:
        self._open.append(_OpenTransfer(answered, ticks))

    def role(self, change: RoleChange, me: int) -> None:
        """Somebody leads, or nobody does for the moment."""
        if change.leader:
            self.end_all(change.leader != me)

    def end_all(self, handed_over: bool) -> None:
        ended, self._open = self._open, []
        for one in ended:
            one.answered(handed_over)

    def tick(self) -> None:
        """Ends those whose time is over."""
        for one in self._open:
            one.ticks_left -= 1
        ended = [one for one in self._open if one.ticks_left <= 0]
        self._open = [one for one in self._open if one.ticks_left > 0]
        for one in ended:
            one.answered(False)


def _index(one: _OpenChange) -> int:
    assert one.outcome is not None, "only those with an entry stand here"
    return one.outcome.index
