"""What a broker must stand: strangers, numbers that no mesh can have, stores that fail for once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from holdfast.protocol.frames import Acks, Item, Push, QueueMessage, Refusal, Settle, Take, Urgent
from holdfast.protocol.frames import encode_frame as encoded
from holdfast.rules import limits
from holdfast.rules.errors import StoreFailed
from support.broker_people import Person, address, broker_up
from support.postgres import name_for, server


def test_D6_an_epoch_that_cannot_be_spoils_nothing_for_those_who_share_its_group(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        dsn = await server().database(name_for(tmp_path))
        async with broker_up(tmp_path, dsn=dsn) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", eve)
            async with ana.connect(up) as a, eve.connect(up) as e:
                for epoch in (2**63, 2**64 - 1, -1):
                    bad, good = await asyncio.gather(
                        e.push("team", eve.change("team", "k", 1), epoch=epoch),
                        a.push("team", ana.change("team", "k", epoch)),
                    )
                    assert bad[0].status == 400, bad
                    assert good[0].status == 201, good

    asyncio.run(run())


def test_D4_a_stranger_learns_nothing_of_known_ids_by_a_flood(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, rate_per_s=1) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            raw = ana.change("team", "k", 1)
            assert (await ana.hand_in(up, "team", raw)).status == 201
            for who in (eve, bob):
                if who is bob:
                    path = f"/api/my/meshes/team/members/{bob.key.hex()}"
                    assert (await ana.ask(up, "DELETE", path)).status == 200
                async with who.connect(up) as wire:
                    answers = await wire.push("team", *[raw] * 10)
                assert {one.status for one in answers} == {403}
                assert {one.seq for one in answers} == {0}
            assert [(await ana.hand_in(up, "team", raw)).status for _ in range(5)] == [200] * 5

    asyncio.run(run())


def test_D5_two_pushes_that_are_small_enough_are_not_too_large_together(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as a:
                (connection,) = up.broker.connections
                for count in (10, limits.PUSH_ITEMS_MAX):
                    connection.message(encoded(Push("team", 0, [Item(7, b"")] * count)))
                answers = 0
                while answers < 10 + limits.PUSH_ITEMS_MAX:
                    answers += len((await a.get(Acks)).answers)

    asyncio.run(run())


def test_D5_seqs_that_no_mesh_has_are_refused_in_words(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            async with ana.connect(up) as a:
                await a.send(Settle("team", "jobs", 2**63 - 1, b"l" * 16, "done"))
                assert (await a.get(Refusal)).problem.code == "lease_ended"
            at = "/v1/meshes/team"
            answer = await ana.ask(up, "POST", f"{at}/queues/jobs/dead/{2**63 - 1}/revive", {})
            assert (answer.status, answer.json) == (200, {"revived": False})
            answer = await ana.ask(up, "GET", f"{at}/feed?after={2**63 - 1}")
            assert (answer.status, answer.json["rows"]) == (200, [])
            begun = "/api/my/meshes/team/snapshot"
            made = (await ana.ask(up, "POST", f"{begun}/begin", {"epoch": 1, "seq": 0})).json
            chunk = f"{begun}/{made['snapshot_id']}/chunk?number=0&rows={2**63 - 1}"
            assert (await ana.ask(up, "POST", chunk, b"part")).status == 400
            part = f"{begun}/{made['snapshot_id']}/{2**40}"
            assert (await ana.ask(up, "GET", part)).status == 404

    asyncio.run(run())


def test_D15_strangers_are_not_told_which_meshes_there_are(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            for path in ("feed", "queues", f"objects/{'0' * 64}"):
                told = [await eve.ask(up, "GET", f"/v1/meshes/{m}/{path}") for m in ("team", "no")]
                assert [one.status for one in told] == [403, 403], path
                assert told[0].code == told[1].code

    asyncio.run(run())


def test_D15_the_owner_of_a_mesh_cannot_leave_it_to_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            path = f"/api/my/meshes/team/members/{ana.key.hex()}"
            assert (await ana.ask(up, "DELETE", path)).status == 403
            assert (await ana.ask(up, "GET", "/api/my/meshes/team")).status == 200

    asyncio.run(run())


def test_D5_more_than_fits_at_once_is_handed_out_and_sent_express_in_turns(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            await ana.declare(up, "team", "queue", "jobs")
            large = b"x" * (700 * 1024)
            async with ana.connect(up) as a, bob.connect(up) as b:
                jobs = [ana.message("team", "queue", "jobs", large) for _ in range(8)]
                await a.push("team", *jobs)
                await b.send(Take("team", "jobs", 8))
                assert [(await b.get(QueueMessage)).raw for _ in jobs] == jobs
                await b.follow("team", after=0)
                # Not confirmed: four frames are under way, and the rest has to overtake.
                to = bob.key.hex()
                urgent = [ana.message("team", "dm", to, large, priority="now") for _ in range(9)]
                for raw in urgent:
                    await a.push("team", raw)
                rows: list[bytes] = []
                while len(rows) < len(urgent):
                    frame: Any = await b.next()
                    if isinstance(frame, Urgent) or hasattr(frame, "rows"):
                        assert sum(len(row.raw) for row in frame.rows) <= 2 * limits.FEED_BYTES
                        rows += [row.raw for row in frame.rows if row.raw not in rows]
                assert rows == urgent

    asyncio.run(run())


def test_D7_a_fault_in_one_connection_does_not_end_the_brokers_clockwork(tmp_path: Path) -> None:
    class Broken:
        ticks = 0
        follows: tuple[str, ...] = ()

        def tick(self) -> None:
            self.ticks += 1
            raise ValueError("a fault of ours")

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            broken: Any = Broken()
            up.broker.connections.add(broken)
            async with asyncio.timeout(8):
                while broken.ticks < 2:
                    await asyncio.sleep(0.05)
            up.broker.connections.discard(broken)

    asyncio.run(run())


def test_D15_a_stranger_cannot_fill_memory_before_it_has_said_who_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            host, _, port = address(up).removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"GET /v1/sync HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            assert b" 101 " in await reader.readline()
            # The beginning of a message of 7 MiB that never ends.
            size = 7 * 1024 * 1024
            writer.write(b"\x82\xff" + size.to_bytes(8, "big") + bytes(4) + bytes(128 * 1024))
            async with asyncio.timeout(5):
                try:
                    while await reader.read(65536):
                        pass
                except ConnectionResetError:
                    pass
            writer.close()
            # Whoever has proved itself hands in as much at once.
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as a:
                raw = ana.message("team", "dm", ana.key.hex(), bytes(500 * 1024))
                assert (await a.push("team", raw))[0].status == 201

    asyncio.run(run())


def test_D15_what_ails_the_store_is_for_the_log_and_not_for_members(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            store: Any = up.broker.store

            async def fails(*args: Any, **named: Any) -> Any:
                raise StoreFailed("/srv/secret/broker.db at 10.0.0.5")

            store.accept = store.member_list = store.subscriptions = fails
            raw = ana.change("team", "k", 1)
            async with ana.connect(up) as a:
                pushed = (await a.push("team", raw))[0].problem
                await a.follow("team")
                words = [str(pushed), str(await a.get(Refusal))]
            answers = [
                await ana.hand_in(up, "team", raw),
                await ana.ask(up, "GET", "/api/my/meshes/team/members"),
            ]
            assert [one.code for one in answers] == ["store_failed"] * 2
            for text in (*words, *(one.body.decode() for one in answers)):
                assert "store did not" in text
                assert "secret" not in text

    asyncio.run(run())
