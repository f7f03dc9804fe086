"""Which searches there are, how far they go, and how many states each has at least."""

from __future__ import annotations

from support.raft_messages import FineBounds
from support.raft_rounds import Bounds

ENOUGH = 200_000

ROUNDS: dict[str, tuple[Bounds, int]] = {
    "three terms, three entries": (Bounds(terms=3, last=3, states_max=ENOUGH), ENOUGH),
    "four terms": (Bounds(terms=4, last=2, states_max=ENOUGH), ENOUGH),
    "disks that lag, and crashes": (
        Bounds(terms=3, last=2, crashes=1, lazy=True, states_max=ENOUGH),
        ENOUGH,
    ),
    "a restored voter": (Bounds(terms=3, last=2, restores=1, states_max=ENOUGH), ENOUGH),
    "four voters, two removals": (
        Bounds(
            voters=4,
            terms=3,
            last=2,
            changes=2,
            prefixes=False,
            losses=False,
            proposals=False,
            least=True,
            fresh=True,
            states_max=ENOUGH,
        ),
        ENOUGH,
    ),
    "a learner is promoted, a voter removed": (
        Bounds(learners=1, terms=3, last=4, changes=2, prefixes=False, states_max=ENOUGH),
        ENOUGH,
    ),
}
"""Atomic rounds."""

PLANTED_ROUNDS: dict[str, Bounds] = {
    "disks that lag": Bounds(terms=3, last=2, crashes=1, lazy=True, prefixes=False),
    "four terms": Bounds(terms=4, last=2),
    "two removals": ROUNDS["four voters, two removals"][0],
    "a promotion": Bounds(learners=1, terms=2, last=4, changes=2, prefixes=False),
    "four voters": Bounds(voters=4, terms=2, last=1, prefixes=False),
    "a restore": Bounds(terms=2, last=2, restores=1),
}
"""Smaller ones, each for the bugs that it has to find."""

ELECTED = ("1 campaign", "1 sync", "1>2", "2 sync", "2>1", "settle")
"""1 leads term 1, and all have its first entry."""

MESSAGES: dict[str, tuple[FineBounds, int]] = {
    "an election": (FineBounds(campaigns=2), 883),
    "an election with a crash": (FineBounds(campaigns=2, crashes=1), 4_512),
    "two terms": (FineBounds(terms=2, campaigns=2), 17_704),
    "a late disk": (FineBounds(ELECTED, terms=2, last=2, late=1), 10_749),
    "a crash under way": (FineBounds(ELECTED, terms=2, last=2, crashes=1), 24_078),
    "a doubled message": (
        FineBounds(
            (*ELECTED, "1 propose", "1 sync", "1 propose", "1 sync", "1!3"),
            terms=2,
            last=3,
            doubles=1,
        ),
        32_213,
    ),
}
"""Single messages; each search is complete."""
