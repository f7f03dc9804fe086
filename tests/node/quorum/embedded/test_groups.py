"""Groups of real nodes over real links: begin, vote, lose a leader, change members, recover."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from holdfast.node.core.committed_snapshot import staging_of
from holdfast.node.quorum.ports import OrderMember
from holdfast.rules.envelope import encode
from holdfast.rules.errors import (
    AlreadyExists,
    Conflict,
    NoQuorum,
    NotAMember,
    NotShared,
    OutcomeUnknown,
)
from holdfast.rules.quorum.compaction import LogLimits
from holdfast.rules.quorum.log_rows import GroupWrite, HardStateRow
from holdfast.rules.quorum.raft.state import last_term
from holdfast.rules.quorum.view import LeaseRow
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog
from support.envelopes import MESH
from support.voter_nodes import VoterNode, mission, until, voted


def coordinator(nodes: list[VoterNode]) -> VoterNode:
    return next(node for node in nodes if node.part == "coordinator")


async def coordinated(nodes: list[VoterNode]) -> VoterNode:
    """Waits until one of them coordinates, and the others know it."""
    await until(
        lambda: (
            any(node.part == "coordinator" for node in nodes)
            and all(node.order.has_quorum for node in nodes if node.is_up)
        )
    )
    return coordinator(nodes)


def member_of(node: VoterNode, peer: str) -> OrderMember:
    return next(one for one in node.order.status().members if one.peer == peer)


def titles(nodes: list[VoterNode], id: str = "m1") -> set[bytes | None]:
    rows = [node.mission(id) for node in nodes]
    return {None if row is None else row.fields for row in rows}


def test_Q3_Q4_three_nodes_go_on_without_the_one_that_led(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, _, cy = nodes
        await ana.host.operators.init(MESH, ["bo", "cy"])
        assert sorted(ana.voters()) == ["ana", "bo", "cy"]
        with pytest.raises(AlreadyExists):
            await ana.host.operators.init(MESH, [])
        for node in nodes:
            await until(lambda: node.part in ("voter", "coordinator"))  # noqa: B023
            done = await node.put(f"by {node.name}")
            assert done.outcome == "applied"
        await cy.order.confirm(timeout_ms=20_000)
        row = cy.mission()
        assert row is not None
        assert (row.revision, b"by cy" in row.fields) == (3, True)

        first = coordinator(nodes)
        epoch = first.order.status().lease_epoch
        await first.down()
        others = [node for node in nodes if node is not first]
        gone = partial(member_of, others[0], first.name)
        await until(lambda: not gone().linked)
        assert gone().heard_ms is not None, "its silence counts from the end of its link"
        assert (await others[0].put("after it")).outcome == "applied"
        after = coordinator(others)
        assert after.order.status().lease_epoch > epoch
        assert after.mission() is not None

        await first.up()
        await until(lambda: first.part == "voter" and titles(nodes) == titles(others))
        await first.order.confirm(timeout_ms=20_000)

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q8_what_an_earlier_process_staged_of_a_snapshot_is_gone_after_a_start(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        (ana,) = nodes
        await ana.host.operators.init(MESH, [])
        await ana.put("stays")

        def staged() -> list[LeaseRow]:
            read = ana.node._engine.read
            return list(read("leases", lambda tx: tx.lease_list(staging_of(MESH), "", 9)))

        lease = LeaseRow(name="deploy", holder="bo", session=b"s" * 16)
        ana.node._engine.store.write(lambda tx: tx.lease_put(staging_of(MESH), lease))
        assert staged()
        await ana.down()
        await ana.up()
        assert not staged()
        assert ana.mission() is not None

    voted(tmp_path, story, "ana")


def test_Q3_a_minority_commits_nothing_and_says_so(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        await ana.host.operators.init(MESH, ["bo", "cy"])
        with pytest.raises(Conflict):
            await ana.host.operators.recover(MESH)  # a majority is there
        await bo.down()
        await cy.down()
        await until(lambda: not ana.order.has_quorum)
        with pytest.raises(NoQuorum):
            await ana.put("alone", timeout_ms=500)
        with pytest.raises(NoQuorum):
            await ana.order.confirm(timeout_ms=500)
        assert ana.mission() is None
        assert not ana.order.status().has_quorum

        with pytest.raises((NoQuorum, OutcomeUnknown)):
            await ana.host.operators.remove(MESH, "bo", timeout_ms=500)
        await ana.host.operators.recover(MESH)
        assert ana.voters() == ["ana"]
        assert (await ana.put("recovered")).outcome == "applied"
        row = ana.mission()
        assert row is not None
        assert row.fence.incarnation == 2

        # A majority was not gone after all: it is not taken over, and says what is wrong.
        await bo.up()
        await cy.up()
        await until(lambda: bo.order.has_quorum)
        adding = asyncio.ensure_future(ana.host.operators.add(MESH, "bo", timeout_ms=60_000))
        await until(lambda: "two groups claim this mesh" in bo.order.status().problem)
        assert bo.order.status().incarnation == 1
        # A voter that is left alone learns everything anew, under a new id.
        await cy.down()
        await adding
        await until(lambda: bo.part in ("voter", "coordinator"))
        assert bo.order.status().incarnation == 2
        assert (await bo.put("by both")).outcome == "applied"
        # Bo was told when its own fold had it, which may be before the coordinator's.
        await until(lambda: titles([ana, bo]) == titles([bo]))

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q4_a_mesh_whose_terms_a_liar_has_used_up_is_recovered_with_new_ones(
    tmp_path: Path,
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        (ana,) = nodes
        await ana.host.operators.init(MESH, [])
        await ana.put("before")
        await ana.down()
        # As if a liar had had the weeks that it takes.
        with closing(SqliteQuorumLog(ana.home)) as log:
            head, group = log.head(MESH), log.group(MESH)
            used = HardStateRow(term=last_term(1), commit=head.commit)
            number = head.written + 1
            log.save(GroupWrite(scope=MESH, voter=group.voter, number=number, hard=used))
        await ana.up()
        with pytest.raises(NoQuorum):
            await ana.put("never", timeout_ms=3_000)
        assert "used up" in ana.order.status().problem
        await ana.host.operators.recover(MESH)
        assert (await ana.put("again")).outcome == "applied"
        row = ana.mission()
        assert row is not None
        assert row.fence.incarnation == 2
        assert row.fence.lease_epoch == last_term(1) + 1, "the lease epoch never falls"

    voted(tmp_path, story, "ana")


def test_Q10_voters_come_and_go_through_whichever_node_is_asked(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        with pytest.raises(NotAMember):
            await ana.host.operators.init(MESH, ["nobody"])
        with pytest.raises(NotShared):
            await ana.host.operators.init("own", ["bo"])
        await ana.host.operators.init(MESH, ["bo"])
        assert (await ana.put("two")).outcome == "applied"

        # Ana owns the mesh, so she lets cy vote; bo's operator asks, whoever coordinates.
        await ana.host.voters.voter_key(MESH, "cy")
        await until(lambda: bo.host.voters.may_vote(MESH, (cy.host.bus.key,)))
        await bo.host.operators.add(MESH, "cy")
        await until(lambda: cy.part == "voter" and titles(nodes) == titles([ana]))
        with pytest.raises(AlreadyExists):
            await bo.host.operators.add(MESH, "cy")

        leads = await coordinated(nodes)
        other = next(node for node in nodes if node is not leads)
        await other.host.operators.transfer(MESH, other.name)
        await until(lambda: other.part == "coordinator")
        assert (await leads.put("handed over")).outcome == "applied"

        await other.host.operators.remove(MESH, other.name)
        await until(lambda: other.part == "none")
        rest = [node for node in nodes if node is not other]
        await coordinated(rest)
        assert (await rest[0].put("without it")).outcome == "applied"
        with pytest.raises(NotAMember):
            await rest[0].host.operators.remove(MESH, other.name)

        await rest[0].host.operators.add(MESH, other.name)
        await until(lambda: other.part == "voter")
        ids = [one.id for one in rest[0].order.driver.state.log.config.members]
        assert max(ids) == 4, "an id is never used twice"
        await until(lambda: titles(nodes) == titles(rest))

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q4_Q10_a_voter_that_comes_late_gets_what_the_logs_have_dropped(tmp_path: Path) -> None:
    """By a snapshot, over real links; then it votes, and goes on after a restart."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, cy = nodes
        for node in nodes:
            node.host.groups.limits = LogLimits(tail_entries=3, step_entries=2)
        await ana.host.operators.init(MESH, ["bo"])
        for number in range(20):
            await ana.put(f"number {number}", id=f"m{number}")
        await until(lambda: ana.order.driver.state.log.boundary > 5)
        await until(lambda: bo.order.driver.state.log.boundary > 5)
        await ana.host.voters.voter_key(MESH, "cy")
        await ana.host.operators.add(MESH, "cy")
        await until(lambda: cy.part == "voter" and titles(nodes, "m19") == titles([ana], "m19"))
        assert cy.order.driver.state.log.boundary > 5
        everything = [titles([ana], f"m{number}") for number in range(20)]
        assert [titles([cy], f"m{number}") for number in range(20)] == everything

        await cy.down()
        await cy.up()
        await until(lambda: cy.part == "voter")
        await bo.down()
        assert (await cy.put("cy and ana decide", id="m20")).outcome == "applied"
        await until(lambda: titles([ana, cy], "m20") == titles([ana], "m20"))

    voted(tmp_path, story, "ana", "bo", "cy")


