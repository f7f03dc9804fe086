"""A real broker in a process of its own, and members that hand in through plain sockets.

The client speaks just enough of WebSocket, so that what is measured is the broker and not a
library: frames are made beforehand, as many go out as answers came in, and one `recv` takes what
there is. The rivals of `_rivals` are driven in exactly this way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from base64 import b64encode
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple, TypeVar

from websockets.speedups import apply_mask

from holdfast.protocol.frames import (
    Acks,
    Challenge,
    FromBroker,
    FromNode,
    Hello,
    Item,
    Push,
    Welcome,
    encode_frame,
    read_from_broker,
)
from holdfast.rules import keys
from holdfast.rules.bodies import MessageSend, encode_body
from holdfast.rules.destinations import check_destination, entity_of
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.features import NEEDS
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.ids import uuid7

MESH = "team"
TOPIC = "news"
BODY_BYTES = 500
TIMEOUT_S = 120
_BINARY = 0x82
_CREATED = 201
F = TypeVar("F")


class Up(NamedTuple):
    """A broker that answers."""

    pid: int
    url: str
    card: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def up(folder: Path, dsn: str | None = None, port: int = 0, *more: str) -> Iterator[Up]:
    """Durable, as it is by default: every group is on the disk before it is answered."""
    command = [sys.executable, "-m", "holdfast", "broker", "serve", "--json"]
    command += ["--store", str(folder), "--tcp", f"127.0.0.1:{port}", "--name", "hub"]
    command += ["--rate", "10000000", *more]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    if pure := os.environ.get("HOLDFAST_PURE"):
        environ["HOLDFAST_PURE"] = pure  # so that a broker without the compiled part is measured
    if dsn is not None:
        environ["HOLDFAST_BROKER_DSN"] = dsn
    with (folder.parent / f"{folder.name}.log").open("ab") as said:
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=said)
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline() or b"{}")
        if "listening" not in told:
            raise RuntimeError(f"the broker does not start; see {folder}.log")
        url = next(one for one in told["listening"] if one.startswith("http:"))
        yield Up(told["pid"], url, told["card"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait()


def memory_mb(pid: int, line: str = "VmRSS") -> float:
    for text in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if text.startswith(line):
            return int(text.split()[1]) / 1024
    return 0.0


def call(up: Up, session: str, method: str, path: str, body: object = None) -> Any:
    connection = HTTPConnection("127.0.0.1", up.port, timeout=TIMEOUT_S)
    headers = {"authorization": f"Bearer {session}", "content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    read = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {read!r}")
    return json.loads(read)


class Member:
    """A name, a key, and messages of the usual size."""

    def __init__(self, name: str, mesh: str = MESH) -> None:
        self.name, self.mesh = name, mesh
        self.seed = sha256(f"bench {name}".encode()).digest()
        self.key = keys.public_key(self.seed)
        self._numbers = count(1)
        self.made = 0
        """Messages."""

    def prepare(self, up: Up) -> str:
        """Registers the mesh and declares its topic; a session for calls."""
        with Wire(up, self) as wire:
            session = wire.session
        call(up, session, "POST", "/api/my/meshes", {"slug": self.mesh})
        path = f"/api/my/meshes/{self.mesh}/destinations"
        call(up, session, "POST", path, {"kind": "topic", "ref": TOPIC})
        return session

    def messages(self, many: int, kind: str = "topic", ref: str = TOPIC) -> list[bytes]:
        """Envelopes, each with its own id and content."""
        now = int(time() * 1000)
        self.made += many
        return [self._message(now, kind, ref) for _ in range(many)]

    def _message(self, now: int, kind: str, ref: str) -> bytes:
        number = next(self._numbers)
        content = os.urandom(BODY_BYTES)
        mark = fingerprint(kind=kind, ref=ref, body=content, reply_to="", priority="next", meta=b"")
        return encode(
            Envelope(
                id=uuid7(now + number // 100, os.urandom(10)),
                mesh=self.mesh,
                op="message.send",
                entity=entity_of(kind, ref),
                origin=self.name,
                epoch=1,
                seq=number,
                lamport=number,
                created_at=now,
                fingerprint=mark,
                body=encode_body(MessageSend(content)),
                to=check_destination(kind, ref),
            )
        )


class Wire:
    """The member's end of a WebSocket."""

    def __init__(self, up: Up, member: Member) -> None:
        self._socket = socket.create_connection(("127.0.0.1", up.port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = bytearray()
        self._frames: deque[FromBroker] = deque()
        """What came along with one that was waited for."""
        nonce = b64encode(os.urandom(16)).decode()
        head = "GET /v1/sync HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        head += "Connection: Upgrade\r\n"
        head += f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        self._socket.sendall(head.encode())
        while b"\r\n\r\n" not in self._held:
            self._more()
        said, _, rest = bytes(self._held).partition(b"\r\n\r\n")
        if b" 101 " not in said:
            raise RuntimeError(said.decode("latin-1"))
        self._held = bytearray(rest)
        self.session = self._hello(member)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _hello(self, member: Member) -> str:
        said = self.get(Challenge)
        nonce = os.urandom(keys.NONCE_BYTES)
        hello = keys.HelloTranscript(
            client_zone=member.name,
            client_key=member.key,
            client_nonce=nonce,
            server_zone=said.name,
            server_key=said.key,
            server_nonce=said.nonce,
            certificate=bytes(32),
        )
        proof = keys.prove(member.seed, "client", hello)
        self.send(Hello(member.name, member.key, nonce, proof, dict(NEEDS)))
        return self.get(Welcome).session

    def send(self, frame: FromNode) -> None:
        self._socket.sendall(masked(encode_frame(frame)))

    def get(self, kind: type[F]) -> F:
        """The next frame of a kind; those before it are dropped."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if isinstance(frame, kind):
                    return frame
            self._frames.extend(self.receive())

    def receive(self) -> list[FromBroker]:
        """What there is, and at least a part of a frame."""
        if not self._held:
            self._more()
        found: list[FromBroker] = []
        held = self._held
        at = 0
        while (span := _frame_at(held, at)) is not None:
            opcode, begin, end = span
            if opcode == 2:
                found.append(read_from_broker(bytes(held[begin:end])))
            elif opcode == 8:
                raise RuntimeError(f"the broker hung up: {bytes(held[begin:end])!r}")
            elif opcode == 9:
                self._socket.sendall(masked(b"", 0x8A))
            at = end
        del held[:at]
        if not found and held:
            self._more()
        return found

    def _more(self) -> None:
        got = self._socket.recv(1 << 20)
        if not got:
            raise RuntimeError("the broker hung up")
        self._held += got


def masked(payload: bytes, first: int = _BINARY) -> bytes:
    mask = os.urandom(4)
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + mask + apply_mask(payload, mask)


def _frame_at(held: bytearray, at: int) -> tuple[int, int, int] | None:
    if len(held) < at + 2:
        return None
    size, begin = held[at + 1] & 0x7F, at + 2
    if size == 126:
        size, begin = int.from_bytes(held[at + 2 : at + 4], "big"), at + 4
    elif size == 127:
        size, begin = int.from_bytes(held[at + 2 : at + 10], "big"), at + 10
    return None if len(held) < begin + size else (held[at] & 0x0F, begin, begin + size)


def accept_rate(up: Up, member: Member, raws: Sequence[bytes], window: int) -> float:
    """Messages a second on one connection with so many in flight."""
    with Pushing(up, member, raws) as one:
        begun = perf_counter()
        one.begin(window)
        while one.goes_on():
            pass
        return len(raws) / (perf_counter() - begun)


class Pushing:
    """A member that hands in messages on one connection: as many go out as answers came in."""

    def __init__(self, up: Up, member: Member, raws: Sequence[bytes]) -> None:
        self._mesh = member.mesh
        self._items = [Item(number, raw) for number, raw in enumerate(raws)]
        self._wire = Wire(up, member)
        self._sent = self._answered = 0

    def __enter__(self) -> Pushing:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.__exit__()

    def fileno(self) -> int:
        return self._wire.fileno()

    def begin(self, window: int) -> None:
        self._push(min(window, len(self._items)))

    def goes_on(self) -> bool:
        """Waits for answers and hands in as many; False when all messages are answered."""
        done = 0
        for frame in self._wire.receive():
            if isinstance(frame, Acks):
                done += len(frame.answers)
                if any(answer.status != _CREATED for answer in frame.answers):
                    raise RuntimeError(f"not accepted: {frame.answers[0]}")
        self._answered += done
        self._push(min(done, len(self._items) - self._sent))
        return self._answered < len(self._items)

    def _push(self, many: int) -> None:
        if many:
            self._wire.send(Push(self._mesh, 0, self._items[self._sent : self._sent + many]))
            self._sent += many
