"""What a quorum has committed reaches members without a vote over links of the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.bus.meshes import commit_follow
from holdfast.node.bus.meshes import exchange as exchange_module
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.bus.meshes.grants import MeshPeer, TrustGrants
from holdfast.node.bus.meshes.mesh_serve import consumer_of, hold_for
from holdfast.node.core.commit import CommitRun, CommittedEntry
from holdfast.node.core.committed_intake import PageTaken, commit_trouble
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.bus_mesh import (
    CommitsAsked,
    CommitsRefused,
    CommitsSent,
    CommitsTold,
    MeshesShared,
    StateTold,
    encode_word,
    read_word,
)
from holdfast.protocol.commit_page import CommitPage, encode_page
from holdfast.rules.envelope import encode
from holdfast.rules.limits import HOUR_MS
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Reader
from holdfast.storage.tickets import Ticket
from support.commit_pages import mission, page_of, take, voter_with, with_record
from support.envelopes import MESH, make_id
from support.mesh_links import MemoryLink, MeshNode, connect, cut, until
from support.mesh_links import line as line_between
from support.nodes import Nodes
from support.sole_voter import SoleVoter, give_voters
from support.source import HandClock

PATIENCE_S = 60


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes("memory", tmp_path, HandClock())
    yield made
    made.close()


@asynccontextmanager
async def sharing(nodes: Nodes, *names: str, relay: bool = True) -> AsyncIterator[list[MeshNode]]:
    made = [MeshNode(nodes.open(name)) for name in names]
    for one in made:
        one.knows(*(other for other in made if other is not one), relay=relay)
        await one.exchange.start()
        await one.exchange.share(MESH)
    try:
        yield made
    finally:
        for one in made:
            await one.exchange.close()


def sole(node: MeshNode) -> SoleVoter:
    give_voters(node.engine, MESH)
    return SoleVoter(node.engine, MESH)


def commit(voter: SoleVoter, *ids: str) -> None:
    for id in ids:
        voter.commit(encode(mission(id, origin=voter.engine.ctx.peer)))


def fold(node: MeshNode, at: int) -> None:
    """As an engine does it: by the writer's queue, where a group holds nothing but commits."""
    store = node.engine.store
    assert isinstance(store, MemoryStore)
    token = FenceToken(1, 1, "ana", at)
    raw = encode(mission(f"m{at:02}", origin="ana"))
    run = CommitRun(node.engine.ctx, MESH, [CommittedEntry(raw, token, 1, at)])
    store.writer.enqueue(Ticket(run, lambda tickets: None))
    store.writer.run_group()


def counted(patch: pytest.MonkeyPatch, of: object, name: str) -> list[None]:
    """The calls of a coroutine from now on."""
    calls, real = list[None](), getattr(of, name)

    async def call() -> None:
        calls.append(None)
        await real()

    patch.setattr(of, name, call)
    return calls


def number(node: MeshNode) -> int:
    row = node.engine.read("test", lambda tx: tx.quorum_get(MESH))
    return 0 if row is None else row.number


def missions(node: MeshNode) -> list[str]:
    return [
        row.id
        for row in node.engine.read("test", lambda tx: tx.entity_list(MESH, "mission", "", 999))
    ]


def records(node: MeshNode) -> list[bytes]:
    rows = node.engine.read("test", lambda tx: tx.commit_range(MESH, 1, 999))
    return [row.record for row in rows]


def said(end: MemoryLink, kind: type) -> int:
    return sum(isinstance(read_word(body), kind) for _, body in end.sent)


async def until_at(at: int, *nodes: MeshNode) -> None:
    await until(lambda: all(number(one) == at for one in nodes), nodes, PATIENCE_S)


