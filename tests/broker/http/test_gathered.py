"""Calls that hand in one envelope each are read together, and each gets the answer that it would
have got alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.http.envelopes import answer, created_bodies
from holdfast.broker.http.fast_accept import FastAccept
from holdfast.broker.pushes.decode_push import SLICE_ITEMS, PushSlice, decode_slice
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.push_columns import Created, PushColumns
from holdfast.transport.known_heads import Headers, RequestHead
from support.broker_people import PATIENCE_S, Person, broker_up
from support.broker_stores import arriving

URL = b"/v1/meshes/team/envelopes"


class Told:
    """What a call was answered."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.body: Any = None

    def __call__(self, status: int, body: bytes, headers: Headers) -> None:
        assert not self.status, "one answer"
        self.status, self.headers, self.body = status, headers, msgspec.json.decode(body)

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


def head_of(session: str, url: bytes = URL, *more: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead("tcp", url, ((b"authorization", f"Bearer {session}".encode()), *more), 1)


async def answered(
    quick: FastAccept, calls: Iterable[tuple[RequestHead, bytes]], turns: bool = False
) -> list[Told]:
    """The answers to calls that come in one turn of the loop, or each in its own."""
    told: list[Told] = []
    async with asyncio.timeout(PATIENCE_S):
        for head, raw in calls:
            told.append(Told())
            quick.answer(head, raw, told[-1])
            while turns and not told[-1].status:
                await asyncio.sleep(0)
        while not all(one.status for one in told):
            await asyncio.sleep(0)
    return told


def test_D2_calls_of_one_turn_are_one_group_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, groups = FastAccept(up.api), up.broker.counts
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            a, b, e = [head_of(await one.session(up)) for one in (ana, bob, eve)]
            late = head_of(await ana.session(up), URL, (b"holdfast-epoch", b"7"))
            known = ana.change("team", "known", 1)
            other = ana.change("team", "known", 2, id=msgspec.msgpack.decode(known)[2])
            # Everybody was here before: what follows is one turn.
            for head, raw in ((a, known), (b, bob.change("team", "b", 1))):
                assert (await answered(quick, [(head, raw)]))[0].status == 201
            before = groups.groups
            new = [ana.change("team", f"k{n}", n) for n in range(4)]
            calls = [
                *((a, new[0]), (b, bob.change("team", "b", 2)), (a, known), (a, b"rubbish")),
                *((a, new[1]), (e, known), (a, other), (late, new[2]), (a, new[1]), (a, new[3])),
            ]
            told = await answered(quick, calls)
            assert [one.status for one in told] == [
                *(201, 201, 200, 400, 201, 403, 409, 409, 200, 201)
            ]
            assert groups.groups == before + 1
            assert told[7].code == "epoch_mismatch"
            assert told[8].body["history_id"] == told[4].body["history_id"], "the same call twice"
            seqs = [int(one.body["history_id"][2:]) for one in told if one.status == 201]
            assert sorted(seqs) == [3, 4, 5, 6]
            assert up.api.gate.now["call"] == 0
            assert groups.refused["bad_envelope"] == 1

    asyncio.run(run())


def test_D2_what_is_read_together_is_answered_as_what_is_read_alone(tmp_path: Path) -> None:
    """Twice the same story, in two meshes: at once, and one after the other."""

    async def story(up: BrokerDaemon, ana: Person, mesh: str, turns: bool) -> list[Any]:
        await ana.register(up, mesh)
        to = ana.key.hex()
        raws = [ana.change(mesh, f"k{n}", n) for n in range(3)]
        raws += [ana.message(mesh, "dm", to), ana.message(mesh, "topic", "nowhere"), raws[0]]
        raws += [raws[1][:-1], ana.change("another", "k", 1), b"\xdc\x00\x18", raws[2]]
        head = head_of(await ana.session(up), f"/v1/meshes/{mesh}/envelopes".encode())
        first = await answered(FastAccept(up.api), [(head, ana.change(mesh, "first", 0))])
        assert first[0].status == 201
        told = await answered(FastAccept(up.api), [(head, raw) for raw in raws], turns)
        for one in told:
            for field in ("broker_message_id", "client_message_id", "first_seen_at"):
                one.body.pop(field, None)
            if "error" in one.body:
                one.body["error"]["message"] = one.body["error"]["message"].replace(mesh, "mesh")
        return [(one.status, one.headers, one.body) for one in told]

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            together = await story(up, ana, "team", turns=False)
            assert together == await story(up, ana, "alone", turns=True)
            assert [status for status, _, _ in together] == [
                *(201, 201, 201, 201, 404, 200, 400, 400, 400, 200)
            ]

    asyncio.run(run())


def test_D4_more_than_is_read_at_a_time_waits_for_the_next_group(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, ana, bob = FastAccept(up.api), Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            heads = {one.name: head_of(await one.session(up)) for one in (ana, bob)}
            for one in (ana, bob):
                first = [(heads[one.name], one.change("team", one.name, 0))]
                assert (await answered(quick, first))[0].status == 201
            before, read = up.broker.counts.groups, up.broker.accepting.rows
            many = SLICE_ITEMS + 10
            calls = [
                (heads[one.name], one.change("team", f"{one.name}{n}", n))
                for one in (ana, bob)
                for n in range(many)
            ]
            told = await answered(quick, calls)
            assert {one.status for one in told} == {201}
            assert up.broker.counts.groups - before >= 3
            assert up.broker.accepting.rows == read == 0
            seqs = [int(one.body["history_id"][2:]) for one in told]
            assert seqs == list(range(3, 3 + 2 * many)), "in the order in which they came"

    asyncio.run(run())


def test_D15_a_session_that_ended_is_refused_under_a_head_that_was_good(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, ana = FastAccept(up.api), Person("ana")
            await ana.register(up, "team")
            head = head_of(await ana.session(up))
            assert (await answered(quick, [(head, ana.change("team", "k", 1))]))[0].status == 201
            meaning = head.meaning
            assert meaning is not None
            assert (await answered(quick, [(head, ana.change("team", "k", 2))]))[0].status == 201
            assert head.meaning is meaning, "worked out once"
            clock = up.broker.sessions._clock
            up.broker.sessions._clock = lambda: clock() + 10**9
            (told,) = await answered(quick, [(head, ana.change("team", "k", 3))])
            assert (told.status, told.code) == (401, "bad_token")
            assert up.api.gate.now["call"] == 0

    asyncio.run(run())


def test_D15_a_member_that_was_removed_is_refused_under_a_head_that_was_good(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, ana, bob = FastAccept(up.api), Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            head = head_of(await bob.session(up))
            assert (await answered(quick, [(head, bob.change("team", "k", 1))]))[0].status == 201
            await up.broker.store.member_remove("team", bob.key, up.broker.source.now_ms())
            for _ in range(2):  # the store says so; then the look at the store says so
                (told,) = await answered(quick, [(head, bob.change("team", "k", 2))])
                assert (told.status, told.code) == (403, "not_a_member")
            assert not up.broker.strangers.was_member("team", bob.key)

    asyncio.run(run())


def test_D4_calls_above_the_rate_are_refused_and_those_before_them_are_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, rate_per_s=2) as up:
            quick, ana = FastAccept(up.api), Person("ana")
            await ana.register(up, "team")
            head = head_of(await ana.session(up))
            first = ana.change("team", "k", 0)
            assert (await answered(quick, [(head, first)]))[0].status == 201
            raws = [ana.change("team", f"k{n}", n) for n in range(9)]
            told = await answered(quick, [(head, raw) for raw in [*raws, first]])
            statuses = [one.status for one in told]
            assert statuses == [*sorted(statuses[:-1]), 200], "a retry is no new work"
            assert statuses[0] == 201
            assert statuses[-2] == 429
            assert (b"retry-after", b"1") in told[-2].headers

    asyncio.run(run())


def test_S16_what_waits_to_be_read_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, ana = FastAccept(up.api), Person("ana")
            await ana.register(up, "team")
            head = head_of(await ana.session(up))
            assert (await answered(quick, [(head, ana.change("team", "k", 1))]))[0].status == 201
            told = [Told() for _ in range(SLICE_ITEMS + 10)]
            for number, one in enumerate(told):
                quick.answer(head, ana.change("team", f"k{number}", number), one)
            assert up.broker.accepting.busy
            await up.broker.accepting.close()
            assert {one.status for one in told} == {201}
            after = Told()
            quick.answer(head, ana.change("team", "k", 2), after)
            async with asyncio.timeout(PATIENCE_S):
                while not after.status:
                    await asyncio.sleep(0)
            assert (after.status, after.code) == (503, "store_closed")

    asyncio.run(run())


def test_D4_a_fault_of_ours_in_one_envelope_is_told_to_its_caller_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(push: Any, *rest: Any) -> PushSlice:
        if b"planted" in push.payload:
            raise KeyError("planted")
        return decode_slice(push, *rest)

    monkeypatch.setattr("holdfast.broker.http.fast_accept.decode_slice", faulty)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, ana = FastAccept(up.api), Person("ana")
            await ana.register(up, "team")
            head = head_of(await ana.session(up))
            assert (await answered(quick, [(head, ana.change("team", "k", 1))]))[0].status == 201
            keys = ["k1", "k2", "planted", "k3"]
            told = await answered(quick, [(head, ana.change("team", key, 1)) for key in keys])
            assert [one.status for one in told] == [201, 201, 500, 201]
            assert told[2].code == "internal"
            assert "planted" not in str(told[2].body)
            assert up.api.gate.now["call"] == 0

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())


def test_D4_an_answer_that_cannot_be_sent_keeps_no_other_from_its_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Told):
        def __call__(self, status: int, body: bytes, headers: Headers) -> None:
            super().__call__(status, body, headers)
            raise OSError("planted")

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            quick, ana = FastAccept(up.api), Person("ana")
            await ana.register(up, "team")
            head = head_of(await ana.session(up))
            told = [Broken(), Told(), Told()]
            for number, one in enumerate(told):
                quick.answer(head, ana.change("team", f"k{number}", 1), one)
            async with asyncio.timeout(PATIENCE_S):
                while not all(one.status for one in told):
                    await asyncio.sleep(0)
            assert {one.status for one in told} == {201}

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())


@given(st.integers(1, 3), st.integers(1, LAMPORT_MAX), st.integers(1, LAMPORT_MAX - 3))
@settings(max_examples=50)
def test_D2_bodies_of_a_whole_group_are_those_of_its_calls(many: int, epoch: int, seq: int) -> None:
    those = [arriving(number) for number in range(many)]
    created = Created(epoch, seq, b"".join([one.broker_id for one in those]), 1)
    alone = [answer(None, one, told) for one, told in zip(those, created, strict=True)]  # type: ignore[arg-type]
    assert created_bodies(PushColumns.of(those), created) == [body for _, body, _ in alone]
