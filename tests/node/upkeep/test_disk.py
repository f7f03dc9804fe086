"""The disk watch: announced ahead, refused at the end, and what makes room always gets through."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.node.core.change import Receipt
from holdfast.node.library.aio import AsyncNode
from holdfast.node.library.node import Node, open_node
from holdfast.node.upkeep.disk import DiskWatch
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.disk_pressure import Bounds, Pressure
from holdfast.rules.errors import DiskFull
from holdfast.rules.limits import MIB
from holdfast.storage.files.ballast import Ballast, free_bytes
from support.envelopes import MESH, fact_append
from support.full_disk import FullDisk
from support.nodes import blob_names
from support.source import HandClock

NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)
SHARE = Bounds(room_bytes_min=0)
BALLAST = 256 * 1024


@pytest.fixture
def node(tmp_path: Path, clock: HandClock) -> Iterator[Node]:
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True, sync="normal", source=clock) as made:
        made.create_mesh(MESH)
        yield made


def watch(node: Node, limit: int | None = None) -> DiskWatch:
    paths = node._opened.paths
    ballast = Ballast(paths.root, size=BALLAST)
    made = DiskWatch(node._engine, paths, limit, bounds=SHARE, ballast=ballast)
    made.watch()
    return made


def grow(node: Node, size: int) -> None:
    node.mesh(MESH).files.share(f"{size} {os.urandom(4).hex()}", os.urandom(size))


def test_Z7_a_look_counts_the_database_and_the_blobs(node: Node) -> None:
    disk = watch(node)
    before = disk.look()
    assert before.level == "ok"
    grow(node, 3 * MIB)
    after = disk.look()
    assert 3 * MIB <= after.used - before.used < 4 * MIB
    assert 0.0 < after.fill < 1.0


def test_Z7_the_limit_is_announced_ahead_and_refuses_at_the_end(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    disk = watch(node, 10 * MIB)
    told: list[Pressure] = []
    disk.on_change(told.append)
    disk.look()
    grow(node, 8 * MIB)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert disk.look().level == "high"
        disk.look()
    assert [found.level for found in told] == ["high"], "each level is told once"
    assert caplog.text.count("free some space before it is needed") == 1
    grow(node, MIB)
    grow(node, MIB // 2)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert disk.look().level == "full"
    assert "what adds data is refused" in caplog.text
    with pytest.raises(DiskFull, match="refuses what adds data") as refusal:
        node.mesh(MESH).facts.append("s", "p", 1)
    assert "holdfast consumer retire" in refusal.value.hint
    assert node._engine.metrics.errors["disk_full"] == 1


def fill_up(disk: DiskWatch) -> None:
    disk.last = Pressure(0.96, "full", 96, 4)


def test_Z7_at_the_end_every_verb_that_adds_is_refused_and_every_other_goes_on(
    node: Node, clock: HandClock
) -> None:
    disk = watch(node)
    mesh = node.mesh(MESH)
    mesh.facts.append("s", "p", 1)
    mesh.state.set("k", 1)
    mesh.files.share("f", b"content")
    task = mesh.tasks.create("work").task
    node.log.add_consumer("reader")
    fill_up(disk)
    adding: list[Callable[[], object]] = [
        lambda: mesh.facts.append("s", "p", 2),
        lambda: mesh.state.set("k", 2),
        lambda: mesh.memory.set("k", 2),
        lambda: mesh.files.share("g", bytes(100_000)),
        lambda: mesh.tasks.create("more"),
        lambda: mesh.tasks.claim(task),
        lambda: node.create_mesh("other"),
        lambda: node.apply([fact_append("s", "p", 1)]),
    ]
    head = node.log.head()
    for add in adding:
        with pytest.raises(DiskFull):
            add()
    assert node.log.head() == head
    assert blob_names(node) == set(), "no blob either"
    assert len(node.log.fetch("reader")) == 4
    node.log.confirm("reader", 4)
    mesh.state.delete("k")
    mesh.files.delete("f")
    node.log.add_consumer("another")
    node.log.retire("reader")
    node.log.retire("another")
    clock.advance(1)
    assert node.sweep(NOW).log_entries == 5, "all but the last, which says where the log stands"
    assert mesh.state.get("k") is None


def test_Z7_the_library_for_coroutines_asks_as_well(node: Node) -> None:
    disk = watch(node)
    fill_up(disk)

    async def run() -> None:
        face = AsyncNode(node)
        mesh = await face.mesh(MESH)
        with pytest.raises(DiskFull):
            await mesh.facts.append("s", "p", 1)
        with pytest.raises(DiskFull):
            await mesh.tasks.create("work")
        with pytest.raises(DiskFull):
            await mesh.files.share("f", b"content")
        with pytest.raises(DiskFull):
            await face.apply([fact_append("s", "p", 1)])
        disk.look()
        await mesh.facts.append("s", "p", 1)
        await mesh.state.set("k", 1)
        fill_up(disk)
        await mesh.state.delete("k")

    asyncio.run(run())
    assert node.log.head().offset == 3


def test_Z7_a_deletion_that_meets_a_full_disk_is_run_again_from_threads_and_from_coroutines(
    node: Node,
) -> None:
    mesh = node.mesh(MESH)
    for key in ("a", "b"):
        mesh.state.set(key, 1)
    disk = FullDisk(node._engine)
    assert mesh.state.delete("a").offset == 3
    assert (disk.tries, disk.reliefs) == (2, 1)

    async def run() -> None:
        team = await AsyncNode(node).mesh(MESH)
        disk.full = True
        both: tuple[object, object] = await asyncio.gather(
            team.state.delete("b"), team.state.set("c", 1), return_exceptions=True
        )
        deleted, added = both
        assert isinstance(deleted, Receipt)
        assert isinstance(added, DiskFull), "what needs room is not tried again"

    asyncio.run(run())
    assert list(mesh.state.list()) == []
    assert node._engine.metrics.verbs["state.delete"].count == 2
    assert node._engine.metrics.errors["disk_full"] == 3


def test_Z7_a_deletion_is_run_again_once(node: Node) -> None:
    mesh = node.mesh(MESH)
    mesh.state.set("a", 1)
    disk = FullDisk(node._engine, hopeless=True)

    async def run() -> None:
        team = await AsyncNode(node).mesh(MESH)
        with pytest.raises(DiskFull):
            await team.state.delete("a")

    with pytest.raises(DiskFull):
        mesh.state.delete("a")
    assert (disk.tries, disk.reliefs) == (2, 1)
    asyncio.run(run())
    assert (disk.tries, disk.reliefs) == (4, 2)
    disk.full = False
    assert mesh.state.get("a") == 1


def test_Z7_forgetting_makes_room_although_the_file_does_not_shrink(
    node: Node, clock: HandClock
) -> None:
    disk = watch(node, 4 * MIB)
    mesh = node.mesh(MESH)
    node.log.add_consumer("reader")
    for number in range(60):
        mesh.facts.append("s", "p", "x" * 60_000)
        if number % 10 == 0:
            disk.look()
        if disk.last.level == "full":
            break
    with pytest.raises(DiskFull):
        mesh.facts.append("s", "p", 1)
    size = node._opened.paths.database.stat().st_size
    node.log.confirm("reader", node.log.head().offset)
    clock.advance(1)
    node.sweep(NOW)
    assert disk.look().level == "ok"
    mesh.facts.append("s", "p", 1)
    assert node._opened.paths.database.stat().st_size >= size


def test_Z7_the_ballast_is_laid_at_the_first_look_with_room(node: Node) -> None:
    disk = watch(node)
    assert not disk.ballast.present()
    disk.look()
    assert disk.ballast.present()


def test_Z7_no_ballast_is_laid_while_the_disk_is_filling_up(node: Node) -> None:
    disk = watch(node, 64 * 1024)
    disk.look()
    assert disk.last.level != "ok"
    assert not disk.ballast.present()


def test_Z7_a_write_that_meets_the_end_releases_the_ballast_and_a_look_lays_it_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    disk = watch(node)
    disk.look()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        disk.relieve()
        disk.relieve()
    assert caplog.text.count("its ballast is released") == 1
    assert not disk.ballast.path.exists()
    assert disk.last.level == "full"
    with pytest.raises(DiskFull):
        node.mesh(MESH).facts.append("s", "p", 1)
    assert disk.look().level == "ok"
    assert disk.ballast.present()
    node.mesh(MESH).facts.append("s", "p", 1)


def test_Z7_a_look_that_was_overtaken_by_the_end_does_not_hide_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = watch(node)

    def look_and_fill(folder: Path) -> int:
        found = free_bytes(folder)
        disk.relieve()
        return found

    monkeypatch.setattr("holdfast.node.upkeep.disk.free_bytes", look_and_fill)
    assert disk.look().level == "full"
    assert not disk.ballast.present()
    monkeypatch.undo()
    assert disk.look().level == "ok"


def test_Z7_who_no_longer_watches_refuses_nothing(node: Node) -> None:
    disk = watch(node)
    fill_up(disk)
    disk.unwatch()
    node.mesh(MESH).facts.append("s", "p", 1)
