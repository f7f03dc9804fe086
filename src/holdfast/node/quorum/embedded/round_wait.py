"""Whether what callers propose waits for the round that is under way.

A round costs every voter much that does not depend on how many entries it carries: messages, syncs,
hand-overs between threads. So what comes while one is under way goes into the next one together,
and not after it one by one. It waits for a moment only: over links on which a round takes longer,
or with a disk that is slow, several rounds are under way.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.quorum.embedded.ports import GroupHooks
from holdfast.rules.limits import QUORUM_ROUND_ENTRIES, QUORUM_ROUND_WAIT_MS
from holdfast.rules.quorum.raft.state import GroupState


class RoundWait:
    """Of one driver; `propose` is called when proposals have waited long enough."""

    def __init__(self, hooks: GroupHooks, propose: Callable[[], None]) -> None:
        self._later, self._propose = hooks.later, propose
        self._waits = self._timed = self._over = False

    def for_its_end(self, proposals: int, state: GroupState) -> bool:
        """Whether so many proposals wait until what this leader has appended is committed."""
        under_way = state.role == "leader" and state.log.last > state.commit
        over, self._over = self._over, False
        self._waits = (
            under_way
            and not over
            and self._later is not None
            and 0 < proposals < QUORUM_ROUND_ENTRIES
        )
        if self._waits and not self._timed and self._later is not None:
            self._timed = True
            self._later(QUORUM_ROUND_WAIT_MS, self._end)
        return self._waits

    def ended(self, propose_soon: Callable[[], None]) -> None:
        """Something is committed."""
        if self._waits:
            propose_soon()

    def _end(self) -> None:
        self._timed = False
        if self._waits:
            self._over = True
            self._propose()
