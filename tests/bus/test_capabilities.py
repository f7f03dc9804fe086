"""Capabilities on buses without a home: a bus admits by what it has issued itself."""

from __future__ import annotations

import asyncio

import pytest
from nacl.signing import SigningKey

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.received import ReceivedRequest
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.bus.capability import capability_text, issue
from holdfast.rules.errors import MessageRefused
from holdfast.rules.keys import public_key
from holdfast.rules.limits import BUS_CLOCK_SKEW_MS, DAY_MS
from holdfast.service.clock import SystemClock
from support.bus_links import in_loop

ANA, BO = b"a" * 32, b"b" * 32


class SetClock(SystemClock):
    """A clock that a test moves on."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def met(clock: SetClock, days: int = 1) -> tuple[Bus, StaticPeers, Bus, bytes]:
    """Ana serves two things; Bo has a capability for one of them."""
    now = clock.now_ms()
    made = issue(
        SigningKey(ANA),
        public_key(BO),
        ["service:double"],
        now_ms=now,
        expires_at=now + days * DAY_MS,
        name="bo",
    )
    peers = StaticPeers()
    ana = await Bus.bind_with(BusOptions(seed=ANA, name="ana", peers=peers, clock=clock))

    async def double(request: ReceivedRequest) -> bytes:
        return request.body * 2

    for service in ("double", "other"):
        ana.serve(service, double)
    at = StaticPeers([f"{ana.card}@{ana.addresses[0]}"], [capability_text("ana", made)])
    bo = await Bus.bind_with(BusOptions(seed=BO, name="bo", peers=at, listen=()))
    return ana, peers, bo, made.id


@in_loop
async def test_B6_a_bus_without_a_home_lets_in_who_shows_what_it_has_issued() -> None:
    ana, peers, bo, id = await met(SetClock())
    assert (await bo.request("ana", "double", b"x")).body == b"xx"
    with pytest.raises(MessageRefused, match=r"capability_refused.*service:double"):
        await bo.request("ana", "other", b"x")
    peers.revoke(id)
    await ana.refresh_peers()
    while bo.links.all():
        await asyncio.sleep(0.005)
    assert not await bo.connected("ana", wait_ms=300)
    await asyncio.gather(ana.close(), bo.close())


@in_loop
async def test_B6_a_link_ends_when_the_capability_that_opened_it_does() -> None:
    clock = SetClock()
    ana, _, bo, _ = await met(clock)
    assert (await bo.request("ana", "double", b"x")).body == b"xx"
    clock.ahead_ms = DAY_MS + BUS_CLOCK_SKEW_MS
    (link,) = ana.links.all()
    ana.router._end_if_over(link)  # what its timer does
    while bo.links.all():
        await asyncio.sleep(0.005)
    assert not await bo.connected("ana", wait_ms=300)
    await asyncio.gather(ana.close(), bo.close())
