"""Which versions of a key are lost, and which were only replaced.

The newest version of a key stands. A version is **seen** by another if that one names it as its
base, or comes later from the same peer, or has seen a version that has seen it. A version that the
newest one has not seen is **lost**: nobody decided to replace it. It stands in the conflict ledger.

So what is lost follows from the set of versions alone. Every node lists the same, in whatever order
they arrived, and what arrives late is judged by the same rule as what came before: three versions,
each written over the one before it, leave no entry, even if the middle one comes last; a version
that was lost and is then seen by the newest one is lost no more.

What a version has seen is, for each peer, all that this peer wrote up to a lamport, because a peer
has seen its own earlier versions. So `Seen`, one number for each peer, says it all. A node keeps it
for the newest version of a key only. For the others it asks the log, and only where the newest
version is replaced by one that has not seen it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.rules.envelope import Base
from holdfast.rules.order import Version, is_newer, order_key

Seen = dict[str, int]
"""For each peer the lamport up to which its versions of a key were seen."""


class Written(NamedTuple):
    """A version of a key, and what its writer saw there."""

    version: Version
    base: Base | None


class Meeting(NamedTuple):
    """What follows when a version arrives where another one stands."""

    wins: bool
    seen: Seen
    """What the version that stands then has seen, itself included."""
    lost: list[Version]
    """Versions that are lost from now on."""
    found: list[Version]
    """Versions that were lost and are so no more: the one that stands has seen them."""


def covers(seen: Seen, version: Version) -> bool:
    return version.lamport <= seen.get(version.peer, 0)


def meet(
    standing: Written,
    seen: Seen,
    lost: Sequence[Written],
    incoming: Written,
    history: Iterable[Written],
) -> Meeting:
    """Judges a version that arrives at a key.

    `seen` is what the standing version has seen, `lost` what is lost so far. `history` are all
    versions of the key up to the standing one, newest first. It is read only as far as needed, and
    only if neither of the two has seen the other and the standing one loses.
    """
    known = {**seen}
    _add(known, standing)
    wins = is_newer(incoming.version, standing.version)
    if not wins and not covers(known, incoming.version):
        return Meeting(False, known, [incoming.version], [])
    if not wins:
        _add(known, incoming)
        return Meeting(False, known, [], _found(known, lost))
    theirs: Seen = {}
    _add(theirs, incoming)
    _found(theirs, lost)
    if covers(theirs, standing.version):
        for peer, lamport in theirs.items():
            _join(known, peer, lamport)
        return Meeting(True, known, [], _found(known, lost))
    losing = _apart(standing, theirs, history)
    ours: Seen = {}
    for one in losing:
        _add(ours, one)
    for peer, lamport in known.items():
        # What came in by a version that both have seen, the winner has seen too.
        if lamport > ours.get(peer, 0):
            _join(theirs, peer, lamport)
    return Meeting(True, theirs, [one.version for one in losing], _found(theirs, lost))


def lost_among(versions: Iterable[Written]) -> list[Version]:
    """Of all versions of a key, those that the newest one has not seen, newest first."""
    seen: Seen = {}
    lost: list[Version] = []
    for one in sorted(versions, key=lambda one: order_key(one.version), reverse=True):
        if not seen or covers(seen, one.version):
            _add(seen, one)
        else:
            lost.append(one.version)
    return lost


def _add(seen: Seen, one: Written) -> None:
    _join(seen, one.version.peer, one.version.lamport)
    if one.base is not None:
        _join(seen, one.base.peer, one.base.lamport)


def _join(seen: Seen, peer: str, lamport: int) -> None:
    if seen.get(peer, 0) < lamport:
        seen[peer] = lamport


def _found(seen: Seen, lost: Sequence[Written]) -> list[Version]:
    """Those of the lost versions that were seen. What they had seen was seen with them."""
    found: list[Version] = []
    waiting = list(lost)
    while True:
        covered = [one for one in waiting if covers(seen, one.version)]
        if not covered:
            return found
        for one in covered:
            _add(seen, one)
            found.append(one.version)
        waiting = [one for one in waiting if one not in covered]


def _apart(standing: Written, theirs: Seen, history: Iterable[Written]) -> list[Written]:
    """The versions that the standing one has seen, itself included, and the winner has not. Adds to
    `theirs` what the winner has seen by what it has seen.

    Seeing goes back only. So along the history, newest first, everything that leads to a version
    comes before it.
    """
    ours: Seen = {}
    _add(ours, standing)
    apart = [standing]
    for one in history:
        place = one.version.lamport
        if all(min(lamport, place) <= theirs.get(peer, 0) for peer, lamport in ours.items()):
            break  # all that remains of ours, the winner has seen too
        if one.version == standing.version:
            continue
        if covers(theirs, one.version):
            _add(theirs, one)
        elif covers(ours, one.version):
            _add(ours, one)
            apart.append(one)
    return apart
