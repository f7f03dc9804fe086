"""What a member says without end: it costs little, and what it holds up goes on without it."""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.node.bus.meshes import (
    gap_filling,
    mesh_compare,
    mesh_objects,
    own_past,
    snapshot_pull,
    told_words,
)
from holdfast.node.bus.meshes.mesh_objects import ObjectPull
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.bus_mesh import (
    MeshesShared,
    MeshSnapshotPart,
    ObjectAsked,
    ObjectPiece,
    SnapshotAsked,
    StreamNamed,
    StreamsTold,
    StreamTold,
    encode_word,
    read_word,
)
from holdfast.rules.arrivals import Named
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.errors import BadAnswer, OverLimit
from holdfast.rules.limits import BUS_OBJECT_BYTES, BUS_STREAMS_MAX
from node.bus.meshes.test_mesh_lies import lied_to, page, told
from node.bus.meshes.test_mesh_snapshot import same, sharing, truncate, words, write
from support.envelopes import MESH, fact_append, make_id
from support.mesh_links import MemoryLink, MeshNode, connect, cut, until, until_same
from support.nodes import Nodes
from support.source import HandClock


async def _offers(ana: MeshNode, bob: MeshNode, cyd: MeshNode) -> MemoryLink:
    """Ana and bob have truncated what cyd lacks; cyd has asked ana, who sends nothing by itself."""
    write(ana)
    end = connect(ana, bob)
    await until_same(ana, bob)
    cut(end)
    await truncate(ana)
    await truncate(bob)
    bad = connect(ana, cyd)
    bad.hold = lambda body: isinstance(read_word(body), MeshSnapshotPart)
    await until(lambda: bool(words(bad.other, SnapshotAsked)), (ana, cyd))
    return bad


@pytest.mark.parametrize("place", [None, b"x"])
def test_B4_a_snapshot_that_never_ends_keeps_nobody_from_an_honest_one(
    place: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_pull, "BUS_SNAPSHOT_BARREN_MAX", 20)
    monkeypatch.setattr(gap_filling, "BUS_SNAPSHOT_MS", 30)

    async def story() -> None:
        nodes = Nodes("memory", tmp_path, HandClock())
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            bad = await _offers(ana, bob, cyd)
            for number in range(30):
                # Another place each time, as if it went on.
                at = None if place is None else place + bytes([number])
                part = encode_word(MeshSnapshotPart(MESH, [], at, 0))
                bad.other.receive(Stream.MESH, part)
            await until(lambda: bool(bad.other.blamed), (cyd,))
            assert any(isinstance(error, OverLimit) for error in bad.other.blamed)
            connect(bob, cyd)
            await until(same(bob, cyd), (bob, cyd))
        nodes.close()

    asyncio.run(story())


def test_B4_a_snapshot_has_so_many_changes_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_pull, "BUS_SNAPSHOT_ROWS_MAX", 5)
    monkeypatch.setattr(gap_filling, "BUS_SNAPSHOT_MS", 30)

    async def story() -> None:
        nodes = Nodes("memory", tmp_path, HandClock())
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            bad = await _offers(ana, bob, cyd)
            for number in range(1, 7):
                new = fact_append("s", "p", 1, seq=number, id=make_id(number), origin="ana")
                part = MeshSnapshotPart(MESH, [new], bytes([number]), 0)
                bad.other.receive(Stream.MESH, encode_word(part))
            await until(lambda: bool(bad.other.blamed), (cyd,))
            assert [type(error) for error in bad.other.blamed] == [OverLimit]
        nodes.close()

    asyncio.run(story())


def test_B4_a_bad_part_of_a_snapshot_keeps_nobody_from_an_honest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_filling, "BUS_SNAPSHOT_MS", 30)

    async def story() -> None:
        nodes = Nodes("memory", tmp_path, HandClock())
        async with sharing("ana", "bob", "cyd", nodes=nodes) as (ana, bob, cyd):
            bad = await _offers(ana, bob, cyd)
            lie = fact_append("s", "p", 1, seq=1, origin="ana", mesh="own")
            bad.other.receive(Stream.MESH, encode_word(MeshSnapshotPart(MESH, [lie], b"", 0)))
            await until(lambda: bool(bad.other.blamed), (cyd,))
            assert bad.up, "only meshes are not exchanged on it any more"
            connect(bob, cyd)
            await until(same(bob, cyd), (bob, cyd))
        nodes.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("size", "pieces", "match"),
    [
        (None, [(BUS_OBJECT_BYTES + 9, b"x")], "1 bytes as a piece"),
        (None, [(BUS_OBJECT_BYTES + 9, bytes(BUS_OBJECT_BYTES)), (1 << 30, b"")], "not 1048585"),
        (5, [(1 << 30, bytes(BUS_OBJECT_BYTES))], "has 1073741824 bytes, not 5"),
    ],
    ids=["in crumbs", "that grows", "that is larger than its entry says"],
)
def test_B4_an_object_that_never_ends_is_refused(
    size: int | None, pieces: list[tuple[int, bytes]], match: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, _):
            asked: list[ObjectAsked] = []
            pull = ObjectPull(ana.exchange._context, asked.append)
            pulling = asyncio.ensure_future(pull.pull([Named("ab" * 32, size)]))
            for whole, content in pieces:
                await until(lambda: bool(asked) or pulling.done(), ())
                if asked:
                    question = asked.pop()
                    pull.came(ObjectPiece(question.sha256, whole, question.start, content))
            await until(pulling.done, ())
            with pytest.raises(BadAnswer, match=match):
                pulling.result()
            assert ana.engine.blobs.partial("ab" * 32) <= BUS_OBJECT_BYTES

    asyncio.run(story())


