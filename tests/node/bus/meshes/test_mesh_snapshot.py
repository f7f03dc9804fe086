"""What peers have truncated comes as a snapshot over the bus, to one that was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.node.bus.meshes import backfill, gap_filling, mesh_snapshot
from holdfast.node.library.node import Mesh
from holdfast.node.log.digests import digests
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.bus_mesh import (
    BlocksAsked,
    EntriesPage,
    MeshSnapshotPart,
    MeshWord,
    SnapshotAsked,
    SnapshotRefused,
    StreamsTold,
    encode_word,
    read_word,
)
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import StreamRow
from holdfast.storage.ports import Transaction
from support.envelopes import MESH, fact_append, make_id, message_send
from support.mesh_links import MemoryLink, MeshNode, connect, cut, until, until_same
from support.nodes import KINDS, Nodes
from support.source import HandClock

BIG = b"content of a file" * 9000
ANA = StreamName(MESH, "ana", 1)


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(request.param, tmp_path, HandClock())
    yield made
    made.close()


in_memory = pytest.mark.parametrize("nodes", ["memory"], indirect=True)
"""Nothing of it depends on the store."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_filling, "BUS_SNAPSHOT_MS", 1)


@asynccontextmanager
async def sharing(*names: str, nodes: Nodes, relay: bool = True) -> AsyncIterator[list[MeshNode]]:
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


def team(node: MeshNode) -> Mesh:
    return node.node.mesh(MESH)


def write(node: MeshNode) -> None:
    for number in range(30):
        team(node).state.set(f"{node.name}{number % 20}", number)
    team(node).memory.set("thought", node.name)
    team(node).files.share("file", BIG + node.name.encode())
    team(node).state.set("gone", 1)
    team(node).state.delete("gone")
    team(node).facts.append(node.name, "is", "old")
    team(node).audit.append("activityLog", node.name)


async def truncate(node: MeshNode) -> None:
    """Its whole log is forgotten, as after a long time."""
    node.engine.store.write(lambda tx: tx.log_truncate(tx.log_bounds()[1] + 1, 9999, 1))
    await node.exchange.refresh()


def tables(node: MeshNode) -> dict[str, object]:
    """What the tables of a node hold, as digests."""
    found = node.engine.read("test", lambda tx: digests(tx, node.name, [MESH]))
    return {name: one for name, one in found.meshes[MESH].tables.items() if name != "log"}


def stream(node: MeshNode, name: StreamName = ANA) -> StreamRow | None:
    return node.engine.read("test", lambda tx: tx.stream_get(name))


def claims(node: MeshNode) -> int:
    """Up to where a node says that it has all of what ana wrote."""
    row = stream(node)
    return 0 if row is None else row.covered.prefix


def missing(node: MeshNode) -> int:
    return sum(one.missing for one in node.exchange.status().streams)


def words(end: MemoryLink, kind: type[MeshWord]) -> list[MeshWord]:
    return [word for _, body in end.sent if isinstance(word := read_word(body), kind)]


def same(*made: MeshNode) -> Callable[[], bool]:
    return lambda: (
        all(tables(one) == tables(made[0]) for one in made) and not any(map(missing, made))
    )


