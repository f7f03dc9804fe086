"""What a peer that does not keep to the rules gets when it speaks of meshes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.bus_mesh import (
    BlocksTold,
    EntriesAsked,
    EntriesPage,
    EntriesRefused,
    MeshesShared,
    MeshWord,
    ObjectAsked,
    ObjectPiece,
    StreamNamed,
    StreamsTold,
    StreamTold,
    encode_word,
    read_word,
)
from holdfast.rules.bodies import Fact
from holdfast.rules.bus.meshes.streams import NO_ENTRIES
from holdfast.storage.ports import Transaction
from support.envelopes import MESH, fact_append, message_send, raw
from support.mesh_links import MemoryLink, MeshNode, cut, key_of, until
from support.nodes import Nodes
from support.source import HandClock

BOB = StreamNamed(MESH, "bob", 1, b"")


class Liar:
    """A peer at the other end of a line that says what a test wants."""

    def __init__(self, node: MeshNode, bob: MeshNode) -> None:
        self.node = bob
        self.link = MemoryLink("bob", key_of("bob"), node.exchange)
        self.link.other = self.link  # what the node says goes nowhere
        self.link.receive = lambda stream, body: None  # type: ignore[method-assign]
        node.exchange.link_up(self.link)
        self.say(MeshesShared([MESH], True))

    def say(self, word: MeshWord, stream: Stream = Stream.MESH) -> None:
        self.raw_frame(encode_word(word), stream)

    def raw_frame(self, body: bytes, stream: Stream = Stream.MESH) -> None:
        self.link.part.frame(self.link, FrameKind.MESH, stream, body)

    def heard(self) -> list[MeshWord]:
        return [read_word(body) for _, body in self.link.sent]


@asynccontextmanager
async def lied_to(tmp_path: Path) -> AsyncIterator[tuple[MeshNode, Liar]]:
    nodes = Nodes("memory", tmp_path, HandClock())
    ana = MeshNode(nodes.open("ana"))
    bob = MeshNode(nodes.open("bob"))
    ana.knows(bob)
    await ana.exchange.start()
    await ana.exchange.share(MESH)
    liar = Liar(ana, bob)
    await until(lambda: ana.exchange.status().peers[0].meshes == [MESH], (ana,))
    try:
        yield ana, liar
    finally:
        cut(liar.link)
        await ana.exchange.close()
        nodes.close()


def page(
    *raws: bytes, start: int = 1, end: int = 0, named: StreamNamed | None = BOB
) -> EntriesPage:
    return EntriesPage(0, start, end or start + len(raws), [], list(raws), named)


def told(number: int = 0, named: StreamNamed | None = BOB, **fields: object) -> StreamsTold:
    given: dict[str, object] = {"base": 0, "floor": 0, "prefix": 5, "ranges": [], "entries": 0}
    given |= {"digest": NO_ENTRIES} | fields
    return StreamsTold([StreamTold(number=number, named=named, **given)])  # type: ignore[arg-type]


LIES: dict[str, Callable[[], MeshWord]] = {
    "an entry of another origin": lambda: page(fact_append("s", "p", 1, origin="cyd", seq=1)),
    "an entry of another number": lambda: page(fact_append("s", "p", 1, origin="bob", seq=7)),
    "an entry of another epoch": lambda: page(
        fact_append("s", "p", 1, origin="bob", seq=1, epoch=4)
    ),
    "an entry of another mesh": lambda: page(
        fact_append("s", "p", 1, origin="bob", seq=1, mesh="secret")
    ),
    "a message": lambda: page(message_send("topic", "t", b"x", origin="bob", seq=1)),
    "more entries than the page covers": lambda: EntriesPage(
        0, 1, 2, [], [fact_append("s", "p", n, origin="bob", seq=n) for n in (1, 2)], BOB
    ),
    "numbers out of order": lambda: EntriesPage(0, 1, 9, [4, 3], [b"x", b"y"], BOB),
    "a page that covers nothing": lambda: page(start=3, end=3),
    "a stream that was not named": lambda: page(start=1, end=2, named=None),
    "ranges out of order": lambda: told(ranges=[(9, 12), (2, 4)]),
    "a number for a stream out of order": lambda: told(number=3),
    "an impossible mesh": lambda: told(named=StreamNamed("../x", "bob", 1, b"")),
    "a request for a stream that nobody told of": lambda: EntriesAsked(9, [(1, 2)]),
    "digests that nobody asked for": lambda: BlocksTold(0, 0, []),
}


@pytest.mark.parametrize("lie", LIES)
def test_B4_a_peer_that_lies_is_refused_and_changes_nothing(lie: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            before = ana.logged()
            liar.say(LIES[lie]())
            await until(lambda: bool(liar.link.blamed), (ana,))
            assert ana.logged() == before
            assert ana.exchange.status().peers[0].problem
            assert [s.origin for s in ana.exchange.status().streams] == ["ana"]
            liar.say(page(fact_append("s", "p", 1, origin="bob", seq=1)))  # honest, but too late
            assert ana.logged() == before
            assert liar.link.has_room(Stream.MESH), "its frames cost no memory"

    asyncio.run(story())


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x63", b"\x92\x01\xa1x", b"\x93" * 500])
def test_B4_garbage_is_refused(body: bytes, tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            liar.raw_frame(body)
            assert [error.code for error in liar.link.blamed] == ["bad_answer"]
            assert ana.logged() == []

    asyncio.run(story())


def test_B4_what_may_not_be_relayed_is_refused_and_the_link_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            cyd = StreamNamed(MESH, "cyd", 1, b"")
            liar.say(page(fact_append("s", "p", 1, origin="cyd", seq=1), named=cyd))
            await until(lambda: "may not relay" in ana.exchange.status().peers[0].problem, (ana,))
            assert ana.logged() == []
            good = fact_append("s", "p", 1, origin="bob", seq=1)
            liar.say(EntriesPage(1, 1, 2, [], [good], BOB))
            await until(lambda: len(ana.logged()) == 1, (ana,))

    asyncio.run(story())


def test_B4_an_unreadable_entry_goes_into_quarantine_and_harms_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            liar.say(page(b"\x00 no envelope", fact_append("s", "p", 1, origin="bob", seq=2)))
            await until(lambda: len(ana.logged()) == 1, (ana,))
            rows = ana.engine.read("test", lambda tx: tx.quarantine_list("bus:bob", 0, 9))
            assert [(row.offset, row.epoch, row.raw) for row in rows] == [
                (1, 1, b"\x00 no envelope")
            ]

    asyncio.run(story())


def test_B4_entries_in_our_own_name_that_we_did_not_write_are_quarantined(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            ana.knows(liar.node, relay=True)
            await ana.exchange.refresh()
            ours = StreamNamed(MESH, "ana", 1, ana.key)
            liar.say(page(fact_append("s", "p", 1, origin="ana", seq=1), named=ours))
            await until(
                lambda: ana.engine.read("test", lambda tx: tx.quarantine_count("bus:bob")) == 1,
                (ana,),
            )
            assert ana.logged() == []

    asyncio.run(story())


def test_B4_who_may_not_read_a_mesh_gets_nothing_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: any(isinstance(w, EntriesPage) for w in liar.heard()), (ana,))
            liar.link.sent.clear()
            ana.engine.store.write(_blocked)
            liar.say(EntriesAsked(0, [(1, 2)]))
            await until(lambda: any(isinstance(w, EntriesRefused) for w in liar.heard()), (ana,))
            assert not any(isinstance(word, EntriesPage) for word in liar.heard())

    asyncio.run(story())


def test_B4_a_peer_that_asks_for_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.bus.meshes.owed_pages.BUS_OWED_RANGES_MAX", 10)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: any(isinstance(w, EntriesPage) for w in liar.heard()), (ana,))
            liar.say(EntriesAsked(0, [(n, n + 1) for n in range(1, 50, 2)]))
            assert [error.code for error in liar.link.blamed] == ["over_limit"]

    asyncio.run(story())


def test_B4_a_piece_of_an_object_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (_, liar):
            liar.say(ObjectPiece(b"s" * 32, 5, 0, b"12345"), Stream.OBJECTS)
            assert [error.code for error in liar.link.blamed] == ["bad_answer"]

    asyncio.run(story())


def test_B4_an_object_that_is_something_else_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            fact = Fact("p", b"1", (b"\xab" * 32,))
            liar.say(page(raw("fact.append", "s", fact, origin="bob", seq=1)))
            await until(lambda: any(isinstance(w, ObjectAsked) for w in liar.heard()), (ana,))
            liar.say(ObjectPiece(bytes.fromhex("ab" * 32), 5, 0, b"12345"), Stream.OBJECTS)
            await until(lambda: bool(liar.link.blamed), (ana,))
            assert ana.logged() == []
            assert not ana.engine.blobs.exists("ab" * 32)

    asyncio.run(story())


def test_B4_who_may_not_bring_an_entry_brings_no_object_either(tmp_path: Path) -> None:
    """Otherwise a member that may only read could fill the disk of every other one."""

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            cyd = StreamNamed(MESH, "cyd", 1, b"")
            fact = Fact("p", b"1", (b"\xab" * 32,))
            liar.say(page(raw("fact.append", "s", fact, origin="cyd", seq=1), named=cyd))
            await until(lambda: "relay" in ana.exchange.status().peers[0].problem, (ana,))
            assert not any(isinstance(word, ObjectAsked) for word in liar.heard())

    asyncio.run(story())


def _blocked(tx: Transaction) -> None:
    row = tx.zone_get("bob")
    assert row is not None
    tx.zone_put(msgspec.structs.replace(row, blocked_at=5))


def test_B4_frames_of_a_link_that_is_not_known_are_dropped(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            stranger = MemoryLink("eve", key_of("eve"), ana.exchange)
            stranger.other = MemoryLink("eve", key_of("eve"), ana.exchange)
            taken = ana.exchange.frame(stranger, FrameKind.MESH, Stream.MESH, b"x" * 100)
            assert not taken, "whoever carries it gives its credit back"
            assert not liar.link.blamed

    asyncio.run(story())
