"""A member without a vote beside voters, with real nodes and links."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from support.envelopes import MESH
from support.moved_nodes import status, title, write
from support.voter_nodes import VoterNode, until, voted


def _has(node: VoterNode, text: str) -> bool:
    return title(node) == text


def test_Q3_a_member_beside_a_sole_voter_gets_each_commit_and_writes_through_it(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        # No member is granted anything by this, so no list of members wakes bo.
        await ana.host.quorum.init(MESH, ())
        for text in ("one", "two"):
            await write(ana, "m", text)
            await until(partial(_has, bo, text))
        assert (await write(bo, "m", "three")).outcome == "applied"
        assert title(ana) == "three"

    voted(tmp_path, story, "ana", "bo")


def test_Q13_a_loop_that_stood_still_is_told_and_judges_no_timer_by_it(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        (ana,) = nodes
        await ana.host.quorum.init(MESH, ())
        epoch = (await status(ana)).lease_epoch
        groups = ana.host.groups
        assert groups._timer is not None
        groups._timer.cancel()
        groups._due -= 6.0  # as if the tick came so much too late: longer than an election takes
        groups._tick()
        stood = await status(ana)
        assert stood.late_ms >= 5000
        await write(ana, "m", "on")
        now = await status(ana)
        assert (now.part, now.lease_epoch) == ("coordinator", epoch)
        await until(lambda: ana.order.late_ms < 5000)  # what was is forgotten by and by

    voted(tmp_path, story, "ana")
