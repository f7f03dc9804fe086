"""Who pulls from whom, and what: drawn from a seed.

    pair one way     ana ─► bob
    pair both ways   ana ◄─► bob
    parallel         ana ◄─► bob by several links, each for a part
    line             ana ─► bob ─► cai          bob carries what ana wrote
    ring             ana ─► bob ─► cai ─► ana   every zone carries everything
    star             bob, cai ◄─► ana           the hub carries everything
    full mesh        every zone ◄─► every other

Some links take only a part: one mesh, subjects with a prefix, a data class. Some readers are slow,
and some of those are waited for only so long. `ZoneTraits` says which troubles a world has besides.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.rules.filters import CLASSES, Filter
from holdfast.rules.limits import HOUR_MS
from holdfast.simulate.nodes.link import SimulatedLink

MESHES: Final = ("team", "lab")
KINDS: Final = (
    *("pair one way", "pair both ways", "parallel", "line", "ring", "star", "full mesh"),
)
SUBJECTS: Final = ("a", "b", "c", "data/", "notes")
ONE_GOES_BACK: Final = True
"""One node of a world is restored, and none that gives readers up. Where both ends of a link have
gone back, or the source has done so and has given its reader up, neither of them can always tell
what the reader missed of the new epoch before it was truncated: about one such world in two hundred
shows it. Without this limit, all nodes of a world may go back."""
RETIRE_MS: Final = 3 * HOUR_MS
RETIRE_LAG: Final = 12

ANA, BOB, CAI = "ana", "bob", "cai"


class ZoneTraits(NamedTuple):
    """Which troubles a world has besides the storm that all worlds have."""

    kind: str
    filtered: bool
    """Some links take only a part."""
    retiring: bool
    """Some readers stay away for longer than they are waited for."""
    restoring: tuple[str, ...]
    """Nodes that go back to older backups."""
    relinking: bool
    """Links are removed and added again."""

    @property
    def smooth(self) -> bool:
        """Nothing happens that may cost a reader an entry or its content."""
        return not (self.retiring or self.restoring or self.relinking)


def traits_of(seed: int, rng: random.Random) -> ZoneTraits:
    def sometimes(share: float) -> bool:
        return rng.random() < share

    kind, filtered = KINDS[seed % len(KINDS)], sometimes(0.6)
    retiring, restoring, relinking = sometimes(0.4), sometimes(0.5), sometimes(0.3)
    nodes: tuple[str, ...] = ()
    if restoring and not ONE_GOES_BACK:
        nodes = peers_of(kind)
    elif restoring and not retiring:
        nodes = (rng.choice(peers_of(kind)),)
    return ZoneTraits(kind, filtered, retiring, nodes, relinking)


def peers_of(kind: str) -> tuple[str, ...]:
    return (ANA, BOB) if kind.startswith(("pair", "parallel")) else (ANA, BOB, CAI)


def draw(traits: ZoneTraits, rng: random.Random) -> list[SimulatedLink]:
    """The links of a world."""
    relations = []
    numbers: dict[str, int] = {}
    for source, reader, carries in _ways(traits.kind, rng):
        numbers[reader] = numbers.get(reader, 0) + 1
        relation = SimulatedLink(
            f"l{numbers[reader]}", reader, source, _filter(traits, rng, source, carries)
        )
        if rng.random() < 0.2:
            relation.reads = MESHES if rng.random() < 0.5 else relation.filter.meshes
        relation.slow = rng.random() < 0.25
        if traits.retiring and rng.random() < 0.7:
            relation.slow = True
            if rng.random() < 0.5:
                relation.retire_ms = RETIRE_MS
            else:
                relation.retire_lag = RETIRE_LAG
        relations.append(relation)
    return relations


def another_filter(traits: ZoneTraits, rng: random.Random, relation: SimulatedLink) -> Filter:
    """The filter of a link that is added again: as before, or for another part."""
    if not traits.filtered or rng.random() < 0.5:
        return relation.filter
    filter = _filter(traits, rng, relation.source, relation.filter.origins)
    if relation.reads is None or set(filter.meshes) <= set(relation.reads):
        return filter
    return relation.filter


def _ways(kind: str, rng: random.Random) -> list[tuple[str, str, Sequence[str]]]:
    """Source, reader, and whose entries the source may carry (empty: those of all peers)."""
    ways: dict[str, list[tuple[str, str, Sequence[str]]]] = {
        "pair one way": [(ANA, BOB, [ANA])],
        "pair both ways": [(ANA, BOB, [ANA]), (BOB, ANA, [BOB])],
        "parallel": [(ANA, BOB, [ANA]), (ANA, BOB, [ANA]), (BOB, ANA, []), (BOB, ANA, [BOB])],
        "line": [(ANA, BOB, [ANA]), (BOB, CAI, rng.choice([[], [ANA, BOB], [ANA]]))],
        "ring": [(ANA, BOB, []), (BOB, CAI, []), (CAI, ANA, [])],
        "star": [(BOB, ANA, [BOB]), (CAI, ANA, [CAI]), (ANA, BOB, []), (ANA, CAI, [])],
        "full mesh": [
            (source, reader, rng.choice([[], [source]]))
            for source in (ANA, BOB, CAI)
            for reader in (ANA, BOB, CAI)
            if source != reader
        ],
    }
    return ways[kind]


def _filter(traits: ZoneTraits, rng: random.Random, source: str, carries: Sequence[str]) -> Filter:
    everything = Filter(meshes=MESHES, origins=tuple(sorted(carries)))
    part = rng.choice(("all", "all", "mesh", "subjects", "class"))
    if not traits.filtered or part == "all":
        return everything
    if part == "mesh":
        return Filter(meshes=(rng.choice(MESHES),), origins=everything.origins)
    if part == "subjects":
        subjects = tuple(sorted(rng.sample(SUBJECTS, 2)))
        return Filter(meshes=MESHES, subjects=subjects, origins=everything.origins)
    classes = tuple(sorted(rng.sample(sorted(CLASSES), 2)))
    return Filter(meshes=MESHES, classes=classes, origins=everything.origins)