def test_Q10_the_last_voter_stays(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        (ana,) = nodes
        await ana.host.operators.init(MESH, [])
        with pytest.raises(Conflict):
            await ana.host.operators.remove(MESH, "ana")
        assert (await ana.put("alone")).outcome == "applied"
        await ana.down()
        await ana.up()
        assert (await ana.put("again")).outcome == "applied"
        row = ana.mission()
        assert row is not None
        assert row.revision == 2

    voted(tmp_path, story, "ana")


def test_Q9_a_member_without_a_vote_writes_and_reads_through_voters(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, dee = nodes
        await ana.host.operators.init(MESH, ["bo"])
        assert (await ana.put("before")).outcome == "applied"
        # What is committed reaches her by the links of the mesh; from then on she knows of voters.
        await until(lambda: titles([dee]) == titles([ana]))
        order = dee.host._orders.order(MESH)
        assert order.status().part == "member"
        envelope = mission("dee", "by dee")
        done = await order.propose(envelope.id, encode(envelope), timeout_ms=20_000)
        assert (done.outcome, done.number) == ("applied", 2)
        assert titles([dee]) == titles([ana])
        assert (await bo.put("by bo")).outcome == "applied"
        await order.confirm(timeout_ms=20_000)
        row = dee.mission()
        assert row is not None
        assert (row.revision, b"by bo" in row.fields) == (3, True)

    voted(tmp_path, story, "ana", "bo", "dee")
