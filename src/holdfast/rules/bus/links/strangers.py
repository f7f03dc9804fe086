"""Whom to drop when too many connections wait that have proved nothing.

The oldest of the machine that has the most of them. A peer needs a few milliseconds to prove its
key, so it is gone from here before its turn comes, unless its own machine floods us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def whom_to_drop(hosts: Sequence[str]) -> int:
    """`hosts`: where each connection comes from, the oldest first. Returns its place."""
    counts = Counter(hosts)
    most = max(counts.values())
    return next(at for at, host in enumerate(hosts) if counts[host] == most)
