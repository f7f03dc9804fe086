"""Two zones under a mixed load that does not end: what they take up stays level, nothing is lost.

    HOLDFAST_LOAD_S=3600 pytest -s -o faulthandler_timeout=0 tests/faults/test_zones_load.py

runs an hour of it and shows the figures. Without that it takes ten seconds, which is enough to
see a leak of a few kilobytes per request; small ones take longer to show.
"""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import monotonic
from types import TracebackType

import pytest

import holdfast
from faults.load import Driver, Ledger, Neighbour, Target, crowd
from faults.load_users import DRIVERS, Auditor, Away, Quitter, Watcher
from faults.usage import LOOKS_MIN, Sample, Watch, describe, growth, look
from faults.zone_process import MESH, PATIENCE_S, Zone
from faults.zone_process import LinkState as LinkSeen
from holdfast.node.library.node import open_node
from holdfast.node.links.registry import Links
from holdfast.node.settings import Settings
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import UnknownConsumer
from holdfast.rules.ids import id_text
from holdfast.rules.limits import KIB, WAL_BYTES_MAX
from holdfast.rules.links import LinkState, consumer_name
from holdfast.service.instance_lock import daemon_note
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.integrity import integrity
from holdfast.transport.http_protocol import HttpConnection
from support.daemon import ask, connect, make_home, running
from support.waiting import until

LOAD_S = float(os.environ.get("HOLDFAST_LOAD_S", "10"))
SEED = os.environ.get("HOLDFAST_SEED", "0")
NAMES = ("ana", "ben")
LINK = "other"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(LOAD_S * 2 + 600),
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to look into"),
]


