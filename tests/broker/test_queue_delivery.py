"""Queues: each message to one of those who take, until one has finished with it."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from pathlib import Path
from typing import Any

from holdfast.protocol.frames import FromNode, QueueMessage, Refusal, Settle, Take
from support.broker_people import Person, broker_up

AT = "/v1/meshes/team/queues"


def test_D5_a_queue_over_websockets_from_its_first_delivery_to_its_dead_letter(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, eve)
            await ana.declare(up, "team", "queue", "jobs", deliveries_max=2)
            async with ana.connect(up) as a, bob.connect(up) as b, eve.connect(up) as e:
                await b.send(Take("team", "jobs", 1))
                raws = [
                    ana.message("team", "queue", "jobs", b"%d" % n, priority=priority)
                    for n, priority in enumerate(("low", "next", "now"))
                ]
                await a.push("team", *raws)
                first = await b.get(QueueMessage)
                assert (first.raw, first.deliveries) == (raws[2], 1)
                assert 0 < first.until_ms <= 30_000
                assert await b.quiet() == []  # it may have one in hand
                await e.send(Take("team", "jobs", 5))
                assert [(await e.get(QueueMessage)).raw for _ in range(2)] == [raws[1], raws[0]]
                await b.send(Settle("team", "jobs", first.seq, first.lease, "done"))
                assert await b.quiet() == []
                await e.send(Take("team", "jobs", 0))
                again = ana.message("team", "queue", "jobs", b"again")
                await a.push("team", again)
                taken = await b.get(QueueMessage)
                await b.send(Settle("team", "jobs", taken.seq, taken.lease, "again"))
                second = await b.get(QueueMessage)
                assert (second.raw, second.deliveries) == (again, 2)
                await b.send(Settle("team", "jobs", second.seq, taken.lease, "done"))
                assert (await b.get(Refusal)).problem.code == "lease_ended"
                await b.send(Settle("team", "jobs", second.seq, second.lease, "again"))
                assert await b.quiet() == []
                letters = (await bob.ask(up, "GET", f"{AT}/jobs/dead")).json["letters"]
                assert [one["seq"] for one in letters] == [second.seq]

    asyncio.run(run())


def test_D5_a_taker_that_keeps_it_too_long_loses_it_to_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            await ana.declare(up, "team", "queue", "jobs", visibility_ms=1000)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await a.send(Take("team", "jobs", 1))
                await a.push("team", ana.message("team", "queue", "jobs"))
                taken = await a.get(QueueMessage)
                await a.send(Take("team", "jobs", 0))
                await b.send(Take("team", "jobs", 1))
                second = await b.get(QueueMessage)
                assert (second.seq, second.deliveries) == (taken.seq, 2)
                await a.send(Settle("team", "jobs", taken.seq, taken.lease, "done"))
                assert (await a.get(Refusal)).problem.code == "lease_ended"
                await b.send(Settle("team", "jobs", second.seq, second.lease, "done"))
                assert await b.quiet() == []
            counts = (await ana.ask(up, "GET", AT)).json["queues"]
            assert counts == [{"queue": "jobs", "ready": 0, "taken": 0, "dead": 0}]

    asyncio.run(run())


def test_D5_a_queue_over_http(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            raws = [ana.message("team", "queue", "jobs", b"%d" % n) for n in range(3)]
            for raw in raws:
                assert (await ana.hand_in(up, "team", raw)).status == 201

            async def take(most: int = 1) -> list[dict[str, object]]:
                answer = await ana.ask(up, "POST", f"{AT}/jobs/take", {"most": most})
                assert answer.status == 200, answer.body
                found: list[dict[str, object]] = answer.json["messages"]
                return found

            async def settle(one: dict[str, object], how: str, **more: object) -> tuple[int, Any]:
                asked = {"seq": one["seq"], "lease": one["lease"], "how": how, **more}
                answer = await ana.ask(up, "POST", f"{AT}/jobs/settle", asked)
                return answer.status, answer.json.get("settled", answer.json.get("error"))

            first, second = await take(2)
            assert b64decode(str(first["envelope"])) == raws[0]
            assert await settle(first, "extend") == (200, True)
            assert await settle(first, "done") == (200, True)
            assert (await settle(first, "done"))[0] == 409
            assert await settle(second, "dead", reason="cannot be done") == (200, True)
            letters = (await ana.ask(up, "GET", f"{AT}/jobs/dead?limit=5")).json["letters"]
            assert [(one["seq"], one["reason"]) for one in letters] == [(2, "cannot be done")]
            revived = await ana.ask(up, "POST", f"{AT}/jobs/dead/2/revive")
            assert revived.json == {"revived": True}
            assert [(one["seq"], one["deliveries"]) for one in await take(9)] == [(2, 1), (3, 1)]

    asyncio.run(run())


def test_D5_what_is_no_queue_and_what_is_no_lease_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            async with ana.connect(up) as wire:
                tries: list[tuple[FromNode, str]] = [
                    (Take("team", "nowhere", 1), "unknown_destination"),
                    (Take("team", "jobs", -1), "over_limit"),
                    (Take("team", "jobs", 10**6), "over_limit"),
                    (Settle("team", "jobs", 1, bytes(16), "eaten"), "bad_value"),
                    (Settle("team", "jobs", 1, b"", "done"), "bad_value"),
                    (Settle("team", "jobs", -4, bytes(16), "done"), "bad_value"),
                    (Settle("team", "jobs", 1, bytes(16), "done"), "lease_ended"),
                    (Settle("other", "jobs", 1, bytes(16), "done"), "not_a_member"),
                ]
                for frame, code in tries:
                    await wire.send(frame)
                    assert (await wire.get(Refusal)).problem.code == code, frame
            for path, body, status in [
                ("nowhere/take", {}, 404),
                ("jobs/take", {"most": 0}, 400),
                ("jobs/take", {"some": 1}, 400),
                ("jobs/settle", {"seq": 1, "lease": "x", "how": "done"}, 400),
                ("jobs/dead/x/revive", None, 400),
            ]:
                assert (await ana.ask(up, "POST", f"{AT}/{path}", body)).status == status, path

    asyncio.run(run())
