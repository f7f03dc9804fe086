"""Who is who on the bus of a node, from whom it trusts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.node.bus.directory import TrustDirectory
from holdfast.node.library.node import Node
from holdfast.node.trust.trust import Trust
from holdfast.node.trust.whereabouts import addresses_of, last_seen, with_addresses
from holdfast.rules.errors import KeyExpired, ZoneNotTrusted
from holdfast.rules.keys import card_of, public_key, text_of
from holdfast.rules.limits import BUS_ADDRESSES_MAX, BUS_SEEN_MS, DAY_MS
from holdfast.storage.files import home as homes
from holdfast.storage.ports import Reader, Work
from support.source import HandClock

BO, BO_NEXT, EVE = (public_key(bytes([letter]) * 32) for letter in b"bne")


@pytest.fixture
def trust(node: Node, tmp_path: Path) -> Trust:
    return Trust(node._engine, homes.create_home(tmp_path / "keys", "ana"))


@pytest.fixture
def directory(node: Node) -> TrustDirectory:
    async def write(name: str, work: Work[None]) -> None:
        node._engine.write(name, work)

    return TrustDirectory(node._engine, write, {"bo": ("10.0.0.2:7412",)})


def places(node: Node, zone: str) -> tuple[tuple[str, ...], int | None]:
    """Where a zone is said to be, and when it was there."""

    def read(tx: Reader) -> tuple[tuple[str, ...], int | None]:
        row = tx.zone_get(zone)
        assert row is not None
        return addresses_of(tx, row), last_seen(tx, row)

    return node._engine.read("test", read)


def test_B6_a_zone_is_found_by_name_by_key_and_by_card(
    trust: Trust, directory: TrustDirectory
) -> None:
    trust.trust(card_of("bo", BO), reads=["team"])
    trust.trust(card_of("bo", BO_NEXT))
    for word in ("bo", text_of(BO_NEXT), card_of("bo", BO)):
        peer = asyncio.run(directory.find(word))
        assert peer is not None
        assert (peer.name, set(peer.keys)) == ("bo", {BO, BO_NEXT})
        assert (peer.addresses, peer.meshes) == (("10.0.0.2:7412",), ("team",))
    assert asyncio.run(directory.find("eve")) is None
    assert asyncio.run(directory.of_key(EVE)) is None


def test_B6_a_peer_is_its_key_whatever_it_calls_itself(
    trust: Trust, directory: TrustDirectory
) -> None:
    trust.trust(card_of("bo", BO))
    assert asyncio.run(directory.admit(BO, "eve", ())).name == "bo"
    with pytest.raises(ZoneNotTrusted):
        asyncio.run(directory.admit(EVE, "bo", ()))


def test_B6_a_blocked_zone_is_a_stranger_at_once(trust: Trust, directory: TrustDirectory) -> None:
    trust.trust(card_of("bo", BO))
    trust.block("bo")
    with pytest.raises(ZoneNotTrusted):
        asyncio.run(directory.admit(BO, "bo", ()))
    assert asyncio.run(directory.find("bo")) is None
    assert asyncio.run(directory.of_key(BO)) is None
    assert asyncio.run(directory.all()) == []


def test_B6_an_expired_key_is_refused_and_the_other_key_of_the_zone_is_not(
    trust: Trust, directory: TrustDirectory, clock: HandClock
) -> None:
    trust.trust(card_of("bo", BO), days=1)
    trust.trust(card_of("bo", BO_NEXT))
    clock.advance(DAY_MS)
    with pytest.raises(KeyExpired):
        asyncio.run(directory.admit(BO, "bo", ()))
    assert asyncio.run(directory.admit(BO_NEXT, "bo", ())).keys == (BO_NEXT,)
    assert asyncio.run(directory.of_key(BO)) is None


def test_B6_an_address_is_remembered_for_known_keys_only(
    node: Node, trust: Trust, directory: TrustDirectory, clock: HandClock
) -> None:
    trust.trust(card_of("bo", BO))
    asyncio.run(directory.note_address(BO, "10.0.0.9:7412"))
    asyncio.run(directory.note_address(EVE, "10.6.6.6:7412"))
    (peer,) = asyncio.run(directory.all())
    assert peer.addresses == ("10.0.0.9:7412", "10.0.0.2:7412")
    assert places(node, "bo") == (("10.0.0.9:7412",), clock.at_ms)
    assert node._engine.read("t", lambda tx: tx.bus_address_get(EVE)) is None


def test_B6_a_peer_that_is_reached_again_and_again_costs_one_write_a_minute(
    node: Node, trust: Trust, directory: TrustDirectory, clock: HandClock
) -> None:
    trust.trust(card_of("bo", BO), at=["10.0.0.9:7412"])
    for _ in range(5):
        asyncio.run(directory.note_address(BO, "10.0.0.9:7412"))
    first = clock.at_ms
    assert places(node, "bo")[1] == first
    clock.advance(BUS_SEEN_MS)
    asyncio.run(directory.note_address(BO, "10.0.0.9:7412"))
    assert places(node, "bo")[1] == first + BUS_SEEN_MS
    assert node._engine.metrics.verbs["bus.seen"].count == 2


def test_B6_the_address_that_was_good_longest_ago_makes_room() -> None:
    known: tuple[str, ...] = ()
    for number in range(BUS_ADDRESSES_MAX + 3):
        known = with_addresses(known, [f"h{number}:1"])
    known = with_addresses(known, ["h5:1"])
    assert len(known) == BUS_ADDRESSES_MAX
    assert known[0] == "h5:1"
    assert "h0:1" not in known
