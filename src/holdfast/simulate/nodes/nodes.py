"""A world of real nodes: their stores, writers and merges run as they do in life, and everything
that may go wrong goes wrong, from one seed.

Each peer has a machine with a disk that fails and a clock that jumps. Nodes do random work, and
pull each other's logs over lines that delay, lose, double and reorder
(`holdfast.simulate.nodes.pulling` plays the network; both ends are the real ones). Machines are
killed or lose power in the middle of anything, restart, run out of space. After everything that a
node does the world looks what its log has gained (`holdfast.simulate.world.log_history`); after
every restart, and every few events besides, it looks for broken promises:

* nothing that was acknowledged is lost, nothing that was refused is there;
* whatever `holdfast.simulate.world.invariants` asks of a node holds;
* no node refuses what another one wrote.

A storm has an end. Then `calm` lets the nodes talk until none has news, and all of them must hold
the same rows. (`holdfast.simulate.zones.zones` has worlds where not every node gets everything.) A
promise that breaks raises `PromiseBroken`, which names the seed; the same seed tells the same story
again, line by line:

    python -m holdfast.simulate nodes 42

Put your own code into such a world by handlers, which see every entry that a node takes in, at
least once, and may write. Here three workers claim whatever task they hear of:

    >>> def claim(node, entry):
    ...     if entry.op == "task.create":
    ...         task = node.mesh(entry.mesh).tasks.get(entry.entity)
    ...         if task.status == "open":
    ...             node.mesh(entry.mesh).tasks.claim(task.task)
    >>> def holders(seed):
    ...     with NodeWorld(seed, peers=("ana", "bob", "cai")) as world:
    ...         world.handle(claim)
    ...         world.storm(hours=12)
    ...         world.calm()
    ...         nodes = [machine.node for machine in world.machines.values()]
    ...         return [
    ...             {task.task: task.claimed_by for task in node.mesh("team").tasks.list()}
    ...             for node in nodes
    ...         ]
    >>> ana, bob, cai = holders(seed=1)
    >>> ana == bob == cai and len(ana) > 0
    True

What a simulation can promise is limited by what it plays. Here a disk keeps what it has synced (no
bit rot), the outages are shorter than the time after which tombstones are forgotten, and one
process at a time has a home open.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar

from holdfast.node.library.node import Node
from holdfast.node.links.source import LinkSource
from holdfast.protocol.log_wire import Batch
from holdfast.rules.errors import DiskFull, HoldfastError, StoreFailed, Unknown
from holdfast.rules.filters import Filter
from holdfast.rules.limits import HOUR_MS, SECOND_MS
from holdfast.rules.rows import Entry
from holdfast.simulate.disk.disk import seed_sqlite
from holdfast.simulate.disk.workload import scratch
from holdfast.simulate.nodes.link import SimulatedLink, add_link, place_of
from holdfast.simulate.nodes.pulling import Pulling
from holdfast.simulate.nodes.storm import Storm
from holdfast.simulate.world.age_watch import AgeWatch
from holdfast.simulate.world.invariants import audit, differences, missing_content, rows
from holdfast.simulate.world.log_history import LogHistory
from holdfast.simulate.world.machine import Died, Machine
from holdfast.simulate.world.network import LineQuality, Network
from holdfast.simulate.world.promises import Promises
from holdfast.simulate.world.seeds import PromiseBroken, replayable
from holdfast.simulate.world.workload import TTL, Answers, WorkItem, Workload
from holdfast.simulate.world.world import World
from holdfast.storage.ports import Reader

T = TypeVar("T")
Handler = Callable[[Node, Entry], None]
Marks = Counter[tuple[str, str]]
"""How often each fault met each operation."""

MESH: Final = "team"
RESTART_MS_MAX: Final = HOUR_MS // 2
CALM_ROUNDS_MAX: Final = 60
STILL_ROUNDS_MAX: Final = 4
CALM_ROUND_MS: Final = HOUR_MS // 6
DEATH_AGAIN: Final = 0.3
"""How often a machine that died also dies while it starts again."""
START_CALLS: Final = 60


class NodeWorld(World):
    """Nodes, their machines and the links between them, from one seed. A context manager."""

    ttl = TTL
    leaping = True
    """Clocks of nodes leap by weeks now and then."""

    def __init__(
        self,
        seed: int,
        *,
        peers: Sequence[str] = ("ana", "bob", "cai"),
        sync: str = "full",
        meshes: Sequence[str] = (MESH,),
    ) -> None:
        super().__init__(seed)
        self.meshes = tuple(meshes)
        self.marks: Marks = Counter()
        self.happened: Counter[str] = Counter()
        """How often links met each kind of event."""
        self.machines: dict[str, Machine] = {}
        self.links = Network(self, self._mark)
        self.promises = {peer: Promises(peer) for peer in peers}
        self.chronicles = {peer: LogHistory(peer) for peer in peers}
        self.went_back: Counter[str] = Counter()
        """How often each node was restored from a backup."""
        self.age_watch = AgeWatch()
        self._peers = tuple(peers)
        self.relations = self.topology()
        self.chores = Workload(self.fork("chores"), self.new_id, self.meshes, self.ttl)
        self.pulling = Pulling(self)
        self._sync = sync
        self._handlers: list[Handler] = []
        self._arrived: dict[str, deque[Entry]] = {peer: deque() for peer in peers}
        self._taking_from: dict[str, str] = {}
        self._watched: dict[str, Node] = {}
        self._changed: set[str] = set()
        self._stack = ExitStack()
        self._swept = False

    def __enter__(self) -> Self:
        seed_sqlite(self.seed)
        folder = self._stack.enter_context(scratch())
        for peer in self._peers:
            machine = Machine(self, peer, folder, sync=self._sync)
            self._stack.callback(machine.close)
            self.machines[peer] = machine
            node = machine.start()
            for mesh in self.meshes:
                node.create_mesh(mesh)
        for relation in self.relations:
            add_link(running(self.machines[relation.reader]), relation)
            # From now on the source keeps its log for this reader.
            self.pull(relation)
        self.run(until=self.ticks + SECOND_MS * 10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def topology(self) -> list[SimulatedLink]:
        """The links of this world: every node pulls from every other, entries of all origins."""
        return [
            SimulatedLink(f"from-{source}", reader, source, Filter(meshes=self.meshes))
            for reader, source in self.pairs()
        ]

    # --- what a story is made of ----------------------------------------------------------------

    def handle(self, handler: Handler) -> None:
        """Calls the handler with a node and each entry that the node takes in from others."""
        self._handlers.append(handler)

    def storm(self, *, hours: float = 16) -> None:
        """Random work under random faults, for this many hours of simulated time."""
        storm = self.new_storm()
        storm.begin()
        self.run(until=self.ticks + int(hours * HOUR_MS))
        storm.end()

    def new_storm(self) -> Storm:
        return Storm(self)

    def calm(self) -> None:
        """No more faults: every node starts, gets all news and must then hold what it should."""
        self.links.heal()
        self.links.line = LineQuality()
        for machine in self.machines.values():
            machine.weather.clear()
            machine.clock.frozen_ms = None
            if self.is_far_off(machine):
                machine.clock.skew_ms = 0
                self.age_watch.leapt(machine.peer)
        self.run(until=self.ticks + 2 * HOUR_MS)
        for machine in self.machines.values():
            if not machine.up:
                self.break_off(f"{machine.peer} does not start")
        self._settle()
        for machine in self.machines.values():
            self.look_into(machine)
        self.compare()

    def perform(self, machine: Machine, chore: WorkItem) -> bool:
        """A node does one piece of work; False if its caller should ask for it again."""
        if chore.op == "sweep" and self.is_far_off(machine):
            return True  # it would forget by a clock that is wrong right now
        promises = self.promises[machine.peer]
        self._swept = self._swept or chore.op == "sweep"
        answers: Answers
        try:
            with machine.activity():
                answers = chore.do(running(machine))
        except Died:
            answers = [Unknown("its node died")] * len(chore.ids)
            self.mark_death(machine, chore.op)
        except HoldfastError as error:
            answers = [error] * len(chore.ids)
            if not answers:
                self._note_trouble(machine, chore.op, error)
        self.note(f"{machine.peer} {chore.op}: {[_name(answer) for answer in answers]}")
        for id, answer in zip(chore.ids, answers, strict=True):
            promises.answered(id, answer)
            if isinstance(answer, HoldfastError):
                self._note_trouble(machine, chore.op, answer)
        machine.since_start.add(chore.op)
        self.observe(machine)
        return not any(isinstance(answer, Unknown | DiskFull | StoreFailed) for answer in answers)

    def is_far_off(self, machine: Machine) -> bool:
        """Whether its clock is wrong by more than small jumps are worth."""
        return abs(machine.clock.now_ms() - self.now_ms) > 2 * HOUR_MS

    def start(self, machine: Machine) -> bool:
        """Starts a machine and checks its promises; False if it does not start."""
        try:
            machine.start()
        except Died:
            self.mark_death(machine, "open")
        except (DiskFull, StoreFailed, Unknown) as error:
            kind = "disk full" if isinstance(error, DiskFull) else "io error"
            self.marks[kind, "open"] += 1
            self.note(f"{machine.peer} open: {_name(error)}")
        if machine.up:
            self.pulling.forget(machine.peer)
            self.observe(machine)
            self.look_into(machine)
            self._hand_over(machine)
            return True
        self.at(self.rng.randrange(1, RESTART_MS_MAX), self._start_if_down, machine, name="start")
        return False

    def reopen(self, machine: Machine) -> None:
        """Restarts the process, as a failed disk or an unknown outcome requires."""
        if not machine.up:
            return
        try:
            machine.stop()
        except Died:
            self.mark_death(machine, "close")
        except HoldfastError as error:
            self._note_trouble(machine, "close", error)
        self.start(machine)

    def pull(self, relation: SimulatedLink) -> None:
        """The reader of a link asks its source for news."""
        self.pulling.pull(relation)

    def pairs(self) -> list[tuple[str, str]]:
        """Every reader with every source."""
        return [(one, other) for one in self._peers for other in self._peers if one != other]

    # --- what nodes do --------------------------------------------------------------------------

    def run_on(self, machine: Machine, what: str, act: Callable[[Node], T]) -> T | None:
        """Lets a node do something that is not a piece of work; None if it could not."""
        if not machine.up:
            return None
        try:
            return self._act(machine, act)
        except Died:
            self.mark_death(machine, what)
        except HoldfastError as error:
            self._note_trouble(machine, what, error)
            self.observe(machine)
        return None

    def _act(self, machine: Machine, act: Callable[[Node], T]) -> T:
        with machine.activity():
            result = act(running(machine))
        # Only now: a node that died in the middle of it has answered nobody.
        self.observe(machine)
        return result

    def source_of(self, relation: SimulatedLink) -> LinkSource:
        """The other end of a link, for code that waits for its answers."""
        raise AssertionError("no link of this world needs it")

    def take_snapshot(self, relation: SimulatedLink, act: Callable[[Node], T]) -> T | None:
        """A reader takes a snapshot of its source, or some parts of one."""
        return self.take(relation, act)

    def take(self, relation: SimulatedLink, act: Callable[[Node], T]) -> T | None:
        """A reader takes something in. What its log gains by that came from the source."""
        machine = self.machines[relation.reader]
        self.observe(machine)
        self._taking_from[machine.peer] = relation.source
        result = self.run_on(machine, "apply", act)
        self._hand_over(machine)
        return result

    def given(self, relation: SimulatedLink, batch: Batch) -> None:
        """Called when a source has answered a reader with this batch."""

    def begins(
        self, relation: SimulatedLink, known_epoch: int, found: Batch, start: int | None
    ) -> None:
        """Called when a reader is about to read in an epoch that is new to it; before, it knew
        `known_epoch`, or none (0). Without a start the reader knows that it misses something.
        """

    def observe(self, machine: Machine) -> None:
        """Looks what a node's log has gained since the last time, if the node runs."""
        if not machine.up or not self._has_changed(machine):
            return
        with machine.weather.fine(), running(machine)._engine.store.read() as tx:
            via = self._taking_from.get(machine.peer, "")
            new, problems = self.chronicles[machine.peer].look(tx, via)
            problems += self.observed(machine, tx)
        if problems:
            self.break_off(f"{machine.peer}: {'; '.join(problems[:5])}")
        self._arrived[machine.peer].extend(
            entry for entry in new if entry.origin != machine.peer and self._handlers
        )

    def _has_changed(self, machine: Machine) -> bool:
        """Whether the node has committed something, or may have, since the last call."""
        peer, node = machine.peer, running(machine)
        if self._watched.get(peer) is not node:
            self._watched[peer] = node
            self._changed.add(peer)
            node._engine.store.on_commit(lambda: self._changed.add(peer))
        changed = peer in self._changed
        self._changed.discard(peer)
        return changed

    def observed(self, machine: Machine, tx: Reader) -> list[str]:
        """More checks after everything that a node does; returns what is wrong, as sentences."""
        return []

    def _hand_over(self, machine: Machine) -> None:
        """Gives handlers what has arrived. After a death they get the rest with the restart."""
        arrived = self._arrived[machine.peer]
        while arrived and machine.up:
            entry = arrived[0]
            for handler in self._handlers:
                self._call(machine, handler, entry)
            if machine.up:
                arrived.popleft()

    def _call(self, machine: Machine, handler: Handler, entry: Entry) -> None:
        self.run_on(machine, "handler", lambda node: handler(node, entry))

    # --- calm -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Lets all readers ask until no source has news."""
        before: list[object] = []
        still = 0
        for _ in range(CALM_ROUNDS_MAX):
            self.before_round()
            for relation in self.relations:
                self.pull(relation)
            self.run(until=self.ticks + CALM_ROUND_MS)
            behind = [relation for relation in self.relations if not self.has_all(relation)]
            if not behind:
                return
            now: list[object] = [self._place(relation) for relation in self.relations]
            still = still + 1 if now == before else 0
            if still == STILL_ROUNDS_MAX:
                relation = behind[0]
                self.break_off(f"{relation.reader} does not get on in the log of {relation.source}")
            before = now
        self.break_off(f"the nodes still have news after {CALM_ROUNDS_MAX} rounds")

    def before_round(self) -> None:
        """What people do before all readers ask once more."""

    def has_all(self, relation: SimulatedLink) -> bool:
        """Whether a link is at the end of its source's log, and its source knows."""
        source = self.chronicles[relation.source]
        return self._place(relation) == (source.epoch, source.head, source.head)

    def _place(self, relation: SimulatedLink) -> tuple[int, int, int]:
        """Epoch and cursor of a link, and the frontier of its consumer."""
        reader = running(self.machines[relation.reader])
        return place_of(reader, running(self.machines[relation.source]), relation)

    # --- promises -------------------------------------------------------------------------------

    def look_into(self, machine: Machine) -> None:
        """Audits a node and compares it with the answers that it gave its callers."""
        with machine.weather.fine():
            node = running(machine)
            problems = [*audit(node), *self.promises[machine.peer].broken(node)]
            problems += node._engine.read("quarantine", set_aside)
            if self.leaping:
                problems += node._engine.read("ages", partial(self._ages, machine))
        if problems:
            self.break_off(f"{machine.peer}: {'; '.join(problems[:5])}")

    def _ages(self, machine: Machine, tx: Reader) -> list[str]:
        now = machine.clock.now_ms()
        return self.age_watch.look(machine.peer, tx, now_ms=now, true_ms=self.now_ms)

    def compare(self) -> None:
        """Called after a calm: all nodes must hold the same."""
        first, *others = self.machines.values()
        for mesh in self.meshes:
            expected = self.rows_of(first, mesh)
            for machine in others:
                for line in differences(expected, self.rows_of(machine, mesh)):
                    self.break_off(f"{first.peer} and {machine.peer} end up apart: {line}")
        for machine in self.machines.values():
            missing = missing_content(running(machine))
            if missing:
                self.break_off(f"{machine.peer} never got the content of {missing}")

    def rows_of(self, machine: Machine, mesh: str) -> dict[str, list[dict[str, object]]]:
        with running(machine)._engine.store.read() as reader:
            # Each node forgets what is dead in its own time.
            return rows(reader, mesh, dead=not self._swept)

    def break_off(self, what: str) -> NoReturn:
        """Ends the story: a promise is broken."""
        tail = "\n".join(islice(self.log, max(0, len(self.log) - 25), None))
        raise PromiseBroken(f"seed {self.seed}: {what}\nat the end of this story:\n{tail}")

    # --- marks and trouble ----------------------------------------------------------------------

    def _mark(self, fault: str, ops: Sequence[str]) -> None:
        for op in ops:
            self.marks[fault, op] += 1

    def mark_death(self, machine: Machine, op: str) -> None:
        """Counts the death of a machine for this operation and all others since its start."""
        self.marks[machine.last_death, op] += 1
        self._mark(machine.last_death, sorted(machine.since_start))
        if self.rng.random() < DEATH_AGAIN:
            machine.doom(self.rng.choice(("kill", "power")), self.rng.randrange(START_CALLS))
        self.at(self.rng.randrange(1, RESTART_MS_MAX), self._start_if_down, machine, name="start")

    def _start_if_down(self, machine: Machine) -> None:
        if not machine.up:
            self.start(machine)

    def _note_trouble(self, machine: Machine, what: str, error: HoldfastError) -> None:
        self._changed.add(machine.peer)  # it may have committed in spite of the error
        self.note(f"{machine.peer} {what}: {_name(error)}")
        if isinstance(error, DiskFull):
            self.marks["disk full", what] += 1
        elif isinstance(error, Unknown | StoreFailed) and machine.up:
            self.marks["io error", what] += 1
            self.at(SECOND_MS, self.reopen, machine, name=f"{machine.peer} reopens")


def running(machine: Machine) -> Node:
    """The node of a machine that is up."""
    assert machine.node is not None, f"{machine.peer} is down"
    return machine.node


def set_aside(tx: Reader) -> list[str]:
    """What links brought and the node refused, as sentences: among honest nodes, nothing."""
    rows = tx.quarantine_list(None, 0, 5)
    return [f"link {row.link} has quarantined an entry: {row.message}" for row in rows]


def _name(answer: BaseException | None) -> str:
    return "done" if answer is None else type(answer).__name__


def tell(seed: int) -> NodeWorld:
    """A day of storm and the calm after it, for two to four peers; returns the world, closed."""
    count = 2 + seed % 3 % 2 + (seed % 10 == 9)
    with (
        replayable("nodes", seed),
        NodeWorld(seed, peers=("ana", "bob", "cai", "dee")[:count]) as world,
    ):
        world.storm()
        world.calm()
    return world
