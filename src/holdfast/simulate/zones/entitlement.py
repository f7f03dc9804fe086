"""What each zone of a world must hold, and what none may: the promises of links, stated anew.

A link entitles its reader to what its filter lets pass of the source's log: of its meshes, subjects
and data classes, by the origins that the source may carry; but to nothing that the reader wrote or
brought itself. All of it, in the order of the source's log, and nothing else. That is looked at
while it happens:

* a source gives what the reader is entitled to, all of it, and nothing is sent back;
* what stands before a reader's cursor in the source's log is in its own log;
* what a source takes for confirmed is in the reader's log, and the frontier is not past its cursor;
* the log begins no later than after the frontier of each of its consumers;
* whatever a zone holds of others came by a link that entitles it to that.

What a person lets a link skip, because its source no longer has it, is excused; what a zone lost by
its own restore, it has lost. Nothing else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.protocol.log_wire import Batch
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.filters import CLASSES
from holdfast.rules.frontier import Frontier
from holdfast.rules.ids import id_text
from holdfast.rules.rows import ConsumerRow, LinkRow
from holdfast.simulate.nodes.link import SimulatedLink
from holdfast.simulate.world.log_history import LogHistory, Seen
from holdfast.storage.ports import Reader

AS_FOUND: Final = -1
REPLACING: Final = ("state", "memory", "file")
"""Families in which a later write replaces an earlier one."""


class Key(NamedTuple):
    """What the versions of one row have in common."""

    family: str
    mesh: str
    owner: str
    entity: str


def _key(seen: Seen) -> Key:
    family = seen.op.split(".")[0]
    return Key(family, seen.mesh, "" if family == "state" else seen.origin, seen.entity)


def entitles(relation: SimulatedLink, seen: Seen) -> bool:
    """The rule of `rules.filters`, written in another way: may this entry go over this link?"""
    asked = relation.filter
    granted = set(asked.meshes) if relation.reads is None else {*asked.meshes} & {*relation.reads}
    families = {op.split(".")[0] for name in asked.classes for op in CLASSES[name]}
    return (
        seen.mesh in granted
        and (not asked.classes or seen.op.split(".")[0] in families)
        and (not asked.subjects or any(seen.entity.find(s) == 0 for s in asked.subjects))
        and (not asked.origins or seen.origin in asked.origins)
        and relation.reader not in (seen.origin, seen.via)
    )


@dataclass(slots=True)
class Coverage:
    """How far a link was compared with its source's log."""

    floor: int = 0
    """Entries up to here were gone before the link began: it owes none of them."""
    epoch: int = 0
    checked: int = 0
    farthest: int = 0
    """The highest cursor that was ever stored."""
    confirmed: int = 0
    """How far its consumer's frontier was checked."""


