"""Tasks from before there were voters: what one node had of them is what all decide from."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.rules.bodies import TaskTurn, encode_body
from holdfast.rules.errors import UnknownTask
from holdfast.rules.ids import id_text
from holdfast.rules.rows import TaskEventRow, TaskRow
from support.envelopes import MESH, make_id
from support.voter_nodes import VoterNode, until, voted

OPEN, HELD, LONELY = (id_text(make_id(number)) for number in (501, 502, 503))


def task_of(node: VoterNode, id: str) -> TaskRow | None:
    return node.node._engine.read("task", lambda tx: tx.task_get(MESH, id))


def turns_of(node: VoterNode, id: str) -> list[TaskEventRow]:
    return node.node._engine.read("task", lambda tx: tx.task_events(MESH, id))


def records(node: VoterNode) -> list[bytes]:
    rows = node.node._engine.read("commits", lambda tx: tx.commit_range(MESH, 1, 10_000))
    return [row.record for row in rows]


def trouble(node: VoterNode) -> object:
    return node.node._engine.read("trouble", lambda tx: tx.job_get(f"commits.trouble:{MESH}"))


async def claim(node: VoterNode, id: str) -> object:
    body = encode_body(TaskTurn(0))
    receipt = await node.host.quorum.intend(MESH, "task.claim", id, body, timeout_ms=30_000)
    return receipt.outcome


def standings(node: VoterNode) -> list[object]:
    found: list[object] = []
    for id in (OPEN, HELD, LONELY):
        row = task_of(node, id)
        holder = None if row is None or row.holder is None else row.holder.peer
        found.append(None if row is None else (row.title, row.created_by, row.status, holder))
    return found


def test_S10_Q1_tasks_of_before_are_what_the_order_says_on_every_node(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy, dee = nodes  # dee has no vote
        tasks = ana.node.mesh(MESH).tasks
        tasks.create("open", id=OPEN)
        tasks.create("held", id=HELD)
        await until(lambda: task_of(bo, HELD) is not None)
        bo.node.mesh(MESH).tasks.claim(HELD)
        await until(lambda: (row := task_of(ana, HELD)) is not None and row.holder is not None)
        await until(lambda: task_of(cy, OPEN) is not None)
        await cy.down()
        await dee.down()
        # What cy does while it is away reaches nobody before there are voters.
        await cy.up_alone()
        cy.node.mesh(MESH).tasks.create("lonely", id=LONELY)
        cy.node.mesh(MESH).tasks.claim(OPEN)
        lost = task_of(cy, OPEN)
        assert lost is not None
        cy.node.close()

        await ana.host.quorum.init(MESH, ("bo",))
        assert await claim(bo, OPEN) == "applied", "it is known from the beginning"
        await cy.up()
        await dee.up()
        await ana.host.quorum.add(MESH, "cy", timeout_ms=60_000)
        # cy adopts what only it has, as soon as it takes part; who held something else is told.
        await cy.host.quorum._seat(MESH)
        wanted = [
            ("open", "ana", "claimed", "bo"),
            ("held", "ana", "claimed", "bo"),
            ("lonely", "cy", "open", None),
        ]
        await until(lambda: all(standings(node) == wanted for node in nodes))
        (told,) = cy.node._engine.read(
            "conflicts", lambda tx: tx.conflicts_of(MESH, "task", OPEN, lost.last)
        )
        assert "adopted" in told.reason
        assert await claim(dee, LONELY) == "applied"
        await until(lambda: len({tuple(records(node)) for node in nodes}) == 1)
        assert [trouble(node) for node in nodes] == [None] * 4
        placed = {
            tuple((turn.version, turn.place) for turn in turns_of(node, OPEN) if turn.place)
            for node in nodes
        }
        assert len(placed) == 1
        with pytest.raises(UnknownTask):
            await claim(ana, id_text(make_id(504)))

    voted(tmp_path, story, "ana", "bo", "cy", "dee")
