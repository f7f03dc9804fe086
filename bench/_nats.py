"""The rival of the zones: two NATS servers, a stream on one, a mirror of it on the other.

The second server is a leaf of the first. Both are real `nats-server` processes with file storage;
`sync` is how often they call fsync: "2m" is their default, "always" is after every write. The
client speaks just enough of the protocol to fill a stream and to ask how far a mirror is.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

SERVER = Path(sys.executable).parent / "nats-server"
START_S_MAX = 20.0
CATCH_UP_S_MAX = 300.0
ACKS_AT_ONCE = 1000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Client:
    """One connection that asks and waits."""

    def __init__(self, port: int) -> None:
        # Its own: a leaf link carries the answers of one side to whoever listens on the other.
        self._inbox = f"answers.{port}"
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._file.readline()  # INFO
        self._socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nPING\r\n')
        while self._file.readline() != b"PONG\r\n":
            pass
        self._socket.sendall(f"SUB {self._inbox} 1\r\n".encode())

    def ask(self, subject: str, body: Any) -> dict[str, Any]:
        payload = json.dumps(body).encode() if body is not None else b""
        head = f"PUB {subject} {self._inbox} {len(payload)}\r\n".encode()
        self._socket.sendall(head + payload + b"\r\n")
        answer: dict[str, Any] = json.loads(self._message())
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer

    def fill(self, subject: str, count: int, payload: bytes) -> None:
        """Publishes with ids, so that the server dedupes, and waits for every answer."""
        waiting = 0
        for number in range(count):
            header = f"NATS/1.0\r\nNats-Msg-Id: {number:032x}\r\n\r\n".encode()
            sizes = f"{len(header)} {len(header) + len(payload)}"
            line = f"HPUB {subject} {self._inbox} {sizes}\r\n".encode()
            self._socket.sendall(line + header + payload + b"\r\n")
            waiting += 1
            if waiting == ACKS_AT_ONCE:
                for _ in range(waiting):
                    self._message()
                waiting = 0
        for _ in range(waiting):
            self._message()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _message(self) -> bytes:
        while True:
            line = self._file.readline()
            if not line:
                raise RuntimeError("the server hung up")
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise RuntimeError(line.decode())
            elif line.startswith(b"MSG"):
                size = int(line.split()[-1])
                body = self._file.read(size + 2)
                return body[:-2]


@contextmanager
def server(folder: Path, name: str, config: str, port: int) -> Iterator[int]:
    file = folder / f"{name}.conf"
    file.write_text(config, encoding="utf-8")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([SERVER, "-c", file], stdout=log, stderr=log)
        try:
            _wait_until_up(port, process)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def _wait_until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = monotonic() + START_S_MAX
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"nats-server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if monotonic() > give_up:
                raise
            sleep(0.02)


def _config(name: str, port: int, store: Path, sync: str, leaf: str) -> str:
    return f"""
server_name: {name}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{store}", domain: {name}, sync_interval: {sync}, max_file_store: 100GB }}
leafnodes {{ {leaf} }}
"""


def mirror_rate(folder: Path, count: int, payload: bytes, sync: str) -> float:
    """Messages a second with which a mirror catches up with a stream that is already full."""
    folder.mkdir()
    hub_port, leaf_port, link_port = free_port(), free_port(), free_port()
    with ExitStack() as stack:
        hub = _config("hub", hub_port, folder / "hub", "2m", f"listen: 127.0.0.1:{link_port}")
        # The source is filled lazily in both cases: only the receiver's durability is compared.
        stack.enter_context(server(folder, "hub", hub, hub_port))
        edge = f'remotes: [{{ url: "nats://127.0.0.1:{link_port}" }}]'
        stack.enter_context(
            server(
                folder,
                "leaf",
                _config("leaf", leaf_port, folder / "leaf", sync, edge),
                leaf_port,
            )
        )
        source, mirror = Client(hub_port), Client(leaf_port)
        stack.callback(source.close)
        stack.callback(mirror.close)
        stream = {"name": "FACTS", "subjects": ["facts"], "storage": "file"}
        source.ask("$JS.API.STREAM.CREATE.FACTS", stream)
        source.fill("facts", count, payload)
        begun = perf_counter()
        external = {"api": "$JS.hub.API", "deliver": ""}
        mirror.ask(
            "$JS.API.STREAM.CREATE.COPY",
            {"name": "COPY", "storage": "file", "mirror": {"name": "FACTS", "external": external}},
        )
        while _held(mirror) < count:
            if perf_counter() - begun > CATCH_UP_S_MAX:
                raise RuntimeError(f"the mirror holds {_held(mirror)} after {CATCH_UP_S_MAX} s")
            sleep(0.01)
        return count / (perf_counter() - begun)


def _held(client: Client) -> int:
    state: dict[str, Any] = client.ask("$JS.API.STREAM.INFO.COPY", None)["state"]
    held: int = state["messages"]
    return held


def available() -> bool:
    return os.access(SERVER, os.X_OK)
