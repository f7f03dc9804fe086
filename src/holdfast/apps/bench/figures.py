"""The figures of the README that this machine can be compared with.

They stand here once. `shown` is how the README says one; a test looks that it does, so neither can
be changed alone. What has no figure there is measured all the same, and told without a ratio.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and what the README says of it."""

    part: str
    """`disk`, `home` or `broker`."""
    what: str
    unit: str
    low: float | None = None
    high: float | None = None
    """The end of a range; None where it is one number."""
    shown: str = ""
    less_is_better: bool = False

    @property
    def middle(self) -> float | None:
        if self.low is None:
            return None
        return self.low if self.high is None else (self.low + self.high) / 2

    @property
    def sentence(self) -> str:
        """What stands in the README."""
        return self.shown.format(low=self.low, high=self.high)

    def ratio(self, here: float) -> float | None:
        """How this machine stands to that of the README: above 1 it is better."""
        there = self.middle
        if there is None or here <= 0:
            return None
        return there / here if self.less_is_better else here / there


SYNC: Final = Figure(
    part="disk",
    what="a page is kept (sync), median",
    unit="ms",
    low=0.07,
    shown="whose disk syncs a page in {low} ms",
    less_is_better=True,
)
SYNC_LATE: Final = Figure(
    part="disk", what="a page is kept (sync), p99", unit="ms", less_is_better=True
)
WRITTEN: Final = Figure(part="disk", what="plain writing, with one sync at the end", unit="MB/s")
ONE: Final = Figure(part="home", what="durable writes, one by one", unit="/s")
ONE_TO_BARE: Final = Figure(
    part="home",
    what="the same, to bare SQLite with a commit each",
    unit="x",
    low=0.84,
    shown="| one thread, a durable commit a write, to bare apsw | {low} |",
)
MANY: Final = Figure(part="home", what="durable writes, 64 in flight", unit="/s")
MANY_TO_BARE: Final = Figure(
    part="home",
    what="the same, to bare SQLite in groups of 64",
    unit="x",
    low=0.66,
    shown="| durable writes, 64 coroutines, to bare apsw inserting the same rows in groups of 64 "
    "| {low} |",
)
READS: Final = Figure(part="home", what="reads of a value", unit="/s")
WATCHED: Final = Figure(
    part="home", what="a watcher has seen a write, p99", unit="ms", less_is_better=True
)
ACCEPT_ONE: Final = Figure(part="broker", what="messages accepted, one in flight", unit="/s")
ACCEPT_MANY: Final = Figure(
    part="broker",
    what="messages accepted, 64 in flight",
    unit="/s",
    low=65_000,
    shown="A broker accepts {low:,} messages a second with 64 in flight",
)
FIGURES: Final = (
    *(SYNC, SYNC_LATE, WRITTEN, ONE, ONE_TO_BARE, MANY, MANY_TO_BARE, READS, WATCHED),
    *(ACCEPT_ONE, ACCEPT_MANY),
)
