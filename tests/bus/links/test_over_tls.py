"""The whole bus: TLS between peers, durable stores, peers that sleep and wake."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.received import ReceivedRequest
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.errors import NoResponder, PeerNameTaken, PeerUnreachable
from holdfast.rules.keys import card_of, public_key
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from support.bus_pairs import run, seed_of


def _knows(*peers: str) -> StaticPeers:
    """Peers by name, or by name and address."""
    found = StaticPeers()
    for peer in peers:
        name, _, address = peer.partition("@")
        card = card_of(name, public_key(seed_of(name)))
        found.add(f"{card}@{address}" if address else card)
    return found


async def _listening(
    name: str, *peers: str, store: SqliteMeshStore | None = None, batch: bool = True
) -> Bus:
    options = BusOptions(
        seed=seed_of(name), name=name, peers=_knows(*peers), store=store, batch=batch
    )
    return await Bus.bind_with(options)


def test_B2_a_bus_of_its_own_needs_a_card_and_an_address() -> None:
    async def story() -> None:
        async with (
            await Bus.bind(name="ben", peers=[card_of("ana", public_key(seed_of("ana")))]) as ben,
            await Bus.bind_with(
                BusOptions(
                    seed=seed_of("ana"),
                    name="ana",
                    peers=StaticPeers([f"{ben.card}@{ben.addresses[0]}"]),
                )
            ) as ana,
            ben.subscribe("greetings") as messages,
        ):
            receipt = await ana.send("ben", "hello", topic="greetings")
            assert receipt.state == "delivered"
            assert (await anext(messages)).text == "hello"
            assert await ana.ping("ben") > 0
            with pytest.raises(NoResponder):
                await ana.request("ben", "nothing")

    run(story())


@pytest.mark.parametrize("batch", [True, False])
def test_B4_many_messages_arrive_in_order_over_tls_signed_together_or_each(batch: bool) -> None:
    async def story() -> None:
        async with await _listening("ben", "ana") as ben:
            place = f"ben@{ben.addresses[0]}"
            async with (
                await _listening("ana", place, batch=batch) as ana,
                ben.subscribe() as messages,
            ):
                sends = [asyncio.create_task(ana.send("ben", str(at))) for at in range(300)]
                came = [(await anext(messages)).text for _ in sends]
                assert came == [str(at) for at in range(300)]
                assert {(await one).state for one in sends} == {"delivered"}

    run(story())


def test_B4_a_sleeping_peer_gets_each_message_once_when_it_wakes(tmp_path: Path) -> None:
    async def story() -> None:
        anas, bens = tmp_path / "ana.db", tmp_path / "ben.db"
        came: list[str] = []
        numbers: list[int] = []
        for life in range(3):
            # Ana writes while nobody is there, and ends.
            store = await SqliteMeshStore.open(anas)
            async with await _listening("ana", "ben", store=store) as ana:
                for at in range(5):
                    receipt = await ana.send("ben", f"{life}.{at}", wait_ms=0)
                    assert receipt.state == "spooled"
            await store.close()
            # Both wake.
            ana_store, ben_store = (
                await SqliteMeshStore.open(anas),
                await SqliteMeshStore.open(bens),
            )
            async with await _listening("ben", "ana", store=ben_store) as ben:
                place = f"ben@{ben.addresses[0]}"
                async with (
                    await _listening("ana", place, store=ana_store) as ana,
                    ben.subscribe() as messages,
                ):
                    came += [(await anext(messages)).text for _ in range(5)]
                    assert (await ana.send("ben", f"{life}.last")).state == "delivered"
                    came.append((await anext(messages)).text)
                numbers.append(await ben_store.last_seq(ana.key) or 0)
            await ana_store.close()
            await ben_store.close()
        assert came == [f"{life}.{at}" for life in range(3) for at in (*range(5), "last")]
        assert numbers == sorted(set(numbers))  # no number was given twice

    run(story())


def test_B5_an_outstanding_request_survives_both_sides(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "ana.db"
        store = await SqliteMeshStore.open(path)
        ana = await _listening("ana", "ben", store=store)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ana.request("ben", "work", b"given up")
        caller = asyncio.create_task(ana.request("ben", "work", b"wanted"))
        while [one.message.body for _, one in await store.outbox_requests()] != [b"wanted"]:
            await asyncio.sleep(0)
        await ana.close()
        await store.close()
        await asyncio.gather(caller, return_exceptions=True)
        store = await SqliteMeshStore.open(path)
        async with await _listening("ben", "ana") as ben:

            @ben.serve("work")
            async def work(request: ReceivedRequest) -> bytes:
                return request.body.upper()

            place = f"ben@{ben.addresses[0]}"
            async with await _listening("ana", place, store=store) as ana:
                (request,) = ana.outstanding()
                assert (await ana.reissue(request.id)).body == b"WANTED"
        await store.close()

    run(story())


def test_B6_a_stranger_is_not_spoken_with() -> None:
    async def story() -> None:
        async with (
            await _listening("ben", "cat") as ben,
            await _listening("ana", f"ben@{ben.addresses[0]}") as ana,
        ):
            while not ben.links.counts:
                await asyncio.sleep(0.01)  # until ben has refused a connection
            assert not await ana.connected("ben", wait_ms=0)
            with pytest.raises(PeerUnreachable):
                await ana.ping("ben", wait_ms=0)
            assert ben.status().peers == []
            assert ben.status().counts["link_zone_not_trusted"] >= 1

    run(story())


def test_B6_two_processes_with_one_name_and_different_keys_are_refused_aloud_at_both_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        knows = _knows("ana")
        knows.add(card_of("ana", public_key(seed_of("ana's other key"))))
        options = BusOptions(seed=seed_of("ben"), name="ben", peers=knows)
        async with await Bus.bind_with(options) as ben:
            place = f"ben@{ben.addresses[0]}"
            async with await _listening("ana", place) as ana:
                assert (await ana.send("ben", "from the first")).state == "delivered"
                other = BusOptions(seed=seed_of("ana's other key"), name="ana", peers=_knows(place))
                async with await Bus.bind_with(other) as namesake:
                    with pytest.raises(PeerNameTaken, match="two processes are called 'ana'"):
                        await namesake.links.dial(ben.addresses[0], [ben.key])
                    assert not await namesake.connected("ben", wait_ms=0)
                    assert (await ana.send("ben", "still the first")).state == "delivered"
            assert "two processes are called 'ana'" in caplog.text
            async with await Bus.bind_with(other) as rotated:  # the first one is gone
                assert (await rotated.send("ben", "by another key")).state == "delivered"

    run(story())
