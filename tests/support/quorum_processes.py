"""Three voters as processes of their own, and clients that ask them by HTTP.

    with three_voters(folder) as group:
        history = tell(group, calls=150, faults=[(40, lambda: group.leader().kill())])

Clients know nothing of Holdfast but its routes: they write, compare and read registers, which are
entities whose title is the value. No value is written twice, so a revision and its value are the
same thing. What they asked and heard is a history that `linearizability` judges.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, time_ns
from typing import IO, Any, Final
from uuid import UUID

from support.cli import Cli
from support.daemon import PATIENCE_S, Plain, ask, make_home, start
from support.linearizability import Call, Register, culprits, expect_linearizable, narrowed
from support.waiting import until

PATH: Final = "/v1/meshes/team/quorum"
NAMES: Final = ("ana", "bo", "cy")
CLIENTS: Final = 8
KEYS: Final = ("x", "y", "z", "u")
NEVER: Final = threading.Event()
SKEWED: Final = Path(__file__).parent / "skewed"
"""A folder with a `sitecustomize` that sets the wall clock of a process."""


class VoterProcess:
    """The daemon of one voter, as often as it is started."""

    def __init__(self, home: Path) -> None:
        self.home, self.name = home, home.name
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def unix(self) -> str:
        return f"unix:{self.home / 'api.sock'}"

    def begin(self, *, ahead_s: int = 0) -> subprocess.Popen[bytes]:
        """`ahead_s`: by how much its wall clock is ahead of the true one."""
        skewed = {"PYTHONPATH": str(SKEWED), "HOLDFAST_TEST_AHEAD_S": str(ahead_s)}
        env = skewed if ahead_s else None
        self.process = start(self.home, "--bus-listen", "127.0.0.1:0", env=env)
        return self.process

    def ready(self) -> None:
        """Returns when it serves."""
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        # A pipe that fills up would stop it.
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=_read_out, args=(stream,), daemon=True).start()

    def kill(self) -> None:
        """As a power cut would end the process."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(PATIENCE_S)

    def restart(self, *, ahead_s: int = 0) -> None:
        self.begin(ahead_s=ahead_s)
        self.ready()

    def is_there(self) -> bool:
        """Whether somebody listens on its socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.home / "api.sock")) == 0

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        process = self.process
        if process is None or process.poll() is not None:
            return
        for number in (signal.SIGCONT, signal.SIGTERM):
            process.send_signal(number)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    def ask(self, method: str, path: str, body: Any = None) -> Plain:
        raw = None if body is None else json.dumps(body).encode()
        return ask(self.unix, method, PATH + path, raw)

    def order(self) -> dict[str, Any]:
        """How it sees the quorum."""
        found: dict[str, Any] = self.ask("GET", "").json["order"]
        return found


@dataclass
class VoterGroup:
    """The voters of one mesh."""

    voters: dict[str, VoterProcess]
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def leader(self, but: VoterProcess | None = None, above: int = 0) -> VoterProcess:
        """Who leads by the word of the voters, once one of them says that it does; `but` is not
        asked, and terms up to `above` do not count.
        """
        found: list[VoterProcess] = []

        def look() -> bool:
            for voter in self.voters.values():
                if voter is not but:
                    order = voter.order()
                    if order["part"] == "coordinator" and order["lease_epoch"] > above:
                        found.append(voter)
            return bool(found)

        until(look)
        return found[0]


@contextmanager
def three_voters(folder: Path) -> Iterator[VoterGroup]:
    """Daemons of ana, bo and cy, who vote in the mesh `team`."""
    voters = {name: VoterProcess(folder / name) for name in NAMES}
    ana, *others = voters.values()
    clis = {name: Cli(voter.home) for name, voter in voters.items()}
    make_home(ana.home, "ana", "team")
    for voter in others:
        assert clis[voter.name]("init", "--peer", voter.name).code == 0
    clis["ana"]("mesh", "share", "team")
    try:
        for voter in voters.values():
            voter.begin()
        for voter in voters.values():
            voter.ready()
        for voter in others:
            invite = clis["ana"]("mesh", "invite", "team").out.strip()
            clis[voter.name]("mesh", "join", invite)
            clis["ana"]("mesh", "grant", voter.name, *_grants(), "--mesh", "team")
        clis["ana"]("quorum", "init", "team", "--voter", "bo", "--voter", "cy")
        yield VoterGroup(voters)
    finally:
        for voter in voters.values():
            voter.end()


def _read_out(stream: IO[bytes]) -> None:
    with stream:
        while stream.read(65536):
            pass


def _grants() -> list[str]:
    return [word for grant in ("read", "write", "vote") for word in ("--grant", grant)]


# --- clients -------------------------------------------------------------------------------------


class _Clients:
    """Eight that ask until so many calls were made."""

    def __init__(self, group: VoterGroup, calls: int, seed: int, prefix: str) -> None:
        self.group, self.prefix = group, prefix
        self.history: list[Call] = []
        self.intents: dict[str, int] = {}
        self.acknowledged: list[tuple[float, float]] = []
        """When writes began and were acknowledged."""
        self.problems: list[str] = []
        self._left = calls
        self._kept_back = calls // 4
        self._struck = threading.Event()
        self._lock = threading.Lock()
        self._seed = seed
        self._seen: dict[str, tuple[int, str | None]] = {}
        """What stood in a key when somebody looked last: revision and value."""

    def run(self, number: int) -> None:
        chance = random.Random(self._seed * CLIENTS + number)
        voters = list(self.group.voters.values())
        try:
            while self._take():
                # Most stay with one voter: one that stands still must not stop all clients.
                voter = voters[number % len(voters)]
                self._call(chance, voter, f"{self.prefix}{chance.choice(KEYS)}")
        except BaseException as error:
            self.problems.append(repr(error))
            raise

    def has_made(self, calls: int) -> bool:
        return len(self.history) >= calls or bool(self.problems)

    def all_faults_struck(self) -> None:
        """The last quarter of the calls waits for this: on a busy machine the clients would have
        made them all before the fault came.
        """
        self._struck.set()

    def _take(self) -> bool:
        with self._lock:
            self._left -= 1
            left = self._left
        if left < self._kept_back:
            assert self._struck.wait(PATIENCE_S), "a fault did not strike"
        return left >= 0

    def _call(self, chance: random.Random, voter: VoterProcess, key: str) -> None:
        id, draw = next(self.group.numbers), chance.random()
        while not voter.is_there():
            NEVER.wait(0.02)  # nobody listens there: nothing was asked yet
        began = monotonic()
        if draw < 0.4:
            asked: tuple[Any, ...] = ("read",)
            ended, answer, index = self._read(voter, key)
        else:
            base, old = self._seen.get(key, (0, None))
            is_cas = draw < 0.7
            asked = ("cas", old, str(id)) if is_cas else ("write", str(id))
            ended, answer, index = self._write(voter, key, id, base if is_cas else None)
        end = monotonic() if ended else None
        with self._lock:
            self.history.append(Call(id, key, began, end, asked, answer, index))
            if ended and index and asked[0] != "read":
                self.acknowledged.append((began, monotonic()))

    def _read(self, voter: VoterProcess, key: str) -> tuple[bool, Any, int | None]:
        answer = _asked(voter, "GET", f"/entities/mission/{key}")
        if answer is None or answer.status in (503, 504):
            return False, None, None
        if answer.status == 404:
            return True, None, 0
        assert answer.status == 200, answer
        assert answer.json["read"]["mode"] == "fresh", answer
        entity = answer.json["entity"]
        self._seen[key] = (entity["revision"], entity["fields"]["title"])
        return True, entity["fields"]["title"], _index(entity["fence"])

    def _write(
        self, voter: VoterProcess, key: str, id: int, base: int | None
    ) -> tuple[bool, Any, int | None]:
        intent = _uuid7(id)
        self.intents[intent] = id
        operation: dict[str, Any] = {"type": "mission", "id": key, "fields": {"title": str(id)}}
        if base is not None:
            operation["base"] = base
        body = {"id": intent, "operations": [operation], "timeout_ms": 20_000}
        answer = _asked(voter, "POST", "/entities", body)
        if answer is None or answer.status in (202, 503, 504):
            return False, None, None
        if answer.status == 409 and base is not None:
            assert answer.code == "revision_moved", answer
            return True, False, None
        assert answer.status == 200, answer
        assert answer.json["state"] == "committed", answer
        if not answer.json["revisions"]:
            # It met a newer write of the same entity and wrote nothing itself. The history takes it
            # for one that nobody knows of, which may as well never have happened.
            assert answer.json["outcome"] == "superseded", answer
            return False, None, None
        self._seen[key] = (answer.json["revisions"][0]["revision"], str(id))
        return True, None if base is None else True, _index(answer.json["fence"])


def _asked(voter: VoterProcess, method: str, path: str, body: Any = None) -> Plain | None:
    """None if no answer came: the daemon is dead, or dies."""
    try:
        return voter.ask(method, path, body)
    except (OSError, http.client.HTTPException):
        return None


def _index(fence: str) -> int:
    """Its place in the order: places count anew in every incarnation."""
    incarnation, _, sequence = fence.partition("@")[0].split(".")
    return int(incarnation) * 10**15 + int(sequence)


def _uuid7(number: int) -> str:
    ms = time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(8), "big") >> 2
    return str(UUID(int=(ms << 80) | (0x7000 | number & 0xFFF) << 64 | (0b10 << 62) | tail))


# --- a history -----------------------------------------------------------------------------------


@dataclass
class Told:
    """What came of one history."""

    history: list[Call]
    acknowledged: list[tuple[float, float]]
    marks: dict[str, float]
    """When faults struck."""

    def pause_after(self, mark: str) -> float:
        """Seconds from a fault until a write is acknowledged that began after it."""
        struck = self.marks[mark]
        return min(at for began, at in self.acknowledged if began > struck) - struck


Fault = tuple[str, int, Callable[[], None]]
"""Its name, after how many calls it strikes, and what it does."""


def tell(group: VoterGroup, *, calls: int, seed: int, prefix: str, faults: Sequence[Fault]) -> Told:
    """Lets clients ask while faults strike, waits until all voters agree, and judges."""
    clients = _Clients(group, calls, seed, prefix)
    threads = [threading.Thread(target=clients.run, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    marks: dict[str, float] = {}
    try:
        for name, after, strike in faults:
            until(partial(clients.has_made, after))
            marks[name] = monotonic()
            strike()
    finally:
        clients.all_faults_struck()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not clients.problems, clients.problems
    _judge(group, clients)
    return Told(clients.history, clients.acknowledged, marks)


def _waits_for_nothing(voter: VoterProcess) -> bool:
    return bool(voter.ask("GET", "").json["writes"]["pending"] == 0)


def _judge(group: VoterGroup, clients: _Clients) -> None:
    voters = list(group.voters.values())
    for voter in voters:
        # What had no majority waits on its disk, and is replayed: then nothing is open any more.
        until(partial(_waits_for_nothing, voter))
    committed: set[int] = set()
    for key in sorted({call.key for call in clients.history}):
        told = [_revisions(voter, key) for voter in voters]
        assert told[0] == told[1] == told[2], f"voters tell the past of {key} differently"
        ids = [clients.intents[intent] for _, intent in told[0]]
        assert len(ids) == len(set(ids)), f"a write to {key} happened twice"
        committed.update(ids)
        by_log = [(index, clients.intents[intent]) for index, intent in told[0]]
        # A comparison that failed has changed nothing, and stands in no history of an entity.
        calls = [one for one in clients.history if one.key == key and one.answer is not False]
        wrong = culprits(calls, by_log, Register())
        assert not wrong, "\n".join(wrong)
    expect_linearizable(narrowed(clients.history, committed), Register())


def _revisions(voter: VoterProcess, key: str) -> list[tuple[int, str]]:
    """(index, intent) of every revision of a register, by the word of one voter."""
    found: list[tuple[int, str]] = []
    after = 0
    while True:
        answer = voter.ask("GET", f"/history/mission/{key}?after={after}")
        if answer.status == 404:
            return []
        assert answer.status == 200, answer
        page = answer.json
        found += [(_index(one["fence"]), one["intent"]) for one in page["revisions"]]
        if page["next"] is None:
            return found
        after = page["next"]
