"""A real broker is killed under the load of two real daemons, on both stores.

What is asked at the end, whatever happened: all that the daemons were told is done is at the broker
where they were told; all that they wrote is there once; seqs have no gap; every message is in the
inbox of the other side once; both hold the same; there are no orphans.

A soak (tools/soak.py) runs many seeds; `HOLDFAST_DELIVERY_FACTOR=20` makes each run so much longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from faults.broker_process import BrokerProcess
from holdfast.broker.daemon import open_store
from holdfast.broker.operator import Operator
from holdfast.rules.broker_rows import AcceptVerdict
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.limits import OUTBOX_PAGE_ROWS
from holdfast.rules.rows import OutboxRow
from holdfast.service.clock import SystemClock
from holdfast.simulate.world.invariants import differences, rows
from support.daemon import UpInThread, make_home, running
from support.live_broker import MESH, LiveBroker, calls_of, join, share
from support.postgres import name_for, server
from support.seeds import seeds
from support.waiting import until

FACTOR = int(os.environ.get("HOLDFAST_DELIVERY_FACTOR", "1"))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600 * FACTOR)]

PEERS = ("ana", "bob")
TOPIC, QUEUE = "news", "work"
KILLS = 3 * FACTOR
PROCESSES = 3
"""Of one broker on PostgreSQL."""
STEP = 100
"""About so many more are done before the next kill."""
ALL = 1 << 40


class Pair:
    """Two daemons that share a mesh through a broker, and write all the time."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.broker = broker
        self.homes = [make_home(folder / peer, peer) for peer in PEERS]
        self.up: list[UpInThread] = []
        self._ended = threading.Event()
        self._room = threading.Semaphore(STEP)
        self.told: dict[bytes, tuple[int, int]] = {}
        """What a daemon was told to be done, and where."""

    def share(self) -> None:
        hub = cast(LiveBroker, self.broker)
        share(self.homes[0], hub)
        join(self.homes[1], hub, self.homes[0])
        for home in self.homes:
            with holdfast.open(home, sync="normal") as node, closing(calls_of(node, hub)) as calls:
                if node.peer == PEERS[0]:
                    calls.declare(MESH, "topic", TOPIC)
                    calls.declare(MESH, "queue", QUEUE)
                calls.subscribe(MESH, TOPIC)

    # --- load -----------------------------------------------------------------------------------

    @contextmanager
    def writing(self, seed: int) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._write, args=(at, random.Random(f"{seed} {at}")))
            for at in range(len(PEERS))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for _ in threads:
                self._room.release()
            for thread in threads:
                thread.join(60)

    def _write(self, at: int, rng: random.Random) -> None:
        mesh = self.up[at].daemon.api.node.mesh(MESH)
        number = 0
        while True:
            self._room.acquire()  # so many at a time as are done: the load follows the broker
            if self._ended.is_set():
                return
            number += 1
            kind = rng.randrange(5)
            text = f"{PEERS[at]} {number}"
            if kind == 0:
                mesh.send(text, topic=TOPIC, priority=rng.choice(("now", "next", "low")))
            elif kind == 1:
                mesh.send(text, queue=QUEUE)
            elif kind == 2:
                mesh.facts.append("s", "is", number)
            else:
                mesh.state.set(f"k{rng.randrange(20)}", text)

    def outbox_rows(self, at: int, *states: str) -> list[OutboxRow]:
        engine = self.up[at].daemon.api.node._engine
        lane = f"broker:{MESH}"
        return engine.read("test", lambda tx: tx.outbox_list(lane, states, 0, ALL))

    def look(self) -> int:
        """Notes what was done since; how much that is. As much may be written anew."""
        new = 0
        for at in range(len(PEERS)):
            for row in self.outbox_rows(at, "done"):
                assert row.broker_epoch is not None
                assert row.broker_seq is not None
                place = row.broker_epoch, row.broker_seq
                new += row.id not in self.told
                assert self.told.setdefault(row.id, place) == place
        if new:
            self._room.release(new)
        return new

    def done(self, more: int) -> None:
        """Until so many more are done."""
        target = len(self.told) + more
        until(lambda: self.look() >= 0 and len(self.told) >= target, 120)

    def settle(self) -> None:
        def quiet() -> bool:
            self.look()
            return not any(self.outbox_rows(at, "pending", "inflight") for at in range(len(PEERS)))

        until(quiet, 120)
        until(lambda: self.cursors() == {self.end()}, 120)

    def cursors(self) -> set[tuple[int, int]]:
        infos = [up.daemon.api.node.mesh(MESH).info() for up in self.up]
        return {(info.broker_epoch, info.broker_seq) for info in infos}

    def end(self) -> tuple[int, int]:
        (mesh,) = Operator(self.broker.settings).status()["meshes"]
        return mesh["epoch"], mesh["seq"]

    # --- what must hold -------------------------------------------------------------------------

    def check_nodes(self) -> None:
        nodes = [up.daemon.api.node for up in self.up]
        for at in range(len(PEERS)):
            assert not self.outbox_rows(at, "dead", "aborted", "pending", "inflight")
            other = nodes[1 - at]
            sent = [
                entry.id
                for entry in _log(other)
                if entry.op == "message.send"
                and entry.origin == other.peer
                and entry.entity == f"topic/{TOPIC}"
            ]
            came = nodes[at]._engine.read("test", lambda tx: tx.inbox_list(None, False, 0, ALL))
            assert Counter(row.id for row in came) == Counter(sent)
        one, two = (_rows(node) for node in nodes)
        assert not differences(one, two)
        facts = [{e.id for e in _log(node) if e.op == "fact.append"} for node in nodes]
        assert facts[0] == facts[1]

    def check_broker(self) -> None:
        """In its store, when it has ended."""
        assert Operator(self.broker.settings).orphans() == []
        written = {entry.id: entry for up in self.up for entry in _log(up.daemon.api.node)}
        asyncio.run(self._check_store(written))

    async def _check_store(self, written: dict[bytes, Any]) -> None:
        store = open_store(self.broker.settings)
        await store.open(SystemClock().now_ms())
        try:
            mesh = await store.mesh_get(MESH)
            assert mesh is not None
            assert mesh.epoch == 1, "a kill is no step back"
            asked = [(id, decode_trusted(entry.raw).fingerprint) for id, entry in written.items()]
            seqs: dict[bytes, int] = {}
            for start in range(0, len(asked), OUTBOX_PAGE_ROWS):
                page = asked[start : start + OUTBOX_PAGE_ROWS]
                for (id, _), found in zip(page, await store.known(MESH, page), strict=True):
                    assert found is not None, "written, said to be done, and not there"
                    assert found.verdict is AcceptVerdict.DUPLICATE
                    seqs[id] = found.seq
            assert sorted(seqs.values()) == list(range(1, mesh.seq + 1)), "once each, no gap"
            assert {id: (1, seqs[id]) for id in self.told} == self.told
            assert (await store.counts())["messages"] == mesh.seq
            (queue,) = await store.queue_counts(MESH)
            queued = [e for e in written.values() if e.entity == f"queue/{QUEUE}"]
            assert (queue.ready, queue.taken, queue.dead) == (len(queued), 0, 0)
        finally:
            await store.close()


