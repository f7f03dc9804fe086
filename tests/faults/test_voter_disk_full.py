"""A voter whose disk fills up while the others write: with real nodes, on a real small disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support.small_disk import fill, mounted
from support.voter_nodes import VoterNode, until, voted

pytestmark = pytest.mark.faults

DISK_KB = 96 * 1024


@pytest.mark.parametrize("full", ["ana", "cy"])
def test_Q3_Q4_a_voter_whose_disk_is_full_stops_nobody_and_goes_on_when_there_is_room(
    tmp_path: Path, full: str
) -> None:
    """Ana leads, cy follows."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, _ = nodes
        victim = next(node for node in nodes if node.name == full)
        await ana.host.operators.init("team", ["bo", "cy"])
        await ana.put("before")
        filler = fill(disk)
        for number in range(60):
            done = await bo.put(f"{number} " + "x" * 900, id=f"m{number}", timeout_ms=60_000)
            assert done.outcome == "applied"
        term = bo.order.driver.state.term
        assert victim.order.driver.state.disk == "full"
        assert not _has(victim, "m59"), "what it has not, others have committed"
        assert bo.order.driver.state.leader != _id_of(victim), "it does not lead any more"
        filler.unlink()
        await victim.host.refresh()
        assert (await bo.put("after", id="after", timeout_ms=60_000)).outcome == "applied"
        await until(partial(_has, victim, "after"))
        assert victim.part in ("voter", "coordinator")
        assert (await victim.put("its own", id="own", timeout_ms=60_000)).outcome == "applied"
        assert bo.order.driver.state.term >= term

    with mounted(tmp_path, DISK_KB) as disk:
        (tmp_path / full).symlink_to(disk, target_is_directory=True)
        voted(tmp_path, story, "ana", "bo", "cy")


def _id_of(node: VoterNode) -> int:
    return node.order.driver.state.me


def _has(node: VoterNode, id: str) -> bool:
    return node.mission(id) is not None
