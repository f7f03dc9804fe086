"""A node that has left a mesh joins it again, through the broker that it left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library.node import Node
from holdfast.node.sharing import rejoin
from holdfast.node.sharing.sharing import Sharing
from holdfast.node.snapshots import mesh_export
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.trust.trust import Trust
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.message import MESSAGE
from holdfast.storage.files.home import HomePaths
from support.broker_up import BrokerUp, broker_at
from support.snapshot import snapshot


class Died(Exception):
    """The process is gone."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUp]:
    with broker_at(tmp_path_factory.mktemp("hub") / "store") as up:
        yield up


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    open_now: list[Node] = []

    def home(peer: str) -> Node:
        node = holdfast.open(tmp_path / peer, peer=peer, create=True, sync="normal")
        open_now.append(node)
        return node

    yield home
    for node in open_now:
        node.close()


def sharing(node: Node) -> Sharing:
    return Sharing(node._engine, Trust(node._engine, HomePaths(node.home)))


def synced(node: Node, mesh: str) -> None:
    paths = HomePaths(node.home)
    assert wait_until_synced(node._engine, Trust(node._engine, paths), paths, mesh).done


def tables(node: Node, mesh: str) -> Any:
    return snapshot(node._engine.store)[mesh]


def left(hub: BrokerUp, ana: Node, bob: Node, mesh: str) -> str:
    """Ana shares a mesh, Bob joins it and leaves it; returns another invite."""
    ana.create_mesh(mesh).state.set("ana", "before")
    invite = sharing(ana).publish(mesh, broker=hub.url).invite
    assert invite is not None
    synced(ana, mesh)
    sharing(bob).join(invite)
    synced(bob, mesh)
    bob.mesh(mesh).state.set("given up", 1)
    bob.mesh(mesh).state.set("both", "bob, before")
    bob.mesh(mesh).send("nobody gets this", dm="ana")
    assert sharing(bob).leave(mesh).given_up == 3
    return sharing(ana).invite(mesh).text


def test_S14_who_has_left_joins_again_and_what_was_written_meanwhile_goes_both_ways(
    hub: BrokerUp, homes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_export, "CHUNK_ROWS", 2)
    ana, bob = homes("ana"), homes("bob")
    invite = left(hub, ana, bob, "again")
    for number in range(5):
        bob.mesh("again").state.set(f"bob {number}", number)
    bob.mesh("again").files.share("b.bin", b"large content " * 6000)
    bob.mesh("again").state.set("both", "bob, away")
    ana.mesh("again").state.set("ana", "meanwhile")

    # It dies in the middle, and goes on with the same invite.
    real, calls = rejoin.bring_next, 0

    def dies(*given: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Died
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.node.sharing.join.bring_next", dies)
        with pytest.raises(Died):
            sharing(bob).join(invite)
    assert bob.mesh("again").info().kind == "personal"
    assert sharing(bob).join(invite).mesh == "again"
    bob.mesh("again").state.set("bob", "after")
    for node in (bob, ana, bob):
        synced(node, "again")
    assert bob.mesh("again").state.get("ana") == "meanwhile"
    assert ana.mesh("again").state.get("given up") == 1
    assert ana.mesh("again").state.get("both") == "bob, away"
    assert tables(ana, "again") == tables(bob, "again")
    ops = [entry.op for entry in ana.log.range() if entry.mesh == "again"]
    assert MESSAGE not in ops, "a message that was given up stays so"


def test_S14_another_mesh_under_the_name_of_one_that_was_left_is_not_touched(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob = homes("ana"), homes("bob")
    left(hub, ana, bob, "anew")
    bob.mesh("anew").state.set("k", "bob's")
    sharing(ana).leave("anew", remove=True)
    other = sharing(ana).publish("anew", broker=hub.url).invite
    assert other is not None
    with pytest.raises(AlreadyExists, match="of its own"):
        sharing(bob).join(other)
    assert bob.mesh("anew").info().kind == "personal"


def test_S14_what_the_log_has_lost_since_a_mesh_was_left_is_not_left_behind_in_silence(
    hub: BrokerUp, homes: Callable[[str], Node]
) -> None:
    ana, bob, cora = homes("ana"), homes("bob"), homes("cora")
    ana.create_mesh("old")
    sharing(ana).publish("old", broker=hub.url)
    synced(ana, "old")
    more = sharing(ana).invite("old", uses=2).text
    for guest in (bob, cora):
        sharing(guest).join(more)
        guest.mesh("old").state.set(guest.peer, "sent")
        synced(guest, "old")
        sharing(guest).leave("old")
    invite = sharing(ana).invite("old").text
    bob.mesh("old").state.set("bob", "never sent")
    for guest in (bob, cora):
        guest.create_mesh("own").state.set("k", "the last entry of a log stays")
        guest.sweep(Ttl(log_ms=0))
    with pytest.raises(AlreadyExists, match="no longer in the log"):
        sharing(bob).join(invite)
    assert bob.mesh("old").info().kind == "personal"
    # The invite was not used up, and who has written nothing since lacks nothing.
    assert sharing(cora).join(invite).mesh == "old"
    synced(cora, "old")
    synced(ana, "old")
    assert tables(ana, "old") == tables(cora, "old")
