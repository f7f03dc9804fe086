"""Everything that takes part in a load: the broker, the nodes, and what happens to them."""

from __future__ import annotations

import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import holdfast
from holdfast.broker.operator import Operator
from holdfast.broker.settings import BrokerSettings
from holdfast.rules.keys import public_key
from holdfast.simulate.world.invariants import differences, rows
from holdfast.storage.files.home import HomePaths
from tools.loading import usage
from tools.loading.processes import Child
from tools.loading.user import MESH, QUEUE, TOPIC
from tools.loading.verdict import Verdict, judge

PEERS: Final = ("ana", "ben", "cai")
MORTAL: Final = "cai"
"""Is killed, like the broker; the others live as long as the load, so that a leak shows."""
SETTLE_S: Final = 300
VISIBILITY_MS: Final = 10_000
FRESH_S: Final = 5.0


class Field:
    """One load. `keep_s` is how long the broker keeps a message: all else follows from it."""

    def __init__(self, folder: Path, *, rate: float, keep_s: float, seed: str, dsn: str | None):
        self.folder, self._dsn, self.keep_s = folder, dsn, keep_s
        self._rng = random.Random(seed)
        self._place = f"127.0.0.1:{_free_port()}"
        self.journals = folder / "journals"
        self.journals.mkdir(parents=True)
        self.homes = {peer: folder / peer for peer in PEERS}
        keep_ms = ["--keep-ms", str(int(keep_s * 1000))]
        words = ["tools.loading.broker", "--store", str(folder / "hub"), "--tcp", self._place]
        environment = {} if dsn is None else {"HOLDFAST_BROKER_DSN": dsn}
        self.broker = Child("hub", [*words, *keep_ms], folder / "hub.err", **environment)
        self.nodes = {
            peer: Child(
                peer,
                [
                    *("tools.loading.node", str(self.homes[peer]), "--seed", seed),
                    *("--journal", str(self.journals), "--rate", str(rate / len(PEERS))),
                    *("--friends", *(other for other in PEERS if other != peer), *keep_ms),
                ],
                folder / f"{peer}.err",
            )
            for peer in PEERS
        }
        self.samples: dict[str, list[dict[str, float]]] = {name: [] for name in ("hub", *PEERS)}
        self.happened: Counter[str] = Counter()
        self._seqs: deque[tuple[float, int]] = deque()
        self._later: list[tuple[float, str, Callable[[], None]]] = []
        self._deck: list[Callable[[], None]] = []
        self._swept_at = 0.0
        self._spent: dict[str, tuple[int, float, float]] = {}

    # --- beginning -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The mesh is published by the first and joined by the others; then all go to work."""
        self.broker.start()
        with ExitStack() as open_homes:
            nodes = [
                open_homes.enter_context(holdfast.open(home, peer=peer, create=True))
                for peer, home in self.homes.items()
            ]
            nodes[0].create_mesh(MESH)
            owner = nodes[0].sharing
            owner.publish(MESH, broker=f"http://{self._place}")
            owner.declare(MESH, "topic", TOPIC)
            owner.declare(MESH, "queue", QUEUE, visibility_ms=VISIBILITY_MS)
            invite = owner.invite(MESH, uses=len(PEERS)).text
            for node in nodes[1:]:
                node.sharing.join(invite)
            for node in nodes:
                node.sharing.subscribe(MESH, TOPIC)
                node.sharing.members(MESH)  # names, for messages to members
        for child in self.nodes.values():
            child.start()

    def close(self) -> None:
        for child in (*self.nodes.values(), self.broker):
            child.close()

    # --- what happens --------------------------------------------------------------------------

    def trouble(self, *, rough: bool) -> None:
        """Something goes wrong. The broker only in rough times: who dies shows no leak."""
        if not self._deck:  # each kind comes in its turn, so that also a short load has them all
            self._deck = [self._offline, self._offline, self._kill_node]
            if rough:
                self._deck += [self._kill_broker, self._kill_broker, self._restart_broker]
            self._rng.shuffle(self._deck)
        self._deck.pop()()

    def _away_s(self) -> float:
        """How long a node is away: not so long that messages to it would rightly be gone."""
        return self._rng.uniform(0.05, 0.5) * self.keep_s

    def _after(self, name: str, act: Callable[[], None]) -> None:
        self._later.append((monotonic() + self._away_s(), name, act))

    def _is_awaited(self, name: str) -> bool:
        return any(who == name for _, who, _ in self._later)

    def _offline(self) -> None:
        peer = self._rng.choice(PEERS)
        child = self.nodes[peer]
        if not self._is_awaited(peer):
            self.happened["offline"] += 1
            child.tell("offline")
            self._after(peer, lambda: child.tell("online"))

    def _kill_node(self) -> None:
        child = self.nodes[MORTAL]
        if not self._is_awaited(MORTAL):
            self.happened["node killed"] += 1
            child.kill()
            self._after(MORTAL, child.start)

    def _kill_broker(self) -> None:
        if self.broker.is_up:
            self.happened["broker killed"] += 1
            self.broker.kill()
            self._after("hub", self.broker.start)

    def _restart_broker(self) -> None:
        if self.broker.is_up:
            self.happened["broker restarted"] += 1
            self.broker.end()
            self._after("hub", self.broker.start)

    def mend(self, *, all_of_it: bool = False) -> None:
        """What was away and has been for long enough comes back."""
        now = monotonic()
        due = [one for one in self._later if all_of_it or one[0] <= now]
        self._later = [one for one in self._later if one not in due]
        for _, _, act in due:
            act()

    # --- looking -------------------------------------------------------------------------------

    def look(self) -> None:
        """Once a second: checks that all processes are well, notes what they use, and sweeps."""
        for child in (*self.nodes.values(), self.broker):
            if not child.is_up and not self._is_awaited(child.name):
                raise RuntimeError(f"{child.name} has died: {child.errors()}")
        for peer, child in self.nodes.items():
            if child.is_up and child.status:
                if child.status["failed"]:
                    raise RuntimeError(f"the outbox of {peer} has given something up")
                home = usage.of_folder(self.homes[peer], "data.db")
                found = {**usage.of_process(child.pid), **home, **_figures(child.status)}
                if not child.status["online"]:  # without a daemon it needs fewer of them
                    del found["fds"], found["threads"]
                self.samples[peer].append(found)
                self._spend(child, found)
        if self.broker.is_up:
            self._look_at_broker()

    def _look_at_broker(self) -> None:
        may = self._may_sweep()
        answer = self.broker.ask("sweep" if may else "look")
        if may:
            self._swept_at = monotonic()
            self.happened["sweeps"] += 1
            self.happened["messages swept"] += answer["swept"]["messages"]
            self.happened["ids swept"] += answer["swept"]["dedupe"]
            self.happened["objects swept"] += answer["swept"]["objects"]
        if answer["meshes"]:
            self.mesh = answer["meshes"][0]
            self._seqs.append((monotonic(), self.mesh["seq"]))
        process = usage.of_process(self.broker.pid)
        files = {} if self._dsn else usage.of_folder(self.folder / "hub", "broker.db")
        counts = {name: float(answer["counts"][name]) for name in _COUNTED}
        self.samples["hub"].append({**process, **files, **counts})
        self._spend(self.broker, process)

    def _may_sweep(self) -> bool:
        """True if all nodes have what is old enough to go, and none will ask for older ids."""
        now = monotonic()
        if now - self._swept_at < self.keep_s / 6:
            return False
        for child in self.nodes.values():
            waits = child.status.get("oldest_ms", 0) / 1000
            if now - child.status_at > FRESH_S or waits > self.keep_s or not child.is_up:
                self.happened["sweeps put off"] += 1
                return False
        while len(self._seqs) > 1 and self._seqs[1][0] <= now - self.keep_s:
            self._seqs.popleft()
        # The first look behind the border saw at least all that is on the other side of it.
        border = next((seq for at, seq in self._seqs if at >= now - self.keep_s), None)
        if border is None or self.mesh["seq"] - self.lag < border:
            self.happened["sweeps put off"] += 1
            return False
        return True

    def _spend(self, child: Child, found: dict[str, float]) -> None:
        """Time on the processor, over all lives."""
        pid, now, before = self._spent.get(child.name, (child.pid, 0.0, 0.0))
        if pid != child.pid:
            before, now = before + now, 0.0
        self._spent[child.name] = child.pid, found.get("cpu", now), before

    @property
    def lag(self) -> int:
        """Of the node that is furthest behind. The broker notes that too, but only now and then."""
        cursors = [child.status.get("cursor", 0) for child in self.nodes.values()]
        behind: int = self.mesh["seq"] - min(cursors)
        return behind

    @property
    def cpu_s(self) -> float:
        return sum(now + before for _, now, before in self._spent.values())

    @property
    def written(self) -> int:
        return sum(len((self.journals / f"{peer}.acked").read_bytes()) // 37 for peer in PEERS)

    # --- the end -------------------------------------------------------------------------------

    def settle(self) -> None:
        """All nodes come back and stop writing; returns when everything is where it should be."""
        self.mend(all_of_it=True)
        for child in self.nodes.values():
            child.tell("quiet")
        give_up = monotonic() + SETTLE_S
        while monotonic() < give_up:
            sleep(0.5)
            self.look()
            counts = self.samples["hub"].pop()  # a load that has ended tells nothing of growth
            for peer in PEERS:
                self.samples[peer].pop()
            waiting = sum(child.status.get("waiting", 1) for child in self.nodes.values())
            if not waiting and not self.lag and not counts["ready"] + counts["taken"]:
                break
        else:
            raise RuntimeError(f"it does not settle: {[c.status for c in self.nodes.values()]}")
        for child in self.nodes.values():
            child.tell("end")
            child.end()
        self.broker.end()

    def verdict(self, *, with_growth: bool) -> Verdict:
        keys = {
            peer: public_key(HomePaths(home).identity.read_bytes()).hex()
            for peer, home in self.homes.items()
        }
        found = judge(self.journals, keys)
        problems = list(found.problems)
        operator = Operator(BrokerSettings(store=self.folder / "hub", dsn=self._dsn))
        problems += [f"orphan: {one}" for one in operator.orphans()]
        (mesh,) = operator.status()["meshes"]
        if (mesh["epoch"], mesh["seq"]) != (1, found.written):
            problems.append(f"{found.written} were written, and the broker is at {mesh}")
        problems += self._differences()
        for name, samples in self.samples.items() if with_growth else ():
            problems += usage.growth(name, samples)
        return found._replace(problems=problems)

    def _differences(self) -> list[str]:
        seen: list[Any] = []
        for home in self.homes.values():
            with holdfast.open(home) as node:
                seen.append(node._engine.read("load", lambda tx: rows(tx, MESH, dead=False)))
        return [
            f"{PEERS[0]} and {peer}: {line}"
            for peer, found in zip(PEERS[1:], seen[1:], strict=True)
            for line in differences(seen[0], found)
        ]


_COUNTED: Final = ("messages", "dedupe", "objects", "snapshots", "ready", "taken", "dead")


def _figures(status: dict[str, Any]) -> dict[str, float]:
    return {name: float(status[name]) for name in ("kept", "outbox", "inbox")}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
