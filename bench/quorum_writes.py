"""Strong writes and reads of three voters, beside a three-node etcd and a JetStream stream of three
replicas, all durable, in one run on one disk.

Ours are three processes on loopback, over TLS. The load runs in the process that leads, through
the verbs of the library: what is measured has the intent made and checked, the Raft logs, the fold
on all three nodes with the node's log in it, and the receipt. Theirs is measured by the cheapest
client that we know, in a process of its own. Rounds alternate, so that a busy machine slows all of
them, and ratios are of the rounds' own figures.

On one machine a ratio of rates is a ratio of processor time, so that is printed too, for each node.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import monotonic, process_time, sleep
from typing import Any, NamedTuple

import holdfast
from bench._quorum_rivals import KEYS, Measured, etcd, jetstream
from bench._voter import MESH, body_of
from bench._voters import Voter, leader_of, spent, until, voters
from holdfast.node.core.commit import CommitRun, CommittedEntry
from holdfast.rules.envelope import UNCOUNTED, Envelope, encode
from holdfast.rules.ids import uuid7
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import entity_name, intent_fingerprint
from holdfast.rules.quorum.state_rows import QuorumRow

ROUNDS = 3
ROUND_S = 2.5
MANY = 64
SETTLE_S = 0.3
"""Until followers have folded the last of a round."""
HANDED_OVER_S = 3.0
KILLED_S = 8.0
GROWN = (100, 100_000)
IDLE_GROUPS = 1000
RUN = 64
SAMPLE = 4_000


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield from beside_rivals(folder)
        yield from growing(folder)
        yield from idle_groups(folder)
    finally:
        shutil.rmtree(folder)


class Ours(NamedTuple):
    """A round of ours."""

    said: dict[str, Any]
    leader_us: float
    follower_us: float
    """CPU for one call: of the leader with the load, and of one follower."""

    @property
    def rate(self) -> float:
        rate: float = self.said["count"] / self.said["seconds"]
        return rate


# --- rates ---------------------------------------------------------------------------------------


def beside_rivals(folder: Path) -> Iterator[tuple[str, float, str]]:
    for name in ("ours", "etcd", "nats"):
        (folder / name).mkdir()
    with (
        voters(folder / "ours") as nodes,
        etcd(folder / "etcd") as their_etcd,
        jetstream(folder / "nats") as stream,
    ):
        leader = leader_of(nodes)
        ours: dict[str, list[Ours]] = {"1": [], "64": [], "read": []}
        rival: dict[str, list[Measured]] = {"1": [], "64": [], "read": []}
        nats: dict[str, list[Measured]] = {"1": [], "64": []}
        load(nodes, leader, "write", MANY, 1.0)
        their_etcd.write(MANY, 1.0)
        for _ in range(ROUNDS):
            for name, in_flight in (("64", MANY), ("1", 1)):
                ours[name].append(load(nodes, leader, "write", in_flight))
                rival[name].append(their_etcd.write(in_flight, ROUND_S))
                nats[name].append(stream.write(in_flight, ROUND_S))
            ours["read"].append(load(nodes, leader, "confirm", MANY))
            rival["read"].append(their_etcd.read(MANY, ROUND_S))
        for name, what in (
            ("1", "write, 1 in flight"),
            ("64", "writes, 64"),
            ("read", "reads, 64"),
        ):
            show(what, ours[name], {"etcd": rival[name], "JetStream": nats.get(name, [])})
        yield "strong writes, 64 in flight, to etcd", paired(ours["64"], rival["64"]), ">= 1.5"
        yield "strong writes, 64 in flight, to JetStream R3", paired(ours["64"], nats["64"]), ">= 1"
        yield "strong writes, 1 in flight, to etcd", paired(ours["1"], rival["1"]), ">= 0.9"
        yield (
            "confirmed reads, 64 in flight, to etcd",
            paired(ours["read"], rival["read"]),
            ">= 1.5",
        )
        for node, figures in (
            ("leader, with the writers", [one.leader_us for one in ours["64"]]),
            ("follower", [one.follower_us for one in ours["64"]]),
        ):
            yield f"a strong write on the {node}: CPU us", median(figures), "<= 28"
        yield from changing_hands(nodes, leader)


def load(
    nodes: Sequence[Voter], leader: Voter, do: str, in_flight: int, seconds: float = ROUND_S
) -> Ours:
    before = spent(nodes)
    said = leader.ask(do, seconds=seconds, in_flight=in_flight, first=0, keys=KEYS)
    sleep(SETTLE_S)
    used = {name: (after - before[name]) * 1e6 for name, after in spent(nodes).items()}
    mine = used.pop(leader.name)
    return Ours(said, mine / said["count"], sum(used.values()) / len(used) / said["count"])


def show(what: str, ours: list[Ours], rivals: dict[str, list[Measured]]) -> None:
    p50 = median([one.said["p50_ms"] for one in ours])
    p99 = median([one.said["p99_ms"] for one in ours])
    leader, follower = (
        median([one.leader_us for one in ours]),
        median([one.follower_us for one in ours]),
    )
    print(
        f"  {what}: ours {median([one.rate for one in ours]):,.0f}/s, {p50:.2f} ms, p99 {p99:.1f} "
        f"ms, CPU us leader {leader:.0f}, follower {follower:.0f}, all {leader + 2 * follower:.0f}"
    )
    for name, figures in rivals.items():
        if figures:
            times = sorted(one for round_ in figures for one in round_.took)
            print(
                f"  {what}: {name} {median([one.rate for one in figures]):,.0f}/s, "
                f"{median(times) * 1e3:.2f} ms, p99 {times[len(times) * 99 // 100] * 1e3:.1f} ms, "
                f"CPU us of its three {median([one.cpu_us for one in figures]):.0f}"
            )


def paired(ours: Sequence[Ours], rival: Sequence[Measured]) -> float:
    return median([a.rate / b.rate for a, b in zip(ours, rival, strict=True)])


def changing_hands(nodes: list[Voter], leader: Voter) -> Iterator[tuple[str, float, str]]:
    """Another node writes while the leader hands over, and while it is killed."""
    other = next(node for node in nodes if node is not leader)
    other.begin("write", seconds=HANDED_OVER_S, in_flight=MANY, first=0, keys=KEYS)
    sleep(HANDED_OVER_S / 3)
    leader.ask("transfer")
    said = other.answer()
    yield "writes refused or queued while the leader hands over", said["queued"], "<= 0"
    yield "longest silence while it does, s", said["gap_s"], "-"
    leader = leader_of(nodes)
    other = next(node for node in nodes if node is not leader)
    other.begin("write", seconds=KILLED_S, in_flight=MANY, first=0, keys=KEYS)
    sleep(KILLED_S / 4)
    leader.kill()
    said = other.answer()
    yield "writes go on after the leader was killed, s", said["gap_s"], "< 4"


# --- what must not grow --------------------------------------------------------------------------


def growing(folder: Path) -> Iterator[tuple[str, float, str]]:
    """The fold, which alone meets what is stored: entities and history."""
    few, many = (fold_us(folder / f"grown-{size}", size) for size in GROWN)
    old = fold_us(folder / "history", GROWN[0], GROWN[1])
    print(
        f"  CPU us of the fold of a write, in runs of {RUN}: {few:.1f} with {GROWN[0]:,} entities, "
        f"{many:.1f} with {GROWN[1]:,}, {old:.1f} after {GROWN[1]:,} writes to {GROWN[0]:,}"
    )
    yield f"fold with {GROWN[1]:,} entities / with {GROWN[0]:,}", many / few, "<= 1.5"
    yield f"fold after {GROWN[1]:,} writes / after few", old / few, "<= 1.5"


def fold_us(home: Path, entities: int, writes: int = 0) -> float:
    """CPU of one write in the fold, once so many entities are there, after so many writes more."""
    with holdfast.open(home, peer="ana", create=True, sync="normal") as node:
        node.create_mesh(MESH)
        engine = node._engine
        row = QuorumRow(mesh=MESH, incarnation=1, tag=bytes(16), voter=1)
        engine.write("bench", lambda tx: tx.quorum_put(row))
        index = 0

        def fold(upto: int, most: int) -> None:
            nonlocal index
            while index < upto:
                run = [entry(number, entities) for number in range(index + 1, index + most + 1)]
                index += len(run)
                engine.write("bench", CommitRun(engine.ctx, MESH, run))

        fold(entities + writes, 1000)
        fold(index + 10 * RUN, RUN)
        runs = [
            [entry(number, entities) for number in range(first, first + RUN)]
            for first in range(index + 1, index + SAMPLE, RUN)
        ]
        begun = process_time()
        for run in runs:
            engine.write("bench", CommitRun(engine.ctx, MESH, run))
        return (process_time() - begun) / (len(runs) * RUN) * 1e6


def entry(number: int, entities: int) -> CommittedEntry:
    # Neighbours in the order are no neighbours among the entities.
    key = f"m{number * 7919 % entities}"
    id, name, body = (
        uuid7(1_700_000_000_000 + number, number.to_bytes(10, "big")),
        entity_name("mission", key),
        body_of(key, number),
    )
    envelope = Envelope(
        id=id,
        mesh=MESH,
        op="entity.change",
        entity=name,
        origin="ben",
        epoch=UNCOUNTED,
        seq=number,
        lamport=number,
        created_at=1_700_000_000_000,
        write_class="strong",
        state="intent",
        intent=id,
        fingerprint=intent_fingerprint("entity.change", name, body),
        body=body,
    )
    fence = FenceToken(1, 1, "ana", number)
    return CommittedEntry(encode(envelope), fence, 1_700_000_000_000, number)


def idle_groups(folder: Path) -> Iterator[tuple[str, float, str]]:
    """Writes of one group, alone in its process and beside many that have nothing to do."""
    node = Voter(folder / "ana")
    try:
        node.ask("share", others=0)
        node.ask("init", voters=[])
        node.ask("groups", first=0, count=1)
        alone, rest_alone = at_work(node)
        node.ask("groups", first=1, count=IDLE_GROUPS - 1)
        until(lambda: is_quiet(node))
        beside, rest = at_work(node)
    finally:
        node.close()
    print(
        f"  1 voter, CPU us of a write: {alone:.0f} beside 1 idle group, {beside:.0f} beside "
        f"{IDLE_GROUPS}; at rest {rest_alone * 100:.1f} % and {rest * 100:.1f} % of a core"
    )
    yield f"a write beside {IDLE_GROUPS} idle groups / beside one, CPU", beside / alone, "<= 1.5"


def at_work(node: Voter) -> tuple[float, float]:
    """CPU us of a write, without what the process uses at rest; and that, of one core."""
    begun, before = monotonic(), node.cpu_s()
    sleep(ROUND_S)
    rest = (node.cpu_s() - before) / (monotonic() - begun)
    before = node.cpu_s()
    said = node.ask("write", seconds=ROUND_S, in_flight=MANY, first=0, keys=KEYS)
    used = node.cpu_s() - before - rest * said["seconds"]
    return used / said["count"] * 1e6, rest


def is_quiet(node: Voter) -> bool:
    """Whether groups that have just begun are through with it."""
    before = node.cpu_s()
    sleep(1.0)
    return node.cpu_s() - before < 0.5
