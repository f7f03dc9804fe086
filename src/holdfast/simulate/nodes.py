"""A world of real nodes: their stores, writers and merges run as they do in life, and everything
that may go wrong goes wrong, from one seed.

Each peer has a machine with a disk that fails and a clock that jumps. Nodes do random work, and
pull each other's logs over links that delay, lose, double and reorder: a node asks with the cursor
that it keeps in its own database, gets entries with the blobs that they name, applies them and
moves the cursor. Machines are killed or lose power in the middle of anything, restart, run out of
space. After every restart, and every few events besides, the world looks for broken promises:

* nothing that was acknowledged is lost, nothing that was refused is there;
* whatever `holdfast.simulate.audit` asks of a node holds;
* no node refuses what another one wrote.

A storm has an end. Then `calm` lets the nodes talk until nobody has news, and all of them must hold
the same rows. A promise that breaks raises `PromiseBroken`, which names the seed; the same seed
tells the same story again, line by line:

    python -m holdfast.simulate.nodes 42

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

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Final, Self, TypeVar

from holdfast.node.node import Node
from holdfast.rules.errors import DiskFull, HoldfastError, StoreFailed, Unknown
from holdfast.rules.limits import HOUR_MS, SECOND_MS
from holdfast.rules.rows import Entry
from holdfast.simulate import pulling
from holdfast.simulate.audit import audit, differences, rows
from holdfast.simulate.chores import Answers, Chore, Chores
from holdfast.simulate.disk import seed_sqlite
from holdfast.simulate.links import Line, Links
from holdfast.simulate.machine import Died, Machine
from holdfast.simulate.promises import Promises
from holdfast.simulate.pulling import Batch, Cursor
from holdfast.simulate.stage import scratch
from holdfast.simulate.storm import Storm
from holdfast.simulate.world import World

T = TypeVar("T")
Handler = Callable[[Node, Entry], None]
Marks = Counter[tuple[str, str]]
"""How often each fault met each operation."""

MESH: Final = "team"
RESTART_MS_MAX: Final = HOUR_MS // 2
CALM_ROUNDS_MAX: Final = 60
DEATH_AGAIN: Final = 0.3
"""How often a machine that died also dies while it starts again."""
START_CALLS: Final = 60


class PromiseBroken(AssertionError):
    """The code under test did something that it must never do."""


class NodeWorld(World):
    """Nodes, their machines and the links between them, from one seed. A context manager."""

    def __init__(
        self,
        seed: int,
        *,
        peers: Sequence[str] = ("ana", "bob", "cai"),
        sync: str = "full",
        mesh: str = MESH,
    ) -> None:
        super().__init__(seed)
        self.mesh = mesh
        self.marks: Marks = Counter()
        self.machines: dict[str, Machine] = {}
        self.links = Links(self, self._mark)
        self.promises = {peer: Promises(peer) for peer in peers}
        self.chores = Chores(self.fork("chores"), self.mint, mesh)
        self._peers = tuple(peers)
        self._sync = sync
        self._handlers: list[Handler] = []
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
            node.create_mesh(self.mesh)
            for other in self._peers:
                if other != peer:
                    node.log.add_consumer(other)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    # --- what a story is made of ----------------------------------------------------------------

    def handle(self, handler: Handler) -> None:
        """Calls it with the node and each entry that a node takes in, its own ones left out."""
        self._handlers.append(handler)

    def storm(self, *, hours: float = 16) -> None:
        """Random work under random faults, for so long."""
        storm = Storm(self)
        storm.begin()
        self.run(until=self.ticks + int(hours * HOUR_MS))
        storm.end()

    def calm(self) -> None:
        """No more faults: everyone starts, hears all news and must then hold the same."""
        self.links.heal()
        self.links.line = Line()
        for machine in self.machines.values():
            machine.weather.clear()
            machine.clock.frozen_ms = None
        self.run(until=self.ticks + 2 * HOUR_MS)
        for machine in self.machines.values():
            if not machine.up:
                self._break(f"{machine.peer} does not start")
        for _ in range(CALM_ROUNDS_MAX):
            news = sum(self._read_all(reader, source) for reader, source in self.pairs())
            if not news:
                break
        else:
            self._break(f"the nodes still have news after {CALM_ROUNDS_MAX} rounds")
        for machine in self.machines.values():
            self.look_into(machine)
        self._compare()

    def perform(self, machine: Machine, chore: Chore) -> bool:
        """One piece of work; False if it should be asked for again."""
        promises = self.promises[machine.peer]
        self._swept = self._swept or chore.op == "sweep"
        answers: Answers
        try:
            with machine.activity():
                answers = chore.do(_running(machine))
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
        return not any(isinstance(answer, Unknown | DiskFull | StoreFailed) for answer in answers)

    def start(self, machine: Machine) -> bool:
        """Starts a machine and looks whether all that it promised is there; False if it cannot."""
        try:
            machine.start()
        except Died:
            self.mark_death(machine, "open")
        except (DiskFull, StoreFailed, Unknown) as error:
            kind = "disk full" if isinstance(error, DiskFull) else "io error"
            self.marks[kind, "open"] += 1
            self.note(f"{machine.peer} open: {_name(error)}")
        if machine.up:
            self.look_into(machine)
            return True
        self.at(self.rng.randrange(1, RESTART_MS_MAX), self._start_if_down, machine, name="start")
        return False

    def reopen(self, machine: Machine) -> None:
        """A restart of the process, which a failed disk or an unknown outcome asks for."""
        if not machine.up:
            return
        try:
            machine.stop()
        except Died:
            self.mark_death(machine, "close")
        except HoldfastError as error:
            self._note_trouble(machine, "close", error)
        self.start(machine)

    def pull(self, reader: str, source: str) -> None:
        """One node asks another for news."""
        machine = self.machines[reader]
        cursor = self.run_on(machine, "pull", lambda node: pulling.cursor_of(node, source))
        if cursor is not None:
            self.links.send(
                reader, source, "a question", lambda: self._answer(source, reader, cursor)
            )

    def pairs(self) -> list[tuple[str, str]]:
        """Every reader with every source."""
        return [(one, other) for one in self._peers for other in self._peers if one != other]

    # --- the exchange ---------------------------------------------------------------------------

    def _answer(self, source: str, reader: str, cursor: Cursor) -> None:
        machine = self.machines[source]
        batch = self.run_on(machine, "answer", lambda node: pulling.batch_for(node, reader, cursor))
        if batch is not None and batch.entries:
            about = [entry.op for entry in batch.entries]
            self.links.send(
                source, reader, "news", lambda: self._receive(reader, source, batch), about=about
            )

    def _receive(self, reader: str, source: str, batch: Batch) -> None:
        machine = self.machines[reader]
        done = self.run_on(machine, "apply", lambda node: pulling.take_in(node, source, batch))
        if done is None:
            return
        taken, moved = done
        for entry, applied in zip(batch.entries, taken, strict=True):
            if applied.error is not None:
                self._break(f"{reader} refuses {entry.op} of {entry.origin}: {applied.error}")
        self.note(f"{reader} has {len(taken)} entries from {source}")
        for handler in self._handlers:
            for entry in batch.entries:
                if entry.origin != reader and machine.up:
                    self._call(machine, handler, entry)
        if batch.more and moved and machine.up:
            self.pull(reader, source)

    def _call(self, machine: Machine, handler: Handler, entry: Entry) -> None:
        self.run_on(machine, "handler", lambda node: handler(node, entry))

    def _read_all(self, reader: str, source: str) -> int:
        """Everything that one node can learn from another, without a network between them."""
        learnt = 0
        while True:
            node, other = _running(self.machines[reader]), _running(self.machines[source])
            before = pulling.cursor_of(node, source)
            batch = pulling.batch_for(other, reader, before)
            if not batch.entries:
                return learnt
            self._receive(reader, source, batch._replace(more=False))
            if pulling.cursor_of(_running(self.machines[reader]), source) == before:
                self._break(f"{reader} does not get on in the log of {source}")
            learnt += len(batch.entries)

    def run_on(self, machine: Machine, what: str, act: Callable[[Node], T]) -> T | None:
        """Lets a node do something that is not a chore; None if it could not."""
        if not machine.up:
            return None
        try:
            with machine.activity():
                return act(_running(machine))
        except Died:
            self.mark_death(machine, what)
        except HoldfastError as error:
            self._note_trouble(machine, what, error)
        return None

    # --- promises -------------------------------------------------------------------------------

    def look_into(self, machine: Machine) -> None:
        """Audits a node and compares it with what its callers were told."""
        with machine.weather.fine():
            node = _running(machine)
            problems = [*audit(node), *self.promises[machine.peer].broken(node)]
        if problems:
            self._break(f"{machine.peer}: {'; '.join(problems[:5])}")

    def _compare(self) -> None:
        first, *others = self.machines.values()
        expected = self._rows(first)
        for machine in others:
            for line in differences(expected, self._rows(machine)):
                self._break(f"{first.peer} and {machine.peer} end up apart: {line}")
        for machine in self.machines.values():
            missing = pulling.missing_content(_running(machine), self.mesh)
            if missing:
                self._break(f"{machine.peer} never got the content of {missing}")

    def _rows(self, machine: Machine) -> dict[str, list[dict[str, object]]]:
        with _running(machine)._core.store.read() as reader:
            # Each node forgets what is dead in its own time.
            return rows(reader, self.mesh, dead=not self._swept)

    def _break(self, what: str) -> None:
        tail = "\n".join(islice(self.log, max(0, len(self.log) - 25), None))
        raise PromiseBroken(f"seed {self.seed}: {what}\nat the end of this story:\n{tail}")

    # --- marks and trouble ----------------------------------------------------------------------

    def _mark(self, fault: str, ops: Sequence[str]) -> None:
        for op in ops:
            self.marks[fault, op] += 1

    def mark_death(self, machine: Machine, op: str) -> None:
        """A machine died in the middle of this, and after all else that it did in this life."""
        self.marks[machine.last_death, op] += 1
        self._mark(machine.last_death, sorted(machine.since_start))
        if self.rng.random() < DEATH_AGAIN:
            machine.doom(self.rng.choice(("kill", "power")), self.rng.randrange(START_CALLS))
        self.at(self.rng.randrange(1, RESTART_MS_MAX), self._start_if_down, machine, name="start")

    def _start_if_down(self, machine: Machine) -> None:
        if not machine.up:
            self.start(machine)

    def _note_trouble(self, machine: Machine, what: str, error: HoldfastError) -> None:
        self.note(f"{machine.peer} {what}: {_name(error)}")
        if isinstance(error, DiskFull):
            self.marks["disk full", what] += 1
        elif isinstance(error, Unknown | StoreFailed) and machine.up:
            self.marks["io error", what] += 1
            self.at(SECOND_MS, self.reopen, machine, name=f"{machine.peer} reopens")


def _running(machine: Machine) -> Node:
    assert machine.node is not None, f"{machine.peer} is down"
    return machine.node


def _name(answer: BaseException | None) -> str:
    return "done" if answer is None else type(answer).__name__


def tell(seed: int) -> NodeWorld:
    """A day of storm and the calm after it, for two to four peers; returns the world, closed."""
    count = 2 + seed % 3 % 2 + (seed % 10 == 9)
    try:
        with NodeWorld(seed, peers=("ana", "bob", "cai", "dee")[:count]) as world:
            world.storm()
            world.calm()
    except BaseException as error:
        error.add_note(f"play it again with: python -m holdfast.simulate.nodes {seed}")
        raise
    return world


def main(arguments: Sequence[str]) -> int:
    """Tells the stories of the seeds that are named."""
    for seed in map(int, arguments):
        try:
            world = tell(seed)
        except PromiseBroken as broken:
            print(broken)
            return 1
        print(f"seed {seed}: {world.events} events, every promise kept, digest {world.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
