"""A peer whose home went back in time meets what it wrote at its peers."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.node.library.node import open_node
from holdfast.node.log.digests import digests
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from support.daemon import make_home
from support.envelopes import MESH
from support.mesh_links import MeshNode, connect, cut, trouble_of, until, until_same


@asynccontextmanager
async def opened(folder: Path, name: str) -> AsyncIterator[MeshNode]:
    """A node by its home."""
    home = folder / name
    node = open_node(home if home.exists() else make_home(home, name), sync="normal")
    one = MeshNode(node)
    await one.exchange.start()
    await one.exchange.share(MESH)
    try:
        yield one
    finally:
        await one.exchange.close()
        node.close()


def write(node: MeshNode, *names: str) -> None:
    for name in names:
        node.node.mesh(MESH).state.set(name, name)
        node.node.mesh(MESH).files.share(name, name.encode() * 9000)


def tables(node: MeshNode) -> object:
    found = node.engine.read("test", lambda tx: digests(tx, node.name, [MESH]))
    return found.meshes[MESH].tables


async def written_after_a_copy(folder: Path, copy: str) -> None:
    """Ana writes, is copied, and writes more; bob has all of it."""
    async with opened(folder, "bob") as bob:
        async with opened(folder, "ana") as ana:
            for one, other in ((ana, bob), (bob, ana)):
                one.knows(other, relay=True)
                await one.exchange.refresh()
            write(ana, "before")
            connect(ana, bob)
            await until_same(ana, bob)
            if copy == "backup":
                backup(ana.node, folder / copy)
        if copy == "files":
            shutil.copytree(folder / "ana", folder / copy)
        async with opened(folder, "ana") as ana:
            end = connect(ana, bob)
            write(ana, "after", "later")
            await until_same(ana, bob)
            cut(end)


def test_B3_a_restored_peer_takes_back_what_it_wrote_after_its_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        await written_after_a_copy(tmp_path, "backup")
        restore(tmp_path / "backup", tmp_path / "ana", force=True)
        async with opened(tmp_path, "ana") as ana, opened(tmp_path, "bob") as bob:
            assert ana.node.mesh(MESH).state.get("after") is None
            assert ana.engine.ctx.epoch == 2
            write(ana, "new")
            connect(ana, bob)
            await until_same(ana, bob)
            assert tables(ana) == tables(bob)
            assert len(set(ana.logged())) == len(ana.logged()) == 8, "nothing twice, nothing lost"
            assert ana.node.mesh(MESH).files.read("later", peer="ana") == b"later" * 9000
            assert trouble_of(ana) + trouble_of(bob) == []

            def missing() -> int:
                views = [*ana.exchange.status().streams, *bob.exchange.status().streams]
                return sum(view.missing for view in views)

            await until(lambda: missing() == 0, (ana, bob))

    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(story())
    assert "bob has 4 numbers of this node's own, of epoch 1, from before" in caplog.text
    assert "they are taken back" in caplog.text


def test_B3_who_may_not_relay_is_not_believed_about_ones_own_past(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        await written_after_a_copy(tmp_path, "backup")
        restore(tmp_path / "backup", tmp_path / "ana", force=True)
        async with opened(tmp_path, "ana") as ana, opened(tmp_path, "bob") as bob:
            ana.engine.store.write(lambda tx: tx.known_members_put(MESH, []))
            await ana.exchange.refresh()
            write(ana, "new")
            connect(ana, bob)
            await until(lambda: bob.node.mesh(MESH).state.get("new") == "new", (ana, bob))
            assert ana.node.mesh(MESH).state.get("after") is None
            told = ana.exchange.status
            await until(lambda: sum(view.missing for view in told().streams) == 4, (ana,))

    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(story())
    assert "it may not relay, so they are not taken" in caplog.text


def test_B3_a_home_that_was_put_back_as_files_is_told_so_and_mended_by_a_repair(
    tmp_path: Path,
) -> None:
    """Nothing in the home shows it: what kept count was put back too."""

    async def story() -> None:
        await written_after_a_copy(tmp_path, "files")
        shutil.rmtree(tmp_path / "ana")
        shutil.copytree(tmp_path / "files", tmp_path / "ana")
        async with opened(tmp_path, "ana") as ana, opened(tmp_path, "bob") as bob:
            assert ana.engine.ctx.epoch == 1
            connect(ana, bob)
            await until(lambda: bool(trouble_of(ana)), (ana, bob))
            (trouble,) = trouble_of(ana)
            assert "bob has 4 numbers of epoch 1 that this node has not written" in trouble
        warned = [check for check in diagnose(tmp_path / "ana").checks if check.name == "streams"]
        assert [check.status for check in warned] == ["warn", "ok"]
        assert "doctor --repair" in warned[0].fix
        repair_home(tmp_path / "ana")
        async with opened(tmp_path, "ana") as ana, opened(tmp_path, "bob") as bob:
            write(ana, "new")
            connect(ana, bob)
            await until_same(ana, bob)
            assert len(set(ana.logged())) == len(ana.logged()) == 8
            assert tables(ana) == tables(bob)
            assert trouble_of(ana) + trouble_of(bob) == []

    asyncio.run(story())