def test_B4_who_was_away_gets_what_its_peers_have_truncated(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            write(ana)
            end = connect(ana, bob)
            await until_same(ana, bob)
            cut(end)
            write(ana)
            write(bob)
            end = connect(ana, bob)
            await until_same(ana, bob)
            cut(end)
            await truncate(ana)
            team(ana).state.set("after", 1)
            line = connect(ana, cyd)
            await until(same(ana, cyd), (ana, cyd))
            assert team(cyd).files.read("file", peer="ana") == BIG + b"ana"
            assert team(cyd).state.get("gone") is None
            row, theirs = stream(cyd), stream(ana)
            assert row is not None
            assert theirs is not None
            assert (row.covered, row.floor) == (theirs.covered, theirs.floor)
            # What came as a snapshot goes on as one: cyd serves whom ana does not reach.
            dan = MeshNode(nodes.open("dan"))
            dan.knows(cyd, relay=True)
            cyd.knows(dan)
            await cyd.exchange.refresh()
            await dan.exchange.start()
            await dan.exchange.share(MESH)
            connect(cyd, dan)
            await until(same(ana, dan), (cyd, dan))
            # And what is written now is exchanged as ever. That the digests differ for good is no
            # reason to compare all blocks after every change.
            for number in range(4):
                # Before: cyd confirms by itself after a second, perhaps while this waits.
                told = len(words(line.other, StreamsTold))
                team(ana).state.set("at last", number)
                await until(same(ana, cyd, dan), (ana, cyd, dan))
                await cyd.exchange._hold_all()
                await until(lambda told=told: len(words(line.other, StreamsTold)) > told, (cyd,))  # type: ignore[misc]
            ends = (line, line.other)
            asked = [len(words(end, BlocksAsked)) for end in ends]
            assert sum(asked) <= len(ana.exchange.status().streams)
            await dan.exchange.close()

    asyncio.run(story())


def test_B4_who_may_not_relay_gives_a_snapshot_of_what_it_wrote(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", "cyd", nodes=nodes, relay=False) as (ana, bob, cyd):
            write(ana)
            write(bob)
            end = connect(ana, bob)
            await until_same(ana, bob)
            cut(end)
            await truncate(ana)
            end = connect(ana, cyd)
            await until(lambda: team(cyd).state.get("ana19") == 19, (ana, cyd))
            asked = words(end.other, SnapshotAsked)
            assert [word.own for word in asked if isinstance(word, SnapshotAsked)] == [True]
            assert team(cyd).state.get("bob19") is None
            assert stream(cyd, ANA._replace(origin="bob")) is None
            connect(bob, cyd)
            await until(lambda: team(cyd).state.get("bob19") == 19, (bob, cyd))

    asyncio.run(story())


def test_B4_a_snapshot_goes_on_after_a_break(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_snapshot, "BUS_SNAPSHOT_PIECES", 1)

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            write(ana)
            await truncate(ana)
            end = connect(ana, bob)
            # The line goes down with the third part.
            parts: list[int] = []

            def lost(body: bytes) -> bool:
                if isinstance(read_word(body), MeshSnapshotPart):
                    parts.append(len(body))
                return len(parts) == 3

            end.hold = lost
            await until(lambda: len(parts) == 3, (ana, bob))
            await until(lambda: job(bob) is not None, (bob,))
            assert claims(bob) == 0, "nothing is claimed before all of it is there"
            cut(end)
            bob.node = nodes.reopen(bob.node)
            bob.exchange = type(bob.exchange)(bob.engine, bob.key, jitter=lambda: 0.5)
            await bob.exchange.start()
            again = connect(ana, bob)
            await until(same(ana, bob), (ana, bob))
            first = words(again.other, SnapshotAsked)[0]
            assert isinstance(first, SnapshotAsked)
            assert first.place != b"", "it does not begin anew"
            assert job(bob) is None

    asyncio.run(story())


def job(node: MeshNode) -> object:
    return node.engine.read("test", lambda tx: tx.job_get(backfill.snapshot_job(MESH)))


def test_B4_what_a_snapshot_covers_is_noted_with_its_last_part_or_not_at_all(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            write(ana)
            await truncate(ana)
            failed = asyncio.Event()
            loop = asyncio.get_running_loop()

            def power_fails(tx: Transaction, taking: mesh_snapshot.SnapshotTaking) -> None:
                finish(tx, taking)
                loop.call_soon_threadsafe(failed.set)
                raise OSError("the power fails here")

            finish = mesh_snapshot._finish
            with monkeypatch.context() as patch:
                patch.setattr(mesh_snapshot, "_finish", power_fails)
                end = connect(ana, bob)
                await asyncio.wait_for(failed.wait(), 20)
                cut(end)
            assert claims(bob) == 0
            assert team(bob).state.get("ana19") is None, "one transaction with the last part"
            connect(ana, bob)
            await until(same(ana, bob), (ana, bob))

    asyncio.run(story())


def test_B4_who_still_has_the_entries_is_asked_for_them(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "BUS_SNAPSHOT_MS", 1000)

    async def story() -> None:
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            write(ana)
            end = connect(ana, bob)
            await until_same(ana, bob)
            cut(end)
            await truncate(ana)
            ends = connect(bob, cyd), connect(ana, cyd)
            await until(lambda: cyd.logged() == bob.logged(), (bob, cyd))
            cyd.exchange._gaps._look()
            assert not any(words(end.other, SnapshotAsked) for end in ends)

    asyncio.run(story())


def test_B4_a_peer_that_never_sends_its_snapshot_is_given_up(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "BUS_SNAPSHOT_PATIENCE_MS", 30)

    async def story() -> None:
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            write(ana)
            end = connect(ana, bob)
            await until_same(ana, bob)
            cut(end)
            await truncate(ana)
            await truncate(bob)
            silent = connect(ana, cyd)
            silent.hold = lambda body: isinstance(read_word(body), MeshSnapshotPart)
            await until(lambda: bool(words(silent, MeshSnapshotPart)), (ana, cyd))
            connect(bob, cyd)
            await until(same(bob, cyd), (bob, cyd))

    asyncio.run(story())


def test_B4_a_snapshot_that_leaves_something_out_is_not_taken_over_and_over(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_snapshot, "has_room_for", lambda tx, name: False)

    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            write(ana)
            await truncate(ana)
            end = connect(ana, bob)
            end.hold = lambda body: isinstance(read_word(body), EntriesPage)
            await until(lambda: team(bob).state.get("ana19") == 19, (ana, bob))
            gaps = bob.exchange._gaps
            await until(lambda: not gaps._taking, (ana, bob))
            assert claims(bob) == 0, "there was no room for the stream"
            gaps._look()
            assert not gaps._taking, "a second one would bring no more"

    asyncio.run(story())


LIES = {
    "of another mesh": fact_append("s", "p", 1, seq=1, id=make_id(1), origin="ana", mesh="own"),
    "a message": message_send("topic", "t", b"m", seq=1, id=make_id(1), origin="ana"),
    "of another origin": fact_append("s", "p", 1, seq=1, id=make_id(1), origin="eve"),
}


@pytest.mark.parametrize("lie", LIES)
@in_memory
def test_B4_a_part_that_holds_something_else_ends_the_exchange(nodes: Nodes, lie: str) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes, relay=False) as (ana, bob):
            end = await asked_and_not_answered(ana, bob)
            before = bob.logged()
            end.other.receive(Stream.MESH, encode_word(MeshSnapshotPart(MESH, [LIES[lie]], b"", 0)))
            await until(lambda: bool(end.other.blamed), (bob,))
            assert (claims(bob), bob.logged()) == (0, before)

    asyncio.run(story())


@in_memory
def test_B4_a_snapshot_that_never_ends_or_was_not_asked_for_is_refused(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            end = await asked_and_not_answered(ana, bob)
            for _ in range(2):  # the same place twice
                end.other.receive(Stream.MESH, encode_word(MeshSnapshotPart(MESH, [], b"x", 0)))
            await until(lambda: bool(end.other.blamed), (bob,))
            cut(end)
            end = connect(ana, bob)
            end.other.receive(Stream.MESH, encode_word(MeshSnapshotPart("own", [], b"", 0)))
            await until(lambda: bool(end.other.blamed), (bob,))
            assert claims(bob) == 0

    asyncio.run(story())


async def asked_and_not_answered(ana: MeshNode, bob: MeshNode) -> MemoryLink:
    """A line on which bob has asked ana for a snapshot, and no answer comes."""
    write(ana)
    await truncate(ana)
    end = connect(ana, bob)
    end.hold = lambda body: isinstance(read_word(body), MeshSnapshotPart)
    await until(lambda: bool(words(end, MeshSnapshotPart)), (ana, bob))
    return end


BAD_PLACES = [
    b"\xc1",
    b"x",
    encode_word([1, 9, [0, -1]]),
    encode_word([1, 9, [6, 0]]),
    encode_word([1, 9, [2, ["a"]]]),
    encode_word([1, 9, [1, 4]]),
]


@pytest.mark.parametrize("place", BAD_PLACES)
@in_memory
def test_B4_a_place_that_is_none_is_not_looked_up(nodes: Nodes, place: bytes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            end = connect(ana, bob)
            end.receive(Stream.MESH, encode_word(SnapshotAsked(MESH, False, place)))
            await until(lambda: bool(end.blamed), (ana,))

    asyncio.run(story())


@in_memory
def test_B4_a_place_of_another_epoch_and_a_mesh_of_others_are_refused(nodes: Nodes) -> None:
    async def story() -> None:
        async with sharing("ana", "bob", nodes=nodes) as (ana, bob):
            end = connect(ana, bob)
            old = encode_word([7, 9, [0, 1]])
            for asked in (SnapshotAsked(MESH, False, old), SnapshotAsked("own", False, b"")):
                end.receive(Stream.MESH, encode_word(asked))
            await until(lambda: len(words(end, SnapshotRefused)) == 2, (ana,))
            assert [word.code for word in words(end, SnapshotRefused)] == [  # type: ignore[union-attr]
                "epoch_changed",
                "not_granted",
            ]

    asyncio.run(story())
