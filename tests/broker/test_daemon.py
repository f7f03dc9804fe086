"""A broker as a process: starting, limits on its connections, ending, figures."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.identity import Identity
from holdfast.broker.settings import BrokerSettings
from holdfast.broker.upkeep import BrokerUpkeep
from holdfast.protocol.frames import Acks, Item, Push
from holdfast.rules import limits
from holdfast.rules.broker_rows import BrokerSwept
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadValue,
    FeatureParamBelowFloor,
    HoldfastError,
)
from support.broker_people import Person, address, ask, broker_up, exchange, raw_wire, rows_of
from support.source import HandClock


def test_D15_a_broker_keeps_its_key_for_itself_and_its_name_for_good(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    first = Identity(folder, "relay")
    assert stat.S_IMODE((folder / "identity.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert Identity(folder).card() == Identity(folder, "relay").card() == first.card()
    with pytest.raises(BadInput):
        Identity(folder, "other")
    with pytest.raises(HoldfastError):
        Identity(tmp_path / "second", "with\0nul")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data.db").touch()
    with pytest.raises(BadInput):
        Identity(tmp_path / "home")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"dedupe": "2"}, FeatureParamBelowFloor),
        ({"dedupe": "0"}, FeatureParamBelowFloor),
        ({"dedupe": "forever"}, BadInput),
        ({"dedupe": "-3"}, BadInput),
        ({"keep_days": 0}, BadValue),
        ({"rate_per_s": 0}, BadValue),
        ({"tcp": "0.0.0.0:7420"}, BadInput),
        ({"listen": "nowhere"}, BadInput),
        ({"registration": "token"}, BadInput),
        ({"registration": "token", "registration_token": "short"}, BadInput),
        ({"registration": "maybe"}, BadInput),
        ({"tls_cert": "x"}, BadInput),
    ],
)
def test_D8_settings_that_cannot_hold_are_refused_before_anything_is_made(
    tmp_path: Path, given: dict[str, Any], error: type[HoldfastError]
) -> None:
    with pytest.raises(error):
        BrokerSettings(store=tmp_path / "broker", **given).check()
    assert not (tmp_path / "broker").exists()


def test_D1_the_dsn_and_the_token_are_shown_nowhere(tmp_path: Path) -> None:
    settings = BrokerSettings(
        store=tmp_path, dsn="postgresql://u:secret@h/d", registration_token="secret" * 4
    )
    assert "secret" not in repr(settings)


def test_D1_one_process_serves_a_folder(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path):
            second = BrokerDaemon(BrokerSettings(store=tmp_path / "broker", tcp="127.0.0.1:0"))
            with pytest.raises(AlreadyExists):
                await second.run()

    asyncio.run(run())


def test_S16_what_was_pushed_is_answered_before_the_broker_ends(tmp_path: Path) -> None:
    async def run() -> None:
        ana = Person("ana")
        async with broker_up(tmp_path) as up:
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                raws = [ana.change("team", f"k{n}", n) for n in range(500)]
                items = [Item(n, raw) for n, raw in enumerate(raws)]
                await wire.send(Push("team", 0, items))
                while not up.broker.accepting.busy:
                    await asyncio.sleep(0)
                up.stop()
                answered = 0
                while answered < 500:
                    answers = (await wire.get(Acks)).answers
                    assert {one.status for one in answers} == {201}
                    answered += len(answers)
                assert (await wire.closed())[0] == 1001
        async with broker_up(tmp_path) as up:
            mesh = await up.broker.store.mesh_get("team")
            assert mesh is not None
            assert mesh.seq == 500

    asyncio.run(run())


def test_S16_a_stopping_broker_answers_503_and_writes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                up.api.phase = "stopping"
                refused = await ana.hand_in(up, "team", ana.change("team", "k", 1))
                assert (refused.status, refused.code) == (503, "store_closed")
                assert (await ask(up, "GET", "/readyz")).status == 503
                await up.broker.accepting.close()
                answers = await wire.push("team", ana.change("team", "k", 1))
                assert answers[0].status == 503
            assert (await up.broker.store.counts())["messages"] == 0

    asyncio.run(run())


def test_D1_frames_that_are_too_large_or_no_frames_end_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 10_000)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            sent: list[tuple[bytes | str, int]] = [
                (bytes(10_001), 1009),
                (b"\xc1", 1002),
                (msgspec.msgpack.encode([99, 1]), 1002),
                (msgspec.msgpack.encode([24, "team"]), 1002),
                ("text", 1003),
            ]
            for raw, code in sent:
                async with ana.connect(up) as wire:
                    await wire.socket.send(raw)
                    assert (await wire.closed())[0] == code, raw
            async with ana.connect(up) as wire:  # in pieces it is one frame like any other
                frame = msgspec.msgpack.encode([24, "team", 0, [[7, ana.change("team", "k", 1)]]])
                await wire.socket.send([frame[:9], frame[9:30], frame[30:]])
                assert (await wire.get(Acks)).answers[0].status == 201
            assert sum(up.broker.counts.closed.values()) >= 5

    asyncio.run(run())


def test_D1_only_a_handshake_opens_a_websocket_and_only_at_its_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            url = address(up).replace("http", "ws", 1)
            with pytest.raises(Exception, match="404"):
                async with connect(f"{url}/v1/other", proxy=None):
                    pass
            upgrade = b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
            for head in (
                b"GET /v1/sync HTTP/1.1\r\n" + upgrade + b"\r\n",
                b"POST /v1/sync HTTP/1.1\r\n" + upgrade + b"Content-Length: 0\r\n\r\n",
                b"GET /v1/sync HTTP/1.1\r\n" + upgrade + b"Sec-WebSocket-Version: 8\r\n\r\n",
            ):
                answer = await exchange(up, head)
                assert answer.startswith(b"HTTP/1.1 400 ")
            plain = await ask(up, "GET", "/v1/sync")
            assert (plain.status, plain.code) == (404, "no_route")

    asyncio.run(run())


def test_D1_nothing_is_compressed(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            url = address(up).replace("http", "ws", 1)
            async with connect(f"{url}/v1/sync", proxy=None) as wire:  # offers deflate
                assert wire.response is not None
                assert "sec-websocket-extensions" not in wire.response.headers

    asyncio.run(run())


def test_D1_one_that_does_not_read_is_held_back_and_then_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SOCKET_PING_MS", 50)
    monkeypatch.setattr(limits, "SOCKET_SILENT_MS", 300)
    monkeypatch.setattr(limits, "CONNECTION_UNREAD_BYTES", 64 * 1024)
    monkeypatch.setattr(limits, "FEED_FRAMES_MAX", 1000)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as a:
                large = [
                    ana.message("team", "dm", bob.key.hex(), bytes(500_000)) for _ in range(30)
                ]
                for raw in large:
                    await a.push("team", raw)
                async with bob.connect(up) as b:
                    taken = b.socket.transport
                    taken.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
                    )
                    await b.follow("team")
                    taken.pause_reading()
                    while len(up.broker.connections) > 1:
                        await asyncio.sleep(0.02)
                        await a.send()  # the other one is served all the while
                    taken.abort()
                answers = await a.push("team", ana.change("team", "k", 1))
                assert answers[0].status == 201

    asyncio.run(run())


def test_D1_one_that_hands_in_too_much_at_once_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONNECTION_ITEMS_MAX", 4)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                raws = [ana.change("team", f"k{n}", n) for n in range(200)]
                await wire.send(*(Push("team", 0, [Item(n, raw)]) for n, raw in enumerate(raws)))
                done = 0
                while done < 200:
                    done += len((await wire.get(Acks)).answers)
                connection = next(iter(up.broker.connections))
                session = connection._session
                assert (session.items, session.bytes, connection._paused) == (0, 0, False)

    asyncio.run(run())


def test_D16_the_counters_of_the_contract_are_in_the_metrics(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            raw = ana.message("team", "queue", "jobs")
            id = msgspec.msgpack.decode(raw)[2]
            async with ana.connect(up) as wire:
                await wire.push("team", raw, raw, ana.message("team", "queue", "jobs", b"2", id=id))
                await wire.push("team", ana.message("team", "queue", "none"))
                await eve.hand_in(up, "nowhere", eve.change("nowhere", "k", 1))
                upkeep = BrokerUpkeep(up.broker)
                await upkeep.sweep()
                async with asyncio.timeout(30):
                    while not up.broker.counts.orphan_checks:  # that of the start
                        await asyncio.sleep(0.01)
                assert await upkeep.orphans() == []
                text = (await ask(up, "GET", "/metrics", unix=True)).body.decode()
        client = ana.key.hex()[:16]
        for line in (
            'holdfast_broker_accepted_total{mesh="team"} 1.0',
            'holdfast_broker_duplicate_total{mesh="team"} 1.0',
            'holdfast_broker_reused_total{mesh="team"} 1.0',
            'holdfast_broker_refused_total{code="unknown_destination",mesh="team"} 1.0',
            'holdfast_broker_refused_total{code="not_a_member",mesh=""} 1.0',
            "holdfast_broker_dedupe_fingerprint_mismatch_total"
            f'{{client="{client}",mesh="team"}} 1.0',
            "holdfast_broker_dedupe_orphan_check_total 2.0",
            'holdfast_broker_dedupe_orphan_found{mesh=""} 0.0',
            "holdfast_broker_connections 1.0",
            'holdfast_broker_queue_depth{mesh="team",queue="jobs",state="ready"} 1.0',
            'holdfast_broker_mesh_seq{mesh="team"} 1.0',
            "holdfast_broker_sweeps_total 1.0",
        ):
            assert line in text.splitlines(), line

    asyncio.run(run())


def test_D7_sweeps_and_orphan_checks_run_by_themselves(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, sweep_every_ms=1) as up:
            counts = up.broker.counts
            async with asyncio.timeout(30):
                while not (counts.sweeps and counts.orphan_checks):
                    await asyncio.sleep(0.05)

    asyncio.run(run())


def test_D7_the_orphan_check_runs_at_the_start_and_when_a_night_begins(tmp_path: Path) -> None:
    """By the wall clock of the place: a broker that is started every noon checks every night that
    it sees, and one that runs for weeks every night.
    """

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            counts = up.broker.counts
            async with asyncio.timeout(30):
                while not counts.orphan_checks:
                    await asyncio.sleep(0.01)
            clock = HandClock((20_000 * 24 + 12) * limits.HOUR_MS)  # noon, UTC
            up.broker.source = clock
            upkeep = BrokerUpkeep(up.broker, lambda at_ms: 2 * limits.HOUR_MS)
            before = counts.orphan_checks
            checked = []
            for _ in range(48):
                clock.advance(limits.HOUR_MS)
                if await upkeep.nightly():
                    checked.append((clock.at_ms // limits.HOUR_MS + 2) % 24)
            assert checked == [limits.NIGHT_HOUR] * 2
            assert counts.orphan_checks == before + 2

    asyncio.run(run())


def test_D7_a_clock_that_leapt_ahead_sweeps_nothing_until_somebody_says_so(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, keep_days=1) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "topic", "news")
            async with ana.connect(up) as wire:
                await wire.push("team", ana.message("team", "topic", "news"))
            broker = up.broker
            real, counting = broker.source.now_ms, broker.ticks_ms()
            ahead = real() + 40 * limits.DAY_MS
            broker.source.now_ms = lambda: ahead  # type: ignore[method-assign]
            upkeep = BrokerUpkeep(broker)
            assert await upkeep.sweep() == BrokerSwept()
            assert (await broker.store.counts())["messages"] == 1
            text = (await ask(up, "GET", "/metrics", unix=True)).body.decode()
            assert "holdfast_broker_sweeps_put_off_total 1.0" in text.splitlines()
            broker.source.now_ms = real  # type: ignore[method-assign]
            assert await upkeep.look_at_clock(), "it is back where it was believed"

            broker.source.now_ms = lambda: ahead  # type: ignore[method-assign]
            broker.ticks_ms = lambda: counting  # type: ignore[method-assign]
            assert (await upkeep.sweep()).messages == 0
            said = await ask(up, "POST", "/v1/sweep", unix=True)
            assert msgspec.json.decode(said.body)["messages"] == 1, "an operator's word"

    asyncio.run(run())


def test_D7_a_broker_that_booted_behind_sweeps_nothing_undelivered_and_knows_retries(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, keep_days=1) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "topic", "news")
            assert await BrokerUpkeep(up.broker).look_at_clock()
        async with broker_up(tmp_path, keep_days=1) as up:
            broker, upkeep = up.broker, BrokerUpkeep(up.broker)
            real = broker.source.now_ms
            behind = lambda: real() - 400 * limits.DAY_MS  # noqa: E731
            broker.clock_check = broker.clock_looked = None  # as at the start of a process
            broker.source.now_ms = behind  # type: ignore[method-assign]
            broker.accepting._clock = behind
            await upkeep.look_at_clock()
            raw = ana.message("team", "topic", "news")
            async with ana.connect(up) as wire:
                assert [one.status for one in await wire.push("team", raw)] == [201]
            broker.source.now_ms = broker.accepting._clock = real  # type: ignore[method-assign]
            swept = await upkeep.sweep()
            assert (swept.messages, swept.dedupe) == (0, 0)
            async with ana.connect(up) as wire:
                assert [one.status for one in await wire.push("team", raw)] == [200], "a retry"

    asyncio.run(run())


def test_D7_a_broker_that_was_down_for_long_does_not_sweep_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            await Person("ana").register(up, "team")
            broker, upkeep = up.broker, BrokerUpkeep(up.broker)
            assert await upkeep.look_at_clock()
            later = broker.source.now_ms() + 3 * limits.DAY_MS
            broker.source.now_ms = lambda: later  # type: ignore[method-assign]
            assert await upkeep.look_at_clock() is False, "it leapt"
            broker.clock_check = None  # as at the start of a process
            assert not await upkeep.look_at_clock()
            ticks = broker.ticks_ms() + limits.CLOCK_STEADY_MS
            broker.ticks_ms = lambda: ticks  # type: ignore[method-assign]
            broker.source.now_ms = lambda: later + limits.CLOCK_STEADY_MS  # type: ignore[method-assign]
            assert await upkeep.look_at_clock(), "it has kept pace for a day"

    asyncio.run(run())


def test_D6_a_broker_restored_from_an_older_copy_tells_its_followers(tmp_path: Path) -> None:
    async def run() -> None:
        import shutil

        ana = Person("ana")
        async with broker_up(tmp_path) as up:
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                await wire.push("team", ana.change("team", "a", 1))
        shutil.copytree(tmp_path / "broker", tmp_path / "copy")
        async with broker_up(tmp_path) as up, ana.connect(up) as wire:
            await wire.push("team", ana.change("team", "b", 1))
        os.replace(tmp_path / "copy" / "broker.db", tmp_path / "broker" / "broker.db")
        async with broker_up(tmp_path) as up, ana.connect(up) as wire:
            assert wire.welcome is not None
            place = wire.welcome.meshes[0]
            assert (place.epoch, place.base, place.seq) == (2, 1, 1)
            await wire.follow("team", after=1, epoch=2, own=True)
            await wire.push("team", ana.change("team", "c", 1), epoch=2)
            assert len(rows_of(await wire.entries("team", 2))) == 1

    asyncio.run(run())


def test_D1_a_member_that_goes_away_in_the_middle_harms_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            for cut in range(5):
                async with raw_wire(up) as wire:
                    await wire.hello(ana)
                    await wire.follow("team", own=True)
                    raws = [ana.change("team", f"{cut}.{n}", n) for n in range(50)]
                    await wire.send(Push("team", 0, [Item(n, raw) for n, raw in enumerate(raws)]))
                    wire.socket.transport.abort()
            async with asyncio.timeout(30):
                while up.broker.connections or up.broker.accepting.busy:
                    await asyncio.sleep(0.01)
            assert await up.broker.store.orphans(10) == []
            assert up.broker.wakeups._followers == {}

    asyncio.run(run())
