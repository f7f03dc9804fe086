"""Whether committed entries wait for more of them before they are folded.

A fold of many costs half as much for each as one of a few (docs/decisions, 0084). The entries are
durable meanwhile, in the Raft log of this node. They wait only where nobody needs them here, and
not for long.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.node.quorum.embedded.ports import GroupHooks
from holdfast.rules.limits import QUORUM_FOLD_ENTRIES, QUORUM_FOLD_WAIT_MS
from holdfast.rules.quorum.raft.admission import is_removed
from holdfast.rules.quorum.raft.state import GroupState


class FoldWait:
    """Of one driver; `fold` is called when entries have waited long enough."""

    def __init__(self, hooks: GroupHooks, fold: Callable[[], None]) -> None:
        self._later, self._fold = hooks.later, fold
        self._waits = self._over = False

    def for_more(self, entries: int, state: GroupState, *, callers: bool) -> bool:
        """Whether so many entries wait. With `callers` somebody waits for them; a leader needs what
        is committed, and a member that was removed will not be asked again.
        """
        if self._later is None or self._over or callers or entries >= QUORUM_FOLD_ENTRIES:
            self._over = False
            return False
        if state.role == "leader" or state.removed or is_removed(state, state.me):
            return False
        if not self._waits:
            self._waits = True
            self._later(QUORUM_FOLD_WAIT_MS, self._end)
        return True

    def _end(self) -> None:
        self._waits, self._over = False, True
        self._fold()
