"""Nodes that share a mesh over the bus end up with the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.node.bus.meshes import backfill, mesh_serve
from holdfast.node.bus.meshes.exchange import MeshExchange
from holdfast.node.bus.meshes.grants import MeshPeer, TrustGrants
from holdfast.node.bus.meshes.mesh_receive import decode_mesh_page, receive_mesh_page
from holdfast.node.library.node import Mesh
from holdfast.node.upkeep.sweep import Ttl, sweep
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.bus_mesh import (
    BlocksAsked,
    EntriesAsked,
    EntriesPage,
    LeavesAsked,
    read_word,
)
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import place_of
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import BUS_OBJECT_BYTES, BUS_PEER_RETIRE_MS, DAY_MS
from holdfast.storage.ports import Reader, Transaction
from support.envelopes import MESH, fact_append, make_id
from support.mesh_links import (
    MemoryLink,
    MeshNode,
    connect,
    cut,
    key_of,
    line,
    trouble_of,
    until,
    until_same,
)
from support.nodes import KINDS, Nodes, share
from support.source import HandClock

T = TypeVar("T")


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(request.param, tmp_path, HandClock())
    yield made
    made.close()


@asynccontextmanager
async def sharing(*names: str, nodes: Nodes, relay: bool = False) -> AsyncIterator[list[MeshNode]]:
    """Nodes that all trust each other with one mesh, not linked yet."""
    made = [MeshNode(nodes.open(name)) for name in names]
    for one in made:
        one.knows(*(other for other in made if other is not one), relay=relay)
    for one in made:
        await one.exchange.start()
        await one.exchange.share(MESH)
    try:
        yield made
    finally:
        for one in made:
            await one.exchange.close()


def team(node: MeshNode) -> Mesh:
    return node.node.mesh(MESH)


def read(node: MeshNode, look: Callable[[Reader], T]) -> T:
    return node.engine.read("test", look)


def pages_of(*ends: MemoryLink) -> int:
    return sum(
        len(word.raws)
        for end in ends
        for _, body in end.sent
        if isinstance(word := read_word(body), EntriesPage)
    )


def test_Q14_an_audit_event_that_is_lost_on_the_way_is_asked_for_again(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            end = connect(ana, bob)
            team(ana).audit.append("activityLog", "first")
            await until_same(ana, bob)
            lost: list[bytes] = []

            def loses(body: bytes) -> bool:
                if lost or not isinstance(read_word(body), EntriesPage):
                    return False
                lost.append(body)
                return True

            end.hold = loses
            team(ana).audit.append("activityLog", "lost on the way")
            await until(lambda: bool(lost), (ana,))
            asked: list[bytes] = []

            def waits(body: bytes) -> bool:
                if isinstance(read_word(body), EntriesAsked):
                    asked.append(body)
                return bool(asked)

            end.other.hold = waits
            team(ana).audit.append("activityLog", "behind it")
            await until(lambda: [one.last for one in team(bob).audit.streams()] == [3], (bob,))
            (chain,) = team(bob).audit.verify()
            assert (chain.missing, chain.sound) == (((2, 2),), True), "the gap shows meanwhile"
            end.other.hold = lambda body: False
            await until(lambda: bool(asked), (bob,))
            end.receive(Stream.MESH, asked[0])  # the line stands: nothing else makes up for it
            await until_same(ana, bob)
            assert pages_of(end) == 4, "only what was lost came twice"
            (chain,) = team(bob).audit.verify()
            assert (chain.last, chain.events, chain.sound, chain.gapless) == (3, 3, True, True)

    asyncio.run(story())


def test_B4_two_nodes_that_share_a_mesh_converge_over_a_link(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            ana.node.mesh(MESH).state.set("build", "green")
            bob.node.mesh(MESH).state.set("lint", "red")
            bob.node.mesh(MESH).facts.append("s", "p", 1)
            end = connect(ana, bob)
            await until_same(ana, bob)
            assert bob.node.mesh(MESH).state.get("build") == "green"
            assert ana.node.mesh(MESH).state.get("lint") == "red"
            # From now on each pushes what it writes.
            ana.node.mesh(MESH).state.set("build", "red")
            await until(lambda: bob.node.mesh(MESH).state.get("build") == "red", (ana, bob))
            assert pages_of(end, end.other) == 4, "each entry crossed once"

    asyncio.run(story())


def test_B4_a_reading_of_streams_that_is_late_undoes_no_page(nodes: Nodes) -> None:
    """A page that is stored while the streams are read is newer than what was read."""

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            looks: asyncio.Queue[asyncio.Event] = asyncio.Queue()
            context = bob.exchange._context
            run = context.run

            async def run_looks_late(work: Callable[[], Any]) -> Any:
                found = await run(work)
                if isinstance(work, partial) and work.func is mesh_serve.streams_of:
                    looks.put_nowait(permit := asyncio.Event())
                    await permit.wait()
                return found

            end = connect(ana, bob)
            team(bob).state.set("rings", 0)
            await until_same(ana, bob)
            before = pages_of(end, end.other)
            context.run = run_looks_late
            stream = StreamName(MESH, "ana", 1)
            for upto in (1, 2):  # a stream that was not read, and one that was read before
                team(bob).state.set("rings", upto)
                late = await looks.get()
                team(ana).state.set("k", upto)
                await until(lambda: stream in context.taken, (ana, bob))
                assert team(bob).state.get("k") == upto
                late.set()
                later = await looks.get()  # the page rang, too
                assert context.rows[stream].covered == Frontier(upto)
                assert context.spread.mine[stream] == Frontier(upto)
                later.set()
                while not looks.empty():
                    looks.get_nowait().set()
            context.run = run
            team(ana).state.set("k", 3)
            await until(lambda: team(bob).state.get("k") == 3, (ana, bob))
            assert pages_of(end, end.other) - before == 5, "each entry crossed once"

    asyncio.run(story())


def test_B4_a_change_reaches_the_far_end_of_a_line_by_a_relay(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", "cyd", nodes=nodes, relay=True) as (ana, bob, cyd):
            ends = connect(ana, bob), connect(bob, cyd)
            team(ana).state.set("k", 1)
            team(cyd).state.set("j", 2)
            await until_same(ana, bob, cyd)
            assert team(cyd).state.get("k") == 1
            assert team(ana).state.get("j") == 2
            sent = [page for end in ends for page in (pages_of(end), pages_of(end.other))]
            assert sum(sent) == 4, "each of two changes crossed each of two links once"

    asyncio.run(story())


def test_B4_who_may_not_relay_brings_only_what_it_wrote(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            connect(ana, bob)
            team(ana).state.set("k", 1)
            await until_same(ana, bob)
            end = connect(bob, cyd)
            team(bob).state.set("own", 1)
            await until(lambda: team(cyd).state.get("own") == 1, (cyd,))
            assert team(cyd).state.get("k") is None
            assert pages_of(end) == 1, "it was not even asked for the rest"

    asyncio.run(story())


def test_B4_a_peer_that_begins_to_listen_after_the_link_is_up_misses_nothing(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            team(ana).state.set("k", 1)
            here, there = line(ana, bob)
            ana.exchange.link_up(here)
            await until(lambda: bool(here.sent), (ana,))  # nobody listens at the other end
            bob.exchange.link_up(there)
            await until_same(ana, bob)

    asyncio.run(story())


def test_B4_after_a_cut_both_go_on_where_they_were(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            end = connect(ana, bob)
            team(ana).state.set("a", 1)
            await until_same(ana, bob)
            cut(end)
            for number in range(5):
                team(ana).state.set(f"a{number}", 1)
                team(bob).facts.append("s", "p", number)
            again = connect(ana, bob)
            await until_same(ana, bob)
            assert pages_of(again, again.other) == 10, "nothing that was there came again"

    asyncio.run(story())


def test_B4_a_page_that_was_stored_as_the_link_went_down_does_not_come_again(
    nodes: Nodes,
) -> None:
    """The link is gone before the taker notes what it stored, and the streams are not read yet."""

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            context = bob.exchange._context
            run, stored = context.run, asyncio.Event()

            async def run_cuts_once_stored(work: Callable[[], Any]) -> Any:
                found = await run(work)
                if isinstance(work, partial) and work.func is receive_mesh_page:
                    stored.set()
                    await asyncio.Event().wait()  # until the link ends its tasks
                return found

            team(ana).state.set("a", 1)
            context.run = run_cuts_once_stored
            bob.exchange._rung = True  # as if the ring of the commit had not been answered yet
            end = connect(ana, bob)
            await stored.wait()
            cut(end)
            context.run = run
            assert team(bob).state.get("a") == 1
            team(ana).state.set("b", 1)
            again = connect(ana, bob)
            await until_same(ana, bob)
            assert pages_of(again, again.other) == 1, "only what was new"

    asyncio.run(story())


def test_B4_what_was_there_before_a_mesh_is_shared_is_counted_and_comes(nodes: Nodes) -> None:
    async def story() -> None:
        ana, bob = MeshNode(nodes.open("ana")), MeshNode(nodes.open("bob"))
        ana.knows(bob)
        bob.knows(ana)
        for number in range(30):
            team(ana).facts.append("s", "p", number)
            team(bob).state.set("k", number)
        for one in (ana, bob):
            await one.exchange.start()
            await one.exchange.share(MESH)
        connect(ana, bob)
        await until_same(ana, bob)
        # A mesh that is shared later is heard of then.
        for one in (ana, bob):
            one.node.create_mesh("late")
            one.knows(*(other for other in (ana, bob) if other is not one), reads=(MESH, "late"))
            one.node.mesh("late").state.set(one.name, 1)
            await one.exchange.share("late")
        await until_same(ana, bob)
        for one in (ana, bob):
            await one.exchange.close()

    asyncio.run(story())


def test_B4_counting_goes_on_after_a_crash(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "LINK_BATCH_ROWS", 4)
    ana = MeshNode(nodes.open("ana"))
    for number in range(10):
        team(ana).facts.append("s", "p", number)
    backfill.switch_on(ana.engine, MESH)
    assert backfill.count_next(ana.engine, MESH)
    team(ana).facts.append("s", "p", "meanwhile")
    assert not read(ana, lambda tx: backfill.is_counted(tx, MESH)), "so no peer hears of it"
    ana.node = nodes.reopen(ana.node)
    backfill.switch_on(ana.engine, MESH)  # nothing begins anew
    while backfill.count_next(ana.engine, MESH):
        pass
    assert read(ana, lambda tx: backfill.counted_meshes(tx)) == [MESH]
    row = read(ana, lambda tx: tx.stream_get(StreamName(MESH, "ana", ana.engine.ctx.epoch)))
    assert row is not None
    assert (row.covered, row.entries) == (Frontier(11), 11)
    assert not backfill.count_next(ana.engine, MESH)


def test_B4_after_a_restore_our_own_numbers_go_on_without_a_hole(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", nodes=nodes) as (ana,):
            for number in range(3):
                team(ana).facts.append("s", "p", number)
            ana.engine.store.write(lambda tx: tx.set_epoch(2))
            ana.engine.ctx.epoch = 2
            await ana.exchange.refresh()  # as a start does
            team(ana).facts.append("s", "p", "in a new epoch")
            row = read(ana, lambda tx: tx.stream_get(StreamName(MESH, "ana", 2)))
            assert row is not None
            assert (row.base, row.covered, row.entries) == (3, Frontier(4), 1)

    asyncio.run(story())


def test_B4_files_come_before_the_entries_that_name_them(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            content = bytes(range(256)) * (BUS_OBJECT_BYTES // 256) + b"and a piece more"
            team(ana).files.share("big", content)
            digest = ana.engine.blobs.put(b"an object of a fact" * 9000).sha256
            team(ana).facts.append("s", "p", 1, objects=[digest])
            connect(ana, bob)
            await until_same(ana, bob)
            assert team(bob).files.read("big", peer="ana") == content
            assert bob.engine.blobs.exists(digest)

    asyncio.run(story())


def test_B4_an_object_that_is_gone_does_not_stop_its_entry(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            digest = ana.engine.blobs.put(b"an object of a fact" * 9000).sha256
            team(ana).facts.append("s", "p", 1, objects=[digest])
            ana.engine.blobs.unlink(digest)
            connect(ana, bob)
            await until_same(ana, bob)
            assert not bob.engine.blobs.exists(digest)

    asyncio.run(story())


def test_B4_messages_take_numbers_and_stay_where_they_are(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            share(ana.node)
            team(ana).state.set("a", 1)
            team(ana).send("for some", topic="builds")
            team(ana).state.set("b", 1)
            connect(ana, bob)
            await until(lambda: team(bob).state.get("b") == 1, (bob,))
            assert [e.op for e in bob.node.log.range()] == ["state.set", "state.set"]
            row = read(bob, lambda tx: tx.stream_list(MESH))
            ours = [one for one in row if one.origin == "ana"]
            assert (ours[0].covered, ours[0].entries) == (Frontier(3), 2), "no hole is left"

    asyncio.run(story())


def test_B4_without_relay_nothing_from_the_bus_enters_the_lane_of_a_broker(nodes: Nodes) -> None:
    async def story() -> None:
        names = [f"n{at}" for at in range(5)]
        async with sharing(*names, nodes=nodes, relay=True) as made:
            for one in made:
                share(one.node)
            for at, one in enumerate(made):
                for other in made[at + 1 :]:
                    connect(one, other)
            team(made[0]).state.set("k", 1)
            await until_same(*made)
            rows = [
                row for one in made for row in read(one, lambda tx: tx.outbox_list(None, (), 0, 99))
            ]
            assert [(row.lane, row.entity) for row in rows] == [(f"broker:{MESH}", "state//k")], (
                "only the origin hands it to the broker"
            )

    asyncio.run(story())


def test_B4_a_peer_of_a_mesh_holds_the_log_for_what_it_lacks(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            end = connect(ana, bob)
            team(ana).facts.append("s", "p", 1)
            await until_same(ana, bob)

            def place() -> str | None:
                row = read(ana, lambda tx: tx.consumer_get("bus:bob"))
                return None if row is None else row.frontier

            await until(lambda: place() == "1", (ana,))
            end.hold = lambda body: isinstance(read_word(body), EntriesPage)
            team(ana).facts.append("s", "p", "lost on the way")
            team(bob).facts.append("s", "p", "so that bob is heard of")
            await until(lambda: len(ana.logged()) == 3, (ana,))
            await ana.exchange._hold_all()
            assert place() == "1", "it was sent, and bob has not said that it is stored"
            cut(end)
            for number in range(2, 5):
                team(ana).facts.append("s", "p", number)
            nodes.clock.advance(20 * DAY_MS)
            sweep(ana.engine, Ttl(log_ms=1))
            assert ana.engine.store.write(lambda tx: tx.log_bounds())[0] == 2, "1 is confirmed"
            connect(ana, bob)
            await until(lambda: len(bob.logged()) == 6, (bob,))
            nodes.clock.advance(40 * DAY_MS)
            await until(lambda: place() == "6", (ana,))
            cut_again = read(ana, lambda tx: tx.consumer_get("bus:bob"))
            assert cut_again is not None
            assert cut_again.retire_ms == BUS_PEER_RETIRE_MS

    asyncio.run(story())


def test_B4_what_the_source_has_truncated_is_shown_as_missing(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            for number in range(6):
                team(ana).facts.append("s", "p", number)
            ana.engine.store.write(lambda tx: tx.log_truncate(4, 99, 1))
            await ana.exchange.refresh()
            connect(ana, bob)

            def missing() -> list[int]:
                told = bob.exchange.status().streams
                return [stream.missing for stream in told if stream.origin == "ana"]

            await until(lambda: len(bob.logged()) == 3 and missing() == [3], (bob,))

    asyncio.run(story())


def test_B4_a_number_with_different_content_is_found_and_told(nodes: Nodes) -> None:
    """Two nodes got different entries of a third one under one number, each by a way of its own."""

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes, relay=True) as (ana, bob):
            for seq in range(1, 2000, 400):
                ana.node.apply([fact_append("s", "p", seq, seq=seq, id=make_id(seq), origin="cyd")])
                same = seq if seq != 801 else 9
                bob.node.apply(
                    [fact_append("s", "p", same, seq=seq, id=make_id(same), origin="cyd")]
                )
            connect(ana, bob)
            await until(lambda: bool(trouble_of(ana) or trouble_of(bob)), (ana, bob))
            # By digests, or because the other entry came with a page: whichever is first.
            assert "number 801 " in (trouble_of(ana) + trouble_of(bob))[0]

    asyncio.run(story())


def test_B4_holes_of_another_kind_are_no_finding(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes, relay=True) as (ana, bob):
            raws = [
                fact_append("s", "p", seq, seq=seq, id=make_id(seq), origin="cyd")
                for seq in range(1, 9)
            ]
            ana.node.apply(raws)
            bob.node.apply(raws[:5])
            cyd = StreamName(MESH, "cyd", 1)
            # As after a snapshot: covered, and not there.
            bob.engine.store.write(lambda tx: tx.stream_cover(cyd, [(1, 9)]))
            await bob.exchange.refresh()
            end = connect(ana, bob)
            asked = (BlocksAsked, LeavesAsked)
            await until(
                lambda: any(
                    isinstance(read_word(body), asked)
                    for line in (end, end.other)
                    for _, body in line.sent
                ),
                (ana, bob),
            )
            team(ana).state.set("after", 1)
            await until(lambda: team(bob).state.get("after") == 1, (bob,))
            assert trouble_of(ana) + trouble_of(bob) == []

    asyncio.run(story())


def test_B4_two_homes_under_one_name_are_refused_aloud(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes, relay=True) as (ana, bob):
            other = MeshNode(nodes.open("cyd"), key=key_of("the other cyd"))
            first = MeshNode(nodes.open("cyd"))
            ana.knows(first)
            bob.knows(other)
            first.knows(ana)
            other.knows(bob)
            for one in (first, other):
                await one.exchange.start()
                await one.exchange.share(MESH)
            await ana.exchange.refresh()
            await bob.exchange.refresh()
            connect(ana, first)
            connect(bob, other)
            team(first).state.set("first", 1)
            team(other).state.set("other", 1)
            await until(lambda: team(ana).state.get("first") == 1, (ana,))
            await until(lambda: team(bob).state.get("other") == 1, (bob,))
            connect(ana, bob)
            await until(lambda: bool(trouble_of(ana)) and bool(trouble_of(bob)), (ana, bob))
            assert "two homes use one name" in trouble_of(ana)[0]
            assert team(ana).state.get("other") is None
            assert team(bob).state.get("first") is None
            problems = [one.problem for one in ana.exchange.status().peers]
            assert any("two homes use the name 'cyd'" in problem for problem in problems)
            for one in (first, other):
                await one.exchange.close()

    asyncio.run(story())


def test_B4_a_grant_that_was_taken_back_ends_the_exchange(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            connect(ana, bob)
            team(ana).state.set("k", 1)
            await until_same(ana, bob)
            ana.knows(bob, reads=())
            team(ana).state.set("secret", 1)  # before anybody has told the exchange
            team(bob).state.set("back", 1)
            await ana.exchange.refresh()
            assert ana.exchange.status().peers[0].meshes == []
            assert team(bob).state.get("secret") is None
            assert team(ana).state.get("back") is None

    asyncio.run(story())


def test_B4_what_was_refused_before_a_peer_might_write_comes_when_it_may(nodes: Nodes) -> None:
    class ReadOnly(TrustGrants):
        """Until the owner lets it write."""

        writes = False

        def may_write(self, tx: Reader, peer: MeshPeer, mesh: str) -> bool:
            return self.writes

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            bob.exchange._context.grants = grants = ReadOnly()
            end = connect(ana, bob)
            team(ana).state.set("early", 1)
            await until(lambda: "may not write" in bob.exchange.status().peers[0].problem, (bob,))
            assert team(bob).state.get("early") is None
            grants.writes = True
            await bob.exchange.refresh()
            await until_same(ana, bob)
            assert end.up, "the line stood all the time"

    asyncio.run(story())


def test_B4_a_page_and_what_it_covers_are_one_transaction(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, bob = MeshNode(nodes.open("ana")), MeshNode(nodes.open("bob"))
    bob.knows(ana)
    backfill.switch_on(bob.engine, MESH)
    backfill.count_next(bob.engine, MESH)
    for number in range(3):
        team(ana).state.set("k", number)
    raws = [entry.raw for entry in ana.node.log.range()]
    name = StreamName(MESH, "ana", place_of(raws[0]).epoch)
    page = decode_mesh_page(name, 1, 4, 0, b"", [1, 2, 3], raws)
    peer = MeshPeer("ana", ana.key)
    tx = type(bob.engine.store.write(lambda tx: tx))

    def power_fails(*args: object, **named: object) -> None:
        raise OSError("the power fails here")

    with monkeypatch.context() as patch:
        patch.setattr(tx, "stream_cover", power_fails)
        with pytest.raises(OSError, match="power"):
            receive_mesh_page(bob.engine, TrustGrants(), peer, page, None)
    assert bob.logged() == []
    assert read(bob, lambda tx: tx.stream_get(name)) is None
    received = receive_mesh_page(bob.engine, TrustGrants(), peer, page, None)
    assert (received.new, received.row.covered) == (3, Frontier(3))
    again = receive_mesh_page(bob.engine, TrustGrants(), peer, page, None)
    assert (again.new, again.known, again.row) == (0, 3, received.row)


def test_B4_a_peer_that_was_set_back_gets_its_own_again(nodes: Nodes) -> None:
    """The restored home counts in a new epoch, which does not begin at 1."""

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes, relay=True) as (ana, bob):
            connect(ana, bob)
            for number in range(5):
                team(ana).state.set(f"k{number}", number)
            await until_same(ana, bob)
            kept = [entry.raw for entry in ana.node.log.range()][:3]
            await ana.exchange.close()
            back = MeshNode(nodes.open("ana"))  # the home as a backup had it
            back.knows(bob, relay=True)
            back.node.apply(kept)

            def restored(tx: Transaction) -> None:
                tx.set_epoch(2)
                for _ in range(3):
                    tx.tick(MESH)  # a backup has counted as far

            back.engine.store.write(restored)
            back.engine.ctx.epoch = 2
            back.exchange = MeshExchange(back.engine, back.key, jitter=lambda: 0.5)
            await back.exchange.start()
            await back.exchange.share(MESH)
            team(back).state.set("new", 1)
            connect(back, bob)
            await until_same(back, bob)
            assert len(back.logged()) == 6, "the two that were lost, and the new one"
            assert team(bob).state.get("new") == 1
            assert trouble_of(bob) + trouble_of(back) == []
            told = bob.exchange.status  # none is missing: where the epoch begins is known
            await until(lambda: not any(one.missing for one in told().streams), (bob,))
            await back.exchange.close()

    asyncio.run(story())
