"""Handing in over HTTP on connections that stay open: it leaves the framework, and nobody can tell
but by its speed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.broker.daemon import BrokerDaemon
from holdfast.rules import limits
from holdfast.rules.errors import StoreFailed
from support.broker_people import PATIENCE_S, Person, address, broker_up

AT = "/v1/meshes/team/envelopes"


class Line:
    """A connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str, path: str, session: str, body: bytes = b"", **more: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
        lines.append(f"authorization: Bearer {session}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        first, *more = head.decode().rstrip().split("\r\n")
        named = dict(line.lower().split(": ", 1) for line in more)
        body = await self.reader.readexactly(int(named["content-length"]))
        return int(first.split()[1]), named, msgspec.json.decode(body)


@asynccontextmanager
async def line_to(up: BrokerDaemon) -> AsyncIterator[Line]:
    host, _, port = address(up)[len("http://") :].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


def test_D2_a_connection_that_stays_open_gets_the_same_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            session, stranger = await ana.session(up), await eve.session(up)
            raw = ana.change("team", "k", 1)
            other = ana.change("team", "k", 2, id=msgspec.msgpack.decode(raw)[2])
            async with line_to(up) as line:
                for given, status in (
                    ((session, raw), 201),
                    ((session, raw), 200),
                    ((session, other), 409),
                    ((session, b"rubbish"), 400),
                    ((stranger, raw), 403),
                    (("hs_nobody", raw), 401),
                ):
                    line.send("POST", AT, *given)
                    found, headers, body = await line.answer()
                    assert (found, headers["content-type"]) == (status, "application/json"), body
                    assert headers["x-content-type-options"] == "nosniff"
                    assert ("holdfast-epoch" in headers) == (status in (200, 201, 409))
                    assert "duplicate" in body or body["error"]["code"]
                assert headers["www-authenticate"].startswith("bearer")
                line.send("POST", AT, session, ana.change("team", "k", 3), holdfast_epoch="7")
                assert (await line.answer())[2]["error"]["code"] == "epoch_mismatch"
                line.send("POST", "/v1/meshes/No%20Mesh/envelopes", session, raw)
                assert (await line.answer())[0] == 400
                line.send("POST", AT + "?x=1", session, raw)
                assert (await line.answer())[0] == 400
            assert up.api.counts.answers["POST", "/v1/meshes/{mesh}/envelopes", 201] == 1
            assert up.api.gate.now["call"] == 0

    asyncio.run(run())


def test_D2_calls_that_are_sent_ahead_are_answered_in_their_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            session = await ana.session(up)
            async with line_to(up) as line:
                for number in range(10):
                    line.send("POST", AT, session, ana.change("team", f"k{number}", number))
                    line.send("GET", "/v1/broker", session)
                for number in range(10):
                    status, _, body = await line.answer()
                    assert (status, body["history_id"]) == (201, f"1.{number + 1}")
                    assert (await line.answer())[2]["name"] == up.broker.identity.name

    asyncio.run(run())


def test_D2_what_is_unusual_goes_the_common_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            session = await ana.session(up)
            to = ana.key.hex()
            async with line_to(up) as line:
                line.send("POST", AT, session, ana.message("team", "dm", to, bytes(200_000)))
                assert (await line.answer())[0] == 201
                line.send("POST", AT, session, ana.message("team", "dm", to), expect="100-continue")
                await line.reader.readuntil(b"100 Continue\r\n\r\n")
                assert (await line.answer())[0] == 201
                line.send("POST", AT, session)
                assert (await line.answer())[0] == 400
                raw = ana.message("team", "dm", to)
                head = (
                    f"POST {AT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {session}\r\n"
                )
                line.writer.write(
                    head.encode()
                    + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
                )
                assert (await line.answer())[0] == 201
                up.api.phase = "stopping"
                line.send("POST", AT, session, raw)
                assert (await line.answer())[0] == 503

    asyncio.run(run())


def test_D4_a_body_that_does_not_come_to_its_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS_MAX", 50)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            session = await ana.session(up)
            async with line_to(up) as line:
                head = (
                    f"POST {AT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {session}\r\n"
                )
                line.writer.write(head.encode() + b"content-length: 100\r\n\r\nsome of it")
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await line.answer()

    asyncio.run(run())


def test_S16_a_call_under_way_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            session = await ana.session(up)
            async with line_to(up) as line:
                line.send("POST", AT, session, ana.change("team", "k", 1))
                while not up.broker.accepting.busy:
                    await asyncio.sleep(0)
                up.stop()
                status, _headers, _ = await line.answer()
                assert status == 201
                assert await line.reader.read() == b""

    asyncio.run(run())


def test_D2_a_fault_of_the_store_is_told_and_one_of_ours_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            session = await ana.session(up)

            async def failing(*args: Any, **more: Any) -> Any:
                raise errors.pop(0)

            errors = [StoreFailed("the disk failed"), KeyError("secret")]
            async with line_to(up) as line:
                monkeypatch.setattr(up.broker.store, "accept", failing)
                for code in ("store_failed", "outcome_unknown"):
                    line.send("POST", AT, session, ana.change("team", "k", 1))
                    status, _, body = await line.answer()
                    assert (status, body["error"]["code"]) == (500, code)
                    assert "secret" not in str(body)
                monkeypatch.undo()
                line.send("POST", AT, session, ana.change("team", "k", 1))
                assert (await line.answer())[0] == 201

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