def _log(node: Any) -> list[Any]:
    found: list[Any] = node._engine.read("test", lambda tx: tx.log_range(1, ALL, ALL))
    return found


def _rows(node: Any) -> Any:
    return node._engine.read("test", lambda tx: rows(tx, MESH))


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    dsn, kind = None, getattr(request, "param", "sqlite")
    if kind != "sqlite":
        dsn = asyncio.run(server().database(name_for(tmp_path)))
    made = BrokerProcess(tmp_path / "hub", dsn, PROCESSES if kind == "processes" else 1)
    yield made
    made.end()


@contextmanager
def two_at_work(folder: Path, broker: BrokerProcess, seed: int) -> Iterator[Pair]:
    """Ends when all that they wrote has arrived, and looks at everything."""
    broker.start()
    pair = Pair(folder, broker)
    pair.share()
    with ExitStack() as stack:
        pair.up = [stack.enter_context(running(home)) for home in pair.homes]
        with pair.writing(seed):
            pair.done(STEP // 4)
            yield pair
        pair.settle()
        pair.check_nodes()
        broker.stop()
        pair.check_broker()


@pytest.mark.parametrize("broker", ["sqlite", "postgres", "processes"], indirect=True)
@pytest.mark.parametrize("seed", seeds(1))
def test_D2_a_broker_killed_at_random_keeps_what_it_acknowledged_once(
    tmp_path: Path, broker: BrokerProcess, seed: int
) -> None:
    rng = random.Random(seed)
    with two_at_work(tmp_path, broker, seed) as pair:
        for _ in range(KILLS):
            pair.done(rng.randrange(STEP // 2, STEP))
            broker.kill()
            pair.look()
            broker.start()
        pair.done(STEP // 2)
    assert broker.lives == KILLS + 1
    print(f"{len(pair.told)} done through {KILLS} kills")


@pytest.mark.parametrize("broker", ["processes"], indirect=True)
@pytest.mark.parametrize("seed", seeds(1))
def test_D2_one_process_of_a_broker_killed_at_random_keeps_what_it_acknowledged_once(
    tmp_path: Path, broker: BrokerProcess, seed: int
) -> None:
    rng = random.Random(seed)
    with two_at_work(tmp_path, broker, seed) as pair:
        for _ in range(KILLS):
            pair.done(rng.randrange(STEP // 2, STEP))
            before = broker.pids
            assert len(before) == PROCESSES
            os.kill(rng.choice(before), signal.SIGKILL)
            until(partial(_is_whole_without, broker, set(before)), 120)
        pair.done(STEP // 2)
    assert broker.lives == 1
    assert broker.said.count(b"was ended by signal 9") == KILLS


@pytest.mark.parametrize("broker", ["processes"], indirect=True)
def test_D2_a_killed_parent_leaves_no_process_of_the_broker(broker: BrokerProcess) -> None:
    broker.start()
    left = broker.pids
    assert len(left) == PROCESSES
    broker.kill()
    until(lambda: not any(map(_lives, left)), 60)
    broker.start()
    broker.stop()


def _is_whole_without(broker: BrokerProcess, before: set[int]) -> bool:
    """Whether one of its processes is another one than before."""
    now = set(broker.pids)
    return len(now) == PROCESSES and len(now - before) == 1


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


POINTS = ("insert: before", "commit: before", "commit: after", "answer: before", "answer: after")


def test_D2_a_broker_killed_between_its_steps_keeps_what_it_acknowledged_once(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    with two_at_work(tmp_path, broker, 0) as pair:
        for nth, point in enumerate(POINTS, 8):
            broker.kill()
            broker.start(point, str(nth))
            until(lambda: pair.look() >= 0 and not broker.is_up, 120)
            assert broker.await_death() == -9, point
            broker.start()
            pair.done(STEP // 4)
