"""Real brokers in the test's own loop, and members that talk to them.

async with broker_up(tmp_path) as up:
    ana = Person("ana")
    await ana.register(up, "team")
    async with ana.connect(up) as line:
        await line.push("team", ana.change("team", "k", 1))
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.settings import BrokerSettings
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Confirmed,
    Entries,
    Follow,
    FromBroker,
    FromNode,
    Hello,
    Item,
    Push,
    PushAnswer,
    Welcome,
    encode_frame,
    read_from_broker,
)
from holdfast.rules import keys
from holdfast.rules.bodies import MessageSend, StateSet, encode_body, encode_value
from holdfast.rules.destinations import entity_of
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.features import NEEDS
from holdfast.rules.fingerprint import fingerprint, fingerprint_2
from holdfast.rules.ids import uuid7
from holdfast.rules.keys import bytes_of, prove, public_key, text_of
from holdfast.rules.message import MESSAGE_VERSION

PATIENCE_S = 30
F = TypeVar("F")
_numbers = count(1)


@asynccontextmanager
async def broker_up(folder: Path, **given: Any) -> AsyncIterator[BrokerDaemon]:
    """A broker on loopback. SQLite does not press the disk: nobody cuts the power here."""
    settings = BrokerSettings(
        **{"store": folder / "broker", "tcp": "127.0.0.1:0", "sync": "off", **given}
    )
    daemon = BrokerDaemon(settings, on_overtime=lambda: None)
    task = asyncio.ensure_future(daemon.run())
    ready = asyncio.ensure_future(daemon.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            task.result()
        yield daemon
    finally:
        daemon.stop()
        await task


def address(up: BrokerDaemon, scheme: str = "http://") -> str:
    return next(one for one in up.addresses if one.startswith(scheme))


class Reply(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


async def ask(
    up: BrokerDaemon,
    method: str,
    path: str,
    body: Any = None,
    *,
    session: str | None = None,
    headers: Mapping[str, str] | None = None,
    unix: bool = False,
) -> Reply:
    """One call on a connection of its own. A body that is not bytes goes as JSON."""
    raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"]
    if body is not None:
        lines.append(f"content-length: {len(raw)}")
    if session is not None:
        lines.append(f"authorization: Bearer {session}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    answer = await exchange(up, "\r\n".join([*lines, "", ""]).encode() + raw, unix=unix)
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *more = head.decode("latin-1").split("\r\n")
    named = dict(line.lower().split(": ", 1) for line in more)
    if named.get("transfer-encoding") == "chunked":
        rest = _unchunked(rest)
    return Reply(int(first.split(" ")[1]), named, rest)


async def exchange(up: BrokerDaemon, raw: bytes, *, unix: bool = False) -> bytes:
    """What comes back until the other side hangs up."""
    if unix:
        reader, writer = await asyncio.open_unix_connection(address(up, "unix:")[5:])
    else:
        host, _, port = address(up)[len("http://") :].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(raw)
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()


def _unchunked(raw: bytes) -> bytes:
    out = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        out += raw[: int(size, 16)]
        raw = raw[int(size, 16) + 2 :]
    return out


class Person:
    """A member: a name and a key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seed = sha256(f"seed of {name}".encode()).digest()
        self.key = public_key(self.seed)
        self._seqs = count(1)
        self._sessions: dict[int, str] = {}

    # --- envelopes -----------------------------------------------------------------------------

    def change(self, mesh: str, key: str, value: Any, **fields: Any) -> bytes:
        body = encode_body(StateSet(encode_value(value)))
        mark = sha256(f"{mesh}\0{key}\0".encode() + body).digest()
        return self._envelope(mesh, "state.set", key, body, **{"fingerprint": mark, **fields})

    def message(
        self, mesh: str, kind: str, ref: str, content: bytes = b"hello", **fields: Any
    ) -> bytes:
        """Of version 1, as older members send it; with a `content_type`, of version 2."""
        kind_of_content: str | None = fields.pop("content_type", None)
        asked: dict[str, Any] = {
            "kind": kind,
            "ref": ref,
            "body": content,
            "reply_to": fields.get("reply_to", ""),
            "priority": fields.get("priority", "next"),
            "meta": fields.get("meta", b""),
        }
        if kind_of_content is None:
            mark = fingerprint(**asked)
        else:
            mark = fingerprint_2(**asked, content_type=kind_of_content)
            fields = {"version": MESSAGE_VERSION, **fields}
        body = encode_body(MessageSend(content, kind_of_content or ""))
        given = {"fingerprint": mark, "to": (kind, ref), **fields}
        return self._envelope(mesh, "message.send", entity_of(kind, ref), body, **given)

    def _envelope(self, mesh: str, op: str, entity: str, body: bytes, **fields: Any) -> bytes:
        number = next(self._seqs)
        given = {"id": new_id(), "origin": self.name, "seq": number, "lamport": number, **fields}
        return encode(
            Envelope(mesh=mesh, op=op, entity=entity, epoch=1, created_at=1, body=body, **given)
        )

    # --- over HTTP -----------------------------------------------------------------------------

    async def session(self, up: BrokerDaemon) -> str:
        if id(up) not in self._sessions:
            self._sessions[id(up)] = await self.new_session(up)
        return self._sessions[id(up)]

    async def new_session(self, up: BrokerDaemon) -> str:
        nonce = os.urandom(keys.NONCE_BYTES)
        said = {"zone": self.name, "key": text_of(self.key), "nonce": text_of(nonce)}
        answer = (await ask(up, "POST", "/v1/hello", said)).json
        hello = keys.HelloTranscript(
            client_zone=self.name,
            client_key=self.key,
            client_nonce=nonce,
            server_zone=answer["zone"],
            server_key=bytes_of(answer["key"], 32),
            server_nonce=bytes_of(answer["nonce"], 32),
            certificate=bytes(32),
        )
        proof = text_of(prove(self.seed, "client", hello))
        given = await ask(up, "POST", "/v1/hello/prove", {"nonce": answer["nonce"], "proof": proof})
        assert given.status == 200, given.body
        return str(given.json["session"])

    async def ask(self, up: BrokerDaemon, method: str, path: str, *args: Any, **more: Any) -> Reply:
        return await ask(up, method, path, *args, session=await self.session(up), **more)

    async def register(self, up: BrokerDaemon, *slugs: str) -> None:
        for slug in slugs:
            made = await self.ask(up, "POST", "/api/my/meshes", {"slug": slug})
            assert made.status in (200, 201), made.body

    async def declare(self, up: BrokerDaemon, mesh: str, kind: str, ref: str, **more: Any) -> None:
        path = f"/api/my/meshes/{mesh}/destinations"
        made = await self.ask(up, "POST", path, {"kind": kind, "ref": ref, **more})
        assert made.status == 200, made.body

    async def subscribe(self, up: BrokerDaemon, mesh: str, topic: str) -> None:
        made = await self.ask(up, "PUT", f"/api/my/meshes/{mesh}/subscriptions/{topic}")
        assert made.status == 200, made.body

    async def invite(self, up: BrokerDaemon, mesh: str, *people: Person, **given: Any) -> None:
        asked = {"uses": len(people), **given}
        made = await self.ask(up, "POST", f"/api/my/meshes/{mesh}/invites", asked)
        assert made.status == 201, made.body
        for person in people:
            joined = await person.ask(up, "POST", "/v1/join", {"secret": made.json["secret"]})
            assert joined.status == 200, joined.body

    async def hand_in(self, up: BrokerDaemon, mesh: str, raw: bytes, **more: Any) -> Reply:
        return await self.ask(up, "POST", f"/v1/meshes/{mesh}/envelopes", raw, **more)

    # --- on a WebSocket ------------------------------------------------------------------------

    @asynccontextmanager
    async def connect(self, up: BrokerDaemon, scheme: str = "http://") -> AsyncIterator[Wire]:
        async with raw_wire(up, scheme) as wire:
            wire.welcome = await wire.hello(self)
            yield wire


