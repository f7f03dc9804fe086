"""Real daemons that pull from each other over TLS."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.node.links.registry import Links
from holdfast.node.links.status import LinkStatus
from holdfast.node.recovery import backup
from holdfast.node.settings import Settings
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.limits import OBJECT_RANGE_BYTES
from holdfast.rules.links import LinkState
from holdfast.transport.fault_proxy import FaultProxy
from support.daemon import PATIENCE_S, UpInThread, make_home, running

MESH = "team"


class Zone:
    """One node that is served."""

    def __init__(self, map_: Map, name: str, up: UpInThread, ending: ExitStack) -> None:
        self._map, self.name, self._ending = map_, name, ending
        self.watch(up)

    def watch(self, up: UpInThread) -> None:
        self.up, self.api = up, up.daemon.api
        self.api.engine.store.on_commit(self._map.tell)
        link_manager = self.api.link_manager
        assert link_manager is not None
        told = link_manager._on_change
        assert told is not None

        def tell(status: LinkStatus) -> None:
            told(status)
            self._map.tell()

        link_manager._on_change = tell

    @property
    def node(self) -> Node:
        return self.api.node

    @property
    def team(self) -> Mesh:
        return self.node.mesh(MESH)

    @property
    def links(self) -> Links:
        return Links(self.api.engine, self.api.trust)

    def trusts(self, other: Zone, *reads: str) -> None:
        self.api.trust.trust(other.api.trust.card(), reads=reads)

    def pulls(self, source: Zone, **settings: Any) -> None:
        """Trusts and links, both ends."""
        source.trusts(self, MESH)
        self.trusts(source)
        self.links.add(source.name, source.up.tls, source.name, meshes=[MESH], **settings)
        self.refresh()

    def refresh(self) -> None:
        assert self.api.link_manager is not None
        self.api.link_manager.refresh()

    def write(self, *subjects: str) -> None:
        for subject in subjects:
            self.team.facts.append(subject, "by", self.name)

    def subjects(self) -> list[str]:
        return [entry.entity for entry in self.node.log.range()]

    def status(self, link: str) -> LinkStatus:
        assert self.api.link_manager is not None
        return next(found for found in self.api.link_manager.status() if found.name == link)

    def counts(self, link: str) -> tuple[int, int, int]:
        """What it received, and what of that was new, or known."""
        status = self.status(link)
        return status.received, status.new, status.known

    def frontier(self, reader: str) -> int:
        """How far a reader has confirmed our log."""
        found = {row.name: row.frontier for row in self.node.log.consumers()}
        return found.get(reader, -1)

    def down(self) -> None:
        self._ending.close()

    def again(self) -> None:
        """Serves the same home at the same place."""
        port = self.up.tls.rpartition(":")[2]
        up = self._ending.enter_context(running(self.up.home, _settings(int(port))))
        self.watch(up)


class Map:
    """The zones of a test, and how to wait for what happens in any of them."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._folder, self._ending = folder, ending
        self._moved = threading.Condition()

    def zone(self, name: str) -> Zone:
        home = make_home(self._folder / name, name, MESH)
        ending = self._ending.enter_context(ExitStack())
        return Zone(self, name, ending.enter_context(running(home, _settings())), ending)

    def tell(self, *_: object) -> None:
        with self._moved:
            self._moved.notify_all()

    def until(self, so: Callable[[], Any]) -> None:
        with self._moved:
            assert self._moved.wait_for(so, PATIENCE_S), "it did not come to that"


def _settings(port: int = 0) -> Settings:
    return Settings(listen=f"127.0.0.1:{port}")


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Map]:
    with ExitStack() as ending:
        yield Map(tmp_path, ending)


