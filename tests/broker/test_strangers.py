"""Those who are no members: what they cost a broker, and what they learn from it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.http.app import broker_routes
from holdfast.broker.pushes import decode_push
from holdfast.protocol.frames import (
    Acks,
    Confirmed,
    Follow,
    FromNode,
    Item,
    Push,
    Refusal,
    Settle,
    Take,
    Unfollow,
    encode_frame,
)
from holdfast.rules import close_codes, envelope, limits
from support.broker_people import Person, Reply, broker_up, raw_wire


class Work:
    """Counts what a broker does: envelopes that it decodes, and calls of its store."""

    def __init__(self, up: BrokerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded = 0
        self.calls: Counter[str] = Counter()
        decode = envelope.decode

        def counting(raw: bytes) -> Any:
            self.decoded += 1
            return decode(raw)

        monkeypatch.setattr(decode_push, "decode", counting)
        for name in ("accept", "member_get", "mesh_get", "known"):
            monkeypatch.setattr(up.broker.store, name, self._counted(up.broker.store, name))

    def _counted(self, store: Any, name: str) -> Callable[..., Any]:
        real = getattr(store, name)

        def call(*args: Any, **given: Any) -> Any:
            self.calls[name] += 1
            return real(*args, **given)

        return call


@pytest.mark.parametrize("mesh", ["team", "nowhere"])
def test_D15_a_strangers_push_costs_one_look_and_one_answer_until_it_is_closed(
    tmp_path: Path, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRANGER_REFUSALS_PER_S", 0)
    monkeypatch.setattr(limits, "STRANGER_REFUSALS_BURST", 10)
    monkeypatch.setattr(limits, "STRANGER_WAIT_MS", 1)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            async with ana.connect(up) as a, eve.connect(up) as e:
                work = Work(up, monkeypatch)
                raws = [eve.change(mesh, "k", 1), b"no envelope"]
                for refused in range(1, 11):
                    answers = await e.push(mesh, *raws)
                    assert [one.status for one in answers] == [403, 403]
                    assert (work.decoded, work.calls) == (0, {"member_get": refused})
                assert (await e.closed())[0] == close_codes.TOO_MANY
                async with raw_wire(up) as again:  # and no signature is looked at
                    await again.send(again.hello_frame(eve, await again.challenge(), proof=b""))
                    assert (await again.closed())[0] == close_codes.TOO_MANY
                # The same on HTTP, and before that another look would cost something.
                assert (await eve.hand_in(up, mesh, raws[0])).status == 429
                assert (work.decoded, work.calls) == (0, {"member_get": 10})
                assert (await a.push("team", ana.change("team", "k", 1)))[0].status == 201
                assert work.calls == {"member_get": 10, "accept": 1}
                assert up.broker.counts.refused["not_a_member"] == 10

    asyncio.run(run())


def test_D15_all_strangers_together_are_limited_and_keep_no_member_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRANGERS_REFUSALS_PER_S", 0)
    monkeypatch.setattr(limits, "STRANGERS_REFUSALS_BURST", 4)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            for number in range(4):
                eve = Person(f"eve-{number}")
                assert (await eve.hand_in(up, "team", b"")).status == 403
            work = Work(up, monkeypatch)
            assert (await eve.hand_in(up, "team", b"")).status == 429
            assert work.calls == {}
            # Whoever was not refused lately gets a look: ana by HTTP alone, and a newcomer.
            assert (await ana.hand_in(up, "team", ana.change("team", "k", 1))).status == 201
            assert (await Person("bob").hand_in(up, "team", b"")).status == 403

    asyncio.run(run())


def test_D15_whoever_joins_or_is_removed_is_treated_so_with_the_next_frame(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            async with bob.connect(up) as b:
                assert (await b.push("team", bob.change("team", "k", 1)))[0].status == 403
                await ana.invite(up, "team", bob)
                assert (await b.push("team", bob.change("team", "k", 1)))[0].status == 201
                # As a member it may send frames of full size.
                large = bob.change("team", "k", "x" * 2 * limits.UNPROVED_BYTES_MAX)
                assert (await b.push("team", large))[0].status == 201
                path = f"/api/my/meshes/team/members/{bob.key.hex()}"
                assert (await ana.ask(up, "DELETE", path)).status == 200
                assert (await b.push("team", bob.change("team", "k", 2)))[0].status == 403
                assert (await bob.hand_in(up, "team", bob.change("team", "k", 3))).status == 403

    asyncio.run(run())


def test_D15_a_strangers_frames_are_small(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            eve = Person("eve")
            async with eve.connect(up) as e:
                await e.send(Push("team", 0, [Item(1, bytes(limits.UNPROVED_BYTES_MAX))]))
                assert (await e.closed())[0] == close_codes.TOO_LARGE

    asyncio.run(run())


LONG = "x" * 400_000


@pytest.mark.parametrize(
    "frame",
    [
        Push(LONG, 0, [Item(n, b"") for n in range(5000)]),
        Follow(LONG, 0, 0),
        Unfollow(LONG),
        Confirmed(LONG, 0, 0),
        Take(LONG, "jobs", 1),
        Settle(LONG, "jobs", 1, b"l" * 16, "done"),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_D5_a_name_that_no_mesh_can_have_is_read_once_and_never_repeated(
    tmp_path: Path, frame: FromNode
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as a:
                raw = encode_frame(frame)
                tracemalloc.start()
                try:
                    await a.socket.send(raw)
                    code, reason = await a.closed()
                    peak = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
            assert (code, len(reason) < 200) == (close_codes.BAD_FRAME, True)
            assert peak < 20 * len(raw)

    asyncio.run(run())


def test_D5_no_answer_repeats_more_than_a_little_of_what_was_sent(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            async with ana.connect(up) as a:
                await a.send(Settle("team", "jobs", 1, b"l" * 16, LONG), Take("team", LONG, 1))
                for _ in range(2):
                    problem = (await a.get(Refusal)).problem
                    assert len(problem.message) <= limits.REASON_CHARS_MAX
            for path in (f"/{'y' * 50_000}", f"/v1/meshes/{'y' * 50_000}/log"):
                assert len((await ana.ask(up, "GET", path)).body) < 2 * limits.REASON_CHARS_MAX

    asyncio.run(run())


def test_D5_nothing_more_is_decoded_while_the_answers_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as a:
                work = Work(up, monkeypatch)
                (connection,) = up.broker.connections
                count = limits.PUSH_ITEMS_MAX
                connection._socket.pause_writing()  # as if the client did not read
                connection.message(encode_frame(Push("team", 0, [Item(1, b"")] * count)))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert work.decoded == 0
                connection._socket.resume_writing()
                answers = 0
                while answers < count:
                    answers += len((await a.get(Acks)).answers)
                assert work.decoded == count

    asyncio.run(run())


# --- what they learn -----------------------------------------------------------------------------


BODIES: dict[str, Any] = {
    "destinations": {"kind": "topic", "ref": "news"},
    "members/{key}": {"grants": ["read"]},
    "invites": {"uses": 1},
    "consumers": {"consumer": "r", "from": 1, "known": 0},
    "confirm": {"consumer": "r", "epoch": 1, "offset": 0},
    "take": {"most": 1},
    "settle": {"seq": 1, "lease": "bGxsbGxsbGxsbGxsbGxsbA", "how": "done"},
    "begin": {"epoch": 1, "seq": 0},
    "commit": {"digest": "0" * 64},
}
PARTS = {
    "key": "ab" * 32,
    "kind": "topic",
    "ref": "news",
    "topic": "news",
    "queue": "jobs",
    "seq": "1",
    "sha256": "0" * 64,
    "id": "018f0000-0000-7000-8000-000000000000",
    "number": "0",
    "name": "r",
}
THERE, AWAY = "team", "none"
ROUTES = [(one.method, one.path) for one in broker_routes() if "{mesh}" in one.path]


def address_of(path: str, mesh: str) -> str:
    for name, value in {**PARTS, "mesh": mesh}.items():
        path = path.replace("{" + name + "}", value).replace("{" + name + ":path}", value)
    assert "{" not in path, path
    return path


def shape(reply: Reply, mesh: str) -> tuple[int, dict[str, str], bytes]:
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    return reply.status, headers, reply.body.replace(mesh.encode(), b"MESH")


def test_D15_no_call_tells_a_stranger_which_meshes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRANGER_REFUSALS_BURST", 10**6)
    monkeypatch.setattr(limits, "STRANGERS_REFUSALS_BURST", 10**6)

    async def run() -> None:
        async with broker_up(tmp_path, registration="token", registration_token="t" * 16) as up:
            ana, eve = Person("ana"), Person("eve")
            made = {"slug": THERE, "token": "t" * 16}
            assert (await ana.ask(up, "POST", "/api/my/meshes", made)).status == 201
            await ana.declare(up, THERE, "topic", "news")
            await ana.declare(up, THERE, "queue", "jobs")
            assert len(ROUTES) > 25
            for method, path in ROUTES:
                valid = next((one for end, one in BODIES.items() if path.endswith(end)), None)
                for body in (None, valid, b"{}", b"\xff", eve.change(THERE, "k", 1)):
                    if method == "GET" and body is not None:
                        continue
                    told = [
                        shape(await eve.ask(up, method, address_of(path, mesh), body), mesh)
                        for mesh in (THERE, AWAY)
                    ]
                    assert told[0] == told[1], (method, path, body)
                    assert told[0][0] in (400, 403), (method, path, body, told[0])
            # Who may not register learns nothing by trying to.
            told = [
                shape(await eve.ask(up, "POST", "/api/my/meshes", {"slug": mesh}), mesh)
                for mesh in (THERE, AWAY)
            ]
            assert told[0] == told[1]

    asyncio.run(run())


FRAMES: list[Callable[[str], FromNode]] = [
    lambda mesh: Follow(mesh, 1, 0),
    lambda mesh: Follow(mesh, 2**62, 2**62),
    lambda mesh: Unfollow(mesh),
    lambda mesh: Confirmed(mesh, 1, 1),
    lambda mesh: Push(mesh, 0, [Item(1, Person("eve").change(mesh, "k", 1))]),
    lambda mesh: Push(mesh, 7, [Item(1, Person("eve").change(mesh, "k", 1)), Item(2, b"bad")]),
    lambda mesh: Push(mesh, 0, []),
    lambda mesh: Push(mesh, -1, [Item(1, b"")]),
    lambda mesh: Take(mesh, "jobs", 1),
    lambda mesh: Take(mesh, "jobs", 0),
    lambda mesh: Take(mesh, "jobs", 10**9),
    lambda mesh: Settle(mesh, "jobs", 1, b"l" * 16, "done"),
    lambda mesh: Settle(mesh, "jobs", -1, b"", "sideways"),
]


def test_D15_no_frame_tells_a_stranger_which_meshes_there_are(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, THERE)
            await ana.declare(up, THERE, "queue", "jobs")
            told: dict[str, list[bytes]] = {}
            for mesh in (THERE, AWAY):
                async with eve.connect(up) as e:
                    # What is asked last is answered last.
                    await e.send(*(frame(mesh) for frame in FRAMES), Take(mesh, "last", 1))
                    told[mesh] = []
                    while len(told[mesh]) < len(FRAMES) - 2:
                        raw = encode_frame(await e.next())
                        told[mesh].append(raw.replace(mesh.encode(), b"MESH"))
            assert told[THERE] == told[AWAY]

    asyncio.run(run())
