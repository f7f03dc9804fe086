"""Who is on the other end of a connection: hello on a WebSocket and over HTTP."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from holdfast.protocol.frames import Confirmed, Follow, Push, Refusal, Welcome
from holdfast.rules import keys, limits
from holdfast.rules.keys import text_of
from support.broker_people import Person, Wire, ask, broker_up, raw_wire

CLOSED = ("members", "invites", "destinations", "subscriptions", "snapshot")


@pytest.mark.parametrize("scheme", ["http://", "https://"])
def test_D15_both_sides_prove_their_keys_on_the_connection(tmp_path: Path, scheme: str) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, listen="127.0.0.1:0", name="relay") as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with raw_wire(up, scheme) as wire:
                challenge = await wire.challenge()
                assert (challenge.name, challenge.key) == ("relay", up.broker.me.key)
                frame = wire.hello_frame(ana, challenge)
                await wire.send(frame)
                welcome = await wire.get(Welcome)
                hello = keys.HelloTranscript(
                    client_zone="ana",
                    client_key=ana.key,
                    client_nonce=frame.nonce,
                    server_zone="relay",
                    server_key=challenge.key,
                    server_nonce=challenge.nonce,
                    certificate=wire.certificate,
                )
                assert keys.check_proof(challenge.key, "server", hello, welcome.proof)
                assert [place.mesh for place in welcome.meshes] == ["team"]
                told = await ask(up, "GET", "/api/my/meshes", session=welcome.session)
                assert [mesh["slug"] for mesh in told.json] == ["team"]

    asyncio.run(run())


def test_D15_a_hello_that_was_overheard_is_worth_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            async with raw_wire(up) as first, raw_wire(up) as second:
                heard = first.hello_frame(ana, await first.challenge())
                await second.challenge()
                await second.send(heard)
                code, _ = await second.closed()
                assert code == 4001
                await first.send(heard)  # on its own connection it is good
                assert (await first.next()).session  # type: ignore[union-attr]

    asyncio.run(run())


TOKENS = {4010: "feature_unavailable", 4011: "feature_param_invalid"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"proof": bytes(64)}, 4001),
        ({"name": "bob"}, 4001),
        ({"name": "with\0nul"}, 4001),
        ({"key": bytes(32)}, 4001),
        ({"key": b"short"}, 4001),
        ({"nonce": b"short"}, 4001),
        ({"needs": {"telepathy": 1}}, 4010),
        ({"needs": {"client_message_id_dedupe": 3}}, 4010),
        ({"needs": {"client_message_id_dedupe": 1}}, 4011),
    ],
)
def test_D9_a_hello_that_is_not_good_is_closed_with_its_code(
    tmp_path: Path, changed: dict[str, object], code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            async with raw_wire(up) as wire:
                frame = wire.hello_frame(ana, await wire.challenge())
                await wire.send(msgspec.structs.replace(frame, **changed))
                closed = await wire.closed()
                assert closed[0] == code
                if code in TOKENS:
                    assert closed[1] == TOKENS[code]

    with caplog.at_level(logging.WARNING, "holdfast"):
        asyncio.run(run())
    if code != 4001:
        # All that was offered and asked for is in the log.
        said = caplog.text
        assert "client_message_id_dedupe" in said
        assert "max_payload" in said
        assert repr(changed["needs"]) in said


def test_D15_nothing_is_answered_before_hello(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            for frame in (Push("team", 0, []), Follow("team", 1, 0), Confirmed("team", 1, 0)):
                async with raw_wire(up) as wire:
                    await wire.challenge()
                    await wire.send(frame)
                    assert (await wire.closed())[0] == 4001

    asyncio.run(run())


@pytest.mark.parametrize(
    ("policy", "stays"),
    [
        ("allow_concurrent", (True, True)),
        ("prefer_newest", (False, True)),
        ("prefer_oldest", (True, False)),
    ],
)
def test_D9_a_member_that_connects_twice_is_met_as_the_broker_says(
    tmp_path: Path, policy: str, stays: tuple[bool, bool]
) -> None:
    async def greet(wire: Wire, person: Person) -> None:
        challenge = await wire.challenge()
        assert challenge.supported["concurrent_connection_policy"]["default_policy"] == policy
        await wire.send(wire.hello_frame(person, challenge))

    async def still_there(wire: Wire) -> bool:
        """A follow gets its refusal on a connection that is open."""
        try:
            await wire.send(Follow("nowhere", 1, 0))
            await wire.get(Refusal)
        except ConnectionClosed:
            assert (await wire.closed())[0] == 4013
            return False
        return True

    async def run() -> None:
        async with broker_up(tmp_path, connections=policy) as up:
            ana, bob = Person("ana"), Person("bob")
            async with raw_wire(up) as first, raw_wire(up) as other, raw_wire(up) as second:
                await greet(first, ana)
                await first.get(Welcome)
                await greet(other, bob)
                await other.get(Welcome)
                await greet(second, ana)
                if stays[1]:
                    await second.get(Welcome)
                assert (await still_there(first), await still_there(second)) == stays
                assert await still_there(other), "another member has nothing to do with it"
            async with raw_wire(up) as again:
                await greet(again, ana)
                await again.get(Welcome)

    asyncio.run(run())


def test_D15_hello_is_said_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up, raw_wire(up) as wire:
            ana = Person("ana")
            challenge = await wire.challenge()
            await wire.send(wire.hello_frame(ana, challenge), wire.hello_frame(ana, challenge))
            assert (await wire.closed())[0] == 1002

    asyncio.run(run())


def test_D15_one_that_says_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELLO_MS_MAX", 30)

    async def run() -> None:
        async with broker_up(tmp_path) as up, raw_wire(up) as wire:
            assert (await wire.closed())[0] == 4008

    asyncio.run(run())


def test_D15_a_stranger_gets_in_and_nowhere(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            async with eve.connect(up) as wire:
                assert wire.welcome is not None
                assert wire.welcome.meshes == []
                await wire.follow("team")
                assert (await wire.get(Refusal)).problem.code == "not_a_member"
                await wire.follow("no-such-mesh")
                assert (await wire.get(Refusal)).problem.code == "not_a_member"
                answers = await wire.push("team", eve.change("team", "k", 1))
                assert (answers[0].status, answers[0].problem) != (201, None)
                assert answers[0].problem is not None
                assert answers[0].problem.code == "not_a_member"
            assert (await eve.hand_in(up, "team", eve.change("team", "k", 1))).status == 403
            for path in ("", *(f"/{what}" for what in CLOSED)):
                answer = await eve.ask(up, "GET", f"/api/my/meshes/team{path}")
                assert (answer.status, answer.code) == (403, "not_a_member"), path
            mesh = await up.broker.store.mesh_get("team")
            assert mesh is not None
            assert mesh.seq == 0

    asyncio.run(run())


def test_D15_a_removed_member_is_shut_out_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with bob.connect(up) as wire:
                await wire.follow("team")
                path = f"/api/my/meshes/team/members/{bob.key.hex()}"
                assert (await ana.ask(up, "DELETE", path)).json == {"removed": True}
                assert (await wire.get(Refusal)).problem.code == "not_a_member"
                answers = await wire.push("team", bob.change("team", "k", 1))
                assert answers[0].status == 403
            assert (await bob.ask(up, "GET", "/api/my/meshes/team")).status == 403

    asyncio.run(run())


def test_D15_over_http_a_proof_is_good_once_and_a_session_is_no_word_of_others(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            session = await ana.session(up)
            assert (await ask(up, "GET", "/api/my/meshes", session=session)).status == 200
            assert (await ask(up, "GET", "/api/my/meshes", session=session + "x")).status == 401
            assert (await ask(up, "GET", "/api/my/meshes")).status == 401
            assert (await ask(up, "GET", f"/api/my/meshes?session={session}")).status == 401
            said = {"zone": "ana", "key": text_of(ana.key), "nonce": text_of(bytes(32))}
            first = await ask(up, "POST", "/v1/hello", said)
            again = await ask(up, "POST", "/v1/hello", said)
            assert (first.status, again.status) == (200, 401)
            bad = {"nonce": first.json["nonce"], "proof": text_of(bytes(64))}
            for _ in range(2):
                assert (await ask(up, "POST", "/v1/hello/prove", bad)).status == 401

    asyncio.run(run())
