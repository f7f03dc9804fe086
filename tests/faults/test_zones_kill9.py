"""Real zones as processes, killed, cut off, stalled and slowed while facts come in at all of them.

What is asked at the end, whatever happened: every fact that was acknowledged anywhere is in the log
of every zone, once, in the order of its origin; every reader's place is the end of what it reads,
on both sides; and nothing was sent back to where it came from.

A soak (tools/soak.py) runs many seeds; `HOLDFAST_ZONES_FACTOR=20` makes each run so much longer.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path

import pytest

from faults.zone_process import PATIENCE_S, Entry, Writer, Zones, writing
from holdfast.node.library.node import open_node
from holdfast.rules.limits import LINK_CONFIRM_MS
from holdfast.rules.links import consumer_name
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.integrity import integrity
from support.seeds import part, seeds

FACTOR = int(os.environ.get("HOLDFAST_ZONES_FACTOR", "1"))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600 * FACTOR)]

BOTH_WAYS = [("ana", "ben"), ("ben", "ana")]
EXTRA = 50
AUDITED_MAX = 50_000
"""Folding more than this anew would take longer than all the rest."""
RING = [("ben", "ana"), ("cem", "ben"), ("ana", "cem")]


# --- what must hold ------------------------------------------------------------------------------


def check_all_arrived(zones: Zones, writers: dict[str, Writer]) -> None:
    """Reads every log to its end, waiting for what is still on its way."""
    total = sum(len(writer.acknowledged) for writer in writers.values())
    assert total == sum(writer.total for writer in writers.values())
    logs = {name: zone.read(total) for name, zone in zones.zones.items()}
    for name, entries in logs.items():
        repeated = [id for id, times in Counter(entry.id for entry in entries).items() if times > 1]
        assert not repeated, f"{name} holds {len(repeated)} facts more than once"
        offsets = [entry.offset for entry in entries]
        assert offsets == list(range(1, len(entries) + 1)), f"the log of {name} has gaps"
        for origin, writer in writers.items():
            came = [entry for entry in entries if entry.origin == origin]
            assert [entry.id for entry in came] == writer.acknowledged, (
                f"{name} does not have what {origin} acknowledged, in its order"
            )
            assert _rises(came), f"{name} has the facts of {origin} out of order"
        assert len(entries) == total, f"{name} has facts that nobody wrote"


def _rises(entries: Sequence[Entry]) -> bool:
    """Two lives of one node may begin to count anew, in a later epoch; within one it only rises."""
    return all(a.seq < b.seq for a, b in pairwise(entries))


def check_frontiers(zones: Zones) -> None:
    """The reader's own place, what its source knows of it, and the end of the log are the same."""
    zones.connect_anew()
    for reader, source in zones.pairs:
        consumer, link = consumer_name(reader, f"from-{source}"), f"from-{source}"

        def places(
            reader: str = reader, source: str = source, consumer: str = consumer, link: str = link
        ) -> tuple[int, int, int]:
            return (
                zones[source].head(),
                zones[source].readers()[consumer].frontier,
                zones[reader].links()[link].cursor,
            )

        def lag(reader: str = reader, link: str = link) -> int | None:
            return zones[reader].links()[link].lag

        wait_until(zones, source, lambda: len(set(places())) == 1, lambda: f"{places()}")
        assert zones[source].readers()[consumer].lag == 0
        # The source knows of it by the question; the reader, only when the answer has come.
        wait_until(zones, source, lambda: lag() == 0, lambda: f"a lag of {lag()}")
        assert zones[reader].links()[link].quarantined == 0


def wait_until(zones: Zones, name: str, holds: Callable[[], bool], told: Callable[[], str]) -> None:
    """A confirmation makes no noise in the log, so it is looked for; a long poll sets the pace."""
    zone = zones[name]
    zone.post("/v1/consumers", {"consumer": "pace", "from": "now"})
    for _ in range(PATIENCE_S * 10):
        if holds():
            return
        ask = {"consumer": "pace", "from": zone.head() + 1, "wait_ms": 100}
        zone.post("/v1/facts/fetch", ask)
    raise AssertionError(f"it never held: {told()}")


def check_nothing_is_sent_back(zones: Zones) -> None:
    """Counted anew after a restart: each link brings what its zone did not have, and no more."""
    for zone in zones.zones.values():
        assert zone.stop() == 0, zone.said.decode()
        zone.start()
    heads = {name: zone.head() for name, zone in zones.zones.items()}
    extra = [Writer(zone, 1, EXTRA, "afterwards") for zone in zones.zones.values()]
    for writer in extra:
        writer.start()
        writer.join()
    for name, zone in zones.zones.items():
        zone.read(heads[name] + EXTRA * len(extra), start=heads[name] + 1)
    check_frontiers(zones)
    for name, zone in zones.zones.items():
        received = sum(link.received for link in zone.links().values())
        assert received == EXTRA * (len(extra) - 1), f"{name} was sent what it had"


