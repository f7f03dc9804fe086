"""Whether the next commit may be expected to be quick.

A commit in the thread of an event loop spares two hand-overs, and holds up all that the loop does
for as long as the disk takes. So it is only done after many quick commits in a row, and one slow
commit begins the count anew (docs/decisions/0092, docs/decisions/0121).
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.rules.limits import QUICK_COMMIT_MS, QUICK_COMMITS, SECOND_MS


class QuickCommits:
    """Counts the quick commits of one database."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that never go back."""
        self._clock = clock
        self._in_a_row = 0

    @property
    def expected(self) -> bool:
        return self._in_a_row >= QUICK_COMMITS

    def time(self, commit: Callable[[], object]) -> None:
        """Runs a commit, and notes how long it took."""
        before, self._in_a_row = self._in_a_row, 0  # an error counts as slow
        begun = self._clock()
        commit()
        if (self._clock() - begun) * SECOND_MS <= QUICK_COMMIT_MS:
            self._in_a_row = before + 1