def new_id() -> bytes:
    return uuid7(1_700_000_000_000 + next(_numbers), os.urandom(10))


@asynccontextmanager
async def raw_wire(up: BrokerDaemon, scheme: str = "http://") -> AsyncIterator[Wire]:
    """A connection on which nothing was said yet."""
    url = address(up, scheme).replace("http", "ws", 1) + "/v1/sync"
    context: ssl.SSLContext | None = None
    if scheme == "https://":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with connect(url, compression=None, max_size=None, ssl=context, proxy=None) as socket:
        wire = Wire(socket)
        if context is not None:
            der = socket.transport.get_extra_info("ssl_object").getpeercert(True)
            wire.certificate = sha256(der).digest()
        yield wire


class Wire:
    """The node's end of a WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.certificate = bytes(32)
        self.welcome: Welcome | None = None
        self._kept: list[FromBroker] = []
        self._numbers = count(1)

    async def send(self, *frames: FromNode) -> None:
        for frame in frames:
            await self.socket.send(encode_frame(frame))

    async def next(self) -> FromBroker:
        """The next frame, of whatever kind."""
        if self._kept:
            return self._kept.pop(0)
        raw = await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        assert isinstance(raw, bytes)
        return read_from_broker(raw)

    async def get(self, kind: type[F]) -> F:
        """The next frame of a kind; others are kept for later."""
        passed: list[FromBroker] = []
        while True:
            frame = await self.next()
            if isinstance(frame, kind):
                self._kept = [*passed, *self._kept]
                return frame
            passed.append(frame)

    async def quiet(self, seconds: float = 0.05) -> list[FromBroker]:
        """What comes within a moment."""
        found, self._kept = self._kept, []
        with suppress(TimeoutError):
            while True:
                raw = await asyncio.wait_for(self.socket.recv(), seconds)
                assert isinstance(raw, bytes)
                found.append(read_from_broker(raw))
        return found

    async def challenge(self) -> Challenge:
        return await self.get(Challenge)

    async def hello(
        self, person: Person, needs: Mapping[str, int] = NEEDS, **changed: Any
    ) -> Welcome:
        await self.send(self.hello_frame(person, await self.challenge(), needs, **changed))
        return await self.get(Welcome)

    def hello_frame(
        self, person: Person, challenge: Challenge, needs: Mapping[str, int] = NEEDS, **changed: Any
    ) -> Hello:
        nonce = os.urandom(keys.NONCE_BYTES)
        hello = keys.HelloTranscript(
            client_zone=person.name,
            client_key=person.key,
            client_nonce=nonce,
            server_zone=challenge.name,
            server_key=challenge.key,
            server_nonce=challenge.nonce,
            certificate=self.certificate,
        )
        proof = prove(person.seed, "client", hello)
        frame = Hello(person.name, person.key, nonce, proof, dict(needs))
        return msgspec.structs.replace(frame, **changed)

    async def push(self, mesh: str, *raws: bytes, epoch: int = 0) -> list[PushAnswer]:
        """Hands in and waits for all answers, in the order in which they were handed in."""
        items = [Item(next(self._numbers), raw) for raw in raws]
        await self.send(Push(mesh, epoch, items))
        found: dict[int, PushAnswer] = {}
        while len(found) < len(items):
            acks = await self.get(Acks)
            found.update({one.number: one for one in acks.answers})
        return [found[item.number] for item in items]

    async def follow(self, mesh: str, after: int = 0, epoch: int = 1, own: bool = False) -> None:
        await self.send(Follow(mesh, epoch, after, own))

    async def entries(self, mesh: str, upto: int) -> list[Entries]:
        """Confirms what comes until a seq is reached."""
        found: list[Entries] = []
        while not found or found[-1].to < upto:
            entries = await self.get(Entries)
            assert entries.mesh == mesh
            found.append(entries)
            await self.send(Confirmed(mesh, entries.epoch, entries.to))
        return found

    async def closed(self) -> tuple[int, str]:
        """Waits until the other side has hung up: its code and reason."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.wait_for(self.socket.recv(), PATIENCE_S)
        await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""


def rows_of(entries: Sequence[Entries]) -> list[bytes]:
    return [row.raw for one in entries for row in one.rows]