def test_Q14_audit_events_come_by_a_link_and_telemetry_does_not(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    for number in range(3):
        bob.team.audit.append("runAuditEvents", number)
        bob.team.telemetry.set("run", f"{number}", "stays-with-bob")
    ana.pulls(bob)
    zones.until(lambda: len(list(ana.team.audit.list("runAuditEvents"))) == 3)
    bob.team.audit.append("runAuditEvents", "live")
    zones.until(lambda: len(list(ana.team.audit.list("runAuditEvents"))) == 4)
    (chain,) = ana.team.audit.verify()
    assert (chain.origin, chain.last, chain.sound, chain.gapless) == ("bob", 4, True, True)
    assert list(ana.team.telemetry.list()) == []
    ana.down()
    files = [path.read_bytes() for path in ana.up.home.rglob("*") if path.is_file()]
    assert not any(b"stays-with-bob" in held for held in files)


def test_Z6_two_zones_pull_from_each_other_and_nothing_goes_round(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    ana.write("a1", "a2")
    ana.pulls(bob, carries=["any"])
    bob.pulls(ana, carries=["any"])
    bob.write("b1", "b2", "b3")
    everything = {"a1", "a2", "b1", "b2", "b3"}
    zones.until(lambda: set(ana.subjects()) == set(bob.subjects()) == everything)
    ana.write("a3")
    zones.until(lambda: len(bob.subjects()) == 6)
    bob.write("b4")
    zones.until(lambda: len(ana.subjects()) == 7)
    assert sorted(ana.subjects()) == sorted(bob.subjects())
    zones.until(lambda: ana.counts("bob") == (4, 4, 0) and bob.counts("ana") == (3, 3, 0))


def test_Z6_the_order_of_each_origin_is_kept(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    names = [f"a{n:03}" for n in range(300)]
    for name in names:
        ana.write(name)
    zones.until(lambda: len(bob.subjects()) == 300)
    assert bob.subjects() == names


def test_Z8_a_relay_brings_only_what_the_link_says(zones: Map) -> None:
    plant, relay, office = (zones.zone(name) for name in ("plant", "relay", "office"))
    relay.pulls(plant)
    office.pulls(relay)
    plant.write("p1")
    zones.until(lambda: relay.subjects() == ["p1"])
    relay.write("r1")
    zones.until(lambda: "r1" in office.subjects())
    assert office.subjects() == ["r1"]
    # The office says that the relay may carry the plant, and gets the past too.
    office.links.remove("relay")
    office.links.add("relay", relay.up.tls, "relay", meshes=[MESH], carries=["own", "plant"])
    office.refresh()
    zones.until(lambda: sorted(office.subjects()) == ["p1", "r1"])
    origins = {entry.entity: entry.origin for entry in office.node.log.range()}
    assert origins == {"p1": "plant", "r1": "relay"}


def test_Z6_in_a_ring_everything_arrives_everywhere_once(zones: Map) -> None:
    names = ("ana", "bob", "cyn")
    ring = [zones.zone(name) for name in names]
    for n, zone in enumerate(ring):
        zone.pulls(ring[n - 1], carries=["any"])
    for n in range(5):
        for zone in ring:
            zone.write(f"{zone.name}{n}")
    zones.until(lambda: all(len(zone.subjects()) == 15 for zone in ring))
    assert all(len(set(zone.subjects())) == 15 for zone in ring)
    zones.until(
        lambda: all(zone.counts(names[n - 1]) == (10, 10, 0) for n, zone in enumerate(ring))
    )


def test_Z7_what_a_filter_leaves_out_is_confirmed_and_can_be_forgotten(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    ana.team.state.set("k", 1)
    ana.write("noise1", "noise2", "pump:1")
    bob.pulls(ana, subjects=["pump:"], classes=["facts"])
    zones.until(lambda: ana.frontier("zone:bob/ana") == 4)
    ana.write("noise3", "pump:2", "noise4", "pump:3")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 8)
    assert bob.subjects() == ["pump:1", "pump:2", "pump:3"]
    assert bob.status("ana").lag == 0
    assert ana.node.sweep(Ttl(log_ms=0)).log_entries == 7


def test_Z2_content_is_here_before_what_names_it(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    content = bytes(range(251)) * (OBJECT_RANGE_BYTES // 251 * 2)
    assert len(content) > OBJECT_RANGE_BYTES
    ana.team.files.share("big.bin", content)
    ana.team.files.share("small.txt", b"hello")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 2)
    (big, small) = bob.team.files.list(peer="ana")
    assert (big.here, small.here) == (True, True)
    assert bob.team.files.read("big.bin", peer="ana") == content
    status = bob.status("ana")
    assert (status.objects_pulled, status.objects_missing) == (1, 0)


def test_Z6_a_link_can_be_paused_resumed_and_removed_while_it_works(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: bob.subjects() == ["a1"])
    bob.links.pause("ana")
    bob.refresh()
    zones.until(lambda: bob.status("ana").state is LinkState.PAUSED)
    ana.write("a2")
    bob.links.resume("ana")
    bob.refresh()
    zones.until(lambda: bob.subjects() == ["a1", "a2"])
    removed = bob.links.remove("ana")
    assert removed.told, removed.why_not
    bob.refresh()
    assert ana.frontier("zone:bob/ana") == -1
    ana.write("a3")
    assert bob.subjects() == ["a1", "a2"]


def test_Z7_a_source_that_comes_back_is_read_on(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: bob.subjects() == ["a1"])
    ana.down()
    zones.until(lambda: bob.status("ana").state is LinkState.WAITING)
    error = bob.status("ana").last_error
    assert error is not None
    assert error.code == "unreachable"
    bob.write("b1")  # nobody is held up
    ana.again()
    ana.write("a2")
    bob.refresh()
    zones.until(lambda: bob.subjects() == ["a1", "b1", "a2"])
    zones.until(lambda: bob.status("ana").state is LinkState.LIVE)
    assert bob.status("ana").known == 0


def test_Z7_a_reader_that_comes_back_reads_on(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 1)
    bob.down()
    ana.write("a2", "a3")
    bob.again()
    zones.until(lambda: ana.frontier("zone:bob/ana") == 3)
    assert bob.subjects() == ["a1", "a2", "a3"]
    assert bob.status("ana").known == 0


def test_Z8_both_ends_change_their_keys_while_the_link_works(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: bob.subjects() == ["a1"])
    for ours, theirs in ((ana, bob), (bob, ana)):
        old = ours.api.trust.card()
        theirs.api.trust.trust(ours.api.trust.make_next())
        ours.api.trust.switch()
        theirs.api.trust.revoke(ours.name, key=old)
        theirs.refresh()
        ours.refresh()
        ana.write(f"after {ours.name}")
        zones.until(lambda: bob.subjects()[-1] == ana.subjects()[-1])
    assert bob.subjects() == ["a1", "after ana", "after bob"]


def test_Z8_a_zone_that_is_blocked_is_not_read_any_more(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: bob.subjects() == ["a1"])
    bob.api.trust.block("ana")
    bob.refresh()
    zones.until(lambda: bob.status("ana").state is LinkState.REFUSED)
    ana.write("a2")
    assert bob.subjects() == ["a1"]
    bob.api.trust.trust(ana.api.trust.card())
    bob.refresh()
    zones.until(lambda: bob.subjects() == ["a1", "a2"])


def test_Z8_a_reader_without_a_grant_is_told_so(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.trusts(ana)
    bob.links.add("ana", ana.up.tls, "ana", meshes=[MESH])
    bob.refresh()
    zones.until(lambda: bob.status("ana").state is LinkState.REFUSED)
    error = bob.status("ana").last_error
    assert error is not None
    assert error.code == "zone_not_trusted"
    ana.trusts(bob, MESH)
    bob.refresh()
    ana.write("a1")
    zones.until(lambda: bob.subjects() == ["a1"])


def test_Z6_a_source_that_was_restored_is_read_from_its_beginning(
    zones: Map, tmp_path: Path
) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1", "a2")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 2)
    backup.backup(ana.node, tmp_path / "backup")
    ana.write("a3", "a4")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 4)
    ana.down()
    backup.restore(tmp_path / "backup", ana.up.home, force=True)
    ana.again()
    ana.write("b3")
    bob.refresh()
    zones.until(lambda: "b3" in bob.subjects())
    # What the restored one has lost is safe here; what it wrote under the same offset is, too.
    assert bob.subjects() == ["a1", "a2", "a3", "a4", "b3"]
    zones.until(lambda: bob.status("ana").state is LinkState.LIVE)
    status = bob.status("ana")
    assert (status.epoch, status.cursor, status.known) == (2, 3, 2)


def test_Z5_what_is_gone_is_skipped_only_when_somebody_says_so(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 1)
    bob.down()
    ana.write("a2", "a3", "a4")
    ana.node.log.retire("zone:bob/ana")
    assert ana.node.sweep(Ttl(log_ms=0)).log_entries == 3
    bob.again()
    zones.until(lambda: bob.status("ana").state is LinkState.TRUNCATED)
    assert bob.subjects() == ["a1"]
    view = bob.links.resume("ana", skip_missing=True)
    assert view.cursor == 3
    bob.refresh()
    zones.until(lambda: bob.subjects() == ["a1", "a4"])


def test_Z5_a_link_whose_source_has_truncated_takes_a_snapshot_and_goes_on(zones: Map) -> None:
    """Nobody is asked: files with their content, what was replaced, what was deleted."""
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.team.state.set("gone", 1)
    zones.until(lambda: ana.frontier("zone:bob/ana") == 1)
    bob.down()
    large = bytes(OBJECT_RANGE_BYTES + 1)
    ana.team.state.delete("gone")
    for value in range(700):
        ana.team.state.set(f"k{value % 650}", value)
    ana.team.files.share("large.bin", large)
    ana.team.memory.set("m", [1])
    ana.node.log.retire("zone:bob/ana")
    assert ana.node.sweep(Ttl(log_ms=0)).log_entries > 700
    bob.again()
    head = ana.node.log.head().offset
    zones.until(lambda: ana.frontier("zone:bob/ana") == head)
    assert [*bob.team.state.list()] == [*ana.team.state.list()]
    assert bob.team.state.get("gone") is None
    assert bob.team.files.read("large.bin", peer="ana") == large
    assert bob.status("ana").snapshot_rows == 652
    ana.write("next")
    zones.until(lambda: bob.subjects()[-1] == "next")
    assert bob.status("ana").quarantined == 0


def test_Z5_a_new_link_gets_what_the_tables_of_its_source_show(zones: Map) -> None:
    """What the log has forgotten before it was added, it does not owe; but what is there, comes."""
    ana, bob = zones.zone("ana"), zones.zone("bob")
    ana.write("a fact that is gone")
    for value in range(5):
        ana.team.state.set(f"k{value % 3}", value)
    assert ana.node.sweep(Ttl(log_ms=0)).log_entries == 5
    bob.pulls(ana)
    zones.until(lambda: ana.frontier("zone:bob/ana") == 6)
    assert [*bob.team.state.list()] == [*ana.team.state.list()]
    assert bob.status("ana").state is LinkState.LIVE
    assert "a fact that is gone" not in bob.subjects()


def test_Z7_appends_are_not_held_up_by_a_reader_that_is_away(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    ana.write("a1")
    zones.until(lambda: ana.frontier("zone:bob/ana") == 1)
    bob.down()
    ana.write(*[f"more{n}" for n in range(50)])
    (reader,) = ana.node.log.consumers()
    assert reader.lag == 50
    assert ana.node.sweep(Ttl(log_ms=0)).log_entries == 1
    bob.again()
    zones.until(lambda: len(bob.subjects()) == 51)


def test_Z7_what_another_process_writes_is_pulled_too(zones: Map) -> None:
    ana, bob = zones.zone("ana"), zones.zone("bob")
    bob.pulls(ana)
    zones.until(lambda: bob.status("ana").state is LinkState.LIVE)
    with open_node(ana.up.home, sync="normal") as other:
        other.mesh(MESH).facts.append("elsewhere", "is", 1)
    zones.until(lambda: bob.subjects() == ["elsewhere"])


@pytest.mark.parametrize("slow", [True, False])
def test_Z2_batches_are_compressed_where_the_line_is_slow(
    zones: Map, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr("holdfast.rules.links.COMPRESS_JUDGED_BYTES", 1)
    monkeypatch.setattr("holdfast.rules.links.COMPRESS_BYTES_PER_S", 10**12 if slow else 0)
    plant, office = zones.zone("plant"), zones.zone("office")
    plant.trusts(office, MESH)
    office.trusts(plant)
    port = int(plant.up.tls.rpartition(":")[2])
    with FaultProxy(("127.0.0.1", port)) as line:
        office.links.add("plant", f"https://127.0.0.1:{line.address[1]}", "plant", meshes=[MESH])
        office.refresh()
        plant.write("first")
        zones.until(lambda: office.counts("plant")[1] == 1)  # by now the line is judged
        before = line.traffic().down
        plant.team.facts.append("long", "is", "much the same " * 10_000)
        zones.until(lambda: office.counts("plant")[1] == 2)
        came = line.traffic().down - before
    assert (came < 100_000) is slow


def test_Z7_a_link_recovers_by_itself_from_a_line_that_was_garbled(zones: Map) -> None:
    plant, office = zones.zone("plant"), zones.zone("office")
    plant.trusts(office, MESH)
    office.trusts(plant)
    port = int(plant.up.tls.rpartition(":")[2])
    with FaultProxy(("127.0.0.1", port)) as line:
        office.links.add("plant", f"https://127.0.0.1:{line.address[1]}", "plant", meshes=[MESH])
        office.refresh()
        plant.write("before")
        zones.until(lambda: office.subjects() == ["before"])
        line.garble()
        plant.write("meanwhile")  # what answers the waiting fetch is garbled
        zones.until(lambda: office.status("plant").attempts > 0)
        line.heal()
        # Nobody nudges it.
        zones.until(lambda: office.subjects() == ["before", "meanwhile"])
        zones.until(lambda: office.status("plant").state is LinkState.LIVE)
