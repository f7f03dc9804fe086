"""Two survivors that both recover: when they meet, both say so and neither decides anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.node.bus.meshes import order_compare
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.bus.meshes.grants import MeshPeer, TrustGrants
from holdfast.node.bus.meshes.order_compare import compare_commits
from holdfast.node.core.committed_intake import claims_of
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.node.recovery.check_commits import check_commits
from holdfast.protocol.bus_mesh import CommitsAsked, read_word
from holdfast.protocol.commit_page import CheckedPage, check_page
from holdfast.rules.envelope import encode
from holdfast.rules.errors import OrderContested, TooMany, UnknownPeer
from holdfast.rules.limits import COMMIT_COMPARE_MS, HOUR_MS
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Reader
from support import mesh_links
from support.commit_pages import mission
from support.envelopes import MESH
from support.mesh_links import MeshNode, connect
from support.nodes import Nodes
from support.sole_voter import SoleVoter, give_voters
from support.source import HandClock
from support.voter_nodes import PATIENCE_S, VoterNode, until, voted


async def split(nodes: list[VoterNode], *, both_write: bool = True) -> tuple[VoterNode, VoterNode]:
    """Bo and cy have each recovered alone, and are up again."""
    ana, bo, cy = nodes
    await ana.host.operators.init(MESH, ["bo", "cy"])
    await ana.put("together")
    await until(lambda: all(node.mission() is not None for node in nodes))
    await ana.down()
    await cy.down()
    await until(lambda: not bo.order.has_quorum)
    await bo.host.operators.recover(MESH)
    await bo.put("by bo", id="b")
    await bo.down()
    await cy.up()
    await until(lambda: cy.part == "voter" or cy.part == "coordinator")
    await cy.host.operators.recover(MESH)
    if both_write:
        await cy.put("by cy", id="c")
    await bo.up()
    return bo, cy


def failures(node: VoterNode) -> list[str]:
    found = node.node._engine.read("test", lambda tx: list(check_commits(tx, node.name)))
    return [one.message for one in found if one.status == "fail"]


async def is_refused(node: VoterNode) -> bool:
    with pytest.raises(OrderContested, match="two groups claim this mesh"):
        await node.put("late", id="late")
    with pytest.raises(OrderContested):
        await node.order.confirm(timeout_ms=5_000)
    return node.mission("late") is None


def test_Q4_two_survivors_that_both_recovered_stop_when_they_meet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        bo, cy = await split(nodes)
        await until(lambda: bo.order.is_contested and cy.order.is_contested)
        for node, other in ((bo, "cy"), (cy, "bo")):
            assert node.order.status().incarnation == 2
            assert await is_refused(node)
            assert other in node.order.status().problem
            assert not node.order.status().has_quorum
            assert any("commit_forked" in one for one in failures(node))
        told = [one for one in caplog.records if "commit_forked" in one.message]
        assert len(told) == 2, "each says it once"

        # It is known after a restart too, before anybody is met.
        await bo.down()
        await cy.down()
        await cy.up()
        assert await is_refused(cy)

        # An operator decides for bo: it goes on, and cy cannot come back with its other commit.
        await cy.down()
        await bo.up()
        await bo.host.operators.recover(MESH)
        assert (await bo.put("decided", id="d")).outcome == "applied"
        assert failures(bo) == []
        await cy.up()
        await until(lambda: any(one.incarnation == 3 for one in cy.order.claims))
        assert await is_refused(cy)
        with pytest.raises(TooMany, match="has not caught up"):
            await bo.host.operators.add(MESH, "cy", timeout_ms=2_000)
        assert "two groups claim this mesh" in cy.order.status().problem
        assert (await bo.put("still", id="d")).outcome == "applied"
        assert not bo.order.claims

    caplog.set_level(logging.ERROR, "holdfast")
    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q4_a_survivor_that_committed_nothing_else_joins_the_one_that_was_chosen(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        bo, cy = await split(nodes, both_write=False)
        await until(lambda: bo.order.is_contested and cy.order.is_contested)
        assert [one.number for one in cy.order.claims] == [0]
        await bo.host.operators.recover(MESH)
        await bo.host.operators.add(MESH, "cy", timeout_ms=30_000)
        await until(lambda: cy.part in ("voter", "coordinator") and not cy.order.claims)
        assert (await cy.put("again", id="again")).outcome == "applied"
        assert failures(cy) == failures(bo) == []

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q4_a_second_recovery_beside_a_link_that_stands_is_found_by_both(tmp_path: Path) -> None:
    """They are linked when the second one recovers: nobody meets anew."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        await ana.host.operators.init(MESH, ["bo", "cy"])
        await ana.put("together")
        await until(lambda: all(node.mission() is not None for node in nodes))
        await ana.down()
        await cy.down()
        await until(lambda: not bo.order.has_quorum)
        await bo.host.operators.recover(MESH)
        await bo.put("by bo", id="b")
        await cy.up()
        await until(lambda: bool(cy.order.claims))
        assert not cy.order.is_contested, "one claim against three voters"
        await cy.host.operators.recover(MESH)
        await cy.put("by cy", id="c")
        await until(lambda: bo.order.is_contested and cy.order.is_contested)

    voted(tmp_path, story, "ana", "bo", "cy")