def test_Q4_what_is_committed_reaches_a_member_without_a_vote_and_goes_on_from_it(
    nodes: Nodes,
) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob", "cyd") as (ana, bob, cyd):
            voter = sole(ana)
            commit(voter, "a", "b")
            first = connect(ana, bob)
            await until_at(2, bob)
            # cyd is linked to bob only, who has no vote.
            connect(bob, cyd)
            await until_at(2, cyd)
            commit(voter, "c")
            await until_at(3, bob, cyd)
            for one in (bob, cyd):
                assert missions(one) == ["a", "b", "c"]
                row = one.engine.read("test", lambda tx: tx.quorum_get(MESH))
                assert row is not None
                assert (row.voter, row.incarnation, row.tag) == (None, 1, b"s" * 16)
                assert one.node.log.head().offset == 3
            # A voter asks nobody, and each page crossed a link once.
            assert said(first, CommitsAsked) == 0
            assert said(first, CommitsSent) == said(first.other, CommitsAsked)

    asyncio.run(story())


def test_Q4_commits_of_a_busy_voter_are_told_together_and_its_streams_are_left_alone(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "COMMIT_TELL_MS", HOUR_MS)  # the test ends it itself

    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            voter = sole(ana)
            commit(voter, "first")
            end = connect(ana, bob)
            await until_at(1, bob)
            exchange = ana.exchange
            await until(lambda: not exchange._rung, (ana, bob), PATIENCE_S)
            before = said(end, CommitsTold)
            # Beside a busy quorum there may be a thousand idle ones.
            # (What is noted of bob's place is an ordinary write, and may be looked at late.)
            streams = counted(monkeypatch, exchange, "_look")
            all_meshes = counted(monkeypatch, exchange._commits, "look")
            for at in range(2, 22):
                fold(ana, at)
            assert (exchange._rung, exchange._commits_rung) == (False, True)
            await until_at(21, bob)
            assert said(end, CommitsTold) - before == 1
            assert not exchange._commits_rung, "and that was all"
            fold(ana, 22)
            await asyncio.sleep(0)
            assert exchange._telling is not None
            assert exchange._commits_rung, "it is told when the moment is over"
            exchange._telling.cancel()
            exchange._tell_again()
            assert not exchange._commits_rung
            await until_at(22, bob)
            assert len(all_meshes) <= len(streams), "no commit lets all of them be looked at"

    asyncio.run(story())