def check_homes(zones: Zones) -> None:
    """At rest, everything in each home agrees."""
    for zone in zones.zones.values():
        assert zone.stop() == 0, zone.said.decode()
        assert integrity(HomePaths(zone.home).database, ours=True) == []
        with open_node(zone.home) as node:
            if node.log.head().offset < AUDITED_MAX:
                assert audit(node) == []


# --- what happens to them ------------------------------------------------------------------------


class Chaos:
    """One fault after the other, chosen by a seed."""

    def __init__(self, zones: Zones, writers: dict[str, Writer], seed: object) -> None:
        self.zones, self.writers = zones, writers
        self.rng = random.Random(f"chaos {seed}")
        self.kills = 0
        self._faults: list[Callable[[], None]] = [
            self._kill_one,
            self._kill_one,
            self._kill_all,
            self._cut,
            self._stall,
            self._slow,
            self._late,
            self._half_a_batch,
            self._half_a_request,
            self._garbage,
        ]

    def run(self, rounds: int) -> None:
        """Every fault in turn, in an order of its own; each somewhere in the midst of writing."""
        share = {name: -(-writer.batches // rounds) for name, writer in self.writers.items()}
        order: list[Callable[[], None]] = []
        while len(order) < rounds:
            order += self.rng.sample(self._faults, len(self._faults))
        for fault in order[:rounds]:
            for name, writer in self.writers.items():
                writer.allow(share[name])
            name = self.rng.choice(sorted(self.writers))
            writer = self.writers[name]
            within = share[name] * writer.size
            writer.wait_for(len(writer.acknowledged) + self.rng.randrange(within))
            fault()

    def _line(self) -> tuple[str, str]:
        return self.rng.choice(sorted(self.zones.lines))

    def _kill(self, name: str) -> None:
        self.zones[name].kill()
        self.kills += 1

    def _kill_one(self) -> None:
        name = self.rng.choice(sorted(self.zones.zones))
        self._kill(name)
        self.zones[name].start()

    def _kill_all(self) -> None:
        names = self.rng.sample(sorted(self.zones.zones), len(self.zones.zones))
        for name in names:
            self._kill(name)
        for name in names:
            self.zones[name].start()

    def _cut(self) -> None:
        for line in self.zones.lines.values():
            line.cut()

    def _stall(self) -> None:
        """Also while the source is killed: a connection that nobody ends."""
        reader, source = self._line()
        line = self.zones.lines[reader, source]
        line.stall()
        self._kill(source)
        self.zones[source].start()
        line.stall(False)

    def _slow(self) -> None:
        line = self.zones.lines[self._line()]
        line.throttle(300_000)
        self._kill_one()
        line.throttle(None)

    def _late(self) -> None:
        line = self.zones.lines[self._line()]
        line.delay(self.rng.randrange(5, 60))
        self._kill_one()
        line.delay(0)

    def _half_a_batch(self) -> None:
        self.zones.lines[self._line()].cut_after(self.rng.randrange(200_000))

    def _half_a_request(self) -> None:
        self.zones.lines[self._line()].cut_after(self.rng.randrange(2_000), "up")

    def _garbage(self) -> None:
        line = self.zones.lines[self._line()]
        line.garble()
        before = line.traffic().cuts
        line.cut_after(self.rng.randrange(1, 5_000))
        line.wait_for(lambda traffic: traffic.cuts > before, 1)
        line.garble(False)


def play(zones: Zones, seed: object, *, batches: int, size: int, rounds: int) -> Chaos:
    for zone in zones.zones.values():
        zone.start()
    with writing(zones, batches * FACTOR, size, seed) as writers:
        chaos = Chaos(zones, writers, seed)
        chaos.run(rounds * FACTOR)
    assert chaos.kills > 0, "nobody was killed: it proves little"
    check_all_arrived(zones, writers)
    check_nothing_is_sent_back(zones)
    check_homes(zones)
    return chaos


# --- the tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(1))
def test_Z7_two_zones_killed_and_cut_at_random_hold_every_acknowledged_fact_once(
    tmp_path: Path, seed: int
) -> None:
    with Zones(tmp_path, "ana", "ben", links=BOTH_WAYS) as zones:
        play(zones, seed, batches=50, size=120, rounds=10)


@pytest.mark.parametrize("seed", seeds(1))
def test_Z7_a_ring_of_three_zones_that_relay_is_killed_at_random_and_comes_round(
    tmp_path: Path, seed: int
) -> None:
    """Every fact reaches the zone behind by way of the one between, and stops before its own."""
    with Zones(tmp_path, "ana", "ben", "cem", links=RING, carries="any") as zones:
        play(zones, f"ring {seed}", batches=32, size=140, rounds=8)


@pytest.mark.parametrize("seed", seeds(1))
def test_Z7_zones_that_sync_less_start_over_in_a_new_epoch_and_still_hold_each_fact_once(
    tmp_path: Path, seed: int
) -> None:
    """With `normal` sync a crash may have lost the end of a log, so it counts on in a new epoch:
    every reader starts over, and knows what it has.
    """
    with Zones(tmp_path, "ana", "ben", links=BOTH_WAYS, sync="normal") as zones:
        play(zones, f"epoch {seed}", batches=40, size=100, rounds=5)
        with open_node(zones["ana"].home) as node:
            assert node.log.head().epoch > 1


def test_R2_a_hundred_thousand_facts_between_two_zones_that_are_killed(tmp_path: Path) -> None:
    with Zones(tmp_path, "ana", "ben", links=BOTH_WAYS) as zones:
        play(zones, "many", batches=20, size=2_500, rounds=8)


@pytest.mark.parametrize("how", ["stalled", "slow", "away"])
def test_Z7_appends_are_never_held_up_by_a_reader_and_its_lag_can_be_seen(
    tmp_path: Path, how: str
) -> None:
    with Zones(tmp_path, "ana", "ben", links=[("ben", "ana")]) as zones:
        for zone in zones.zones.values():
            zone.start()
        first, second = (Writer(zones["ana"], 5, 400, f"{how} {part}") for part in (1, 2))
        first.start()
        first.join()
        zones["ben"].read(first.total)
        check_frontiers(zones)
        line = zones.line("ben", "ana")
        if how == "stalled":
            line.stall()
        elif how == "slow":
            line.throttle(100)
        else:
            zones["ben"].kill()
        second.start()
        second.join()  # every one of them is acknowledged
        reader = zones["ana"].readers()[consumer_name("ben", "from-ana")]
        assert reader.lag == second.total, "seen at the source"
        zones.heal()
        zones["ben"].read(first.total + second.total)
        check_frontiers(zones)


PACES_S = tuple(share * LINK_CONFIRM_MS / 1000 for share in (0.1, 0.2, 0.4, 0.6, 3.0))
STEPS = [
    *(("ana", "register: after", 1), ("ana", "give: before", 2), ("ana", "give: after", 2)),
    *(("ana", "confirm: before", 1), ("ana", "confirm: after", 1)),
    *(("ana", "confirm on the way: after", 1), ("ben", "take: before", 2)),
    *(("ben", "log append: after", 2), ("ben", "cursor: before", 2), ("ben", "cursor: after", 2)),
    *(("ben", "store: after", 2), ("ben", "take: after", 2)),
]
"""Where a batch is on its way, half stored, stored and not confirmed, confirmed and not heard of:
at the source or at the receiver, and the how many-th time."""
STEP_DAYS = 3
"""After so many days every step has had its turn."""


@pytest.mark.parametrize("first", range(0, len(STEPS), STEP_DAYS))
def test_R2_a_zone_that_dies_at_a_named_step_of_a_link_costs_no_fact(
    tmp_path: Path, first: int
) -> None:
    """Each of them dies at another step tomorrow; in a soak, at all."""
    for number, (who, point, nth) in enumerate(part(STEPS[first : first + STEP_DAYS], STEP_DAYS)):
        _die_at_a_step(tmp_path / f"{number}", who, point, nth)


def _die_at_a_step(folder: Path, who: str, point: str, nth: int) -> None:
    folder.mkdir()
    with Zones(folder, "ana", "ben", links=[("ben", "ana")]) as zones:
        for name in ("ana", "ben"):
            if name != who:
                zones[name].start()
        zones[who].start_to_die(point, nth)
        writer = Writer(zones["ana"], 100, 24, point)
        writer.start()
        # Now fast, now slowly. What is stored while a fetch waits for news is confirmed by a call
        # of its own, a little later; a batch that comes before that is confirmed by the next fetch.
        for pace in islice(cycle(PACES_S), writer.batches):
            writer.allow(1)
            if zones[who].dies_within(pace):
                break
        assert zones[who].await_death() == -signal.SIGKILL
        zones[who].start()
        writer.join()
        check_all_arrived(zones, {"ana": writer})
        check_frontiers(zones)
        check_homes(zones)