class Field:
    """Two zones that pull from each other, and all who use them."""

    def __init__(self, folder: Path) -> None:
        self._ending = ExitStack()
        self.zones = {name: Zone(folder / name, name, "full") for name in NAMES}
        self.ledger = Ledger(NAMES)
        self.drivers: list[Driver] = []
        self.neighbours: list[Neighbour] = []
        self.watches: dict[str, Watch] = {}

    def start(self) -> None:
        for zone in self.zones.values():
            self._ending.callback(zone.close)
            zone.start()
        self.targets = {name: self._target(zone) for name, zone in self.zones.items()}
        for here, there in (NAMES, NAMES[::-1]):
            self._link(here, there)

    def _target(self, zone: Zone) -> Target:
        note = daemon_note(HomePaths(zone.home))
        assert note is not None
        with holdfast.open(zone.home) as node:
            token = Trust(node._engine, HomePaths(zone.home)).add_token("load", reads=[MESH])
        unix, tls = note.addresses
        return Target(zone.name, zone.home, note.pid, unix, tls, token)

    def _link(self, here: str, there: str) -> None:
        """While both are up, as an operator does it."""
        reader, source = self.zones[here], self.zones[there]
        with holdfast.open(source.home) as node:
            Trust(node._engine, HomePaths(source.home)).trust(reader.card, reads=[MESH])
        with holdfast.open(reader.home) as node:
            trust = Trust(node._engine, HomePaths(reader.home))
            trust.trust(source.card)
            links = Links(node._engine, trust)
            links.add(LINK, self.targets[there].tls, there, meshes=[MESH])
        reader.post("/v1/refresh", {})

    # --- the load ----------------------------------------------------------------------------

    def load(self) -> None:
        for target in self.targets.values():
            crowd(target)
        for target in self.targets.values():
            self.neighbours.append(Neighbour(target, self.ledger, SEED))
            self._ending.callback(self.neighbours[-1].close)
            for kind in DRIVERS:
                self.drivers.append(kind(target, self.ledger, SEED))
                self.drivers[-1].start()
        for target in self.targets.values():
            self.watches[target.name] = self._ending.enter_context(Watch(self._taking(target)))

    def _taking(self, target: Target) -> Callable[[float], Sample]:
        def take(at: float) -> Sample:
            log = self.zones[target.name].get("/v1/log")
            return look(
                target.pid,
                target.home,
                at=at,
                requests=self.requests(target),
                entries=log["head"],
                kept=log["head"] + 1 - log["first"],
            )

        return take

    def requests(self, target: Target) -> int:
        return sum(driver.requests for driver in self.drivers if driver.zone is target)

    def run(self, seconds: float) -> None:
        """For so long, and until everybody has had their share: a slow machine takes longer."""
        begun, never = monotonic(), threading.Event()
        while monotonic() - begun < seconds or not self._enough():
            never.wait(0.2)
            self.check()
            late = monotonic() - begun > seconds + PATIENCE_S
            assert not late, {driver.name: driver.turns for driver in self.drivers}

    def _enough(self) -> bool:
        return (
            all(neighbour.swept > 0 for neighbour in self.neighbours)
            and all(len(watch.samples) >= LOOKS_MIN for watch in self.watches.values())
            and all(watcher.heard > 0 for watcher in self.drivers if isinstance(watcher, Watcher))
            and all(reader.given_up > 0 for reader in self.drivers if isinstance(reader, Away))
            and all(driver.turns >= 5 for driver in self.drivers if not isinstance(driver, Watcher))
        )

    def check(self) -> None:
        """Everybody is well."""
        found = [driver.error for driver in self.drivers]
        found += [watch.error for watch in self.watches.values()]
        for error in filter(None, found):
            raise error
        for neighbour in self.neighbours:
            assert neighbour.is_alive(), f"the neighbour of {neighbour.zone.name} has died"

    def settle(self) -> None:
        """No more load; what is on its way arrives, and both links stand at the end."""
        for watch in self.watches.values():
            watch.end()
        self._end([driver for driver in self.drivers if not isinstance(driver, Auditor)])
        for neighbour in self.neighbours:
            neighbour.say("quiet", "quiet")
        self._until(self.ledger.is_settled, self._unsettled)
        for zone in self.zones.values():
            for reader in (Away.reader, Quitter.reader):
                with closing(zone.client()) as client, suppress(UnknownConsumer):
                    client.call("DELETE", f"/v1/consumers/{reader}")
        self._until(self._links_stand_at_the_end, self._places)
        self._end([driver for driver in self.drivers if isinstance(driver, Auditor)])

    def _until(self, holds: Callable[[], bool], told: Callable[[], object]) -> None:
        def well() -> bool:
            self.check()
            return holds()

        try:
            until(well)
        except AssertionError as error:
            raise AssertionError(f"{error}: {told()}") from None

    def _unsettled(self) -> str:
        return "; ".join(
            f"{name} lacks {sorted(missing)[:5]} of {len(missing)}, "
            f"and has {sorted(early)[:5]} of {len(early)} that nobody wrote"
            for name in NAMES
            for missing, early in [self.ledger.open(name)]
        )

    def _links_stand_at_the_end(self) -> bool:
        return all(
            link.state == LinkState.LIVE and link.lag == 0 and cursor == frontier == head
            for link, cursor, frontier, head in self._places()
        )

    def _places(self) -> list[tuple[LinkSeen, int, int, int]]:
        found = []
        for here, there in (NAMES, NAMES[::-1]):
            link = self.zones[here].links()[LINK]
            readers = self.zones[there].readers()
            frontier = readers[consumer_name(here, LINK)].frontier
            found.append((link, link.cursor, frontier, self.zones[there].head()))
        return found

    def _end(self, drivers: Sequence[Driver]) -> None:
        for driver in drivers:
            driver.ask_to_stop()
        for driver in drivers:
            driver.join()
        self.check()

    def empty(self) -> None:
        """Forgets all that every reader has confirmed; the neighbours go home."""
        for neighbour in self.neighbours:
            neighbour.say("empty", "emptied")
            assert neighbour.end() == 0
        self.neighbours.clear()

    # --- its end -----------------------------------------------------------------------------

    def stop_under_load(self, name: str) -> Ledger:
        """Ends a zone while everybody is at work on it; returns what they were told is there."""
        target, own = self.targets[name], Ledger([name])
        drivers = [kind(target, own, f"{SEED} end") for kind in DRIVERS if kind is not Auditor]
        for driver in drivers:
            driver.start()
        self.drivers = drivers
        self._until(lambda: all(driver.turns >= 5 for driver in drivers if _turns(driver)), str)
        target.leaving.set()
        code = self.zones[name].stop()
        assert code == 0, f"{name} ended with {code}: {self.zones[name].said.decode()}"
        self._end(drivers)
        return own

    def __enter__(self) -> Field:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for driver in self.drivers:
            driver.ask_to_stop()
        for driver in self.drivers:
            driver.join()
        for name, zone in self.zones.items():
            if error is not None:
                print(f"{name} said: {zone.said.decode()}")
        self._ending.close()


