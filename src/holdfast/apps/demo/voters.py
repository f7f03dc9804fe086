"""Three voters: one is cut off and the others decide without it; then the leader is killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

from holdfast.apps.demo.stage import DemoStage, trust_of
from holdfast.node.bus.holder import bus_socket
from holdfast.node.library.aio_entities import EntityRead
from holdfast.node.library.node import Node
from holdfast.node.quorum.api import ReadDemand
from holdfast.node.quorum.documents import QuorumView
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.rules.errors import DemoFailed, NotFresh
from holdfast.storage.files.home import HomePaths

MESH: Final = "fleet"
VOTERS: Final = ("ana", "bob", "cy")
_GRANTS: Final = ("read", "write", "vote")
_LOCAL: Final = ReadDemand(linearizable=False)
_CUT_OFF_MS: Final = 500
"""How long the one that is cut off looks for a majority."""
_LOOK_MS: Final = 200
_ELECTION_MS: Final = 30_000


def play(stage: DemoStage) -> None:
    begin_voting(stage)
    _cut_off(stage)
    _kill_the_leader(stage)


def begin_voting(stage: DemoStage) -> None:
    """Ana, bob and cy become the voters of a mesh, and decide something."""
    with stage.node("ana") as ana:
        ana.mesh(MESH, create=True)
        ana.bus.sharing.share(MESH)
    stage.switch_on(*VOTERS)
    with stage.node("ana") as ana:
        for name in VOTERS[1:]:
            where = [stage.laptop("ana").bus]
            invite = ana.bus.sharing.invite(MESH, grants=_GRANTS, addresses=where)
            with stage.node(name) as other:
                other.bus.join(invite.text)
        asyncio.run(_quorum(ana).init(MESH, VOTERS[1:]))
        first = ana.mesh(MESH).entities.put(
            "mission", "dive", {"title": "Dive", "depth": 10}, base=0, timeout_ms=_ELECTION_MS
        )
        stage.until(lambda: _view(ana).order.part == "coordinator", "ana coordinates")
    with stage.node("cy") as cy:
        found = _newest(stage, cy)
        stage.prove(
            first.outcome == "applied" and found.read.mode == "fresh",
            "a majority decided: depth = 10; cy reads it, confirmed as the newest",
        )


def _cut_off(stage: DemoStage) -> None:
    """The others decide without cy, and it knows that it must not."""
    cut_off_cy(stage)
    stage.tell("cy is cut off: no link to ana, none to bob")
    with stage.node("ana") as ana, stage.node("cy") as cy:
        stage.until(lambda: not any(peer.link == "up" for peer in cy.bus.peers()), "cy has no link")
        deeper = ana.mesh(MESH).entities.patch(
            "mission", "dive", {"depth": 20}, base=1, timeout_ms=_ELECTION_MS
        )
        stage.prove(deeper.outcome == "applied", "ana and bob are two of three: depth = 20")
        own = cy.mesh(MESH).entities.patch(
            "mission", "dive", {"pilot": "cy"}, timeout_ms=_CUT_OFF_MS
        )
        theirs = _newest(stage, ana)
        stage.prove(
            own.state == "queued" and _fields(theirs) == (20, None),
            "cy's write finds no majority: it is not done, and waits on his disk",
            f"it is {own.state}, and they have {theirs.entity}",
        )
        old = cy.mesh(MESH).entities.get("mission", "dive", demand=_LOCAL)
        stage.prove(
            _is_refused_as_new(cy) and old.read.mode == "degraded" and _fields(old) == (10, None),
            f"he reads nothing as the newest; his copy says it is {old.read.staleness_ms} ms old",
            f"{old}",
        )
    let_in_cy(stage)
    with stage.node("bob") as bob:
        stage.until(lambda: _fields(_newest(stage, bob))[1], "what cy wrote is decided")
        dive = _newest(stage, bob)
        stage.prove(
            _fields(dive) == (20, "cy") and _revision(dive) == 3,
            "he is back: his write is decided, once, on top of theirs",
            f"{dive}",
        )


def cut_off_cy(stage: DemoStage) -> None:
    """Ana and bob close their links to cy, and let none in."""
    _keep_out_cy(stage, True)


def let_in_cy(stage: DemoStage) -> None:
    _keep_out_cy(stage, False)


def _keep_out_cy(stage: DemoStage, is_out: bool) -> None:
    with stage.node("cy") as cy:
        card = trust_of(cy).card()
    for name in VOTERS[:2]:
        with stage.node(name) as node:
            trust_of(node).trust(card)
            if is_out:
                trust_of(node).block("cy")
            node.bus.refresh()


def leader(stage: DemoStage) -> str:
    """Who coordinates, as ana knows it."""
    with stage.node("ana") as ana:
        stage.until(lambda: _view(ana).order.coordinator, "somebody coordinates")
        return _view(ana).order.coordinator


def hand_over(stage: DemoStage) -> str:
    """Ana lets bob coordinate; who does then."""
    with stage.node("ana") as ana:
        asyncio.run(_quorum(ana).transfer(MESH, "bob"))
    return leader(stage)


def _kill_the_leader(stage: DemoStage) -> None:
    killed = leader(stage)
    with stage.node("ana") as ana:
        before = _view(ana).order
    stage.switch_off(killed)
    stage.tell(f"{killed}, who coordinates, is killed with -9")
    other = next(name for name in VOTERS if name != killed)
    with stage.node(other) as node:
        began = monotonic()
        change = {"depth": 30}
        entities = node.mesh(MESH).entities
        done = entities.patch("mission", "dive", change, base=3, timeout_ms=_ELECTION_MS)
        took_s = monotonic() - began
        after = _view(node).order
        stage.prove(
            done.outcome == "applied" and after.lease_epoch > before.lease_epoch,
            f"{took_s:.1f} s later {after.coordinator} has been elected, and a write is decided",
            f"{done}, epoch {before.lease_epoch} to {after.lease_epoch}",
        )
    stage.switch_on(killed)
    with stage.node(killed) as node:
        dive = partial(node.mesh(MESH).entities.get, "mission", "dive", demand=_LOCAL)
        stage.until(lambda: _fields(dive())[0] == 30, f"{killed} has what was decided meanwhile")
        stage.prove(
            _revision(dive()) == 4,
            f"{killed} is back, and has what was decided meanwhile: depth = 30",
            f"{dive()}",
        )


def _newest(stage: DemoStage, node: Node) -> EntityRead:
    """What a majority confirms; asked again while none does, as in an election."""
    found: list[EntityRead] = []

    def look() -> bool:
        with suppress(NotFresh):
            found.append(node.mesh(MESH).entities.get("mission", "dive"))
        return bool(found)

    stage.until(look, "a majority confirms what is newest")
    return found[0]


def _fields(found: EntityRead) -> tuple[Any, Any]:
    """Depth and pilot."""
    fields = {} if found.entity is None else found.entity.fields
    return fields.get("depth"), fields.get("pilot")


def _revision(found: EntityRead) -> int:
    return 0 if found.entity is None else found.entity.revision


def _is_refused_as_new(node: Node) -> bool:
    try:
        asyncio.run(_quorum(node).confirm(MESH, ReadDemand(), timeout_ms=_LOOK_MS))
    except NotFresh:
        return True
    return False


def _quorum(node: Node) -> RemoteQuorum:
    address = bus_socket(HomePaths(node.home))
    if address is None:
        raise DemoFailed(f"no daemon serves {node.home}")
    return RemoteQuorum(address)


def _view(node: Node) -> QuorumView:
    return asyncio.run(_quorum(node).view(MESH))
