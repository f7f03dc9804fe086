"""Who may go on alone with the order of a mesh, and where nobody may."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.rules.errors import Conflict, NotAllowed
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.moved_nodes import check_fences, decoded, etcd_address, refreshed, same, title, write
from support.voter_nodes import VoterNode, until, voted


async def grant(owner: VoterNode, peer: VoterNode) -> None:
    """The owner lets a member vote; until both know."""
    await owner.host.voters.voter_key(MESH, peer.name)
    voters = peer.host.voters
    await until(lambda: voters.may_vote(MESH, (voters.our_key(),)))


def test_Q13_a_member_without_a_vote_recovers_only_where_no_voter_is_heard(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes  # cy has no vote
        await ana.host.quorum.init(MESH, ("bo",))
        await write(ana, "m", "acknowledged")
        await until(lambda: title(cy) == "acknowledged")
        recover = cy.host.quorum.recover
        with pytest.raises(Conflict, match="never had a vote"):
            await recover(MESH, accept_loss=False)
        with pytest.raises(NotAllowed):
            await recover(MESH, accept_loss=True)
        await grant(ana, cy)
        with pytest.raises(Conflict, match="is there"):
            await recover(MESH, accept_loss=True)
        # One of two voters is no majority; but it is there, and has more than cy may have.
        await bo.down()
        await until(lambda: not ana.order.has_quorum)
        with pytest.raises(Conflict, match="is there"):
            await recover(MESH, accept_loss=True)
        assert cy.part == "none"
        await ana.down()
        gone = await recover(MESH, accept_loss=True)
        assert (gone.incarnation, gone.part) == (2, "coordinator")
        await write(cy, "m", "cy alone")
        assert title(cy) == "cy alone"
        check_fences(cy)

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q4_only_a_member_with_the_right_moves_the_order_of_an_etcd(tmp_path: Path) -> None:
    """No voter is asked there: whoever has the etcd's address could append the end."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        await refreshed(ana, bo)
        address = etcd_address(new_scope())
        await ana.host.quorum.init(MESH, (), engine=address)
        await write(ana, "m", "in the etcd")
        await until(lambda: title(bo) == "in the etcd")
        await bo.host.quorum.move(MESH, engine=address)  # takes part in it
        with pytest.raises(NotAllowed):
            await bo.host.quorum.move(MESH, (), engine="embedded")
        await write(bo, "m", "still there")
        await same(ana, bo)
        assert {one.fence.incarnation for one in decoded(bo)} == {1}
        await grant(ana, bo)
        moved = await bo.host.quorum.move(MESH, (), engine="embedded")
        assert (moved.engine, moved.incarnation) == ("embedded", 2)

    voted(tmp_path, story, "ana", "bo")