def _turns(driver: Driver) -> bool:
    """All but who only listens."""
    return not isinstance(driver, Watcher)


def check_level(field: Field) -> None:
    """Nothing grows, and the log that is written ahead stays within its bound."""
    for name, watch in field.watches.items():
        samples = watch.samples
        begun, ended = samples[0], samples[-1]
        seconds = ended.at - begun.at
        rates = (ended.entries - begun.entries) / seconds, ended.requests / seconds
        print(f"\n{name}: {ended.at:.0f} s, {ended.requests:,} requests, {ended.entries:,} entries")
        print(f"{rates[0]:.0f} entries/s, {rates[1]:.0f} requests/s\n{describe(samples)}")
        assert max(sample.wal for sample in samples) <= WAL_BYTES_MAX
        assert growth(samples) == []


def check_emptied(field: Field) -> None:
    """What nobody waits for is gone: no entry, no object, no half of one."""
    for target in field.targets.values():
        log = field.zones[target.name].get("/v1/log")
        seen = look(target.pid, target.home, at=0, requests=0, entries=0, kept=0)
        kept = log["head"] + 1 - log["first"]
        # The last entry stays, with what it names, so that the log never loses count.
        assert kept <= 1, f"{target.name} still has {kept} entries"
        assert seen.blobs <= kept, f"{target.name} still has {seen.blobs} objects"
        assert seen.drafts == 0, f"{target.name} still has {seen.drafts} halves of objects"


def check_home(field: Field, name: str, told: Ledger) -> None:
    """At rest, all that was acknowledged to the end is in it, and everything agrees."""
    home = field.zones[name].home
    with open_node(home) as node:
        there = {id_text(entry.id) for entry in node.log.range(node.log.head().first)}
        missing = told.open(name)[0] - there
        assert not missing, f"{name} acknowledged {len(missing)} facts and does not have them"
        assert audit(node) == []
    assert integrity(HomePaths(home).database, ours=True) == []


def test_R5_two_zones_under_mixed_load_stay_level_lose_nothing_and_end_well(
    tmp_path: Path,
) -> None:
    with Field(tmp_path) as field:
        field.start()
        field.load()
        field.run(LOAD_S)
        field.settle()
        check_level(field)
        field.empty()
        check_emptied(field)
        for name in NAMES:
            told = field.stop_under_load(name)
            check_home(field, name, told)


def test_R5_who_hangs_up_in_the_middle_of_an_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    """Half a megabyte was kept for each of them, for as long as a connection may idle."""
    with running(make_home(tmp_path / "ana"), Settings(listen="127.0.0.1:0")) as up:
        token = up.daemon.api.trust.add_token("load", reads=[MESH])
        sha = ask(up.unix, "PUT", "/v1/objects", random.randbytes(300_000)).json["sha256"]
        before = connections_kept()
        for _ in range(10):
            with closing(connect(up.tls)) as connection:
                said = {"authorization": f"Bearer {token}"}
                connection.request("GET", f"/v1/objects/{sha}", headers=said)
                assert len(connection.getresponse().read(1000)) == 1000
        until(lambda: connections_kept() <= before)


def connections_kept() -> int:
    gc.collect()
    return sum(type(found) is HttpConnection for found in gc.get_objects())


@pytest.mark.parametrize(
    ("leak", "found"),
    [({}, ""), ({"anon": 4 * KIB}, "anon"), ({"files": 0.01}, "files"), ({"kept": 10}, "kept")],
)
def test_R5_growth_is_told_from_noise(leak: dict[str, float], found: str) -> None:
    """Twenty looks at a node that answers 300 requests a second and loses so much with each."""
    rng = random.Random(found)
    level = {"rss": 9e7, "anon": 6e7, "files": 50, "threads": 14, "kept": 1200, "wal": 8e6}
    level |= {"database": 2e6, "blobs": 8, "drafts": 1, "entries": 0}
    samples = [
        Sample(
            at=second,
            requests=300 * second,
            **{
                what: int(at * rng.uniform(0.98, 1.02) + leak.get(what, 0) * 300 * second)
                for what, at in level.items()
            },
        )
        for second in range(20)
    ]
    told = growth(samples)
    assert [line.split()[0] for line in told] == found.split()
