"""The only voter of a mesh gives up its vote: with a word of its own, and for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.quorum.standing import warnings_of
from holdfast.rules.errors import Conflict, MeshOwes
from support.envelopes import MESH
from support.moved_nodes import title, write
from support.voter_nodes import VoterNode, until, voted


def test_S20_the_only_voter_gives_up_its_vote_and_deletes_its_mesh(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        (ana,) = nodes
        quorum = ana.host.quorum
        await quorum.init(MESH, ())
        await write(ana, "m", "of the first order")
        with pytest.raises(Conflict, match="voter") as kept:
            ana.node.delete_mesh(MESH, owed_too=True)
        assert "quorum remove ana --mesh team" in (kept.value.hint or "")
        with pytest.raises(Conflict, match=r"only voter.*--last"):
            await quorum.remove(MESH, "ana")
        status = await quorum.remove(MESH, "ana", last=True)
        assert (status.part, status.members, warnings_of(status)) == ("member", (), [])
        assert ana.part == "none"
        with pytest.raises(MeshOwes):
            ana.node.delete_mesh(MESH)
        ana.node.delete_mesh(MESH, owed_too=True)
        await ana.down()
        await ana.up()
        # The same name again: an order of its own, and nothing of the old one comes back.
        ana.node.create_mesh(MESH)
        status = await ana.host.quorum.init(MESH, ())
        assert (status.incarnation, status.part) == (2, "coordinator")
        assert ana.mission() is None
        await write(ana, "m", "of the second")
        assert title(ana) == "of the second"
        await ana.down()
        await ana.up()
        await until(lambda: ana.order.has_quorum)
        assert title(ana) == "of the second"

    voted(tmp_path, story, "ana")


def test_Q10_the_last_vote_is_not_given_up_for_another_or_while_others_vote(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        quorum = ana.host.quorum
        await quorum.init(MESH, ("bo",))
        await quorum.remove(MESH, "bo", last=True)  # as without the word
        await until(lambda: bo.part == "none")
        assert ana.voters() == ["ana"]
        await quorum.add(MESH, "bo")
        await quorum.remove(MESH, "ana", last=True)
        await until(lambda: ana.part == "none")
        assert bo.voters() == ["bo"], "a majority took it, and the other one goes on"
        # Nobody decides after that; a member goes on with what it has, when it is told to.
        await bo.host.quorum.remove(MESH, "bo", last=True)
        status = await bo.host.quorum.recover(MESH, accept_loss=True)
        assert (status.incarnation, status.part) == (2, "coordinator")

    voted(tmp_path, story, "ana", "bo")
