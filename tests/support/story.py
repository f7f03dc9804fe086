"""Three peers that do anything at any time, from one seed, and what must hold whatever they did.

    story = Story("memory", folder, seed=7)
    story.run(4000)
    story.end()        # everything arrives everywhere at last, and then all must be one

Peers write, retry, are refused; envelopes arrive in any order, late and repeatedly; processes are
restarted; clocks jump; blobs are swept. Nothing asks a real clock or real chance, so a seed tells
the same story twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from holdfast.node.library.node import Mesh, Node
from holdfast.node.log.history import replay
from holdfast.node.upkeep.sweep import Ttl, collect_blobs
from holdfast.rules.bodies import FileShare, decode_body
from holdfast.rules.envelope import decode
from holdfast.rules.errors import BlobMissing, Conflict, NotFound, Refused
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Entry
from holdfast.storage.sqlite.integrity import integrity
from support.envelopes import MODEL
from support.nodes import Nodes, blob_names, grow_old, store_of
from support.snapshot import differences, snapshot
from support.source import START_MS, HandClock

# By UTF-16 the last two would stand the other way round.
PEERS = ("ana", "\uff5aoe", "\U0001f98a")
KEYS = tuple(f"k{n}" for n in range(6))
CONTENTS = (b"", b"small", *(bytes([n]) * 65_536 for n in range(3)))
SWEEP = Ttl(blob_ms=0, orphan_ms=0)


class Peer:
    """One node with its own clock."""

    def __init__(self, nodes: Nodes, name: str, seed: int) -> None:
        self.name = name
        self.clock = HandClock(START_MS, f"{seed} {name}")
        self._nodes = nodes
        self.node: Node = nodes.open(name, clock=self.clock)
        self.latest_ms = START_MS
        self.published = 0
        """How much of its log the others have been offered."""
        self.waiting: list[Entry] = []
        """What is on its way here."""
        self.arrived: list[Entry] = []
        self.ids: list[str] = []

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.node._engine, "team")

    def restart(self) -> None:
        self.node = self._nodes.reopen(self.node, clock=self.clock)


class Story:
    def __init__(self, kind: str, folder: Path, seed: int, *, restarts: bool = True) -> None:
        self.rng = random.Random(f"story {seed}")
        self._nodes = Nodes(kind, folder, HandClock())
        self.peers = [Peer(self._nodes, name, seed) for name in PEERS]
        self.refused = 0
        self.done = 0
        self._tasks: list[str] = []
        self._acts = self._weigh(restarts)

    def _weigh(self, restarts: bool) -> list[Callable[[Peer], object]]:
        weights: list[tuple[int, Callable[[Peer], object]]] = [
            (12, self._set_state),
            (3, lambda peer: peer.mesh.state.delete(self._key())),
            (6, lambda peer: peer.mesh.memory.set(self._key(), self.done, tags=["t"])),
            (2, lambda peer: peer.mesh.memory.forget(self._key())),
            (3, lambda peer: peer.mesh.vectors.store(self._key(), self._point(), model=MODEL)),
            (1, lambda peer: peer.mesh.vectors.delete(self._key(), model=MODEL)),
            (3, lambda peer: peer.mesh.files.share(self._key(), self.rng.choice(CONTENTS))),
            (2, lambda peer: peer.mesh.files.delete(self._key())),
            (1, self._create_task),
            (5, lambda peer: peer.mesh.tasks.claim(self._task())),
            (2, lambda peer: peer.mesh.tasks.release(self._task())),
            (1, lambda peer: peer.mesh.tasks.complete(self._task())),
            (1, lambda peer: peer.mesh.tasks.cancel(self._task())),
            (2, lambda peer: peer.mesh.facts.append(self._key(), "is", self.done)),
            (1, lambda peer: peer.mesh.audit.append("activityLog", self.done)),
            (2, self._retry),
            (1, self._restore),
            (14, self._deliver),
            (2, self._jump),
            (1, lambda peer: peer.node.take_warnings()),
            (1, self._sweep),
        ]
        acts = [act for weight, act in weights for _ in range(4 * weight)]
        return acts + ([self._restart] if restarts else [])

    # --- what may happen -----------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        peer = self.rng.choice(self.peers)
        act = self.rng.choice(self._acts)
        peer.clock.advance(self.rng.randint(0, 5))
        peer.latest_ms = max(peer.latest_ms, peer.clock.at_ms)
        self.done += 1
        try:
            act(peer)
        except (Conflict, NotFound, BlobMissing):
            self.refused += 1

    def _key(self) -> str:
        return self.rng.choice(KEYS)

    def _task(self) -> str:
        return self.rng.choice(self._tasks[-8:]) if self._tasks else "none yet"

    def _point(self) -> list[float]:
        return [self.rng.randint(-3, 3), self.rng.randint(-3, 3)]

    def _set_state(self, peer: Peer) -> None:
        id = id_text(peer.clock.new_id()) if self.rng.random() < 0.2 else None
        key, value = self._key(), self.rng.choice([self.done, None, {"n": [self.done]}])
        peer.mesh.state.set(key, value, id=id)
        if id is not None:
            again = peer.mesh.state.set(key, value, id=id)
            assert again.duplicate
            peer.ids.append(id)

    def _create_task(self, peer: Peer) -> None:
        self._tasks.append(peer.mesh.tasks.create(f"task {self.done}").task)

    def _retry(self, peer: Peer) -> None:
        """An id of our own that was used before, for something else."""
        if peer.ids:
            peer.mesh.facts.append("reused", "is", self.done, id=self.rng.choice(peer.ids[-20:]))
            raise AssertionError("an id was given to two requests")

    def _restore(self, peer: Peer) -> None:
        open_ones = list(peer.node.conflicts())
        if open_ones:
            peer.node.restore_conflict(self.rng.choice(open_ones).number)

    def _jump(self, peer: Peer) -> None:
        peer.clock.advance(self.rng.choice([-100_000, -50, 50, 100_000]))
        peer.latest_ms = max(peer.latest_ms, peer.clock.at_ms)

    def _restart(self, peer: Peer) -> None:
        peer.restart()

    def _sweep(self, peer: Peer) -> None:
        # Later than ever before: what a clock that jumped has put into the future is kept.
        peer.clock.at_ms = peer.latest_ms + 1
        for sha in blob_names(peer.node):
            grow_old(peer.node, sha, peer.latest_ms)
        collect_blobs(peer.node._engine, SWEEP)
        self.check_blobs(peer)

    # --- the network -----------------------------------------------------------------------------

    def _publish(self, peer: Peer) -> None:
        with store_of(peer.node).read() as tx:
            head = tx.log_bounds()[1]
            new = tx.log_range(peer.published + 1, head + 1, 1 << 40)
        peer.published = head
        own = [entry for entry in new if entry.origin == peer.name]
        for other in self.peers:
            if other is not peer:
                other.waiting += own

    def _deliver(self, peer: Peer, *, everything: bool = False) -> None:
        for other in self.peers:
            self._publish(other)
        self.rng.shuffle(peer.waiting)
        count = len(peer.waiting) if everything else self.rng.randint(0, min(20, len(peer.waiting)))
        batch, peer.waiting = peer.waiting[:count], peer.waiting[count:]
        peer.arrived += batch
        again = self.rng.sample(peer.arrived, min(len(peer.arrived), self.rng.randint(0, 4)))
        batch = [*batch, *again]
        self.rng.shuffle(batch)
        for entry in batch:
            if entry.op == "file.share" and (everything or self.rng.random() < 0.7):
                self._carry(entry, peer)
        for result in peer.node.apply(entry.raw for entry in batch):
            assert result.error is None, result.error

    def _carry(self, entry: Entry, target: Peer) -> None:
        body = decode_body(decode(entry.raw))
        if isinstance(body, FileShare) and body.content is None:
            content = next(c for c in CONTENTS if sha256(c).digest() == body.sha256)
            target.node.receive_blob(content)

    # --- what must hold --------------------------------------------------------------------------

    def check_blobs(self, peer: Peer) -> None:
        """Right after a sweep: what is named and came is there, and nothing else is."""
        with store_of(peer.node).read() as tx:
            files = [row for row in tx.file_scan("team", None, ("", ""), 1 << 40) if row.in_blob]
            named = {row.sha256 for row in files}
            for row in files:
                assert tx.blob_refs(row.sha256) == sum(f.sha256 == row.sha256 for f in files)
            registered = {row.sha256: row.released_at for row in tx.blob_scan("", 1 << 40)}
        assert registered.keys() == named, "released blobs are gone, named ones are registered"
        assert set(registered.values()) <= {None}
        there = blob_names(peer.node)
        assert there <= named, "an orphan survived"
        own = {row.sha256 for row in files if row.peer == peer.name}
        assert own <= there, "a row of ours names what is not there"

    def check_log(self, peer: Peer) -> None:
        """Stamps grow, numbers have no gap, the clock is past all, and the tables are the fold."""
        entries = list(peer.node.log.range())
        own = [decode(entry.raw) for entry in entries if entry.origin == peer.name]
        stamps = [envelope.lamport for envelope in own]
        assert stamps == sorted(set(stamps)), "our stamps only grow"
        assert [envelope.seq for envelope in own] == list(range(1, len(own) + 1))
        assert len({entry.id for entry in entries}) == len(entries)
        with store_of(peer.node).read() as tx:
            turns = {turn.offset for turn in tx.log_turns()}
        for before, entry in pairwise(entries):
            assert entry.recorded_at >= before.recorded_at or entry.offset in turns
        assert peer.mesh.clock().lamport >= max((entry.lamport for entry in entries), default=0)
        folded = replay(iter(entries), peer.node.meshes(), peer.name)
        apart = differences(snapshot(store_of(peer.node)), snapshot(folded))
        assert apart == [], "the tables are not the fold of the log"

    def end(self) -> str:
        """Everything arrives; then all peers hold the same. Returns a digest of what they hold."""
        while True:
            for peer in self.peers:
                self._deliver(peer, everything=True)
            for peer in self.peers:
                self._publish(peer)
            if not any(peer.waiting for peer in self.peers):
                break
        for peer in self.peers:
            self._sweep(peer)
            self.check_log(peer)
        first, *others = (snapshot(store_of(peer.node)) for peer in self.peers)
        for other in others:
            apart = differences(first, other)
            assert apart == [], "peers that know the same hold different things"
        self._nodes.close()
        if self._nodes.kind == "sqlite":
            for peer in self.peers:
                assert integrity(peer.node.home / "data.db", ours=True) == []
        return sha256(repr(first).encode()).hexdigest()


__all__ = ["PEERS", "Peer", "Refused", "Story"]
