"""What the examples of the library have at hand: homes, meshes, a broker, voters, a bus.

    node    the home of ana; `team` is a mesh of her own, `fleet` one that she shares by `hub`,
            `club` one that she shares over the bus
    bo      another home, linked with hers over the bus, and a member of `fleet`
    ship    a mesh with voters, in the home `ship_home`, which a daemon serves

One world is for all examples, so each example uses names of its own where it changes something.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from nacl.signing import SigningKey

import holdfast
from holdfast.node.bus.sharing import BusSharing
from holdfast.node.core.intake import Intake
from holdfast.node.library.node import Node
from holdfast.rules.bus.meshes.member_list import ListedMember, trusted_list, with_member
from holdfast.rules.keys import public_key
from support import envelopes as e
from support.bus_homes import ANYWHERE, befriend, trust_of
from support.daemon import make_home
from support.live_broker import LiveBroker
from support.quorum_daemon import quorum_daemon
from support.waiting import until

RIVALS = ("colour", "size", "shape", "name")
"""Keys about which ana and eve did not agree."""


@contextmanager
def example_world(folder: Path) -> Iterator[dict[str, Any]]:
    """The names that examples see. The folder is where they are run."""
    with ExitStack() as stack:
        hub = stack.enter_context(LiveBroker(folder / "hub"))
        voters = stack.enter_context(quorum_daemon(folder / "voters"))
        ship = stack.enter_context(holdfast.open(voters.home, sync="normal")).mesh("team")
        ship.entities.put("mission", "first", {"title": "Cross the bay"})
        node, bo, cleo = (
            stack.enter_context(holdfast.open(make_home(folder / name, name), sync="normal"))
            for name in ("ana", "bo", "cleo")
        )
        found: dict[str, Any] = {"node": node, "bo": bo, "hub": hub.url, "ship": ship}
        found |= {"ship_home": str(voters.home), "team": node.mesh("team")}
        found |= _filled(node)
        _disagree(node, folder / "eve")
        found["fleet"] = _published(node, bo, cleo, hub.url)
        node.bus.bind(listen=ANYWHERE, discovery="off")
        befriend(node, bo)
        bo.bus.bind(discovery="off")
        until(lambda: any(peer.link == "up" for peer in node.bus.peers()))
        stack.enter_context(bo.bus.serve("echo", lambda request: request.body))
        cards = {f"card_of_{one.peer}": trust_of(one).card() for one in (bo, cleo)}
        right = node.bus.capabilities.give(cards["card_of_bo"], ["topic:builds.*"])
        _share_club(node)
        (folder / "photo.jpg").write_bytes(b"a picture")
        known = {"asyncio": asyncio, "holdfast": holdfast, "Path": Path, "Timer": Timer}
        known["deploy"] = lambda fence: None
        yield {**found, **cards, **known, "right_for_bo": right.text, "now_ms": _now_ms()}


def newcomer(sharing: BusSharing, name: str, seed: bytes, mesh: str = e.MESH) -> ListedMember:
    """What the owner's node does when a newcomer has shown its invite."""
    row = sharing._engine.store.write(lambda tx: tx.bus_mesh_get(mesh))
    assert row is not None
    member = ListedMember(name, public_key(seed), ("read", "write"), 1)
    after = with_member(SigningKey(sharing._own_key.seed()), trusted_list(row.members), member, 2)
    sharing._engine.write("test", lambda tx: sharing._save(tx, row, after))
    return member


def _filled(node: Node) -> dict[str, Any]:
    """Something in every family of the mesh `team`."""
    team = node.mesh("team")
    model, older = (
        holdfast.Model(provider="openai", name=name, dim=2) for name in ("text-3", "text-2")
    )
    team.state.set("colour", "blue")
    team.memory.set("note", "hello")
    team.vectors.store("ships", [1.0, 0.0], model=model, content="We sail")
    team.vectors.store("old", [1.0, 0.0], model=older, content="We row")
    team.files.share("notes.txt", b"We sail")
    team.facts.append("pump-1", "is", "on")
    team.audit.append("logins", {"who": "ana"})
    team.telemetry.set("gauge", "load", 0.5)
    node.log.add_consumer("lake")
    return {"model": model, "older": older, "task": team.tasks.create("Paint the hull")}


def _disagree(node: Node, home: Path) -> None:
    """Another node writes the same keys and has not heard of ana's; hers win."""
    with holdfast.open(home, peer="eve", create=True, sync="normal") as eve:
        theirs = eve.create_mesh("team")
        for key in RIVALS:
            theirs.state.set(key, "red")
        for key in RIVALS:
            node.mesh("team").state.set(key, "blue")
        node.apply([entry.raw for entry in eve.log.range()])


def _published(node: Node, bo: Node, cleo: Node, hub: str) -> Any:
    node.create_mesh("fleet")
    node.sharing.publish("fleet", broker=hub)
    for member in (bo, cleo):
        member.sharing.join(node.sharing.invite("fleet").text)
    node.sharing.declare("fleet", "queue", "jobs")
    node.sharing.declare("fleet", "topic", "news")
    own = next(member.key for member in node.sharing.members("fleet") if member.name == "ana")
    arrived = e.message_send("dm", own, b"hello", origin="bo", mesh="fleet", lamport=99)
    came = Intake(node._engine.ctx, [arrived], delivered={arrived: b"B" * 16})
    (applied,) = node._engine.store.write(came)
    assert applied.outcome == "applied", applied
    return node.mesh("fleet")


def _share_club(node: Node) -> None:
    node.create_mesh("club")
    node.bus.sharing.share("club")
    for number, name in enumerate(("gus", "eve", "dora")):
        newcomer(node.bus.sharing, name, bytes([number]) * 32, "club")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