@dataclass(slots=True)
class Entitlement:
    """Compares the nodes of a world with what their links promise."""

    chronicles: Mapping[str, LogHistory]
    ever: list[SimulatedLink] = field(default_factory=list)
    """Every link that there ever was, removed ones too."""
    excused: dict[str, set[bytes]] = field(default_factory=dict)
    """What each zone will never get, because a person let its link skip it."""
    coverage: dict[SimulatedLink, Coverage] = field(default_factory=dict)
    vetted: dict[str, int] = field(default_factory=dict)

    def add(self, relation: SimulatedLink) -> None:
        self.ever.append(relation)
        self.coverage[relation] = Coverage()

    # --- as it happens ------------------------------------------------------------------------

    def given(self, relation: SimulatedLink, batch: Batch) -> list[str]:
        """Checks a batch that a source gave."""
        source, covered = self.chronicles[relation.source], self.coverage[relation]
        if covered.epoch == 0:
            covered.floor = source.first - 1  # it may begin with this
        span = range(batch.start, batch.upto + 1)
        due = [at for at in span if entitles(relation, source.at(at))]
        back = [
            at
            for at in batch.offsets
            if relation.reader in (source.at(at).origin, source.at(at).via)
        ]
        if back:
            return [f"{relation.source} sends {back} back to {relation.reader}, where it came from"]
        if batch.offsets != due:
            return [f"{relation.source} gives {batch.offsets} of {span} to {relation.label}: {due}"]
        return []

    def begins(
        self, relation: SimulatedLink, known_epoch: int, found: Batch, start: int | None
    ) -> list[str]:
        """Checks a link that is about to read in an epoch that is new to it."""
        source, covered = self.chronicles[relation.source], self.coverage[relation]
        if found.epoch != source.epoch:
            return []  # it went back again since: the next answer will say so
        if known_epoch == 0:
            covered.floor = source.first - 1
        covered.epoch, covered.checked = found.epoch, covered.floor
        if start is None:
            return []
        missing = self._missing(relation, covered.floor, start - 1)
        if missing:
            return [f"{relation.label} begins at {start} and skips {missing} unseen"]
        return []

    def excuse_what_is_gone(self, relation: SimulatedLink, row: LinkRow) -> None:
        """A person lets a link go on after what its source no longer has."""
        source = self.chronicles[relation.source]
        if row.epoch == source.epoch:
            missing = self._missing(relation, self.coverage[relation].floor, source.first - 1)
            self.excused.setdefault(relation.reader, set()).update(missing)

    def excuse_what_was_replaced(self, relation: SimulatedLink) -> None:
        """A link takes a snapshot for what its source has truncated: of a key that was written
        again it owes the last version only. Anything else must come.
        """
        source, covered = self.chronicles[relation.source], self.coverage[relation]
        versions = Counter(_key(seen) for seen in source.entries)
        replaced = {
            seen.id
            for seen in source.entries[covered.floor : source.first - 1]
            if _key(seen).family in REPLACING and versions[_key(seen)] > 1
        }
        missing = self._missing(relation, covered.floor, source.first - 1)
        self.excused.setdefault(relation.reader, set()).update(replaced & {*missing})

    def went_back(self, peer: str) -> None:
        """Called when a node was restored: what was compared is compared again."""
        self.vetted[peer] = 0
        for relation, covered in self.coverage.items():
            if relation.source == peer:
                # Its consumers are those of the backup, perhaps of an earlier link of that name.
                covered.confirmed = AS_FOUND
                covered.floor = min(covered.floor, self.chronicles[peer].head)
            if peer in (relation.reader, relation.source):
                covered.checked = covered.floor

    def look(self, peer: str, tx: Reader, relations: Iterable[SimulatedLink]) -> list[str]:
        """Checks a node after everything that it does, as a reader and as a source."""
        problems = self._vet(peer)
        links = {row.name: row for row in tx.link_list()}
        consumers = {row.name: row for row in tx.consumer_list()}
        first = tx.log_bounds()[0]
        for relation in relations:
            if relation.reader == peer and relation.name in links:
                problems += self._check_cursor(relation, links[relation.name])
            if relation.source == peer and relation.consumer in consumers:
                problems += self._check_frontier(relation, consumers[relation.consumer], first)
        problems += [
            f"its log begins at {first}, and {row.name} has confirmed up to {row.frontier}"
            for row in consumers.values()
            if Frontier.decode(row.frontier).prefix < first - 1
        ]
        return problems

    def _check_cursor(self, relation: SimulatedLink, row: LinkRow) -> list[str]:
        source, covered = self.chronicles[relation.source], self.coverage[relation]
        covered.farthest = max(covered.farthest, row.cursor)
        if row.epoch != source.epoch:
            return []  # of a log that is gone; what it covered was looked at then
        if row.epoch != covered.epoch or row.cursor < covered.checked:
            covered.epoch, covered.checked = row.epoch, covered.floor
        if row.cursor > source.head:
            return [f"{relation.label} is at {row.cursor} of a log that ends at {source.head}"]
        missing = self._missing(relation, covered.checked, row.cursor)
        covered.checked = row.cursor
        if missing:
            return [f"{relation.label} is at {row.cursor} and does not hold {_names(missing)}"]
        return []

    def _check_frontier(self, relation: SimulatedLink, row: ConsumerRow, first: int) -> list[str]:
        covered = self.coverage[relation]
        if covered.epoch == 0:
            return []  # left from an earlier link of that name, until this one begins
        prefix = Frontier.decode(row.frontier).prefix
        if covered.confirmed == AS_FOUND:
            covered.confirmed = prefix
        elif prefix < covered.confirmed:
            covered.confirmed = 0  # a new consumer
        begin = max(covered.confirmed, covered.floor, first - 1)
        lost = self.chronicles[relation.reader].lost
        missing = [id for id in self._missing(relation, begin, prefix) if id not in lost]
        covered.confirmed = prefix
        if missing:
            return [f"{row.name} has confirmed {prefix} and does not hold {_names(missing)}"]
        if self.chronicles[relation.source].epoch == 1 and prefix > max(
            covered.farthest, first - 1
        ):
            return [f"{row.name} has confirmed {prefix}, and is at {covered.farthest} at most"]
        return []

    def _vet(self, peer: str) -> list[str]:
        """Checks that each new entry of others came by a link that entitles the node to it."""
        chronicle = self.chronicles[peer]
        links = [relation for relation in self.ever if relation.reader == peer]
        begin = min(self.vetted.get(peer, 0), chronicle.head)
        self.vetted[peer] = chronicle.head
        problems = []
        for seen in chronicle.entries[begin:]:
            if seen.origin != peer and not any(self._brings(link, seen) for link in links):
                problems.append(f"it holds {_names([seen.id])} of {seen.origin} by {seen.via}")
        return problems

    def _brings(self, relation: SimulatedLink, seen: Seen) -> bool:
        source = self.chronicles[relation.source]
        if relation.source != seen.via:
            return False
        if seen.id in source.lost:
            return True  # the source was restored meanwhile, and does not know it any more
        if not source.holds(seen.id):
            return False
        there = source.at(source.offsets[seen.id])
        if seen.epoch == UNCOUNTED:
            # A snapshot gives a reader that was restored also what it had brought there itself.
            there = there._replace(via="")
        return entitles(relation, there)

    def _missing(self, relation: SimulatedLink, after: int, upto: int) -> list[bytes]:
        """What the reader lacks of (after, upto] in the source's log and is entitled to."""
        reader, source = self.chronicles[relation.reader], self.chronicles[relation.source]
        excused = self.excused.get(relation.reader, set())
        return [
            seen.id
            for seen in source.entries[after:upto]
            if not reader.holds(seen.id) and seen.id not in excused and entitles(relation, seen)
        ]

    # --- after a calm -------------------------------------------------------------------------

    def owed(self, relations: Iterable[SimulatedLink]) -> list[str]:
        """What links still owe their readers, after they have read to the end."""
        problems = []
        for relation in relations:
            head = self.chronicles[relation.source].head
            missing = self._missing(relation, self.coverage[relation].floor, head)
            if missing:
                problems.append(f"{relation.label} never brought {_names(missing)}")
        return problems

    def closure(self, relations: Iterable[SimulatedLink]) -> dict[str, set[bytes]]:
        """What each zone must hold in the end if no entry was ever lost: its own entries and, over
        and over, what links bring of what their sources hold.
        """
        listed = list(relations)
        seen = {s.id: s for log in self.chronicles.values() for s in log.entries}
        held = {
            peer: {s.id for s in log.entries if s.origin == peer}
            for peer, log in self.chronicles.items()
        }
        grows = True
        while grows:
            grows = False
            for relation in listed:
                new = {
                    id
                    for id in held[relation.source] - held[relation.reader]
                    if entitles(relation, seen[id]._replace(via=""))
                }
                held[relation.reader] |= new
                grows = grows or bool(new)
        return held

    def order(self) -> list[str]:
        """Checks that entries of one origin stand in its order wherever they can come by one way
        only: the numbers of a mesh, origin and epoch only grow along the log.
        """
        problems = []
        for peer, chronicle in self.chronicles.items():
            last: dict[tuple[str, str, int], int] = {}
            for seen in chronicle.entries:
                if seen.epoch == UNCOUNTED or not self._one_way(seen.origin, peer, ()):
                    continue  # what was rebuilt for a snapshot has no number of its origin
                key = (seen.mesh, seen.origin, seen.epoch)
                if seen.seq <= last.get(key, 0):
                    problems.append(
                        f"{peer} has number {seen.seq} of {seen.origin} after {last[key]}"
                    )
                last[key] = seen.seq
        return problems

    def _one_way(self, origin: str, peer: str, passed: tuple[str, ...]) -> bool:
        """Whether all entries of `origin` reach `peer` through one chain of links, none of which
        was ever changed. A second link, or an earlier one with another filter, brings what the
        first left out, at its own time. And a source that was restored may hold again what it had
        truncated before the link began, or what a person let the link skip.
        """
        if peer == origin:
            return True
        ways = {
            (relation.source, relation.filter)
            for relation in self.ever
            if relation.reader == peer
            and (not relation.filter.origins or origin in relation.filter.origins)
        }
        if len(ways) != 1 or peer in passed:
            return False
        ((source, _),) = ways
        if self.chronicles[source].epoch != 1:
            return False
        return self._one_way(origin, source, (*passed, peer))


def _names(ids: list[bytes]) -> str:
    return ", ".join(id_text(id) for id in ids[:3]) + (" …" if len(ids) > 3 else "")