@pytest.mark.parametrize("lie", [b"garbage", bytes(30)], ids=["some", "more than there is"])
def test_B4_pieces_that_a_liar_left_are_not_blamed_on_who_sends_the_rest(
    lie: bytes, tmp_path: Path
) -> None:
    content = b"what was meant by it"
    sha = sha256(content).digest()

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, _):
            ana.engine.blobs.put_piece(sha.hex(), 0, lie)
            asked: list[ObjectAsked] = []
            pull = ObjectPull(ana.exchange._context, asked.append)
            pulling = asyncio.ensure_future(pull.pull([Named(sha.hex(), None)]))
            while not pulling.done():
                await until(lambda: bool(asked) or pulling.done(), ())
                if asked:
                    start = asked.pop().start
                    pull.came(ObjectPiece(sha, len(content), start, content[start:]))
            assert pulling.result() == set()
            assert ana.engine.blobs.read(sha.hex()) == content

    asyncio.run(story())


def test_B4_a_peer_asks_for_so_many_pieces_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_objects, "BUS_QUESTIONS_MAX", 10)

    async def story() -> None:
        async with lied_to(tmp_path) as (_, liar):
            for number in range(11):
                assert not liar.link.blamed
                liar.say(ObjectAsked(bytes(32), number, 1), Stream.OBJECTS)
            assert [type(error) for error in liar.link.blamed] == [OverLimit]

    asyncio.run(story())


def test_B3_a_peer_that_speaks_of_ever_other_pasts_of_ours_is_looked_into_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_past, "BUS_EPOCHS_MAX", 10)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            looks: list[StreamName] = []
            past = ana.exchange._context.own_past
            look = past._look

            async def counted(peer: str, name: StreamName, *rest: object) -> None:
                looks.append(name)
                await look(peer, name, *rest)  # type: ignore[arg-type]

            monkeypatch.setattr(past, "_look", counted)
            for again in range(3):
                for epoch in range(30):
                    named = None if again else StreamNamed(MESH, "ana", epoch + 50, b"")
                    liar.say(told(epoch, named))
            await until(lambda: bool(looks), (ana,))
            assert not liar.link.blamed
            assert len(looks) == len(set(looks)) == 10

    asyncio.run(story())


def test_B4_a_peer_that_tells_ever_other_digests_is_compared_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_compare, "BUS_COMPARISONS_MAX", 5)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            # Who has the lower key asks.
            monkeypatch.setattr(ana.exchange._context, "key", bytes(32))
            liar.say(page(fact_append("s", "p", 1, origin="bob", seq=1)))
            await until(lambda: len(ana.logged()) == 1, (ana,))
            comparison = ana.exchange._links["bob#1"]._comparison
            compared: list[StreamName] = []

            async def compare(name: StreamName, number: int, floor: int) -> None:
                compared.append(name)

            monkeypatch.setattr(comparison, "_compare", compare)
            for number in range(20):
                liar.say(told(0, None, prefix=1, digest=bytes([number]) * 32))
                await until(lambda: not comparison._running, (ana,))
            assert len(compared) == 5
            assert not liar.link.blamed

    asyncio.run(story())


def test_B4_a_peer_that_says_that_it_shares_thousands_of_meshes_slows_nothing_down(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            names = [f"mesh-{number}" for number in range(BUS_STREAMS_MAX - 1)]
            liar.say(MeshesShared([*names, MESH], True))
            link = ana.exchange._links["bob#1"]
            assert link.shared == [MESH]
            assert isinstance(link.theirs, frozenset), "each look would go through all of them"

    asyncio.run(story())


def test_B4_coverage_that_grows_by_a_hole_with_every_word_leaves_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_words, "BUS_TOLD_RANGES_A_TURN", 400)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            link = ana.exchange._links["bob#1"]
            holes = [(10 * n, 10 * n + 1) for n in range(1, 301)]
            liar.say(told(0, prefix=0, ranges=holes))
            while link._told_words._next is not None:
                await asyncio.sleep(0)
            turns, heard, hear = 0, Counter[int](), link._told_words._hear

            def counted(name: StreamName, one: StreamTold) -> int:
                heard[turns] += 1
                return hear(name, one)

            monkeypatch.setattr(link._told_words, "_hear", counted)
            taken: list[int] = []
            monkeypatch.setattr(link._told_words, "_taken", taken.append)
            more = [(10 * n + 5, 10 * n + 6) for n in range(100)]
            words = [told(0, None, prefix=0, ranges=[hole]).streams[0] for hole in more]
            liar.say(StreamsTold(words))
            assert not taken, "it waits, and so does its credit"
            while not taken:
                turns += 1
                await asyncio.sleep(0)
            assert sum(heard.values()) == 100
            assert max(heard.values()) <= 2
            known = ana.exchange._context.spread.known("bob#1", StreamName(MESH, "bob", 1))
            assert len(known.ranges) == 400
            assert not liar.link.blamed

    asyncio.run(story())
