"""A world of zones: nodes that are linked in many ways, by the code that links them in life.

In `holdfast.simulate.nodes.nodes` every node gets everything. Here a seed also draws who pulls from
whom (`holdfast.simulate.zones.topologies`): pairs, lines, rings, stars, several links between
the same two, filters, slow readers and readers that are not waited for. Links are paused, removed
and added again; nodes go back to older backups. What must hold meanwhile and afterwards is stated
in `holdfast.simulate.zones.entitlement`; in the end

* every link stands at the end of its source's log, and its source knows: the log can be forgotten;
* each zone holds what its links entitle it to, once, and nothing else;
* zones that hold the same entries hold the same rows;
* entries of one origin stand in its order wherever they can come by one way only.

The same seed tells the same story again:

    python -m holdfast.simulate zones 42
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from holdfast.node.library.node import Node
from holdfast.node.links.registry import Links
from holdfast.node.links.source import LinkSource
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.trust.trust import Trust
from holdfast.node.upkeep.sweep import Ttl
from holdfast.protocol.log_wire import Batch
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import DAY_MS, HOUR_MS
from holdfast.rules.links import LinkState
from holdfast.rules.rows import LinkRow
from holdfast.simulate.nodes.link import ReaderState, SimulatedLink, add_link, row_of
from holdfast.simulate.nodes.link_sources import Direct, reach_in
from holdfast.simulate.nodes.nodes import NodeWorld, running
from holdfast.simulate.world.age_watch import tells_ages
from holdfast.simulate.world.invariants import differences, missing_content
from holdfast.simulate.world.log_history import Seen
from holdfast.simulate.world.machine import Died, Machine
from holdfast.simulate.world.seeds import replayable
from holdfast.simulate.zones.entitlement import Entitlement
from holdfast.simulate.zones.storm import ZoneStorm
from holdfast.simulate.zones.topologies import MESHES, another_filter, draw, peers_of, traits_of
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader, Transaction

T = TypeVar("T")

TTL: Final = Ttl(
    log_ms=HOUR_MS,
    tombstone_ms=9 * DAY_MS,
    dedupe_ms=9 * DAY_MS,
    blob_ms=HOUR_MS,
    orphan_ms=HOUR_MS,
)
"""Logs are truncated while links are away. Deletions are remembered for long: a link may come back
late, and a node that has forgotten a deletion refuses older writes."""
BACKUPS_MAX: Final = 3


class ZoneWorld(NodeWorld):
    """Zones, the links between them and the people who look after those."""

    ttl = TTL
    leaping = False

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"world {seed} topology")
        self.traits = traits_of(seed, rng)
        self._drawn = draw(self.traits, rng)
        super().__init__(seed, peers=peers_of(self.traits.kind), meshes=MESHES)
        self.entitlement = Entitlement(self.chronicles)
        for relation in self.relations:
            self.entitlement.add(relation)
        self._backups: dict[str, list[tuple[Path, list[Seen]]]] = {
            peer: [] for peer in self.chronicles
        }

    def topology(self) -> list[SimulatedLink]:
        return self._drawn

    def new_storm(self) -> ZoneStorm:
        return ZoneStorm(self)

    # --- what is looked at ----------------------------------------------------------------------

    def observed(self, machine: Machine, tx: Reader) -> list[str]:
        return self.entitlement.look(machine.peer, tx, self.relations)

    def given(self, relation: SimulatedLink, batch: Batch) -> None:
        self._expect(self.entitlement.given(relation, batch))

    def begins(
        self, relation: SimulatedLink, known_epoch: int, found: Batch, start: int | None
    ) -> None:
        self._expect(self.entitlement.begins(relation, known_epoch, found, start))

    def _expect(self, problems: Sequence[str]) -> None:
        if problems:
            self.break_off("; ".join(problems[:5]))

    # --- snapshots ------------------------------------------------------------------------------

    def source_of(self, relation: SimulatedLink) -> LinkSource:
        return Direct(self, relation)

    def take_snapshot(self, relation: SimulatedLink, act: Callable[[Node], T]) -> T | None:
        # What it stands for is looked at before the cursor says so.
        self.entitlement.excuse_what_was_replaced(relation)
        return super().take_snapshot(relation, act)

    # --- people ---------------------------------------------------------------------------------

    def set_paused(self, relation: SimulatedLink, paused: bool) -> bool:
        """A person pauses or resumes a link; False if the node is down or fails."""
        if relation not in self.relations:
            return False

        def act(node: Node) -> bool:
            links = self._links(node)
            return (links.pause if paused else links.resume)(relation.name) is not None

        done = self.run_on(self.machines[relation.reader], "link", act)
        if done and not paused:
            relation.memory = ReaderState()
            self.pull(relation)
        return bool(done)

    def look_after(self, relation: SimulatedLink) -> None:
        """A person decides for a link that waits for it: it goes on without what is gone."""
        if relation.memory.state is not LinkState.TRUNCATED:
            return
        machine = self.machines[relation.reader]
        before = self.run_on(machine, "link", lambda node: row_of(node, relation.name))

        def act(node: Node) -> LinkRow | None:
            self._links(node).resume(relation.name, skip_missing=True)
            return row_of(node, relation.name)

        if before is None:
            return
        # What is gone is excused before the link goes on, so that the link is not blamed for it.
        self.entitlement.excuse_what_is_gone(relation, before)
        after = self.take(relation, act)
        if after is not None and after.cursor > before.cursor:
            self.happened["skipped"] += 1
            self.note(f"{relation.label} goes on after {after.cursor}")
        # If the source did not say what it holds, the link asks again and may say more then.
        relation.memory = ReaderState()
        self.pull(relation)

    def remove_link(self, relation: SimulatedLink) -> bool:
        """A person removes a link. Its source may not hear of it."""

        def act(node: Node) -> bool:
            removed = self._links(node).remove(relation.name)
            self.note(f"{relation.label} is removed, told: {removed.told}")
            return True

        done = self.run_on(self.machines[relation.reader], "link", act)
        gone = done or self._is_gone(relation)
        if gone:
            self.relations.remove(relation)
        return gone

    def _is_gone(self, relation: SimulatedLink) -> bool:
        """A link may be removed although the person who removed it got an error."""
        machine = self.machines[relation.reader]
        if not machine.up:
            return False
        with machine.weather.fine():
            return row_of(running(machine), relation.name) is None

    def add_again(self, removed: SimulatedLink, rng: random.Random) -> bool:
        """A person adds a link that was removed, perhaps for another part."""
        machine = self.machines[removed.reader]
        if not machine.up:
            return False
        relation = removed.anew(another_filter(self.traits, rng, removed))
        with machine.weather.fine():
            self._add(running(machine), relation)
        self.observe(machine)
        return True

    def _add(self, node: Node, relation: SimulatedLink) -> None:
        add_link(node, relation)
        self.entitlement.add(relation)
        self.relations.append(relation)
        self.note(f"{relation.label} is added with {relation.filter}")

    def _links(self, node: Node) -> Links:
        trust = Trust(node._engine, HomePaths(node.home))
        return Links(node._engine, trust, partial(reach_in, self, node.peer))

    # --- backups --------------------------------------------------------------------------------

    def back_up(self, machine: Machine) -> None:
        """A backup of a node that runs; its disk is well meanwhile."""
        if not machine.up:
            return
        kept = self._backups[machine.peer]
        target = machine.home.parent.parent / f"{machine.peer}-backup-{self.happened['backup']}"
        self.happened["backup"] += 1
        with machine.weather.fine():
            backup(running(machine), target)
        kept.append((target, list(self.chronicles[machine.peer].entries)))
        del kept[:-BACKUPS_MAX]
        self.note(f"{machine.peer} is backed up at {self.chronicles[machine.peer].head}")

    def restore(self, machine: Machine, rng: random.Random) -> None:
        """A node goes back to an older backup."""
        kept = self._backups[machine.peer]
        if not machine.up or not kept:
            return
        source, then = rng.choice(kept)
        try:
            machine.stop()
        except Died:
            self.mark_death(machine, "close")
            return
        except HoldfastError as error:
            self.note(f"{machine.peer} does not stop: {type(error).__name__}")
            self.start(machine)
            return
        with machine.offline():
            report = restore(source, machine.home, force=True)
        with machine.weather.fine():
            node = machine.start()
            with node._engine.store.read() as tx:
                problems = self.chronicles[machine.peer].went_back(tx, then)
        self._expect(problems)
        self.went_back[machine.peer] += 1
        self.happened["restored"] += 1
        with machine.weather.fine():
            self.promises[machine.peer].went_back(node)
        self.pulling.forget(machine.peer)
        self.note(f"{machine.peer} is back at {report.head}, in epoch {report.epoch}")
        self.entitlement.went_back(machine.peer)
        with machine.weather.fine():
            self._mend_links(node)
        self.observe(machine)
        self.look_into(machine)

    def _mend_links(self, node: Node) -> None:
        """A restored node has the links of its backup. A person puts that right."""
        mine = {
            relation.name: relation for relation in self.relations if relation.reader == node.peer
        }

        def remove_others(tx: Transaction) -> list[str]:
            rows = tx.link_list()
            kept = [
                row.name
                for row in rows
                if row.name in mine and mine[row.name].added_at == row.added_at
            ]
            for row in rows:
                if row.name not in kept:
                    tx.link_drop(row.name)
            return kept

        for name in node._engine.write("link.remove", remove_others):
            del mine[name]
        for relation in mine.values():
            self.relations.remove(relation)
            self._add(node, relation.anew(relation.filter))

    # --- calm -----------------------------------------------------------------------------------

    def before_round(self) -> None:
        for relation in list(self.relations):
            self.look_after(relation)
            node = running(self.machines[relation.reader])
            row = row_of(node, relation.name)
            if row is None:  # removed, although the person who did it got an error
                self.relations.remove(relation)
                self._add(node, relation.anew(relation.filter))
            elif row.paused:
                self.set_paused(relation, False)
        self._retire_leftovers()

    def _retire_leftovers(self) -> None:
        """Retires consumers of links that were removed while their source could not be reached."""
        reading = {relation.consumer for relation in self.relations}
        for machine in self.machines.values():
            log = running(machine).log
            for consumer in log.consumers():
                if consumer.name not in reading:
                    self.happened["left over"] += 1
                    log.retire(consumer.name)

    def compare(self) -> None:
        self._expect(self.entitlement.owed(self.relations))
        self._expect(self.entitlement.order())
        if self.traits.smooth:
            self._compare_with_links()
        self._compare_rows()
        self._forget_all()

    def _compare_with_links(self) -> None:
        closure = self.entitlement.closure(self.relations)
        for peer, chronicle in self.chronicles.items():
            if set(chronicle.offsets) != closure[peer]:
                differs = set(chronicle.offsets) ^ closure[peer]
                self.break_off(f"{peer} differs in {len(differs)} entries from what its links say")
        for machine in self.machines.values():
            missing = missing_content(running(machine))
            if missing:
                self.break_off(f"{machine.peer} never got the content of {missing}")

    def _compare_rows(self) -> None:
        """Zones that hold the same entries of a mesh must hold the same rows."""
        first: dict[tuple[str, frozenset[bytes]], Machine] = {}
        for machine in self.machines.values():
            for mesh in self.meshes:
                entries = self.chronicles[machine.peer].entries
                held = frozenset(seen.id for seen in entries if seen.mesh == mesh)
                other = first.setdefault((mesh, held), machine)
                for line in differences(self.rows_of(other, mesh), self.rows_of(machine, mesh)):
                    self.break_off(f"{other.peer} and {machine.peer} end up apart: {line}")

    def _forget_all(self) -> None:
        """All readers have confirmed all: once it is old, a log keeps nothing but its end. A node
        whose clock was set back, and which has written nothing since that time came, keeps more.
        """
        self.run(until=self.ticks + TTL.log_ms + 3 * HOUR_MS)
        for machine in self.machines.values():
            node = running(machine)
            node.sweep(self.ttl)
            self.observe(machine)
            head = node.log.head()
            with node._engine.store.read() as tx:
                told = tells_ages(tx, machine.clock.now_ms())
            if told and head.first != max(1, head.offset):
                self.break_off(f"{machine.peer} keeps [{head.first}, {head.offset}] for nobody")
            self.look_into(machine)


def tell(seed: int) -> ZoneWorld:
    """A day of storm and the calm after it; returns the world, closed."""
    with replayable("zones", seed), ZoneWorld(seed) as world:
        world.storm()
        world.calm()
    return world
