"""What one bad member of a mesh can cost: itself its link, and nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.node.bus.meshes.grants import MemberGrants, MeshPeer
from holdfast.node.bus.meshes.mesh_receive import decode_mesh_page, receive_mesh_page
from holdfast.protocol.bus_mesh import (
    BlocksAsked,
    EntriesAsked,
    EntriesPage,
    MeshesShared,
    MeshWord,
    StreamNamed,
    StreamsTold,
    StreamTold,
    encode_word,
)
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.membership import MemberStanding
from holdfast.rules.bus.meshes.streams import NO_ENTRIES
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.limits import BUS_PARCEL_BYTES_MAX, BUS_WORD_RANGES_MAX
from node.bus.meshes.test_mesh_lies import BOB, Liar, lied_to, page, told
from support.envelopes import MESH, fact_append
from support.mesh_links import MeshNode, connect, key_of, trouble_of, until, until_same
from support.nodes import Nodes
from support.source import HandClock

LINK = "holdfast.node.bus.meshes.mesh_link."


def streams(node: MeshNode) -> list[StreamName]:
    rows = node.engine.read("test", lambda tx: tx.stream_list(MESH))
    return [row.name for row in rows]


def deaf(liar: Liar) -> None:
    """From now on the liar takes nothing."""
    for stream in liar.link._credit:
        liar.link._credit[stream] = -(10**9)


def test_B4_a_member_with_another_name_in_another_mesh_writes_under_neither() -> None:
    standing = {"garden": MemberStanding("mallory", ("read", "write"))}
    grants = MemberGrants(lambda key, mesh: standing.get(mesh))
    tx = Nothing()
    assert grants.may_write(tx, MeshPeer("mallory", b"k"), "garden")  # type: ignore[arg-type]
    assert not grants.may_write(tx, MeshPeer("victim", b"k"), "garden")  # type: ignore[arg-type]
    assert grants.may_read(tx, MeshPeer("victim", b"k"), "garden")  # type: ignore[arg-type]


class Nothing:
    def zone_of_key(self, key: bytes) -> None:
        return None


def test_B4_a_relay_does_not_say_what_this_node_writes_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            ana.knows(liar.node, relay=True)
            await ana.exchange.refresh()
            for number, epoch in enumerate((1, 2)):
                ours = StreamNamed(MESH, "ana", epoch, ana.key)
                liar.say(told(number, ours, prefix=1_000_000, base=900_000))
                liar.say(EntriesPage(number, 1, 1_000_000, [], []))
            liar.say(EntriesPage(2, 1, 2, [], [fact_append("s", "p", 1, origin="bob", seq=1)], BOB))
            await until(lambda: len(ana.logged()) == 1, (ana,))
            assert not any(isinstance(word, EntriesAsked) for word in liar.heard())
            assert [s.upto for s in ana.exchange.status().streams if s.origin == "ana"] == [0]
            cyd = MeshNode(tmp_node(tmp_path, "cyd"))
            for one, other in ((ana, cyd), (cyd, ana)):
                one.knows(other)
            await cyd.exchange.start()
            await cyd.exchange.share(MESH)
            await ana.exchange.refresh()
            connect(ana, cyd)
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: len(cyd.logged()) == 1, (ana, cyd))
            await cyd.exchange.close()

    asyncio.run(story())


def tmp_node(tmp_path: Path, name: str):  # type: ignore[no-untyped-def]
    return Nodes("memory", tmp_path / name, HandClock()).open(name)


def test_B4_one_member_cannot_fill_the_streams_of_a_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.bus.meshes.mesh_serve.BUS_EPOCHS_MAX", 3)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            for number in range(9):
                named = StreamNamed(MESH, "bob", number + 1, b"")
                liar.say(EntriesPage(number, 1, 2, [], [], named))
            await until(lambda: "too many" in ana.exchange.status().peers[0].problem, (ana,))
            await until(lambda: not ana.exchange._links["bob#1"]._pages, (ana,))
            assert [name.epoch for name in streams(ana) if name.origin == "bob"] == [1, 2, 3]

    asyncio.run(story())


def test_B4_who_may_not_relay_raises_no_alarm_about_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            for number in range(5):
                ours = StreamNamed(MESH, "ana", number + 1, b"x" * 32)
                liar.say(told(number, ours))
            liar.say(page(fact_append("s", "p", 1, origin="bob", seq=1), named=None))
            liar.say(EntriesPage(5, 1, 2, [], [fact_append("s", "p", 1, origin="bob", seq=1)], BOB))
            await until(lambda: len(ana.logged()) == 1, (ana,))
            assert "two homes" in ana.exchange.status().peers[0].problem
            assert trouble_of(ana) == []
            assert [name for name in streams(ana) if name.origin == "ana" and name.epoch > 1] == []

    asyncio.run(story())


def test_B4_a_stream_of_what_is_not_counted_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (_, liar):
            liar.say(told(named=StreamNamed(MESH, "bob", UNCOUNTED, b"")))
            assert [error.code for error in liar.link.blamed] == ["bad_answer"]

    asyncio.run(story())


FLOODS: dict[str, Callable[[int], MeshWord]] = {
    "meshes": lambda n: MeshesShared([MESH], False),
    "coverage that grows": lambda n: told(0, BOB if n == 1 else None, prefix=n),
    "questions": lambda n: BlocksAsked(0, n),
    "pages that carry nothing": lambda n: EntriesPage(0, n, n + 1, [], [], BOB if n == 1 else None),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_B4_a_peer_that_takes_nothing_and_sends_on_costs_little(
    flood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("BUS_WORDS_WAITING_MAX", "BUS_QUESTIONS_MAX", "BUS_PAGES_WAITING_MAX"):
        monkeypatch.setattr(LINK + limit, 10)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: any(isinstance(w, EntriesPage) for w in liar.heard()), (ana,))
            deaf(liar)
            link = ana.exchange._links["bob#1"]
            for n in range(1, 200):
                liar.say(FLOODS[flood](n))
                assert max(len(link._words), len(link._questions), len(link._pages)) <= 10
            assert liar.link.blamed

    asyncio.run(story())


def test_B4_a_peer_that_is_owed_too_much_takes_nothing_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.bus.meshes.owed_pages.BUS_OWED_RANGES_MAX", 10)

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            cyd = MeshNode(tmp_node(tmp_path, "cyd"))
            for one, other in ((ana, cyd), (cyd, ana)):
                one.knows(other)
            await cyd.exchange.start()
            await cyd.exchange.share(MESH)
            await ana.exchange.refresh()
            connect(ana, cyd)  # after the liar: its turn comes later
            for n in range(50):
                ana.node.mesh(MESH).state.set("k", n)
            await until_same(ana, cyd)
            link = ana.exchange._links["bob#1"]
            await until(lambda: link.figures.entries_sent == 50, (ana,))
            deaf(liar)
            liar.say(EntriesAsked(0, [(n, n + 1) for n in range(1, 20, 2)]))
            owed = link._owed.ranges
            await until(lambda: sum(map(len, owed.values())) == 9, (ana,))  # one is at hand
            liar.say(EntriesAsked(0, [(30, 31)]))
            assert not liar.link.blamed, "so much it may ask for"
            ana.node.mesh(MESH).state.set("k", 50)
            ana.node.mesh(MESH).state.set("k", 51)
            await until_same(ana, cyd)
            assert liar.link.blamed
            await cyd.exchange.close()

    asyncio.run(story())


def test_B4_what_is_owed_already_is_not_owed_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            link = ana.exchange._links["bob#1"]
            for n in range(9):
                ana.node.mesh(MESH).state.set("k", n)
            await until(lambda: link.figures.entries_sent == 9, (ana,))
            link.owe(StreamName(MESH, "ana", 1), ((2, 6), (8, 9)))
            liar.say(EntriesAsked(0, [(1, 10)]))
            liar.say(EntriesAsked(0, [(3, 10)]))
            await until(lambda: not link._owed.ranges, (ana,))
            await until(lambda: link.figures.entries_sent >= 18, (ana,))
            assert link.figures.entries_sent == 18

    asyncio.run(story())


def test_B4_a_peer_that_asks_for_nothing_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            ana.node.mesh(MESH).state.set("k", 1)
            await until(lambda: any(isinstance(w, EntriesPage) for w in liar.heard()), (ana,))
            liar.say(EntriesAsked(0, []))
            assert [error.code for error in liar.link.blamed] == ["bad_answer"]

    asyncio.run(story())


def test_B4_words_fit_into_frames_and_are_read_in_one_pass(tmp_path: Path) -> None:
    """Many streams with many holes: what an origin makes others tell each other."""

    async def story() -> None:
        async with lied_to(tmp_path) as (ana, liar):
            holes = [(2_000_000_000 + 2 * n, 2_000_000_001 + 2 * n) for n in range(1, 1025)]
            assert len(holes) == BUS_WORD_RANGES_MAX
            for number in range(8):
                named = StreamNamed(MESH, "bob", number + 1, b"")
                one = StreamTold(number, 0, 0, 0, holes, 0, NO_ENTRIES, named)
                liar.say(StreamsTold([one]))
            while ana.exchange._links["bob#1"]._told_words._waiting:
                await asyncio.sleep(0)  # so many in each turn
            assert not liar.link.blamed
            known = ana.exchange._context.spread.known_of("bob#1")
            assert [len(frontier.ranges) for frontier in known.values()] == [1024] * 8
            row = ana.exchange._context.rows[StreamName(MESH, "ana", 1)]
            rows = {
                StreamName(MESH, "eve", n): type(row)(
                    number=n, mesh=MESH, origin="eve", epoch=n, covered=known_one
                )
                for n, known_one in zip(range(1, 400), [*known.values()] * 50, strict=False)
            }
            ana.exchange._context.rows.update(rows)
            link = ana.exchange._links["bob#1"]
            link._untold.update(dict.fromkeys(rows, 0))
            count = 0
            while link._untold:
                word = link._word_of_streams()
                count += len(word.streams)
                assert len(encode_word(word)) < BUS_PARCEL_BYTES_MAX
            assert count == 399

    asyncio.run(story())


def test_B4_holes_that_nobody_can_fill_hide_nothing_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay has every second entry of an origin that is gone, more pieces than a word has."""
    monkeypatch.setattr(LINK + "BUS_WORD_RANGES_MAX", 8)

    async def story() -> None:
        nodes = Nodes("memory", tmp_path, HandClock())
        ana, bob = MeshNode(nodes.open("ana")), MeshNode(nodes.open("bob"))
        cyd = MeshPeer("cyd", key_of("cyd"))
        ana.knows(bob, MeshNode(nodes.open("cyd")))
        bob.knows(ana, relay=True)
        for node in (ana, bob):
            await node.exchange.start()
            await node.exchange.share(MESH)
        grants = ana.exchange._context.grants
        for seq in range(2, 60, 2):
            raws = [fact_append("s", "p", seq, origin="cyd", seq=seq)]
            name = StreamName(MESH, "cyd", 1)
            came = decode_mesh_page(name, seq, seq + 1, 0, cyd.key, [seq], raws)
            receive_mesh_page(ana.engine, grants, cyd, came, set())
        await ana.exchange.refresh()
        connect(ana, bob)
        await until_same(ana, bob)
        for node in (ana, bob):
            await node.exchange.close()
        nodes.close()

    asyncio.run(story())
