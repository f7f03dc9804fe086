"""Damaged entries, fetched again from the broker and the links that have them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import apsw
import pytest

from holdfast.node.library.node import open_node
from holdfast.node.links.registry import Links
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.refetch import Refetched, refetch_entries
from holdfast.node.settings import Settings
from support.daemon import make_home, running
from support.keeping import MESH as TEAM
from support.live_broker import MESH, LiveBroker, join, share
from support.waiting import until

HARM = "UPDATE log SET raw = CAST(zeroblob(9) || substr(raw, 10) AS BLOB) WHERE offset = ?"


def harm(home: Path, *offsets: int) -> dict[int, bytes]:
    """Spoils more of these entries than their hash can tell; returns what they were."""
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        were = {
            offset: connection.execute("SELECT raw FROM log WHERE offset = ?", (offset,)).get
            for offset in offsets
        }
        connection.executemany(HARM, ((offset,) for offset in offsets))
    assert all(isinstance(raw, bytes) for raw in were.values())
    return were


def raws(home: Path, *offsets: int) -> dict[int, bytes]:
    with open_node(home) as node:
        return {at: next(node.log.range(at, at + 1)).raw for at in offsets}


def failing(home: Path) -> set[str]:
    checks = diagnose(home, full=True).checks
    return {check.name for check in checks if check.status == "fail"}


def test_D6_damaged_entries_are_fetched_again_from_the_broker(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path / "hub")
    homes = [make_home(tmp_path / name, name) for name in ("ana", "bob")]
    with ExitStack() as ending:
        broker.start()
        ending.callback(broker.stop)
        share(homes[0], broker)
        join(homes[1], broker, homes[0])
        with running(homes[0]) as ana, running(homes[1]) as bob:
            ana.daemon.api.node.mesh(MESH).state.set("of ana", "x" * 40)
            there = bob.daemon.api.node.mesh(MESH)
            until(lambda: there.state.get("of ana") is not None)
            there.state.set("of bob", "y" * 40)
            until(lambda: ana.daemon.api.node.mesh(MESH).state.get("of bob") is not None)
            head = bob.daemon.api.node.log.head().offset
        were = harm(homes[1], head - 1, head)
        assert "entries" in failing(homes[1])
        assert refetch_entries(homes[1]) == Refetched(mended=(head - 1, head))
        assert raws(homes[1], head - 1, head) == were, "what it wrote and what it was sent"
        assert not failing(homes[1]) & {"entries", "log", "database"}
        with open_node(homes[1]) as node:
            node._engine.write("test", lambda tx: tx.broker_positions_drop(MESH, 99))
        were = harm(homes[1], head)
        assert refetch_entries(homes[1]).mended == (head,), "without knowing where it stood"
    harm(homes[1], head)
    alone = refetch_entries(homes[1])
    assert alone.left == (head,)
    assert "the broker of" in alone.troubles[0], "a broker that is down is told"


def test_Z3_damaged_entries_are_fetched_again_through_a_link(tmp_path: Path) -> None:
    home = make_home(tmp_path / "office", "office", TEAM)
    plant_home = make_home(tmp_path / "plant", "plant", TEAM)
    with running(plant_home, Settings(listen="127.0.0.1:0")) as plant:
        with running(home) as office:
            ours, theirs = office.daemon.api, plant.daemon.api
            theirs.trust.trust(ours.trust.card(), reads=[TEAM])
            ours.trust.trust(theirs.trust.card())
            for number in range(5):
                theirs.node.mesh(TEAM).facts.append(f"subject {number}", "is", number)
            Links(ours.engine, ours.trust).add("plant", plant.tls, "plant", meshes=[TEAM])
            assert ours.link_manager is not None
            ours.link_manager.refresh()
            until(lambda: ours.node.log.head().offset == 5)
            ours.node.mesh(TEAM).state.set("of us", 1)
        were = harm(home, 2, 4, 6)
        found = refetch_entries(home)
        assert (found.mended, found.left) == ((2, 4), (6,)), "the plant never had the last one"
        assert raws(home, 2, 4) == {at: were[at] for at in (2, 4)}


def test_S12_bytes_that_are_not_the_entry_are_not_taken(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "ana", TEAM)
    with open_node(home) as node:
        for number in range(3):
            node.mesh(TEAM).facts.append("same", "is", number)
        other = next(node.log.range(3, 4)).raw
    were = harm(home, 2)
    liar = {"a liar": lambda ids: [other, were[2][:-1] + b"\0", b"", b"\xff" * 99]}
    assert refetch_entries(home, liar).left == (2,)
    asked: list[str] = []

    def honest(ids: list[str]) -> list[bytes]:
        asked.extend(ids)
        return [other, were[2]]

    assert refetch_entries(home, {"an honest one": honest}).mended == (2,)
    assert len(asked) == 1
    assert raws(home, 2) == were


def test_S12_a_home_that_cannot_be_read_is_left_to_a_repair(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "ana", TEAM)
    (home / "data.db").write_bytes(b"not a database" * 1000)
    found = refetch_entries(home)
    assert found.mended == ()
    assert found.troubles


def test_S12_a_home_in_order_asks_nobody(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "ana", TEAM)
    with open_node(home) as node:
        node.mesh(TEAM).state.set("k", 1)
    assert refetch_entries(home, {"nobody": lambda ids: pytest.fail("asked")}) == Refetched()
