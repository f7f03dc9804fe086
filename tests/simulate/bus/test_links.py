"""Links on a simulated network: both sides dial at once, and lose each other again and again."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import count

import pytest

from holdfast.bus.links.link import PeerLink
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.errors import AnotherConnection, PeerUnreachable, TooSlow
from holdfast.rules.keys import public_key
from holdfast.rules.limits import BUS_BACK_MS, BUS_BACK_MS_MAX, BUS_PONG_MS_MAX
from holdfast.simulate.bus.net import BusNetwork, MachineNet
from holdfast.simulate.bus.stream_end import StreamEnd
from holdfast.simulate.world.loop import SimulatedLoop
from holdfast.simulate.world.world import World
from support.bus_links import LinkedPeer, key_seeds, peer
from support.seeds import seeds

HOSTS = {"ana": "10.0.0.1", "bo": "10.0.0.2"}


class Opened:
    """Counts who dialled."""

    def __init__(self) -> None:
        self.by: list[str] = []

    def opened(self, dialler: StreamEnd, listener: StreamEnd) -> None:
        self.by.append(dialler.net.machine)

    def written(self, source: StreamEnd, data: bytes) -> None: ...
    def ended(self, source: StreamEnd) -> None: ...


class PeersApart:
    """Ana with the lower key and Bo, each on a machine of its own."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.fork("test")
        self.network = BusNetwork(self.world)
        self.tap = Opened()
        self.network.taps.append(self.tap)
        self.loops: dict[str, SimulatedLoop] = {}
        self.peers: dict[str, LinkedPeer] = {}
        for name, host in HOSTS.items():
            self.network.give_host(name, host)
            self.start(name)

    def start(self, name: str) -> None:
        loop = self.loops[name] = SimulatedLoop(self.world, name)
        keys = dict(zip(HOSTS, key_seeds(2), strict=True))
        others = {public_key(key): other for other, key in keys.items() if other != name}
        net = self.network.start(name, loop, name.encode())
        made = peer(name, keys[name], others, net, f"{HOSTS[name]}:7000")
        self.peers[name] = loop.run_until_complete(made)

    def lose_power(self, name: str) -> None:
        self.loops[name].stop_dead()
        self.network.end_process(name, power_loss=True)
        self.loops[name].abandon()

    def dial_at(self, name: str, ms: int) -> None:
        (other,) = HOSTS.keys() - {name}
        want = partial(self.peers[name].want, self.peers[other])
        self.world.at(ms, lambda: self.loops[name].call_soon(want), name=f"{name} wants a link")

    def pass_ms(self, ms: int) -> None:
        self.world.run(until=self.world.ticks + ms)
        for loop in self.loops.values():
            loop.raise_trouble()

    def check_one_link(self) -> bool:
        """Both have one link, and it is the same one. True if Ana dialled it."""
        ana, bo = self.peers["ana"], self.peers["bo"]
        (there,), (here,) = ana.links.all(), bo.links.all()
        assert there.dialled != here.dialled
        assert len(self.network.ends) == 2, "a connection is left over"
        for one, other, link in ((ana, bo, there), (bo, ana, here)):
            other.told.frames.clear()
            self.loops[one.told.name].call_soon(link.send, FrameKind.PARCEL, Stream.NOW, b"x")
        self.pass_ms(1_000)
        assert len(ana.told.frames) == len(bo.told.frames) == 1
        for told in (ana.told, bo.told):
            ups = [word.partition(" ")[0] for word in told.seen if word[:2] in ("up", "do")]
            assert ups == ["up", "down"] * (len(ups) // 2) + ["up"], "two links at once"
        return there.dialled

    def close(self) -> None:
        for loop in self.loops.values():
            loop.stop_dead()
            loop.abandon()


def test_B6_two_hundred_dials_at_once_end_with_the_same_single_link_on_both_sides() -> None:
    crossed = won = 0
    for seed in seeds(200):
        apart = PeersApart(seed)
        apart.dial_at("bo", apart.rng.randrange(20))
        # The higher key waits before it dials.
        apart.dial_at("ana", 180 + apart.rng.randrange(60))
        apart.pass_ms(5_000)
        ana_dialled = apart.check_one_link()
        for side in apart.peers.values():
            assert len(side.told.up) == 1, "a link came up that did not stay"
        if set(apart.tap.by) == set(HOSTS):
            crossed += 1
            won += ana_dialled
        apart.close()
    assert crossed > len(seeds(200)) // 4, "they hardly ever dialled at once"
    assert 0 < won < crossed, "one side won each time: they were never close"


def test_B6_a_connection_that_comes_while_our_proof_is_under_way_is_refused_or_let_in() -> None:
    refused = 0
    for seed in seeds(60):
        apart = PeersApart(seed)
        apart.dial_at("bo", 0)
        apart.dial_at("ana", 196 + apart.rng.randrange(8))
        apart.pass_ms(230)
        apart.network.break_some(apart.rng, "ana")
        apart.pass_ms(60_000)
        apart.check_one_link()
        refused += apart.peers["ana"].links.counts[AnotherConnection.code]
        apart.close()
    assert refused


def test_B6_a_peer_that_restarts_is_linked_before_its_old_link_is_found_dead() -> None:
    for seed, dialler in ((1, "ana"), (2, "bo")):
        apart = PeersApart(seed)
        apart.dial_at(dialler, 0)
        apart.pass_ms(1_000)
        apart.check_one_link()
        apart.lose_power("bo")
        apart.pass_ms(100)
        apart.start("bo")
        # So that nothing but its dial tells that the old link is dead.
        for end in apart.network.ends.values():
            end.lost = True
        apart.dial_at("bo", 0)
        apart.pass_ms(2_000)
        (link,) = apart.peers["ana"].links.all()
        assert not link.dialled
        assert [word for word in apart.peers["ana"].told.seen if "frame" not in word][1:] == [
            "down bo",
            "up bo in",
        ]
        apart.close()


def test_B6_a_pulled_cable_is_noticed_on_both_sides_of_an_idle_link() -> None:
    apart = PeersApart(3)
    apart.dial_at("ana", 0)
    apart.pass_ms(30_000)
    apart.check_one_link()  # idle, and alive
    apart.network.cut_off([("ana", "bo"), ("bo", "ana")])
    # Nothing of what is under way is given up by the network itself.
    for end in apart.network.ends.values():
        end._giving_up = True
    apart.pass_ms(14_000)
    assert not [peer for peer in apart.peers.values() if peer.told.ended]
    apart.pass_ms(6_500)
    for side in apart.peers.values():
        ((_, error),) = side.told.ended
        assert "no sign of life" in str(error)
    apart.close()


def test_B6_a_link_that_takes_long_to_carry_much_is_not_taken_for_dead() -> None:
    apart = PeersApart(4)
    apart.dial_at("ana", 0)
    apart.pass_ms(1_000)
    ana, bo = apart.peers["ana"], apart.peers["bo"]
    # A round trip of a second, and 128 KiB in it: four megabytes take half a minute.
    apart.network.delay_ms_max = 1_000
    (link,) = ana.links.all()
    apart.loops["ana"].call_soon(link.send, FrameKind.MESH, Stream.MESH, bytes(4_000_000))
    apart.pass_ms(120_000)
    assert not ana.told.ended
    assert not bo.told.ended
    assert [len(body) for *_, body in bo.told.frames] == [4_000_000]
    apart.close()


def test_B6_an_answer_that_takes_no_measurable_time_is_a_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = PeersApart(6)
    apart.dial_at("ana", 0)
    apart.pass_ms(1_000)
    # As on one machine, by a clock that counts milliseconds.
    monkeypatch.setattr(apart.network, "delay", lambda: 0)
    apart.pass_ms(120_000)
    for side in apart.peers.values():
        assert not side.told.ended
    apart.close()


def test_B6_who_proves_no_key_in_time_is_cut_off() -> None:
    apart = PeersApart(5)
    ana = apart.peers["ana"]
    silent: list[bool] = []

    class Silent(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            silent.append(True)

    dial = MachineNet.dial(apart.peers["bo"].links._net, ana.address, Silent)  # type: ignore[arg-type]
    apart.loops["bo"].run_until_complete(dial)
    apart.pass_ms(9_000)
    assert not silent
    apart.pass_ms(3_000)
    assert silent
    assert ana.links.counts == {TooSlow.code: 1}
    assert not ana.links._strangers
    apart.close()


class Numbered:
    """Sends bulky and urgent frames on one link, and numbers them as they are handed over."""

    def __init__(self, link: PeerLink) -> None:
        self._link = link
        self._numbers = count(1)
        self._bulky = 0
        self.overtaken: list[int] = []
        """For each urgent frame: how many bulky ones went after it was wanted."""

    async def bulk(self) -> None:
        for _ in range(60):
            await self._link.room(Stream.LOW)
            body = next(self._numbers).to_bytes(4) + bytes(30_000)
            self._link.send(FrameKind.PARCEL, Stream.LOW, body)
            self._bulky += 1

    async def urge(self, rng: random.Random) -> None:
        for _ in range(10):
            await asyncio.sleep(rng.randrange(40) / 1000)
            wanted = self._bulky
            await self._link.room(Stream.NOW)
            self.overtaken.append(self._bulky - wanted)
            self._link.send(FrameKind.PARCEL, Stream.NOW, next(self._numbers).to_bytes(4))


@pytest.mark.parametrize("seed", seeds(5))
def test_B6_numbers_arrive_in_order_although_urgent_frames_go_first(seed: int) -> None:
    apart = PeersApart(seed)
    apart.dial_at("ana", 0)
    apart.pass_ms(1_000)
    (link,) = apart.peers["ana"].links.all()
    sender, loop = Numbered(link), apart.loops["ana"]
    tasks = [loop.create_task(sender.bulk()), loop.create_task(sender.urge(apart.rng))]
    apart.pass_ms(60_000)
    assert all(task.done() for task in tasks)
    came = [body[:4] for *_, body in apart.peers["bo"].told.frames]
    assert came == [number.to_bytes(4) for number in range(1, 71)]
    assert max(sender.overtaken) == 0, "a bulky frame went before an urgent one that waited"
    apart.close()


def test_B6_what_was_sent_before_a_goodbye_arrives_and_nothing_after_it() -> None:
    apart = PeersApart(6)
    apart.dial_at("ana", 0)
    apart.pass_ms(1_000)
    ana, bo = apart.peers["ana"], apart.peers["bo"]
    (link,) = ana.links.all()
    link.send(FrameKind.MESH, Stream.MESH, bytes(2_000_000))
    closing = apart.loops["ana"].create_task(ana.links.close())
    apart.pass_ms(10_000)
    assert closing.done()
    assert [len(body) for *_, body in bo.told.frames] == [2_000_000]
    assert "closing" in str(bo.told.ended[0][1])
    assert ana.told.ended == [(link, None)]
    with pytest.raises(PeerUnreachable):
        link.send(FrameKind.PARCEL, Stream.NOW, b"late")
    assert not apart.network.ends
    apart.close()


@pytest.mark.parametrize("away_ms", [2_000, 25_000])
def test_B6_a_peer_that_said_goodbye_is_linked_soon_after_it_is_back(away_ms: int) -> None:
    for seed in seeds(5):
        apart = PeersApart(seed)
        apart.dial_at("ana", 0)
        apart.pass_ms(10_000)
        leaving = apart.loops["bo"].create_task(apart.peers["bo"].links.close())
        apart.pass_ms(away_ms)
        assert leaving.done()
        apart.lose_power("bo")
        apart.start("bo")  # it dials nobody
        apart.pass_ms(BUS_BACK_MS + 500)
        assert apart.peers["bo"].links.all(), f"seed {seed}: ana waits as if bo were lost"
        apart.close()


def test_B6_the_usual_waits_begin_when_a_peer_that_said_goodbye_stays_away() -> None:
    apart = PeersApart(3)
    apart.dial_at("ana", 0)
    apart.pass_ms(10_000)
    apart.loops["bo"].create_task(apart.peers["bo"].links.close())
    apart.pass_ms(BUS_BACK_MS_MAX)
    soon = apart.peers["ana"].links.dials()[0].attempts
    apart.pass_ms(BUS_BACK_MS_MAX)
    later = apart.peers["ana"].links.dials()[0].attempts - soon
    assert soon > 30
    assert 3 < later < 15, "they begin with short ones"
    apart.close()


def test_B6_peers_that_lose_each_other_in_every_way_find_one_link_again() -> None:
    for seed in seeds(20):
        apart = PeersApart(seed)
        for name in HOSTS:
            apart.dial_at(name, 0)
        apart.pass_ms(3_000)
        for _ in range(4):
            match apart.rng.randrange(3):
                case 0:
                    apart.network.break_some(apart.rng, apart.rng.choice(list(HOSTS)))
                case 1:
                    ways = [("ana", "bo"), ("bo", "ana")]
                    apart.network.cut_off(ways[: apart.rng.randrange(1, 3)])
                case 2:
                    apart.network.delay_ms_max = apart.rng.choice((1, 8, 200))
            apart.pass_ms(apart.rng.randrange(60_000))
            apart.network.heal()
        # The longest wait before a dial, and a dead link that has to be noticed.
        apart.pass_ms(90_000)
        apart.check_one_link()
        apart.close()


def test_B6_a_linked_peer_that_is_said_to_be_elsewhere_has_to_show_that_it_is_still_there() -> None:
    apart = PeersApart(3)
    apart.dial_at("ana", 0)
    apart.pass_ms(1_000)
    ana = apart.peers["ana"]

    def say(address: str) -> None:
        apart.loops["ana"].call_soon(lambda: ana.links.found("bo", [address]))

    say("10.0.0.66:7000")  # anybody can say that, and it harms nothing
    apart.pass_ms(10_000)
    apart.check_one_link()

    apart.network.cut_off([("ana", "bo"), ("bo", "ana")])
    say("10.0.0.66:7000")  # known by now
    apart.pass_ms(BUS_PONG_MS_MAX + 500)
    assert ana.links.all(), "nothing new was said: it is asked when it has been silent for a while"
    say("10.0.0.9:7000")
    apart.pass_ms(BUS_PONG_MS_MAX + 500)
    assert not ana.links.all()
    apart.close()
