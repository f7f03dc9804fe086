"""A small disk, really mounted: refused ahead of its end, and a way back from the last byte."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.library.aio import AsyncNode
from holdfast.node.library.node import open_node
from holdfast.node.upkeep.disk import DiskWatch
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.disk_pressure import Bounds
from holdfast.rules.errors import DiskFull
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files.ballast import free_bytes
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.integrity import integrity
from support.envelopes import MESH
from support.small_disk import mounted
from support.source import HandClock

pytestmark = pytest.mark.faults

SIZE_KB = 176 * 1024
OTHERS = 64 * 1024 * 1024
"""What somebody else has on the same disk from the start."""
SHARE = Bounds(room_bytes_min=0)
NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)
VALUE = "v" * 200_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, SIZE_KB) as place:
        yield place


class Stage:
    """A watched node on a small disk, with a reader that has confirmed nothing."""

    def __init__(self, disk: Path) -> None:
        self.clock = HandClock()
        self.place = disk
        self.foreign = disk / "of others"
        self.foreign.write_bytes(bytes(OTHERS))
        self.written: list[str] = []
        self.open()
        self.node.create_mesh(MESH)
        self.node.log.add_consumer("reader")
        self.watch.look()
        assert self.watch.ballast.present()

    def open(self) -> None:
        home = self.place / "home"
        self.node = open_node(home, peer="ana", create=True, source=self.clock)
        self.watch = DiskWatch(self.node._engine, HomePaths(home), bounds=SHARE)
        self.watch.watch()

    def restart(self) -> None:
        """Closing empties the WAL, for which others make room: how much of it was in the database
        before is up to the thread of the checkpoints. What is written after that needs space.
        """
        os.truncate(self.foreign, OTHERS // 2)
        self.node.close()
        assert not (self.place / "home" / "data.db-wal").exists()
        self.open()
        self.watch.look()

    def append(self) -> None:
        receipt = self.node.mesh(MESH).facts.append("sensor", "says", VALUE)
        self.written.append(receipt.id)

    def append_until_refused(self) -> DiskFull:
        for _ in range(10_000):
            self.watch.look()
            try:
                self.append()
            except DiskFull as refusal:
                return refusal
        raise AssertionError("the disk never got full")

    def others_fill_the_disk(self) -> None:
        """They take every byte that is left."""
        with open(self.foreign, "ab", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
        assert free_bytes(self.place) == 0

    def read_all(self) -> list[str]:
        """As a reader does: fetch and confirm, until there is nothing more."""
        seen: list[str] = []
        while batch := self.node.log.fetch("reader", 50):
            seen += [entry.id.hex() for entry in batch]
            self.node.log.confirm("reader", batch[-1].offset)
        return seen

    def forget(self) -> int:
        self.clock.advance(1)
        return self.node.sweep(NOW).log_entries


def plain(ids: list[str]) -> list[str]:
    return [id.replace("-", "") for id in ids]


@pytest.fixture
def stage(small_disk: Path) -> Iterator[Stage]:
    made = Stage(small_disk)
    yield made
    made.node.close()


def test_Z7_appends_are_refused_at_95_percent_before_the_disk_itself_refuses(
    stage: Stage,
) -> None:
    levels: list[str] = []
    stage.watch.on_change(lambda found: levels.append(found.level))
    refusal = stage.append_until_refused()
    assert "refuses what adds data" in refusal.message
    assert levels == ["high", "full"], "announced ahead, then refused"
    assert 0.95 <= stage.watch.last.fill < 1.0
    assert free_bytes(stage.place) > 0
    assert stage.watch.ballast.present(), "not needed yet"
    assert stage.read_all() == plain(stage.written), "reading and confirming go on"
    assert stage.forget() > 0
    assert stage.watch.look().level == "ok"
    stage.append()
    assert audit(stage.node) == []


def test_Z7_on_a_disk_without_a_free_byte_the_ballast_lets_confirms_and_sweeps_through(
    stage: Stage,
) -> None:
    stage.append_until_refused()
    stage.restart()
    stage.others_fill_the_disk()
    assert stage.watch.look().level == "full"
    with pytest.raises(DiskFull, match="refuses what adds data"):
        stage.append()
    assert stage.watch.ballast.present()
    assert stage.read_all() == plain(stage.written)
    assert not stage.watch.ballast.present(), "a confirmation met the end and got its room"
    assert stage.forget() == len(stage.written) - 1
    assert audit(stage.node) == []
    assert stage.watch.look().level != "full", "the database has room inside"
    stage.append()
    stage.append()
    stage.foreign.unlink()
    assert stage.watch.look().level == "ok"
    assert stage.watch.ballast.present(), "laid again"
    assert stage.read_all() == plain(stage.written[-2:])
    assert audit(stage.node) == []
    stage.node.close()
    assert integrity(HomePaths(stage.place / "home").database, ours=True) == []
    with open_node(stage.place / "home") as again:
        assert again.log.head().offset == len(stage.written)


def test_Z7_a_reader_that_is_gone_can_be_retired_on_a_full_disk(stage: Stage) -> None:
    stage.append_until_refused()
    stage.restart()
    stage.others_fill_the_disk()
    stage.node.log.retire("reader")
    assert stage.forget() == len(stage.written) - 1
    assert stage.watch.look().level != "full"
    stage.append()


def test_Z7_a_coroutine_can_delete_on_a_disk_without_a_free_byte(stage: Stage) -> None:
    state = stage.node.mesh(MESH).state
    state.set("k", VALUE)
    stage.append_until_refused()
    stage.restart()
    stage.others_fill_the_disk()

    async def run() -> None:
        mesh = await AsyncNode(stage.node).mesh(MESH)
        await mesh.state.delete("k")

    asyncio.run(run())
    assert not stage.watch.ballast.present(), "the deletion met the end and got its room"
    assert stage.node.mesh(MESH).state.get("k") is None
    assert audit(stage.node) == []


def test_Z7_an_append_that_meets_the_end_itself_is_refused_whole_and_frees_the_way(
    stage: Stage,
) -> None:
    """The disk fills between two looks."""
    for _ in range(20):
        stage.append()
    stage.others_fill_the_disk()
    met = None
    for _ in range(10_000):
        try:
            stage.append()
        except DiskFull as error:
            met = error
            break
    assert met is not None
    assert "the disk is full" in met.message, "SQLite said so, not the watch"
    assert stage.watch.last.level == "full", "known at once, without a look"
    assert not stage.watch.ballast.present()
    with pytest.raises(DiskFull, match="refuses what adds data"):
        stage.append()
    assert stage.read_all() == plain(stage.written), "what was acknowledged, and nothing else"
    assert stage.forget() == len(stage.written) - 1
    assert audit(stage.node) == []


def test_Z7_without_a_ballast_the_same_disk_has_no_way_back(stage: Stage) -> None:
    """What the ballast is for: the same disk, and nothing to release."""
    stage.append_until_refused()
    stage.restart()
    stage.watch.ballast.release()
    stage.others_fill_the_disk()

    def go_on() -> int:
        stage.read_all()
        return stage.forget()

    with pytest.raises(DiskFull, match="the disk is full"):
        go_on()
    stage.foreign.unlink()
    assert go_on() == len(stage.written) - 1