def test_Q4_neighbours_that_vote_are_told_seldom_and_at_once_if_one_comes_that_does_not(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Voters have everything from their own engine; a word for each commit would cost all of them
    more than the commit itself.
    """
    monkeypatch.setattr(exchange_module, "COMMIT_TELL_VOTERS_MS", HOUR_MS)

    async def story() -> None:
        async with sharing(nodes, "ana", "bob", "cyd") as (ana, bob, cyd):
            voter = sole(ana)
            commit(voter, "a")
            end = connect(ana, bob)
            await until_at(1, bob)
            ana.exchange.know_voters(lambda mesh, key: key == end.peer)
            fold(ana, 2)
            await until_at(2, bob)  # the first word comes at once
            told = said(end, CommitsTold)
            fold(ana, 3)
            fold(ana, 4)
            await until(lambda: ana.exchange._commits_rung, (ana, bob), PATIENCE_S)
            assert (said(end, CommitsTold), number(bob)) == (told, 2)
            connect(ana, cyd)
            await until_at(4, bob, cyd)

    asyncio.run(story())


def test_Q4_many_commits_come_in_pages_one_after_the_other(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            voter = sole(ana)
            big = "x" * 200_000
            for at in range(7):
                voter.commit(encode(mission(f"m{at}", big, origin="ana")))
            end = connect(ana, bob)
            await until_at(7, bob)
            assert said(end, CommitsSent) == 3

    asyncio.run(story())


def test_Q4_what_a_peer_tells_while_its_page_is_stored_is_asked_for(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says how far its sender was when it read it, which is older than the word."""

    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            voter = sole(ana)
            commit(voter, "a")
            take = commit_follow.take_commits

            def take_while_more_is_committed(*args: Any) -> PageTaken:
                taken = take(*args)
                if number(ana) == 1:
                    commit(voter, "b")
                    (link,) = bob.exchange._links.values()
                    bob.exchange._commits.heard(link, CommitsTold([(MESH, 2)]))
                return taken

            monkeypatch.setattr(commit_follow, "take_commits", take_while_more_is_committed)
            # Only the word that comes meanwhile tells of the second one.
            monkeypatch.setattr(ana.exchange._commits, "_compare", lambda rows: None)
            ana.exchange._commits.numbers[MESH] = 1
            connect(ana, bob)
            await until_at(2, bob)

    asyncio.run(story())


def test_Q4_another_neighbour_is_asked_when_the_first_one_goes_or_refuses(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob", "cyd") as (ana, bob, cyd):
            voter = sole(ana)
            commit(voter, "a")
            connect(ana, cyd)
            await until_at(1, cyd)
            # ana says that she has more and then sends nothing of it.
            mute = connect(ana, bob)
            silent = mute.other
            await until_at(1, bob)
            cut(mute)
            commit(voter, "b")
            await until_at(2, cyd)
            connect(cyd, bob)
            await until_at(2, bob)
            assert silent.up is False

    asyncio.run(story())


def test_Q4_commits_are_taken_only_from_peers_that_may_bring_them(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob", relay=False) as (ana, bob):
            voter = sole(ana)
            commit(voter, "a")
            end = connect(ana, bob)
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: bob.node.mesh(MESH).state.get("k") == 1, (ana, bob), PATIENCE_S)
            await until(lambda: said(end, CommitsTold) > 0, (ana,), PATIENCE_S)
            assert said(end.other, CommitsAsked) == 0
            # Nor if it pushes what nobody asked for.
            page = encode_word(CommitsSent(encode_page(page_of(ana.engine.store))))
            end.other.receive(Stream.MESH, page)
            ana.node.mesh(MESH).state.set("k", 2)
            await until(lambda: bob.node.mesh(MESH).state.get("k") == 2, (ana, bob), PATIENCE_S)
            assert number(bob) == 0

    asyncio.run(story())


class MayVote(TrustGrants):
    def may_bring_commits(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
        return self.may_read(tx, peer, mesh)


def test_Q4_a_voter_is_believed_also_where_it_may_not_relay(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob", relay=False) as (ana, bob):
            await bob.exchange.close()
            bob.exchange = MeshExchange(bob.engine, bob.key, grants=MayVote())
            await bob.exchange.start()
            commit(sole(ana), "a")
            connect(ana, bob)
            await until_at(1, bob)

    asyncio.run(story())


def test_Q4_a_neighbour_with_another_order_is_left_and_reported(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob", "eve") as (ana, bob, eve):
            voter, other = sole(ana), sole(eve)
            commit(voter, "a")
            connect(ana, bob)
            await until_at(1, bob)
            commit(other, "x", "y")
            end = connect(eve, bob)

            def trouble() -> list[tuple[str, str]]:
                found = bob.engine.read("test", lambda tx: commit_trouble(tx, MESH))
                return [(one.kind, one.source) for one in found]

            await until(lambda: trouble() == [("commit_forked", "eve")], (bob,), PATIENCE_S)
            commit(voter, "b")
            await until_at(2, bob)
            assert missions(bob) == ["a", "b"]
            assert said(end.other, CommitsAsked) == 1
            status = {one.peer: one.problem for one in bob.exchange.status().peers}
            assert "commit_forked" in status["eve"]

    asyncio.run(story())


ORDER = [mission("a"), mission("b")]


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (with_record(page_of(voter_with(ORDER)), 0, id=make_id(77)), "another envelope"),
        (page_of(voter_with(ORDER), 2), "asked from 1 on, not 2"),
    ],
)
def test_Q4_a_peer_that_sends_what_is_no_page_or_was_not_asked_is_refused(
    nodes: Nodes, lie: CommitPage, why: str
) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            # ana's own exchange knows nothing of this link: what she says is said here.
            _, line = line_between(ana, bob)
            bob.exchange.link_up(line)
            line.receive(Stream.MESH, encode_word(MeshesShared([MESH], True)))
            await until(lambda: bool(bob.exchange.status().peers[0].meshes), (bob,), PATIENCE_S)
            line.receive(Stream.MESH, encode_word(CommitsTold([(MESH, 9)])))
            await until(lambda: said(line, CommitsAsked) == 1, (bob,), PATIENCE_S)
            line.receive(Stream.MESH, encode_word(CommitsSent(encode_page(lie))))

            def problem() -> str:
                return bob.exchange.status().peers[0].problem

            await until(lambda: why in problem(), (bob,), PATIENCE_S)
            assert number(bob) == 0

    asyncio.run(story())


def truncate(node: MeshNode) -> None:
    """The log no longer has anything up to now."""
    head = node.engine.read("test", lambda tx: tx.log_bounds()[1])
    node.engine.store.write(lambda tx: tx.log_truncate(head + 1, 99, 1))


def test_Q3_who_lacks_what_a_neighbour_has_truncated_gets_its_state_and_then_pages(
    nodes: Nodes,
) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob", "cy") as (ana, bob, cy):
            voter = sole(ana)
            commit(voter, "a", "b")
            truncate(ana)
            end = connect(ana, bob)
            await until_at(2, bob)
            commit(voter, "c")
            await until_at(3, bob)
            assert (said(end, CommitsRefused), said(end, CommitsSent)) == (0, 2)
            # Who has it from a state hands it on the same way.
            truncate(bob)
            connect(bob, cy)
            await until_at(3, cy)
            assert records(cy) == records(bob) == records(ana)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("number_told", "content", "why"),
    [(1, b"x", "without commit 2"), (9, b"no snapshot at all", "snapshot")],
)
def test_Q4_a_peer_that_sends_what_is_no_state_is_refused(
    nodes: Nodes, number_told: int, content: bytes, why: str
) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            take(bob.engine.store, page_of(voter_with(ORDER), 1, 1))
            before = records(bob)
            _, line = line_between(ana, bob)
            bob.exchange.link_up(line)
            line.receive(Stream.MESH, encode_word(MeshesShared([MESH], True)))
            await until(lambda: bool(bob.exchange.status().peers[0].meshes), (bob,), PATIENCE_S)
            line.receive(Stream.MESH, encode_word(CommitsTold([(MESH, 9)])))
            await until(lambda: said(line, CommitsAsked) == 1, (bob,), PATIENCE_S)
            sha = bob.engine.blobs.put(content).sha256  # as if it had been fetched
            told = StateTold(MESH, number_told, "embedded", bytes.fromhex(sha), len(content))
            line.receive(Stream.MESH, encode_word(CommitsSent(b"", told)))
            problem = bob.exchange.status
            await until(lambda: why in problem().peers[0].problem, (bob,), PATIENCE_S)
            assert records(bob) == before

    asyncio.run(story())


def test_Q4_the_log_keeps_what_a_neighbour_has_not_folded_yet(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            voter = sole(ana)
            commit(voter, "a", "b")
            end = connect(ana, bob)
            await until_at(2, bob)

            def place() -> str:
                row = ana.engine.read("test", lambda tx: tx.consumer_get(consumer_of("bob")))
                return "" if row is None else row.frontier

            await until(lambda: place() == "2", (ana, bob), PATIENCE_S)
            cut(end)
            commit(voter, "c")
            who = MeshPeer("bob", bob.key)
            hold_for(ana.engine, who, [MESH], {}, {MESH: 1})
            assert place() == "1"
            hold_for(ana.engine, who, [MESH], {}, {MESH: 2})
            assert place() == "2"

    asyncio.run(story())


def test_Q4_a_node_whose_engine_brings_the_order_asks_no_neighbour(nodes: Nodes) -> None:
    """As a node has it that follows an etcd: it has no vote, and an order of its own."""

    async def story() -> None:
        async with sharing(nodes, "ana", "bob") as (ana, bob):
            bob.exchange.know_orders(lambda row: True, lambda mesh: None)
            row = QuorumRow(mesh=MESH, engine="etcd", incarnation=1, tag=b"s" * 16)
            bob.engine.store.write(lambda tx: tx.quorum_put(row))
            commit(sole(ana), "a")
            end = connect(ana, bob)
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: bob.node.mesh(MESH).state.get("k") == 1, (ana, bob), PATIENCE_S)
            await until(lambda: said(end, CommitsTold) > 0, (ana,), PATIENCE_S)
            assert said(end.other, CommitsAsked) == 0

    asyncio.run(story())
