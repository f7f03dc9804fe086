"""What a broker's operator sees of every mesh, and nobody else: by the Unix socket alone."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.broker.daemon import BrokerDaemon
from support.broker_people import Person, Reply, ask, broker_up

TEAM = "/v1/operator/meshes/team"


def test_D15_the_operator_sees_and_mends_every_mesh_without_being_a_member(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, grants=["read", "write", "send", "audit"])
            await ana.declare(up, "team", "queue", "jobs", deliveries_max=1)
            await _fill(up, ana, bob)

            members = (await _operator(up, "GET", "members")).json["members"]
            assert [row["name"] for row in members] == ["ana", "bob"]
            queues = (await _operator(up, "GET", "queues")).json["queues"]
            assert queues == [{"queue": "jobs", "ready": 0, "taken": 0, "dead": 1}]
            (letter,) = (await _operator(up, "GET", "queues/jobs/dead")).json["letters"]
            assert letter["reason"] == "broken"
            revive = f"queues/jobs/dead/{letter['seq']}/revive"
            assert (await _operator(up, "POST", revive)).json == {"revived": True}
            assert (await _operator(up, "POST", revive)).json == {"revived": False}
            assert (await _operator(up, "GET", "queues")).json["queues"][0]["ready"] == 1

            (reader,) = (await _operator(up, "GET", "readers")).json["consumers"]
            assert (reader["name"], reader["member"]) == ("a/b", bob.key.hex())
            drop = f"readers/{bob.key.hex()}/a/b"
            assert (await _operator(up, "DELETE", drop)).json == {"dropped": True}
            assert (await _operator(up, "GET", "readers")).json["consumers"] == []

            first = (await _operator(up, "GET", "objects?limit=1")).json
            rest = (await _operator(up, "GET", f"objects?after={first['next']}")).json
            found = [*first["objects"], *rest["objects"]]
            assert sorted(row["size"] for row in found) == [1, 2]

            gone = f"members/{bob.key.hex()}"
            assert (await _operator(up, "DELETE", gone)).json == {"removed": True}
            assert (await _operator(up, "DELETE", gone)).json == {"removed": False}
            owner = await _operator(up, "DELETE", f"members/{ana.key.hex()}")
            assert (owner.status, owner.code) == (403, "not_granted")

    asyncio.run(run())


def test_D15_these_calls_are_for_the_operator_alone_and_say_what_is_not_there(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            for method, path in (
                ("GET", "members"),
                ("DELETE", f"members/{ana.key.hex()}"),
                ("GET", "queues"),
                ("GET", "queues/jobs/dead"),
                ("POST", "queues/jobs/dead/1/revive"),
                ("GET", "readers"),
                ("DELETE", f"readers/{ana.key.hex()}/a"),
                ("GET", "objects"),
            ):
                mine = await ana.ask(up, method, f"{TEAM}/{path}")
                assert (mine.status, mine.code) == (403, "not_granted"), path
                assert (await ask(up, method, f"{TEAM}/{path}")).status == 401, path
                none = f"/v1/operator/meshes/none/{path}"
                missing = await ask(up, method, none, unix=True)
                assert (missing.status, missing.code) == (404, "unknown_mesh"), path
            dead = await _operator(up, "GET", "queues/jobs/dead")
            assert (dead.status, dead.code) == (404, "unknown_destination")

    asyncio.run(run())


def test_D16_the_operator_makes_and_revokes_the_tokens_of_the_metrics(tmp_path: Path) -> None:
    at = "/v1/operator/tokens"

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            assert (await ask(up, "GET", at, unix=True)).json == {"tokens": []}
            made = await ask(up, "POST", at, {"token": "prometheus", "days": 7}, unix=True)
            assert (made.status, made.json["scope"]) == (201, "metrics")
            assert made.json["expired"] is False
            assert made.json["expires_at"] == made.json["created_at"] + 7 * 86_400_000
            secret = made.json["secret"]
            assert (await ask(up, "GET", "/metrics", session=secret)).status == 200
            (listed,) = (await ask(up, "GET", at, unix=True)).json["tokens"]
            assert listed == {name: made.json[name] for name in made.json if name != "secret"}
            again = await ask(up, "POST", at, {"token": "prometheus"}, unix=True)
            assert (again.status, again.code) == (409, "already_exists")
            for strange in ({"token": "a/b"}, {"token": "a", "days": 0}, {"name": "a"}):
                assert (await ask(up, "POST", at, strange, unix=True)).status == 400, strange

            for method, path in (("GET", at), ("POST", at), ("DELETE", f"{at}/prometheus")):
                assert (await ask(up, method, path)).status == 401, method
                mine = await Person("ana").ask(up, method, path)
                assert (mine.status, mine.code) == (403, "not_granted"), method
                scraper = await ask(up, method, path, session=secret)
                assert (scraper.status, scraper.code) == (403, "not_granted"), method

            gone = await ask(up, "DELETE", f"{at}/prometheus", unix=True)
            assert gone.json == {"removed": True}
            assert (await ask(up, "GET", "/metrics", session=secret)).status == 401
            missing = await ask(up, "DELETE", f"{at}/prometheus", unix=True)
            assert (missing.status, missing.code) == (404, "unknown_token")

    asyncio.run(run())


async def _operator(up: BrokerDaemon, method: str, path: str) -> Reply:
    return await ask(up, method, f"{TEAM}/{path}", unix=True)


async def _fill(up: BrokerDaemon, ana: Person, bob: Person) -> None:
    """A dead letter, a reader and two objects."""
    sent = await ana.hand_in(up, "team", ana.message("team", "queue", "jobs", b"job"))
    assert sent.status in (200, 201), sent.body
    (taken,) = (await bob.ask(up, "POST", "/v1/meshes/team/queues/jobs/take", {})).json["messages"]
    said: dict[str, Any] = {"seq": taken["seq"], "lease": taken["lease"]}
    said |= {"how": "dead", "reason": "broken"}
    await bob.ask(up, "POST", "/v1/meshes/team/queues/jobs/settle", said)
    reader = {"consumer": "a/b"}
    assert (await bob.ask(up, "POST", "/v1/meshes/team/consumers", reader)).status == 200
    for content in (b"1", b"22"):
        path = f"/v1/meshes/team/objects/{sha256(content).hexdigest()}"
        put = await ana.ask(up, "PUT", path, content)
        assert put.status in (200, 201), put.body
