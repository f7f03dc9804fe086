"""Meshes, members, invites, destinations, objects and snapshots over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.broker.http.metrics_tokens import MetricsTokens
from holdfast.rules import limits
from holdfast.rules.broker_rows import GRANTS
from holdfast.rules.errors import OverLimit
from holdfast.rules.features import NEEDS
from holdfast.rules.keys import token_text
from holdfast.rules.limits import BROKER_TOKENS_MAX, DAY_MS, TOKEN_BYTES
from support.broker_people import Person, ask, broker_up

AT = "/api/my/meshes"


def filled(path: str) -> str:
    """A path with something for each of its parameters."""
    return re.sub(r"\{\w+(:path)?\}", "x", path)


def test_D1_a_mesh_is_registered_once_and_belongs_to_its_owner(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            made = await ana.ask(up, "POST", AT, {"slug": "team", "name": "The team"})
            again = await ana.ask(up, "POST", AT, {"slug": "team"})
            assert (made.status, again.status) == (201, 200)
            assert made.json["server_id"] == again.json["server_id"]
            assert made.json["grants"] == ["invite", "read", "relay", "send", "write"]
            taken = await bob.ask(up, "POST", AT, {"slug": "team"})
            assert (taken.status, taken.code) == (409, "already_exists")
            for bad in ({"slug": "No Good"}, {"slug": ""}, {"slug": 5}, {}, {"slug": "x", "y": 1}):
                assert (await ana.ask(up, "POST", AT, bad)).status == 400
            assert (await bob.ask(up, "DELETE", f"{AT}/team")).status == 403
            assert (await ana.ask(up, "DELETE", f"{AT}/team")).json == {"removed": True}
            assert (await ana.ask(up, "GET", f"{AT}/team")).status == 403

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "token", "status"),
    [
        ({"registration": "closed"}, "", 403),
        ({"registration": "token", "registration_token": "t" * 20}, "", 403),
        ({"registration": "token", "registration_token": "t" * 20}, "u" * 20, 403),
        ({"registration": "token", "registration_token": "t" * 20}, "t" * 20, 201),
    ],
)
def test_D15_who_may_make_a_mesh_is_up_to_the_operator(
    tmp_path: Path, given: dict[str, Any], token: str, status: int
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, **given) as up:
            ana = Person("ana")
            made = await ana.ask(up, "POST", AT, {"slug": "team", "token": token})
            assert made.status == status
            if status == 201:  # one's own is found again without the token
                assert (await ana.ask(up, "POST", AT, {"slug": "team"})).status == 200

    asyncio.run(run())


def test_D15_an_invite_is_used_up_and_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            made = await ana.ask(up, "POST", f"{AT}/team/invites", {})
            assert made.status == 201
            secret = {"secret": made.json["secret"]}
            joined = await bob.ask(up, "POST", "/v1/join", secret)
            assert (joined.status, joined.json["slug"]) == (200, "team")
            assert joined.json["grants"] == ["read", "send", "write"]
            # Who lost the answer asks again; who comes second is too late.
            assert (await bob.ask(up, "POST", "/v1/join", secret)).status == 200
            late = await eve.ask(up, "POST", "/v1/join", secret)
            assert (late.status, late.code) == (403, "invite_ended")
            members = (await bob.ask(up, "GET", f"{AT}/team/members")).json["members"]
            assert {(one["name"], one["key"]) for one in members} == {
                ("ana", ana.key.hex()),
                ("bob", bob.key.hex()),
            }
            expired = await ana.ask(
                up, "POST", f"{AT}/team/invites", {"uses": 5, "expires_in_hours": 1}
            )
            real = up.broker.source.now_ms
            up.broker.source.now_ms = lambda: real() + limits.HOUR_MS  # type: ignore[method-assign]
            over = await eve.ask(up, "POST", "/v1/join", {"secret": expired.json["secret"]})
            assert over.code == "invite_ended"
            for bad in ({"secret": "x"}, {"secret": ""}, {}):
                assert (await eve.ask(up, "POST", "/v1/join", bad)).status == 400

    asyncio.run(run())


def test_D15_an_invite_gives_no_more_than_its_maker_has_and_can_be_taken_back(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, grants=["read", "invite"])
            at = f"{AT}/team/invites"
            refused = await bob.ask(up, "POST", at, {"grants": ["write"]})
            assert (refused.status, refused.code) == (403, "not_granted")
            for bad in ({"grants": ["all"]}, {"uses": 0}, {"expires_in_hours": 0}, {"uses": "1"}):
                assert (await ana.ask(up, "POST", at, bad)).status == 400
            made = (await bob.ask(up, "POST", at, {"grants": ["read"]})).json
            listed = (await ana.ask(up, "GET", at)).json["invites"]
            assert made["id"] in {one["id"] for one in listed}
            assert not any(made["secret"] in str(one) for one in listed)
            assert (await ana.ask(up, "DELETE", f"{at}/{made['id']}")).json == {"removed": True}
            over = await eve.ask(up, "POST", "/v1/join", {"secret": made["secret"]})
            assert over.code == "invite_ended"
            # Two members never bear one name: it is the origin of what they write.
            twin = Person("bob")
            twin.seed, twin.key = eve.seed, eve.key
            again = (await ana.ask(up, "POST", at, {})).json["secret"]
            clash = await twin.ask(up, "POST", "/v1/join", {"secret": again})
            assert (clash.status, clash.code) == (409, "already_exists")

    asyncio.run(run())


def test_D15_grants_change_and_members_leave(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, eve)
            at = f"{AT}/team/members"
            changed = await ana.ask(up, "PUT", f"{at}/{bob.key.hex()}", {"grants": ["read"]})
            assert changed.json["grants"] == ["read"]
            refused = await bob.hand_in(up, "team", bob.change("team", "k", 1))
            assert (refused.status, refused.code) == (403, "not_granted")
            everything = {"grants": ["read", "invite"]}
            assert (await bob.ask(up, "PUT", f"{at}/{bob.key.hex()}", everything)).status == 403
            assert (await eve.ask(up, "DELETE", f"{at}/{bob.key.hex()}")).status == 403
            assert (await bob.ask(up, "DELETE", f"{at}/{bob.key.hex()}")).status == 200
            assert (await bob.ask(up, "GET", at)).status == 403
            gone = await ana.ask(up, "PUT", f"{at}/{bob.key.hex()}", everything)
            assert gone.status == 404
            assert (await ana.ask(up, "DELETE", f"{at}/nobody")).status == 400

    asyncio.run(run())


def test_D5_destinations_are_declared_by_those_who_may(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            at = f"{AT}/team/destinations"
            assert (await bob.ask(up, "POST", at, {"kind": "topic", "ref": "x"})).status == 403
            for bad in (
                {"kind": "dm", "ref": bob.key.hex()},
                {"kind": "pipe", "ref": "x"},
                {"kind": "topic", "ref": ""},
                {"kind": "topic", "ref": "a\0b"},
                {"kind": "queue", "ref": "x", "visibility_ms": 5},
                {"kind": "queue", "ref": "x", "deliveries_max": 0},
            ):
                assert (await ana.ask(up, "POST", at, bad)).status == 400, bad
            await ana.declare(up, "team", "queue", "jobs", visibility_ms=5000)
            await ana.declare(up, "team", "topic", "news")
            listed = (await bob.ask(up, "GET", at)).json["destinations"]
            assert [(one["kind"], one["ref"]) for one in listed] == [
                ("queue", "jobs"),
                ("topic", "news"),
            ]
            assert listed[0]["visibility_ms"] == 5000
            await bob.subscribe(up, "team", "news")
            mine = (await bob.ask(up, "GET", f"{AT}/team/subscriptions")).json["subscriptions"]
            assert mine == [{"topic": "news", "since": 0}]
            unknown = await bob.ask(up, "PUT", f"{AT}/team/subscriptions/none")
            assert (unknown.status, unknown.code) == (404, "unknown_destination")
            await ana.hand_in(up, "team", ana.message("team", "queue", "jobs"))
            assert (await ana.ask(up, "DELETE", f"{at}/queue/jobs")).status == 400
            assert (await ana.ask(up, "DELETE", f"{at}/topic/news")).json == {"dropped": True}

    asyncio.run(run())


def test_S9_objects_are_brought_and_fetched_whole(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, grants=["read"])
            content = os.urandom(2 * limits.BROKER_PIECE_BYTES + 7)
            name = sha256(content).hexdigest()
            at = f"/v1/meshes/team/objects/{name}"
            assert (await ana.ask(up, "HEAD", at)).status == 404
            assert (await bob.ask(up, "PUT", at, content)).status == 403
            assert (await eve.ask(up, "PUT", at, content)).status == 403
            wrong = await ana.ask(up, "PUT", at, content[:-1])
            assert (wrong.status, wrong.code) == (400, "bad_value")
            put = await ana.ask(up, "PUT", at, content)
            assert (put.status, put.json) == (201, {"sha256": name, "size": len(content)})
            assert (await ana.ask(up, "PUT", at, b"")).status == 200
            head = await bob.ask(up, "HEAD", at)
            assert (head.status, head.headers["content-length"]) == (200, str(len(content)))
            assert (await bob.ask(up, "GET", at)).body == content
            assert (await eve.ask(up, "GET", at)).status == 403
            assert (await ana.ask(up, "GET", "/v1/meshes/team/objects/xyz")).status == 400
            empty = f"/v1/meshes/team/objects/{sha256(b'').hexdigest()}"
            assert (await ana.ask(up, "PUT", empty, b"")).status == 201
            assert (await bob.ask(up, "GET", empty)).body == b""

    asyncio.run(run())


def test_S14_a_snapshot_is_uploaded_in_parts_goes_on_and_appears_whole(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            await ana.hand_in(up, "team", ana.change("team", "k", 1))
            at = f"{AT}/team/snapshot"
            parts = [b"one", b"two", b"three"]
            begin = {"epoch": 1, "seq": 1}
            assert (await bob.ask(up, "POST", f"{at}/begin", begin)).status == 403
            old = await ana.ask(up, "POST", f"{at}/begin", {"epoch": 3, "seq": 1})
            assert (old.status, old.code) == (409, "epoch_mismatch")
            assert (await ana.ask(up, "POST", f"{at}/begin", {"epoch": 1, "seq": 9})).status == 400
            id = (await ana.ask(up, "POST", f"{at}/begin", begin)).json["snapshot_id"]
            for number, part in enumerate(parts):
                path = f"{at}/{id}/chunk?number={number}&rows=1"
                assert (await ana.ask(up, "POST", path, part)).json == {"next": number + 1}
                # Cut off here: the next attempt learns where to go on.
                again = (await ana.ask(up, "POST", f"{at}/begin", begin)).json
                assert again == {"snapshot_id": id, "next": number + 1}
            assert (await ana.ask(up, "POST", f"{at}/{id}/chunk?rows=1", b"x")).status == 400
            assert (await bob.ask(up, "GET", at)).status == 404
            assert (await bob.ask(up, "GET", f"{at}/{id}/0")).status == 404
            digest = sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()
            done = await ana.ask(up, "POST", f"{at}/{id}/commit", {"digest": digest})
            told = (await bob.ask(up, "GET", at)).json
            assert told == done.json
            assert (told["parts"], told["rows"], told["seq"], told["digest"]) == (3, 3, 1, digest)
            found = [(await bob.ask(up, "GET", f"{at}/{id}/{n}")).body for n in range(3)]
            assert found == parts
            assert (await bob.ask(up, "GET", f"{at}/{id}/3")).status == 404
            for bad in ("nonsense", id):
                answer = await ana.ask(up, "POST", f"{at}/{bad}/commit", {"digest": "0" * 64})
                assert answer.status == 400

    asyncio.run(run())


def test_U4_a_broker_tells_what_it_is_and_what_it_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, name="relay", dedupe="permanent") as up:
            about = (await ask(up, "GET", "/v1/broker")).json
            assert about["name"] == "relay"
            assert about["card"] == up.broker.identity.card()
            assert about["supported"]["client_message_id_dedupe"]["mode"] == "permanent"
            document = (await ask(up, "GET", "/openapi.json")).json
            assert "/v1/meshes/{mesh}/envelopes" in document["paths"]
            assert document["info"]["description"].startswith("A broker")
            assert b"/v1/meshes/{mesh}/envelopes" in (await ask(up, "GET", "/docs")).body
            spoken = (await ask(up, "GET", "/v1/version")).json
            assert (spoken["service"], spoken["version"]) == ("broker", holdfast.__version__)
            assert spoken["formats"]["envelope"] == {"writes": "1.2", "reads": ["1.x"]}
            assert spoken["features"] == {
                name: params["version"] for name, params in about["supported"].items()
            }
            assert spoken["features"] | NEEDS == spoken["features"], "nodes of this version suit"
            for path in ("/healthz", "/readyz"):
                assert (await ask(up, "GET", path)).json == {"status": "ok"}
            for path, method in (("/v1/status", "GET"), ("/metrics", "GET"), ("/v1/sweep", "POST")):
                assert (await ask(up, method, path)).status == 401
                ana = Person("ana")
                assert (await ana.ask(up, method, path)).status == 403
                assert (await ask(up, method, path, unix=True)).status == 200
            unknown = {"mesh": "nowhere"}
            assert (await ask(up, "POST", "/v1/new-epoch", unknown, unix=True)).status == 404

    asyncio.run(run())


def test_D16_a_token_reads_the_metrics_of_a_broker_over_tcp_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            tokens, now = MetricsTokens(tmp_path / "broker"), up.broker.source.now_ms()
            secret = tokens.add("prometheus", now, days=1)
            bears = {"authorization": f"Bearer {secret}"}
            scraped = await ask(up, "GET", "/metrics", headers=bears)
            assert scraped.status == 200
            assert b"holdfast_broker_info" in scraped.body
            assert up._api is not None
            refused = [
                (route.method, path)
                for route in up._api.routes
                if not route.public and (path := filled(route.path)) != "/metrics"
            ]
            assert len(refused) > 30
            for method, path in refused:
                told = await ask(up, method, path, headers=bears)
                assert (told.status, told.code) == (403, "not_granted"), (method, path)
            wrong = {"authorization": f"Bearer {token_text(bytes(TOKEN_BYTES))}"}
            assert (await ask(up, "GET", "/metrics", headers=wrong)).code == "bad_token"
            old = {"authorization": f"Bearer {tokens.add('old', now - 2 * DAY_MS, days=1)}"}
            assert (await ask(up, "GET", "/metrics", headers=old)).code == "key_expired"
            tokens.revoke("prometheus")
            assert (await ask(up, "GET", "/metrics", headers=bears)).code == "bad_token"
            for n in range(BROKER_TOKENS_MAX - 1):
                tokens.add(f"more-{n}", now)
            with pytest.raises(OverLimit):
                tokens.add("one-too-many", now)

    asyncio.run(run())


def test_U4_the_page_of_a_broker_shows_no_sample_that_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            page = unescape((await ask(up, "GET", "/docs")).body.decode())
            assert "may read" not in page
            samples = re.findall(r"<pre>(curl .*?)</pre>", page)
            api = up._api
            assert api is not None
            assert len(samples) == len(api.routes)
            shown: dict[tuple[str, str], str] = {}
            for sample in samples:
                method = re.search(r"-X (\w+)", sample)
                path = re.search(r"http://[\w:]+(/\S*)", sample)
                assert path is not None
                shown["GET" if method is None else method[1], path[1]] = sample
            for route in api.routes:
                path_shown = re.sub(r"\{(\w+)(:path)?\}", lambda x: x[1].upper(), route.path)
                sample = shown[route.method, path_shown]
                told = await ask(
                    up, route.method, filled(route.path), unix="--unix-socket" in sample
                )
                asks = "Bearer" in sample
                assert (told.status == 401) == asks, (sample, told.status)

    asyncio.run(run())


def test_D15_an_owner_cannot_lock_itself_out(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, grants=["read", "invite"])
            own = f"{AT}/team/members/{ana.key.hex()}"
            # Every set of grants: none of them ends with an owner that may not change it.
            for chosen in range(2 ** len(GRANTS)):
                grants = [grant for at, grant in enumerate(GRANTS) if chosen >> at & 1]
                told = await ana.ask(up, "PUT", own, {"grants": grants})
                assert told.status == (200 if "invite" in grants else 403), grants
            for who in (ana, bob):
                assert (await who.ask(up, "DELETE", own)).status == 403
            assert (await bob.ask(up, "PUT", own, {"grants": ["read"]})).status == 403
            # One that an earlier version let lose its grants gets them back.
            await up.broker.store.member_grant("team", ana.key, frozenset())
            told = await ana.ask(up, "PUT", own, {"grants": ["read", "write", "invite"]})
            assert told.json["grants"] == ["invite", "read", "write"]

    asyncio.run(run())