class Votes(TrustGrants):
    """Everybody may vote but eve."""

    def may_vote(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return peer.name != "eve"


def test_Q4_one_liar_stops_no_majority_and_is_named(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana = nodes[0]
        await ana.host.operators.init(MESH, ["bo", "cy"])
        await ana.put("one")
        engine = ana.node._engine
        true = engine.read("test", lambda tx: check_page(commits_page(tx, MESH, 1)))
        other = msgspec.structs.replace(true, tag=b"x" * 16)
        later = msgspec.structs.replace(true, incarnation=9)

        def shows(who: str, page: CheckedPage) -> str | None:
            taken = compare_commits(engine, Votes(), MeshPeer(who, b"k" * 32), page)
            ana.host.groups.compared(MESH)
            return None if taken is None else taken.outcome

        assert shows("eve", other) is None  # she has no vote: her word is none
        assert not ana.order.claims
        assert shows("cy", other) == shows("cy", later) == "forked"
        assert len(ana.order.claims) == 1, "one claim each, however often it is made"
        assert "cy" in ana.order.status().problem
        assert failures(ana)
        assert (await ana.put("goes on")).outcome == "applied"
        await ana.order.confirm(timeout_ms=20_000)
        # If its maker is gone for good, nobody would ever take it back.
        with pytest.raises(UnknownPeer):
            await ana.host.quorum.forget_claim(MESH, "bo")
        assert ana.order.status().problem
        assert (await ana.host.quorum.forget_claim(MESH, "cy", dry_run=True)).problem
        assert failures(ana), "it was only asked"
        assert not (await ana.host.quorum.forget_claim(MESH, "cy")).problem
        assert failures(ana) == []
        assert shows("cy", later) == "forked", "and while it is there it shows it again"

        # As many as a majority here: nobody can tell any more.
        assert shows("bo", other) == "forked"
        assert await is_refused(ana)
        with pytest.raises(OrderContested):
            await ana.host.quorum.forget_claim(MESH, "cy", dry_run=True)
        with pytest.raises(OrderContested):
            await ana.host.quorum.forget_claim(MESH, "cy")
        assert await is_refused(ana), "to forget would be to decide"
        # Who shows the same order takes back what it said; so does one of an order that has ended.
        assert shows("bo", true) == "voter"
        assert shows("cy", msgspec.structs.replace(true, incarnation=0)) == "voter"
        assert not engine.read("test", lambda tx: claims_of(tx, MESH))
        assert (await ana.put("again")).outcome == "applied"
        assert failures(ana) == []

    voted(tmp_path, story, "ana", "bo", "cy")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes("memory", tmp_path, HandClock())
    yield made
    made.close()


@pytest.mark.parametrize(("rest_ms", "most"), [(HOUR_MS, 1), (0, 99)])
def test_Q4_orders_are_compared_at_intervals_however_much_is_committed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, rest_ms: int, most: int
) -> None:
    assert 0 < COMMIT_COMPARE_MS < HOUR_MS
    monkeypatch.setattr(order_compare, "COMMIT_COMPARE_MS", rest_ms)

    async def story() -> None:
        made = [MeshNode(nodes.open(name)) for name in ("ana", "bob")]
        ana, bob = made
        for one, other in ((ana, bob), (bob, ana)):
            one.knows(other, relay=False)
            await one.exchange.close()
            one.exchange = MeshExchange(one.engine, one.key, grants=Votes())
            await one.exchange.start()
            await one.exchange.share(MESH)
            give_voters(one.engine, MESH)
        voter = SoleVoter(ana.engine, MESH)
        end = connect(ana, bob)

        def heard() -> int:
            link = bob.exchange._links[next(iter(bob.exchange._links))]
            return link.commits.theirs.get(MESH, 0)

        def asked() -> int:
            return sum(isinstance(read_word(body), CommitsAsked) for _, body in end.other.sent)

        for at in range(1, 5):
            voter.commit(encode(mission(f"m{at}", origin="ana")))
            await mesh_links.until(lambda: heard() == at, made, PATIENCE_S)  # noqa: B023
        if most > 1:
            await mesh_links.until(lambda: asked() > 1, made, PATIENCE_S)
        assert 1 <= asked() <= most
        row = bob.engine.read("test", lambda tx: tx.quorum_get(MESH))
        assert isinstance(row, QuorumRow)
        assert row.number == 0, "a voter takes nothing from a page"
        for one in made:
            await one.exchange.close()

    asyncio.run(story())
