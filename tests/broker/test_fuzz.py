"""Rubbish in, clean errors out: frames, requests and envelopes that nobody should send."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.broker.http.app import broker_routes
from holdfast.protocol.frames import Confirmed, Item, Push, Settle, Take, encode_frame
from holdfast.service.http.openapi import openapi_path
from support.broker_people import Person, ask, broker_up, exchange, raw_wire

ODD: list[Any] = [
    *(None, True, -1, 0, 2**63, -(2**63), 1.5, "", "team", "\0", "ü" * 200, b"", bytes(16)),
    *([], [[]], {}, {"a": 1}, [1, "team"], "jobs", "done", 10**30),
]

BODIES: list[Any] = [
    *(None, b"", b"{", b"\xff", b"[]", b"null", {}, {"slug": {"a": []}}, {"most": 2**70}),
    *({"secret": "x"}, {"seq": -1}, b'{"slug":"a","slug":"b"}', b'{"most":NaN}', b"[" * 5000),
    *(b'{"slug":"\\ud800"}', {"kind": "topic", "ref": "\0"}, {"epoch": 1, "seq": 10**30}),
]


def odd(random: Random, depth: int = 0) -> Any:
    if depth < 3 and random.random() < 0.3:
        return [odd(random, depth + 1) for _ in range(random.randrange(5))]
    value = random.choice(ODD)
    return value if not isinstance(value, int) or abs(value) < 2**64 else 7


def mutated(random: Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(len(out) + 1)
        what = random.randrange(3)
        if what == 0 and out:
            out[at % len(out)] = random.randrange(256)
        elif what == 1:
            out[at:at] = random.randbytes(random.randrange(1, 9))
        else:
            del out[at : at + random.randrange(1, 9)]
    return bytes(out)


def _no_faults(caplog: pytest.LogCaptureFixture) -> None:
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not faults, faults[0].getMessage() + (faults[0].exc_text or "")


def test_R4_frames_that_make_no_sense_are_refused_or_end_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(5)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            good = [
                encode_frame(frame)
                for frame in (
                    Push("team", 0, [Item(1, ana.change("team", "k", 1))]),
                    Confirmed("team", 1, 0),
                    Take("team", "jobs", 1),
                    Settle("team", "jobs", 1, bytes(16), "done"),
                )
            ]
            for _ in range(60):
                async with ana.connect(up) as wire:
                    for _ in range(6):
                        if random.random() < 0.5:
                            kind = random.choice([*range(18, 30), "x"])
                            fields = [odd(random) for _ in range(random.randrange(7))]
                            raw = msgspec.msgpack.encode([kind, *fields])
                        else:
                            raw = mutated(random, random.choice(good))
                        try:
                            await wire.socket.send(raw)
                        except Exception:
                            break
            for _ in range(40):
                async with raw_wire(up) as wire:
                    hello = encode_frame(wire.hello_frame(ana, await wire.challenge()))
                    await wire.socket.send(mutated(random, hello))
            async with ana.connect(up) as wire:
                answers = await wire.push("team", ana.change("team", "still", "here"))
                assert answers[0].status == 201
            assert await up.broker.store.orphans(10) == []

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    _no_faults(caplog)


def test_R4_envelopes_that_were_damaged_are_never_accepted_as_something_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(7)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            raws = [
                mutated(random, ana.message("team", "dm", ana.key.hex(), b"text"))
                for _ in range(600)
            ]
            async with ana.connect(up) as wire:
                answers = await wire.push("team", *raws)
            for raw, answer in zip(raws, answers, strict=True):
                assert answer.status in (201, 400, 403, 404, 409, 413), answer
                assert (answer.problem is None) == (answer.status == 201)
                if answer.status == 201:  # the damage was in what the fingerprint does not cover
                    assert msgspec.msgpack.decode(raw)[3] == "team"

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    _no_faults(caplog)


def test_R4_every_endpoint_answers_rubbish_with_a_clean_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(11)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            await ana.declare(up, "team", "queue", "jobs")
            words = {
                "{mesh}": ["team", "no", "%00", "..", "%ff"],
                "{queue}": ["jobs", "no", "%2f", "a%00b"],
            }
            any_word = ["x", "0", "-1", "9" * 30, "%00", "%ff", "a" * 300, ana.key.hex()]
            for route in broker_routes():
                if route.path in ("/docs", "/openapi.json"):
                    continue
                for _ in range(3):
                    path = openapi_path(route)
                    while "{" in path:
                        name = path[path.index("{") : path.index("}") + 1]
                        path = path.replace(name, random.choice(words.get(name, any_word)), 1)
                    if random.random() < 0.3:
                        path += random.choice(
                            ["?x=1", "?after=-1", "?limit=x", "?%ff", "?number=1"]
                        )
                    body = random.choice(BODIES)
                    ask_with = ana.ask if random.random() < 0.8 else ask
                    answer = await ask_with(up, route.method, path, body)
                    assert 200 <= answer.status < 500, (route.path, body, answer)
                    if answer.status >= 400:
                        assert answer.code, answer
            for raw in (b"\0" * 40 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
                assert b"HTTP/1.1 4" in await exchange(up, raw)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    _no_faults(caplog)
