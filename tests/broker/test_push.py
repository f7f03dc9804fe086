"""Handing in: what is accepted, what is refused, and what a retry gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.broker import session
from holdfast.broker.pushes.decode_push import decode_push
from holdfast.protocol.frames import Acks, Item, Push, PushAnswer
from holdfast.rules import limits
from holdfast.rules.bodies import StateSet, TaskTurn
from holdfast.rules.errors import (
    BadEnvelope,
    BadId,
    BadKey,
    BadValue,
    ForgedOrigin,
    HoldfastError,
)
from holdfast.rules.fingerprint import fingerprint
from support import envelopes as e
from support.broker_people import Person, ask, broker_up, new_id
from support.postgres import name_for, server


def test_D2_the_three_answers_over_http_are_exactly_those_of_the_contract(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            id = new_id()
            raw = ana.message("team", "dm", ana.key.hex(), b"one", id=id)
            first = await ana.hand_in(up, "team", raw)
            again = await ana.hand_in(up, "team", raw)
            other = ana.message("team", "dm", ana.key.hex(), b"another", id=id)
            reused = await ana.hand_in(up, "team", other)
        assert first.status == 201
        assert first.headers["holdfast-epoch"] == "1"
        assert set(first.json) == {
            "broker_message_id",
            "client_message_id",
            "history_id",
            "duplicate",
        }
        assert first.json["duplicate"] is False
        assert again.status == 200
        assert set(again.json) == {*first.json, "history_available", "first_seen_at"}
        assert again.json["duplicate"] is True
        assert again.json["history_available"] is True
        for name in ("broker_message_id", "client_message_id", "history_id"):
            assert again.json[name] == first.json[name]
        mark = fingerprint(kind="dm", ref=ana.key.hex(), body=b"one")
        assert reused.status == 409
        assert reused.code == "idempotency_key_reused"
        told = {name: value for name, value in reused.json.items() if name != "error"}
        assert told == {
            "client_message_id": first.json["client_message_id"],
            "conflict": "request_fingerprint_mismatch",
            "broker_fingerprint_prefix": mark[:8].hex(),
        }

    asyncio.run(run())


def test_Z8_a_broker_takes_only_what_its_sender_could_have_written() -> None:
    """Members read these bytes for ever, and the audit prints them."""
    good: dict[str, Any] = {"origin": "ana", "lamport": 3}
    for raw, error in [
        (e.memory_set("k", 1, **good, owner="bob"), ForgedOrigin),
        (e.file_share("k", b"x", **good, owner="bob"), ForgedOrigin),
        (e.vector_store("k", [1, 2], **good, owner="bob"), ForgedOrigin),
        (e.state_set("k", 1, **good, meta=b'1,"origin":"bob"'), BadValue),
        (e.state_set("k", 1, **good, meta=b'{"b":1,"a":1}'), BadValue),
        (e.raw("state.set", "k", StateSet(b"[1,\n2]"), **good), BadValue),
        (e.raw("task.claim", "no id", TaskTurn(0), **good), BadId),
        (e.raw("no\nop", "k", **good), BadKey),
        (e.state_set("k", 1, **good).replace(b"\xa1k", b"\xd9\x01k"), BadEnvelope),
    ]:
        with pytest.raises(HoldfastError) as refused:
            decode_push(raw, "team", b"key", 0, new_id)
        assert type(refused.value) is error, refused.value
    assert decode_push(e.memory_set("k", 1, **good), "team", b"key", 0, new_id).origin == "ana"


def test_D3_the_type_of_the_content_tells_two_sends_apart(tmp_path: Path) -> None:
    """And what came under version 1 of the fingerprint is known when it comes again."""

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            id, to = new_id(), ("team", "dm", ana.key.hex())
            raw = ana.message(*to, b"one", id=id, content_type="text/plain")
            other = ana.message(*to, b"one", id=id, content_type="text/html")
            lying = ana.message(*to, b"one", content_type="text/html", version="1.0")
            old = ana.message(*to, b"one")
            answers = [await ana.hand_in(up, "team", one) for one in (raw, raw, other, lying)]
            answers += [await ana.hand_in(up, "team", one) for one in (old, old)]
        assert [answer.status for answer in answers] == [201, 200, 409, 400, 201, 200]
        assert answers[3].code == "bad_envelope"

    asyncio.run(run())


def test_D2_every_item_of_a_push_has_its_own_answer(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            id = new_id()
            raws = [
                ana.change("team", "a", 1, id=id),
                b"rubbish",
                ana.change("team", "a", 1, id=id),
                ana.change("team", "a", 2, id=id),
                ana.change("other", "a", 1),
                ana.message("team", "topic", "nowhere"),
                ana.change("team", "b", 1, origin="bob"),
                ana.change("team", "c", 3),
            ]
            async with ana.connect(up) as wire:
                answers = await wire.push("team", *raws)
            codes = [None if one.problem is None else one.problem.code for one in answers]
            assert [one.status for one in answers] == [201, 400, 200, 409, 400, 404, 201, 201]
            assert codes[1:6:2] == ["bad_envelope", "idempotency_key_reused", "unknown_destination"]
            assert [one.seq for one in answers if one.status == 201] == [1, 2, 3]
            assert answers[2].seq == 1
            assert answers[2].broker_id == answers[0].broker_id

    asyncio.run(run())


def test_D4_a_refused_request_consumes_no_key_and_the_corrected_one_gets_201(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            id = new_id()
            refused = await ana.hand_in(up, "team", ana.message("team", "topic", "new", id=id))
            assert (refused.status, refused.code) == (404, "unknown_destination")
            await ana.declare(up, "team", "topic", "news")
            corrected = ana.message("team", "topic", "news", id=id)
            assert (await ana.hand_in(up, "team", corrected)).status == 201

    asyncio.run(run())


def test_D4_a_flood_is_refused_but_a_retry_of_what_was_accepted_never_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, rate_per_s=1) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            raws = [ana.change("team", f"k{n}", n) for n in range(20)]
            async with ana.connect(up) as wire:
                first = await wire.push("team", *raws)
                accepted = [raw for raw, one in zip(raws, first, strict=True) if one.status == 201]
                refused = [one for one in first if one.status == 429]
                assert 2 <= len(accepted) <= 4
                assert len(accepted) + len(refused) == 20
                assert {one.problem.code for one in refused if one.problem} == {"too_many"}
                # Retries are answered whatever the bucket holds, and cost nothing.
                for _ in range(10):
                    again = await wire.push("team", *accepted)
                    assert {one.status for one in again} == {200}
            over_http = [await ana.hand_in(up, "team", raw) for raw in [*accepted, raws[-1]]]
            assert [one.status for one in over_http] == [*([200] * len(accepted)), 429]
            assert over_http[-1].headers["retry-after"] == "1"
            mesh = await up.broker.store.mesh_get("team")
            assert mesh is not None
            assert mesh.seq == len(accepted)
            assert up.broker.counts.refused["too_many"] == len(refused) + 1

    asyncio.run(run())


def test_D4_when_too_much_waits_only_what_is_known_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            known, fresh = ana.change("team", "k", 1), ana.change("team", "k", 2)
            assert (await ana.hand_in(up, "team", known)).status == 201
            monkeypatch.setattr(limits, "ACCEPT_WAITING_MAX", 0)
            assert (await ana.hand_in(up, "team", known)).status == 200
            assert (await ana.hand_in(up, "team", fresh)).status == 429
            monkeypatch.undo()
            assert (await ana.hand_in(up, "team", fresh)).status == 201

    asyncio.run(run())


def test_D6_an_old_epoch_is_told_the_new_one_and_nothing_is_written(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            raw = ana.change("team", "k", 1)
            asked = {"mesh": "team", "reason": "a test"}
            made = await ask(up, "POST", "/v1/new-epoch", asked, unix=True)
            assert made.json == {"epochs": [{"mesh": "team", "epoch": 2, "base": 0}]}
            async with ana.connect(up) as wire:
                answers = await wire.push("team", raw, epoch=1)
                assert answers[0].problem is not None
                assert (answers[0].status, answers[0].problem.code) == (409, "epoch_mismatch")
                await wire.send(Push("team", 2, [Item(9, raw)]))
                acks = await wire.get(Acks)
                assert (acks.epoch, acks.answers[0].status) == (2, 201)
            old = await ana.hand_in(up, "team", raw, headers={"holdfast-epoch": "1"})
            assert old.status == 200  # known: a retry is answered before the epoch is looked at
            fresh = ana.change("team", "k", 2)
            old = await ana.hand_in(up, "team", fresh, headers={"holdfast-epoch": "1"})
            assert (old.status, old.code) == (409, "epoch_mismatch")
            odd = await ana.hand_in(up, "team", fresh, headers={"holdfast-epoch": "one"})
            assert odd.status == 400

    asyncio.run(run())


def test_D5_a_member_does_what_it_was_granted_and_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, grants=["read"])
            await ana.invite(up, "team", eve, grants=["send"])
            to = ana.key.hex()
            tries = [
                (bob, bob.change("team", "k", 1), 403),
                (bob, bob.message("team", "dm", to), 403),
                (eve, eve.change("team", "k", 1), 403),
                (eve, eve.message("team", "dm", to), 201),
                (eve, eve.message("team", "dm", to, origin="ana"), 403),
                (ana, ana.change("team", "k", 1, origin="bob"), 201),
            ]
            for person, raw, status in tries:
                assert (await person.hand_in(up, "team", raw)).status == status

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"", 400),
        ({}, b"\xc1", 400),
        ({"content-encoding": "gzip"}, b"x", 400),
        ({}, bytes(limits.ENVELOPE_BYTES_MAX + 1), 413),
    ],
)
def test_D5_what_cannot_be_an_envelope_is_refused_before_anything_is_written(
    tmp_path: Path, headers: dict[str, str], body: bytes, status: int
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            answer = await ana.hand_in(up, "team", body, headers=headers)
            assert answer.status == status
            assert answer.code
            assert (await ask(up, "POST", "/v1/meshes/team/envelopes", body or b"x")).status == 401
            assert (await up.broker.store.counts())["messages"] == 0

    asyncio.run(run())


def test_D5_a_message_over_the_limit_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            large = ana.message("team", "dm", ana.key.hex(), bytes(limits.MESSAGE_BYTES_MAX + 1))
            async with ana.connect(up) as wire:
                answers = await wire.push("team", large)
                assert answers[0].problem is not None
                assert answers[0].problem.code == "over_limit"

    asyncio.run(run())


def test_D3_a_message_whose_fingerprint_is_not_its_own_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            raw = ana.message("team", "dm", ana.key.hex(), fingerprint=bytes(32))
            answer = await ana.hand_in(up, "team", raw)
            assert (answer.status, answer.code) == (400, "bad_envelope")

    asyncio.run(run())


def test_D2_many_connections_share_transactions_and_each_gets_its_own_answer(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team", "other")
            session = await ana.session(up)

            async def one(number: int) -> str:
                mesh = "team" if number % 3 else "other"
                raw = ana.change(mesh, f"k{number}", number)
                path = f"/v1/meshes/{mesh}/envelopes"
                answer = await ask(up, "POST", path, raw, session=session)
                assert answer.status == 201, answer.body
                return f"{mesh} {answer.json['history_id']}"

            before = up.broker.counts.groups
            found = await asyncio.gather(*(one(number) for number in range(60)))
            assert len(set(found)) == 60
            assert up.broker.counts.groups - before < 60

    asyncio.run(run())


def test_D2_a_push_of_thousands_is_answered_in_order_and_one_too_large_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            raws = [ana.change("team", f"k{n}", n) for n in range(3000)]
            async with ana.connect(up) as wire:
                answers = await wire.push("team", *raws)
                assert [one.seq for one in answers] == list(range(1, 3001))
            monkeypatch.setattr(limits, "PUSH_ITEMS_MAX", 2000)
            async with ana.connect(up) as wire:
                await wire.send(Push("team", 0, [Item(n, raw) for n, raw in enumerate(raws)]))
                assert (await wire.closed())[0] == 1009

    asyncio.run(run())


def test_D4_the_order_of_one_connection_is_kept_over_small_frames(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                raws = [ana.change("team", "k", n) for n in range(300)]
                await wire.send(*(Push("team", 0, [Item(n, raw)]) for n, raw in enumerate(raws)))
                seqs: dict[int, int] = {}
                while len(seqs) < 300:
                    acks = await wire.get(Acks)
                    seqs.update({one.number: one.seq for one in acks.answers})
                assert [seqs[n] for n in range(300)] == list(range(1, 301))

    asyncio.run(run())


def test_D2_a_push_by_halves_has_one_answer_for_each_and_one_creation_for_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        dsn = await server().database(name_for(tmp_path))
        async with broker_up(tmp_path, dsn=dsn) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "topic", "news")
            async with ana.connect(up) as wire:

                async def pushed(raws: list[bytes], groups: int) -> list[PushAnswer]:
                    before = up.broker.counts.groups
                    answers = await wire.push("team", *raws)
                    assert up.broker.counts.groups == before + groups
                    return answers

                def news(many: int) -> list[bytes]:
                    return [ana.message("team", "topic", "news", b"%d" % n) for n in range(many)]

                monkeypatch.setattr(session, "_QUICK_S", 0.0)
                assert [one.seq for one in await pushed(news(64), 1)] == [*range(1, 65)]
                monkeypatch.setattr(session, "_QUICK_S", 3600.0)
                assert [one.seq for one in await pushed(news(63), 1)] == [*range(65, 128)]
                same = news(50)
                both = await pushed([*same, *same], 2)
                assert [one.status for one in both] == [201] * 50 + [200] * 50
                assert [one.seq for one in both] == [*range(128, 178)] * 2
                # What is refused in one half is refused for itself alone.
                more = news(70)
                more[3] = ana.message("team", "topic", "nowhere")
                answers = await pushed(more, 2)
                assert [one.status for one in answers[:5]] == [201, 201, 201, 404, 201]
                assert [one.seq for one in answers if one.status == 201] == [*range(178, 247)]

    asyncio.run(run())


def test_D2_an_empty_push_is_answered_and_costs_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                await wire.send(Push("team", 0, []))
                assert (await wire.get(Acks)).answers == []
                assert (await wire.push("team", ana.change("team", "k", 1)))[0].status == 201

    asyncio.run(run())
