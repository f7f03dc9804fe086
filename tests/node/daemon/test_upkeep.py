"""A node that stays up looks after itself: by the clock, and at once when the disk fills up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.core.metrics import summarise
from holdfast.node.daemon.daemon import _lags
from holdfast.node.daemon.upkeep import NodeUpkeep
from holdfast.node.library.node import Node, open_node
from holdfast.node.links.registry import Links
from holdfast.node.upkeep.disk import DiskWatch, measure
from holdfast.node.upkeep.sweep import SweepReport, Ttl
from holdfast.rules.disk_pressure import Bounds
from holdfast.rules.errors import StoreFailed
from holdfast.rules.limits import MIB
from holdfast.storage.files.ballast import Ballast
from holdfast.storage.files.home import HomePaths
from support.broker_up import broker_at
from support.bus_homes import trust_of
from support.daemon import make_home, running
from support.envelopes import MESH
from support.source import HandClock
from support.waiting import until

NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)
SHARE = Bounds(room_bytes_min=0)
PATIENCE_S = 60
"""Longer than any machine needs; nothing waits for it to pass."""


@pytest.fixture
def node(tmp_path: Path, clock: HandClock) -> Iterator[Node]:
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True, sync="normal", source=clock) as made:
        made.create_mesh(MESH)
        yield made


def watch(node: Node, limit: int | None = None) -> DiskWatch:
    paths = node._opened.paths
    return DiskWatch(
        node._engine, paths, limit, bounds=SHARE, ballast=Ballast(paths.root, size=65536)
    )


class Time:
    """A clock for `turn`, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """An upkeep that is driven by `turn`, with what it did."""

    def __init__(self, node: Node, disk: DiskWatch, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = Time()
        self.looks = 0
        self.sweeps: list[SweepReport] = []
        real = disk.look

        def look() -> object:
            self.looks += 1
            return real()

        monkeypatch.setattr(disk, "look", look)
        self.upkeep = NodeUpkeep(
            node,
            disk,
            ttl=lambda: NOW,
            look_ms=5_000,
            sweep_ms=3_600_000,
            pressed_ms=60_000,
            line_ms=60_000,
            lags=lambda: {"sync": {MESH: 3}, "links": {"north": None}},
            on_sweep=self.sweeps.append,
            clock=self.time,
        )
        self.upkeep._next_look, self.upkeep._next_sweep = 5.0, 3600.0
        self.upkeep._next_line = 60.0

    def at(self, seconds: float) -> tuple[int, int]:
        """How many looks and sweeps a turn at that time makes."""
        self.time.now = seconds
        looks, sweeps = self.looks, len(self.sweeps)
        self.upkeep.turn()
        return self.looks - looks, len(self.sweeps) - sweeps


def test_Z7_looks_and_sweeps_come_when_they_are_due(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(node, watch(node), monkeypatch)
    assert kept.at(4.9) == (0, 0)
    assert kept.at(5.0) == (1, 0)
    assert kept.at(9.9) == (0, 0)
    assert kept.at(3599.0) == (1, 0)
    assert kept.at(3600.0) == (0, 1)
    assert kept.at(7199.9) == (1, 0)
    assert kept.at(7200.0) == (0, 1)


def test_S13_a_line_of_metrics_comes_every_minute_with_how_far_the_node_is_behind(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = node._opened.paths.metrics
    kept = Kept(node, watch(node), monkeypatch)
    told = []
    for seconds in (59.9, 60.0, 119.9, 120.0):
        kept.at(seconds)
        told.append(path.read_text().count('"line":"running"'))
    assert told == [0, 1, 1, 2]
    last = summarise(path)["lags"]
    assert (last["sync"], last["links"]) == ({MESH: 3}, {"north": None})


def test_S13_a_daemon_says_how_far_its_meshes_and_links_are_behind(tmp_path: Path) -> None:
    home = make_home(tmp_path / "ana", "ana", "alone", "shared")
    with broker_at(tmp_path / "hub") as hub:
        with open_node(home) as ana, open_node(make_home(tmp_path / "bo", "bo")) as bo:
            ana.sharing.publish("shared", broker=hub.url)
            trust = trust_of(ana)
            trust.trust(trust_of(bo).card())
            Links(ana._engine, trust).add("bo", "https://127.0.0.1:1", "bo", meshes=["alone"])
        with running(home) as up:
            behind = {"sync": {"shared": 0}, "links": {"bo": None}}
            until(lambda: _lags(up.daemon.api) == behind)


def test_Z7_a_disk_that_fills_up_is_swept_at_once_and_then_every_minute(
    node: Node, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = watch(node, 4 * MIB)
    kept = Kept(node, disk, monkeypatch)
    mesh = node.mesh(MESH)
    node.log.add_consumer("reader")
    while disk.look().level == "ok":
        mesh.facts.append("s", "p", "x" * 60_000)
    assert kept.at(1.0) == (0, 1), "nothing went, so there is nothing to look at"
    assert kept.sweeps[-1].log_entries == 0, "the reader has not confirmed"
    assert kept.at(60.9)[1] == 0
    node.log.confirm("reader", node.log.head().offset)
    clock.advance(1)
    assert kept.at(61.0)[1] == 1
    assert kept.sweeps[-1].log_entries > 20
    assert disk.last.level == "ok", "it looked again after what went"
    assert kept.at(122.0)[1] == 0, "back to every hour"


def test_Z7_a_sweep_that_was_asked_for_comes_with_the_next_turn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(node, watch(node), monkeypatch)
    kept.upkeep.sweep_now()
    assert kept.at(0.1) == (0, 1)
    assert kept.at(0.2) == (0, 0)


@pytest.mark.parametrize(
    "error", [StoreFailed("the disk failed"), OSError("the disk failed")], ids=["ours", "strange"]
)
def test_Z7_what_fails_is_told_and_tried_again(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    kept = Kept(node, watch(node), monkeypatch)

    def fail(ttl: Ttl) -> SweepReport:
        raise error

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, logger="holdfast"):
        broken.setattr(node, "sweep", fail)
        assert kept.at(3600.0) == (1, 0)
    assert "sweeping of" in caplog.text
    assert "the disk failed" in caplog.text
    assert kept.at(7200.0) == (1, 1)


def test_Z7_a_reader_that_declared_its_patience_is_retired_by_the_upkeep(
    node: Node, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(node, watch(node), monkeypatch)
    node.log.add_consumer("gone", retire_ms=1000)
    node.log.add_consumer("there")
    node.mesh(MESH).facts.append("s", "p", 1)
    clock.advance(1001)
    kept.at(3600.0)
    assert kept.sweeps[-1].consumers == ("gone",)
    assert [row.name for row in node.log.consumers()] == ["there"]


def test_Z7_the_thread_sweeps_when_a_write_meets_the_end_and_stops_when_told(node: Node) -> None:
    disk = watch(node)
    swept = threading.Event()
    upkeep = NodeUpkeep(node, disk, ttl=lambda: NOW, on_sweep=lambda _: swept.set())
    upkeep.start()
    assert disk.ballast.present(), "looked at before anything is let in"
    assert node._engine.admit is not None
    disk.relieve()
    assert swept.wait(PATIENCE_S)
    assert upkeep.stop(PATIENCE_S)
    assert node._engine.admit is None
    assert upkeep.stop(PATIENCE_S), "twice is once"


def test_Z7_the_thread_keeps_its_times_by_itself(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, swept = threading.Semaphore(0), threading.Semaphore(0)
    disk = watch(node)

    def look(paths: HomePaths) -> tuple[int, int]:
        looked.release()
        return measure(paths)

    monkeypatch.setattr("holdfast.node.upkeep.disk.measure", look)
    upkeep = NodeUpkeep(node, disk, look_ms=1, sweep_ms=2, on_sweep=lambda _: swept.release())
    upkeep.start()
    for _ in range(3):
        assert looked.acquire(timeout=PATIENCE_S)
        assert swept.acquire(timeout=PATIENCE_S)
    assert upkeep.stop(PATIENCE_S)


def test_Z7_stopping_says_when_a_sweep_did_not_end_in_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(ttl: Ttl) -> SweepReport:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return SweepReport()

    monkeypatch.setattr(node, "sweep", slow)
    upkeep = NodeUpkeep(node, watch(node))
    upkeep.start()
    upkeep.sweep_now()
    assert begun.wait(PATIENCE_S)
    assert upkeep.stop(0) is False
    go_on.set()
    assert upkeep.stop(PATIENCE_S) is True
