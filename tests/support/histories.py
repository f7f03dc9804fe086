"""Random histories of several nodes, each in a real home, for the pipeline to read.

    histories = grow(seed=7, folder=tmp_path, nodes=3, meshes=40, ops=2000)
    histories.homes      # {peer: folder}

Every mesh is a history of its own, so one fold of one lake checks as many histories as there are
meshes. Peers write to every family, delete, claim what others claim, end what others hold; their
envelopes reach the others in any order and repeatedly; a node is restarted in between. Nothing asks
a real clock or real chance: a seed gives the same logs twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.rules.destinations import PRIORITIES
from holdfast.rules.errors import BlobMissing, Conflict, NotFound
from holdfast.rules.rows import Entry, MeshRow
from holdfast.rules.vectors import Model
from holdfast.storage.ports import Transaction
from support.nodes import share, store_of
from support.source import START_MS, HandClock

PEERS = ("ana", "\uff5aoe", "\U0001f98a", "bob", "Cid")
"""By UTF-16 the second and the third would stand the other way round, and capitals sort first."""
MODELS = (
    Model(provider="test", name="tiny", dim=2),
    Model(provider="test", name="tiny", version="2", dim=3),
)
KEYS = ("k0", "ключ", "K0")
PATHS = ("k0", "a/b.txt", "K0")
VALUES = (None, True, 7, -1.5, 'ü\n"x"', [1, [2]], {"b": 1, "a": {"c": None}})
TAGS = ((), ("t",), ("b", "a", "ü"))
OBJECT = b"what a fact may name"
CONTENTS = (b"", b"small", b"\x00\xff" * 40, bytes(65_536))
"""The last is kept in a blob, beside the log."""
HOUR_MS = 3_600_000
_DAYS_MAX = 3


class Grown:
    """One node while it grows."""

    def __init__(self, folder: Path, name: str, seed: int, meshes: list[str]) -> None:
        self.folder = folder
        self.name = name
        self.clock = HandClock(START_MS, f"{seed} {name}")
        self.node: Node = open_node(
            folder, peer=name, create=True, sync="normal", source=self.clock
        )
        self._open(meshes)
        self.given: dict[str, int] = {}
        """How far each other node has been given our log, in order."""

    def _open(self, meshes: list[str]) -> None:
        self.meshes: list[Mesh] = [self.node.mesh(slug, create=True) for slug in meshes]
        self.object = self.node.receive_blob(OBJECT)
        for content in CONTENTS:
            self.node.receive_blob(content)

    def restart(self) -> None:
        self.node.close()
        self.node = open_node(self.folder, sync="normal", source=self.clock)
        self._open([mesh.slug for mesh in self.meshes])

    def head(self) -> int:
        return self.node.log.head().offset

    def entries(self, start: int, end: int) -> list[Entry]:
        return list(self.node.log.range(start, end))


@dataclass
class Histories:
    """What has grown. The homes are closed; `open()` gives a node again, with its own clock."""

    seed: int
    homes: dict[str, Path]
    meshes: list[str]
    heads: dict[str, int]
    """The last offset of each log."""
    refused: int
    clocks: dict[str, HandClock] = field(repr=False)

    @property
    def peers(self) -> list[str]:
        return list(self.homes)

    def open(self, peer: str) -> Node:
        return open_node(self.homes[peer], sync="normal", source=self.clocks[peer])

    def entries(self, peer: str) -> Iterator[Entry]:
        with self.open(peer) as node:
            yield from node.log.range()


class _Growth:
    def __init__(self, seed: int, folder: Path, nodes: int, meshes: int) -> None:
        self.rng = random.Random(f"histories {seed}")
        self.slugs = [f"mesh-{number}" for number in range(meshes)]
        self.nodes = [
            Grown(folder / f"home-{number}", PEERS[number], seed, self.slugs)
            for number in range(nodes)
        ]
        self.tasks: dict[str, list[str]] = {slug: [] for slug in self.slugs}
        self.busy = 0
        self.done = 0
        self.refused = 0
        self.acts = [act for weight, act in self._weights() for _ in range(weight)]

    def _weights(self) -> list[tuple[int, Callable[[Grown, Mesh], object]]]:
        rng = self.rng
        return [
            (10, lambda at, mesh: mesh.state.set(self._key(), self._value(), meta=self._meta())),
            (4, lambda at, mesh: mesh.state.delete(self._key())),
            (
                6,
                lambda at, mesh: mesh.memory.set(self._key(), self._value(), tags=rng.choice(TAGS)),
            ),
            (4, lambda at, mesh: mesh.memory.forget(self._key())),
            (5, self._store_vector),
            (4, lambda at, mesh: mesh.vectors.delete(self._key(), model=rng.choice(MODELS))),
            (4, lambda at, mesh: mesh.files.share(rng.choice(PATHS), rng.choice(CONTENTS))),
            (4, lambda at, mesh: mesh.files.delete(rng.choice(PATHS))),
            (3, self._create_task),
            (12, lambda at, mesh: mesh.tasks.claim(self._task(mesh))),
            (8, lambda at, mesh: mesh.tasks.release(self._task(mesh))),
            (2, lambda at, mesh: mesh.tasks.complete(self._task(mesh))),
            (1, lambda at, mesh: mesh.tasks.cancel(self._task(mesh))),
            (5, self._append_fact),
            (1, self._restore),
            (14, lambda at, mesh: self._give(at)),
            (2, lambda at, mesh: self._scatter(at)),
            (2, lambda at, mesh: self._jump(at)),
        ]

    # --- what may happen -----------------------------------------------------------------------

    def step(self) -> None:
        at = self.rng.choice(self.nodes)
        # Mostly one mesh at a time, so that peers meet on the same keys and tasks.
        if self.rng.random() < 0.03:
            self.busy = (self.busy + 1) % len(self.slugs)
        mesh = at.meshes[self.busy] if self.rng.random() < 0.9 else self.rng.choice(at.meshes)
        at.clock.advance(self.rng.randint(0, 5))
        self.done += 1
        try:
            self.rng.choice(self.acts)(at, mesh)
        except (Conflict, NotFound, BlobMissing):
            self.refused += 1

    def _key(self) -> str:
        return self.rng.choice(KEYS)

    def _value(self) -> object:
        return self.done if self.rng.random() < 0.5 else self.rng.choice(VALUES)

    def _meta(self) -> dict[str, object] | None:
        return {"trace": f"t{self.done}", "n": [1, None]} if self.rng.random() < 0.3 else None

    def _task(self, mesh: Mesh) -> str:
        known = self.tasks[mesh.slug]
        return self.rng.choice(known[-3:]) if known else "none yet"

    def _create_task(self, at: Grown, mesh: Mesh) -> None:
        made = mesh.tasks.create(f"task {self.done}", description=self.rng.choice(("", "more")))
        self.tasks[mesh.slug].append(made.task)

    def _store_vector(self, at: Grown, mesh: Mesh) -> None:
        model = self.rng.choice(MODELS)
        point = [self.rng.randint(-3, 3) + 0.25 for _ in range(model.dim)]
        words = self.rng.choice(("", "some words"))
        mesh.vectors.store(self._key(), point, model=model, content=words, metadata=self._value())

    def _append_fact(self, at: Grown, mesh: Mesh) -> None:
        objects = [at.object] if self.rng.random() < 0.3 else []
        mesh.facts.append(self._key(), "is", self._value(), meta=self._meta(), objects=objects)

    def _restore(self, at: Grown, mesh: Mesh) -> None:
        found = list(at.node.conflicts(mesh.slug))
        if found:
            at.node.restore_conflict(self.rng.choice(found).number)

    def _jump(self, at: Grown) -> None:
        to = at.clock.at_ms + self.rng.choice((-100_000, -50, 50, HOUR_MS))
        at.clock.at_ms = min(to, START_MS + _DAYS_MAX * 24 * HOUR_MS)

    def message_watch(self, count: int) -> None:
        """Messages of everybody, some of them answers, to all that a message can go to. The meshes
        are shared for as long as that takes.
        """
        rng = random.Random(f"mail {count}")
        sent: list[tuple[str, str]] = []
        for number in range(count):
            at, slug = rng.choice(self.nodes), rng.choice(self.slugs)
            before = at.node.mesh(slug).info()
            answered = [id for mesh, id in sent if mesh == slug][-1:]
            done = share(at.node, slug).send(
                rng.choice((b"", b"\x00\xff", "grüß\ndich", f"letter {number}")),
                **rng.choice(({"topic": "news/ü"}, {"dm": "ab" * 32}, {"queue": "work"})),
                content_type=rng.choice((None, "application/json")),
                meta=rng.choice((None, {"trace": f"t{number}", "n": [1, None]})),
                priority=rng.choice(PRIORITIES),
                reply_to=answered[0] if answered else None,
            )
            store_of(at.node).write(partial(_put_back, before))
            sent.append((slug, done.id))

    # --- the network -----------------------------------------------------------------------------

    def _give(self, at: Grown) -> None:
        """The next piece of a log, as a link would bring it."""
        to = self.rng.choice([node for node in self.nodes if node is not at])
        start = at.given.get(to.name, 0) + 1
        end = min(at.head(), start + self.rng.randint(0, 120))
        self._deliver(at, to, start, end)
        at.given[to.name] = max(at.given.get(to.name, 0), end)

    def _scatter(self, at: Grown) -> None:
        """Any piece of a log, also what was there before."""
        to = self.rng.choice([node for node in self.nodes if node is not at])
        head = at.head()
        if head:
            start = self.rng.randint(1, head)
            self._deliver(at, to, start, min(head, start + self.rng.randint(0, 40)))

    def _deliver(self, at: Grown, to: Grown, start: int, end: int) -> None:
        if end < start:
            return
        raws = [entry.raw for entry in at.entries(start, end + 1)]
        raws += self.rng.sample(raws, min(len(raws), self.rng.randint(0, 4)))
        if self.rng.random() < 0.6:
            self.rng.shuffle(raws)
        for applied in to.node.apply(raws):
            assert applied.error is None, applied.error

    def settle(self) -> None:
        """Everything reaches everyone, each time in another order."""
        for _ in range(2):
            for at in self.nodes:
                for to in self.nodes:
                    if to is not at:
                        self._deliver(at, to, 1, at.head())


def _put_back(row: MeshRow, tx: Transaction) -> None:
    tx.mesh_change(row)


def grow(
    seed: int,
    folder: Path,
    *,
    nodes: int = 3,
    meshes: int = 20,
    ops: int = 1000,
    settled: bool = True,
    message_watch: int = 0,
) -> Histories:
    """`settled`: at the end every node has everything. Without it each knows only a part.
    `message_watch`: so many messages are sent in the end.
    """
    growth = _Growth(seed, folder, nodes, meshes)
    restart = growth.rng.randint(ops // 4, ops // 2)
    for number in range(ops):
        if number == restart:
            growth.rng.choice(growth.nodes).restart()
        growth.step()
    growth.message_watch(message_watch)
    if settled:
        growth.settle()
    heads = {at.name: at.head() for at in growth.nodes}
    for at in growth.nodes:
        at.node.close()
    return Histories(
        seed=seed,
        homes={at.name: at.folder for at in growth.nodes},
        meshes=growth.slugs,
        heads=heads,
        refused=growth.refused,
        clocks={at.name: at.clock for at in growth.nodes},
    )
