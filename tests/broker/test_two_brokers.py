"""Two broker processes on one PostgreSQL are one broker."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.broker.daemon import BrokerDaemon
from holdfast.protocol.frames import MeshMoved, QueueMessage, Refusal, Settle, Take
from support.broker_people import Person, ask, broker_up, rows_of
from support.postgres import name_for, server


@asynccontextmanager
async def two_up(folder: Path) -> AsyncIterator[tuple[BrokerDaemon, BrokerDaemon]]:
    dsn = await server().database(name_for(folder))
    async with broker_up(folder / "one", dsn=dsn, name="relay") as one:
        other = folder / "two" / "broker"
        other.mkdir(parents=True)
        for name in ("identity.key", "broker.name"):
            shutil.copy(folder / "one" / "broker" / name, other / name)
        async with broker_up(folder / "two", dsn=dsn) as two:
            yield one, two


def test_D1_what_is_pushed_at_one_arrives_at_members_of_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with two_up(tmp_path) as (one, two):
            assert one.broker.identity.card() == two.broker.identity.card()
            ana, bob = Person("ana"), Person("bob")
            await ana.register(one, "team")
            await ana.invite(one, "team", bob)
            await ana.declare(two, "team", "topic", "news")
            async with ana.connect(one) as a, bob.connect(two) as b:
                await b.follow("team")
                await bob.subscribe(one, "team", "news")
                raws = [
                    ana.change("team", "k", 1),
                    ana.message("team", "topic", "news"),
                    ana.message("team", "dm", bob.key.hex()),
                ]
                for seq, raw in enumerate(raws, 1):
                    assert (await a.push("team", raw))[0].seq == seq
                    assert rows_of(await b.entries("team", seq)) == [raw]
                # A retry at the other one finds what was accepted.
                again = await ana.hand_in(two, "team", raws[0])
                assert (again.status, again.json["history_id"]) == (200, "1.1")

    asyncio.run(run())


def test_D6_both_number_one_mesh_without_gaps_and_a_reader_sees_them_in_order(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with two_up(tmp_path) as (one, two):
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(one, "team")
            await ana.invite(one, "team", bob, eve)
            async with ana.connect(one) as a, bob.connect(two) as b, eve.connect(two) as e:
                await e.follow("team")

                async def push(person: Person, wire: object, count: int) -> list[int]:
                    seqs: list[int] = []
                    for n in range(count):
                        raws = [
                            person.change("team", f"{person.name}.{n}.{m}", 1) for m in range(5)
                        ]
                        seqs += [one.seq for one in await wire.push("team", *raws)]  # type: ignore[attr-defined]
                    return seqs

                found = await asyncio.gather(push(ana, a, 20), push(bob, b, 20))
                assert sorted([*found[0], *found[1]]) == list(range(1, 201))
                entries = await e.entries("team", 200)
                assert [row.seq for each in entries for row in each.rows] == list(range(1, 201))

    asyncio.run(run())


def test_D5_takers_of_both_compete_for_one_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with two_up(tmp_path) as (one, two):
            ana, bob = Person("ana"), Person("bob")
            await ana.register(one, "team")
            await ana.invite(one, "team", bob)
            await ana.declare(one, "team", "queue", "jobs")
            async with ana.connect(one) as a, bob.connect(two) as b:
                await b.send(Take("team", "jobs", 1))
                raw = ana.message("team", "queue", "jobs")
                await a.push("team", raw)
                taken = await b.get(QueueMessage)
                assert taken.raw == raw
                await a.send(Take("team", "jobs", 1))
                assert await a.quiet() == []
                await b.send(Settle("team", "jobs", taken.seq, taken.lease, "again"))
                await b.send(Take("team", "jobs", 0))

    asyncio.run(run())


def test_D6_a_new_epoch_and_a_removal_at_one_reach_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with two_up(tmp_path) as (one, two):
            ana, bob = Person("ana"), Person("bob")
            await ana.register(one, "team")
            await ana.invite(one, "team", bob)
            async with ana.connect(one) as a, bob.connect(two) as b:
                await b.follow("team")
                await a.push("team", ana.change("team", "k", 1))
                await b.entries("team", 1)
                await ask(one, "POST", "/v1/new-epoch", {}, unix=True)
                await a.push("team", ana.change("team", "k", 2))
                assert (await b.get(MeshMoved)).place.epoch == 2
                await b.follow("team", after=1, epoch=2)
                await b.entries("team", 2)
                await ana.ask(one, "DELETE", f"/api/my/meshes/team/members/{bob.key.hex()}")
                assert (await b.push("team", bob.change("team", "k", 3)))[0].status == 403
                await a.push("team", ana.change("team", "k", 4))
                assert (await b.get(Refusal)).problem.code == "not_a_member"

    asyncio.run(run())
