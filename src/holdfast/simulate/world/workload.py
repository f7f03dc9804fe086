"""Random work for simulated nodes: every verb of the library, on few enough keys that they meet.

A piece of work is fixed when it is drawn, its ids included, so that a caller can ask for it again
after an unknown outcome, exactly as a careful caller would.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from holdfast.node.core import operations
from holdfast.node.core.change import Change
from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import HoldfastError, UnknownConflict
from holdfast.rules.ids import id_text
from holdfast.rules.limits import HOUR_MS, INLINE_BYTES_MAX
from holdfast.rules.vectors import Model
from holdfast.storage.tickets import Ticket

KEYS: Final = ("a", "b", "c", "d")
PATHS: Final = ("notes.txt", "data/one.bin", "Übersicht/文書.bin")
BLOBS: Final = tuple(bytes([n]) * (INLINE_BYTES_MAX + n) for n in range(3))
MODEL: Final = Model(provider="simulated", name="tiny", dim=2)
TASKS_MAX: Final = 6

TTL: Final = Ttl(
    log_ms=6 * HOUR_MS,
    tombstone_ms=6 * HOUR_MS,
    dedupe_ms=12 * HOUR_MS,
    blob_ms=HOUR_MS,
    orphan_ms=HOUR_MS,
)
"""Short enough for a simulated day, and longer than any outage and jump of the clock in it."""

OPS: Final = (
    *("state.set", "state.delete", "memory.set", "memory.forget"),
    *("vector.store", "vector.delete", "file.share", "file.delete"),
    *("task.create", "task.claim", "task.release", "task.complete", "task.cancel"),
    *("fact.append", "fact.object", "group", "conflict.restore"),
    *("warnings", "read", "sweep", "checkpoint"),
)
"""Every kind of work. `fact.object` is a fact that names an object."""
_WEIGHTS: Final = (5, 3, 3, 2, 4, 2, 5, 3, 3, 6, 4, 3, 2, 3, 3, 4, 3, 2, 2, 4, 2)
assert len(OPS) == len(_WEIGHTS)

_OF_HOLDERS: Final = ("task.release", "task.complete")

Answers = Sequence[BaseException | None]


class WorkItem(NamedTuple):
    """One piece of work: `do` writes envelopes with these ids, and returns an answer for each."""

    op: str
    ids: tuple[bytes, ...]
    do: Callable[[Node], Answers]


class Workload:
    """Draws work from a seed."""

    def __init__(
        self,
        rng: random.Random,
        new_id: Callable[[], bytes],
        meshes: Sequence[str],
        ttl: Ttl = TTL,
    ) -> None:
        self._rng = rng
        self._new_id = new_id
        self._meshes = meshes
        self._mesh = meshes[0]
        self._ttl = ttl
        self._tasks: dict[str, list[str]] = {mesh: [] for mesh in meshes}
        self._count = 0

    def draw(self, *, evenly: bool = False) -> WorkItem:
        """Draws an op as often as it is done in life, or all of them `evenly`."""
        op = self._rng.choices(OPS, None if evenly else _WEIGHTS)[0]
        self._mesh = self._rng.choice(self._meshes)
        self._count += 1
        if op == "group":
            return self._group()
        if op == "sweep" or op in _UPKEEP:
            return WorkItem(op, (), self._upkeep(op))
        id = self._new_id()
        if op == "conflict.restore":
            return WorkItem(op, (id,), _restore(id_text(id)))
        if op == "file.share":
            return WorkItem(op, (id,), self._share(id_text(id)))
        if op == "fact.object":
            return WorkItem(op, (id,), self._fact_with_object(id_text(id)))
        if op in _OF_HOLDERS:
            return self._claim_first(op, id)
        change = self._change(op, id)
        return WorkItem(op, (id,), lambda node: _carry_out(node, [change]))

    def sweep(self) -> WorkItem:
        """The sweep that a daemon does by itself."""
        return WorkItem("sweep", (), self._upkeep("sweep"))

    def _claim_first(self, op: str, id: bytes) -> WorkItem:
        """Only the holder of a task may do this, so mostly the node claims it right before."""
        task, claim_id, verb = self._task(op, id_text(id)), self._new_id(), op.partition(".")[2]
        moves = (("claim", claim_id), (verb, id)) if self._rng.random() < 0.7 else ((verb, id),)
        mesh = self._mesh

        def do(node: Node) -> Answers:
            ctx = node._engine.ctx
            changes = (
                operations.task_move(ctx, mesh, name, task, id_text(own)) for name, own in moves
            )
            return [_answer(node, change) for change in changes]

        return WorkItem(op, tuple(own for _, own in moves), do)

    def _group(self) -> WorkItem:
        """Several writes that share a commit."""
        ops = self._rng.choices(OPS[: OPS.index("file.share")], k=self._rng.randrange(2, 6))
        ids = tuple(self._new_id() for _ in ops)
        changes = [self._change(op, id) for op, id in zip(ops, ids, strict=True)]
        return WorkItem("group", ids, lambda node: _carry_out(node, changes))

    def _change(self, op: str, id: bytes) -> Callable[[Node], Change]:
        """How a node prepares the write."""
        rng, mesh, name = self._rng, self._mesh, id_text(id)
        key, path, value = rng.choice(KEYS), rng.choice(PATHS), self._count
        point = (rng.random(), rng.random())
        task = self._task(op, name)
        makers: dict[str, Callable[[Node], Change]] = {
            "state.set": lambda n: operations.state_set(n._engine.ctx, mesh, key, value, name),
            "state.delete": lambda n: operations.state_delete(n._engine.ctx, mesh, key, name),
            "memory.set": lambda n: operations.memory_set(
                n._engine.ctx, mesh, key, value, (), name
            ),
            "memory.forget": lambda n: operations.memory_forget(n._engine.ctx, mesh, key, name),
            "vector.store": lambda n: operations.vector_store(
                n._engine.ctx, mesh, key, point, MODEL, f"text {value}", value, name
            ),
            "vector.delete": lambda n: operations.vector_delete(
                n._engine.ctx, mesh, key, MODEL, name
            ),
            "file.delete": lambda n: operations.file_delete(n._engine.ctx, mesh, path, name),
            "task.create": lambda n: operations.task_create(
                n._engine.ctx, mesh, f"task {value}", "", name
            ),
            "fact.append": lambda n: operations.fact_append(
                n._engine.ctx, mesh, key, "is", value, name
            ),
        }
        if op in makers:
            return makers[op]
        verb = op.partition(".")[2]
        return lambda n: operations.task_move(n._engine.ctx, mesh, verb, task, name)

    def _task(self, op: str, name: str) -> str:
        tasks = self._tasks[self._mesh]
        if op == "task.create":
            tasks[:] = [*tasks[-TASKS_MAX:], name]
        return self._rng.choice(tasks) if tasks else name

    def _share(self, id: str) -> Callable[[Node], Answers]:
        rng, mesh = self._rng, self._mesh
        path, shape = rng.choice(PATHS), rng.randrange(3)
        content = rng.choice(BLOBS) if shape else f"small {self._count}".encode()

        def do(node: Node) -> Answers:
            given = io.BytesIO(content) if shape == 2 else content
            node.mesh(mesh).files.share(path, given, id=id)
            return [None]

        return do

    def _fact_with_object(self, id: str) -> Callable[[Node], Answers]:
        """The object first, then the fact that names it."""
        mesh, key, content = self._mesh, self._rng.choice(KEYS), self._rng.choice(BLOBS)
        value = self._count

        def do(node: Node) -> Answers:
            sha = node.receive_blob(content)
            node.mesh(mesh).facts.append(key, "shows", value, objects=[sha], id=id)
            return [None]

        return do

    def _upkeep(self, op: str) -> Callable[[Node], Answers]:
        key, mesh, ttl = self._rng.choice(KEYS), self._mesh, self._ttl

        def do(node: Node) -> Answers:
            if op == "sweep":
                node.sweep(ttl)
            else:
                _UPKEEP[op](node, mesh, key)
            return []

        return do


def _carry_out(node: Node, changes: list[Callable[[Node], Change]]) -> Answers:
    """Commits the changes as one group of the writer, whatever its size."""
    writer = node._opened.store.writer
    tickets = [Ticket(prepare(node), lambda group: None) for prepare in changes]
    if len(tickets) == 1:
        node._engine.write("chore", tickets[0].work)
        return [None]
    for ticket in tickets:
        writer.enqueue(ticket)
    while writer.run_group():
        pass
    return [ticket.error for ticket in tickets]


def _answer(node: Node, change: Change) -> HoldfastError | None:
    try:
        node._engine.write("chore", change)
    except HoldfastError as error:
        return error
    return None


def _restore(id: str) -> Callable[[Node], Answers]:
    def do(node: Node) -> Answers:
        oldest = next(islice(node.conflicts(), 1), None)
        if oldest is None:
            raise UnknownConflict("no conflict is open")
        node.restore_conflict(oldest.number, id=id)
        return [None]

    return do


def _read(node: Node, mesh: str, key: str) -> None:
    """Reads as users do: everything that is there must be readable."""
    seen = node.mesh(mesh)
    seen.state.get(key)
    seen.memory.recall(key, scope="all")
    assert len(seen.vectors.search((0.5, 0.5), model=MODEL)) <= 10
    for info in seen.files.list():
        if info.here:
            seen.files.read(info.path, peer=info.peer)
    for task in seen.tasks.list():
        assert seen.tasks.events(task.task)
    node.log.tail(3)


def _checkpoint(node: Node, mesh: str, key: str) -> None:
    """SQLite does this after some thousand pages; here it comes at any time."""
    try:
        node._opened.store._con.wal_checkpoint()
    except Exception as error:
        if isinstance(error, HoldfastError) or "injected" not in str(error):
            raise
        # SQLite itself ignores it: the write-ahead log still holds everything.


_UPKEEP: Final[dict[str, Callable[[Node, str, str], object]]] = {
    "warnings": lambda node, mesh, key: node.take_warnings(mesh),
    "read": _read,
    "checkpoint": _checkpoint,
}
