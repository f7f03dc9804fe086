"""The simulated network: streams keep order and content, and break in every way that TCP knows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.rules.errors import PeerUnreachable
from holdfast.simulate.bus.net import BusNetwork, MachineNet
from holdfast.simulate.bus.stream_end import PIPE_BYTES_MAX, StreamEnd
from holdfast.simulate.world.loop import SimulatedLoop
from holdfast.simulate.world.world import World

ADDRESS = "10.0.0.2:7000"
GOODS = bytes(range(256)) * 400


class Side(asyncio.Protocol):
    """Keeps what it gets and how it ended."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.pauses = 0
        self.resumes = 0
        self.ended: list[Exception | None] = []
        self.transport: StreamEnd | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, StreamEnd)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.resumes += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)


class Two:
    """Two machines on one network, and a connection between them."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.happened: Counter[str] = Counter()
        self.network = BusNetwork(self.world, lambda what: self.happened.update([what]))
        self.loops: dict[str, SimulatedLoop] = {}
        self.nets: dict[str, MachineNet] = {}
        for number, name in enumerate(("ana", "bob"), 1):
            self.network.give_host(name, f"10.0.0.{number}")
            self.boot(name)
        self.near, self.far = Side(), Side()
        self.on("bob", self.nets["bob"].listen(ADDRESS, lambda: self.far))
        self.on("ana", self.nets["ana"].dial(ADDRESS, lambda: self.near))
        self.pass_ms(100)

    def boot(self, name: str) -> None:
        self.loops[name] = SimulatedLoop(self.world, name)
        self.nets[name] = self.network.start(name, self.loops[name], name.encode())

    def on(self, name: str, what: object) -> object:
        return self.loops[name].run_until_complete(what)

    def act(self, name: str, what: Callable[[], object]) -> None:
        self.loops[name].call_soon(what)

    def pass_ms(self, ms: int) -> None:
        self.world.run(until=self.world.ticks + ms)

    def send(self, data: bytes = GOODS) -> None:
        assert self.near.transport is not None
        self.act("ana", lambda: self.near.transport.write(data))  # type: ignore[union-attr]

    @property
    def ends(self) -> tuple[StreamEnd, StreamEnd]:
        assert self.near.transport is not None
        assert self.far.transport is not None
        return self.near.transport, self.far.transport


def test_R1_a_stream_brings_every_byte_once_and_in_order() -> None:
    for seed in range(10):
        two = Two(seed)
        two.send()
        two.act("bob", lambda two=two: two.ends[1].write(GOODS[::-1]))  # type: ignore[misc]
        two.pass_ms(2_000)
        assert bytes(two.far.got) == GOODS
        assert bytes(two.near.got) == GOODS[::-1]
        assert not two.near.ended
        assert not two.far.ended
        assert two.near.transport is not None
        assert two.near.transport.get_extra_info("certificate") == b"bob"


def test_R1_bytes_before_a_close_arrive_and_both_ends_hear_of_it() -> None:
    two = Two()
    two.send()
    two.act("ana", two.ends[0].close)
    two.pass_ms(1_000)
    assert bytes(two.far.got) == GOODS
    assert two.near.ended == [None]
    assert two.far.ended == [None]
    assert not two.network.ends


def test_R1_an_abort_resets_the_other_end() -> None:
    two = Two()
    two.act("ana", two.ends[0].abort)
    two.pass_ms(1_000)
    assert two.near.ended == [None]
    assert isinstance(two.far.ended[0], ConnectionResetError)


def test_R1_a_reader_that_pauses_makes_the_sender_pause_and_the_pipe_is_bounded() -> None:
    two = Two()
    two.act("bob", two.ends[1].pause_reading)
    two.pass_ms(10)
    two.send(bytes(1_000_000))
    two.pass_ms(60_000)
    assert two.near.pauses == 1
    assert not two.near.resumes
    assert not two.near.ended, "a kernel that has the bytes answers, whether they are read or not"
    assert two.ends[0]._under_way <= PIPE_BYTES_MAX + 32 * 1024
    two.act("bob", two.ends[1].resume_reading)
    two.pass_ms(5_000)
    assert len(two.far.got) == 1_000_000
    assert [two.near.pauses, two.near.resumes] == [1, 1]


def test_R1_a_cut_delays_bytes_until_it_heals() -> None:
    two = Two()
    two.network.cut_off([("ana", "bob"), ("bob", "ana")])
    two.send()
    two.pass_ms(3_000)
    assert not two.far.got
    two.network.heal()
    two.pass_ms(1_000)
    assert bytes(two.far.got) == GOODS
    assert not two.near.ended


def test_R1_a_long_cut_ends_the_side_that_sends_and_leaves_the_other_half_open() -> None:
    two = Two()
    two.network.cut_off([("ana", "bob")])
    two.send()
    two.pass_ms(120_000)
    assert isinstance(two.near.ended[0], TimeoutError)
    assert not two.far.ended, "it waits, and nobody tells it"
    two.network.heal()
    two.act("bob", lambda: two.ends[1].write(b"are you there?"))
    two.pass_ms(1_000)
    assert isinstance(two.far.ended[0], ConnectionResetError)


def test_R1_a_killed_process_ends_its_connections_and_a_power_loss_says_nothing() -> None:
    two = Two()
    two.network.end_process("bob", power_loss=False)
    two.pass_ms(1_000)
    assert len(two.near.ended) == 1
    two = Two()
    two.network.end_process("bob", power_loss=True)
    two.pass_ms(100_000)
    assert not two.near.ended
    two.boot("bob")
    two.send(b"hello?")
    two.pass_ms(1_000)
    assert isinstance(two.near.ended[0], ConnectionResetError)


def test_R1_a_dead_machine_is_given_up_only_by_who_sends_to_it() -> None:
    two = Two()
    two.network.end_process("bob", power_loss=True)
    two.send(b"hello?")
    two.pass_ms(100_000)
    assert isinstance(two.near.ended[0], TimeoutError)
    assert two.happened["gave up"] == 1


def test_R1_a_stream_may_break_at_any_byte() -> None:
    lengths = set()
    for seed in range(40):
        two = Two(seed)
        two.send()
        two.world.at(1 + seed % 8, two.network.break_some, two.world.fork("cut"), "ana")
        two.pass_ms(1_000)
        assert two.near.ended
        assert two.far.ended
        assert GOODS.startswith(bytes(two.far.got))
        lengths.add(len(two.far.got))
    assert len(lengths) > 10


def test_R1_a_host_that_changes_leaves_its_connections_without_an_end() -> None:
    two = Two()
    two.network.take_host("10.0.0.2")
    two.network.give_host("bob", "10.0.0.9")
    two.send(b"hello?")
    two.pass_ms(2_000)
    assert not two.far.got
    assert not two.near.ended
    with pytest.raises(PeerUnreachable, match="nothing answers"):
        two.on("ana", two.nets["ana"].dial(ADDRESS, Side))
    two.on("bob", two.nets["bob"].listen("10.0.0.9:7000", Side))
    two.on("ana", two.nets["ana"].dial("10.0.0.9:7000", Side))


def test_R1_machines_reach_each_other_on_a_network_that_both_are_on() -> None:
    two = Two()
    two.network.give_host("cai", "10.1.0.3", "cellar")
    two.boot("cai")
    with pytest.raises(PeerUnreachable, match="nothing answers"):
        two.on("cai", two.nets["cai"].dial(ADDRESS, Side))
    two.network.give_host("bob", "10.1.0.2", "cellar")
    two.on("bob", two.nets["bob"].listen("0.0.0.0:7001", Side))
    two.on("cai", two.nets["cai"].dial("10.1.0.2:7001", Side))
    with pytest.raises(PeerUnreachable, match="nobody listens"):
        two.on("cai", two.nets["cai"].dial("10.1.0.2:9", Side))


def _story(seed: int) -> str:
    two = Two(seed)
    two.send()
    two.world.at(3, two.network.cut_off, [("ana", "bob")], name="cut")
    two.world.at(900, two.network.heal, name="heal")
    two.pass_ms(5_000)
    return two.world.digest


def test_R1_the_same_seed_gives_the_same_pieces_at_the_same_times() -> None:
    stories = [_story(seed) for seed in range(4)]
    assert stories == [_story(seed) for seed in range(4)]
    assert len(set(stories)) == 4


def test_R1_a_tap_sees_what_is_written_and_where_it_ends() -> None:
    class Tap:
        def __init__(self) -> None:
            self.seen: list[tuple[str, bytes]] = []
            self.over: list[str] = []

        def opened(self, dialler: StreamEnd, listener: StreamEnd) -> None: ...

        def written(self, source: StreamEnd, data: bytes) -> None:
            self.seen.append((source.net.machine, data))

        def ended(self, source: StreamEnd) -> None:
            self.over.append(source.net.machine)

    two = Two()
    tap = Tap()
    two.network.taps.append(tap)
    two.send()
    two.act("bob", lambda: two.ends[1].close())
    two.pass_ms(1_000)
    assert tap.seen == [("ana", GOODS)]
    assert sorted(tap.over) == ["ana", "bob"]
