"""The rivals of a broker's accepting: NATS JetStream and Redis Streams, durable and deduped.

Both are real servers that sync before they answer. They get the same bodies from the same kind of
client: one connection, a window, and as many new messages as answers came in.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter, sleep

from bench import _nats

START_S_MAX = 20.0
TIMEOUT_S = 120

SCRIPT = b"""
local before = redis.call('GET', KEYS[2])
if before then return before end
local place = redis.call('XADD', KEYS[1], '*', 'b', ARGV[1])
redis.call('SET', KEYS[2], place, 'EX', 2592000)
return place
"""
"""What the broker promises, as a script: the id is remembered for thirty days, with its message."""


def drive(
    connection: socket.socket, messages: Sequence[bytes], window: int, answer: re.Pattern[bytes]
) -> float:
    """Messages a second. What matches `answer` is one; nothing else may be said but pings."""
    begun = perf_counter()
    connection.sendall(b"".join(messages[:window]))
    sent, answered, held = min(window, len(messages)), 0, b""
    while answered < len(messages):
        got = connection.recv(1 << 20)
        if not got:
            raise RuntimeError("the server hung up")
        whole, end, held = (held + got).rpartition(b"\n")
        done = len(answer.findall(whole + end))
        if b"-ERR" in whole or b'"error"' in whole:
            raise RuntimeError(whole.decode(errors="replace"))
        if b"PING\r\n" in whole + end:
            connection.sendall(b"PONG\r\n")
        answered += done
        if done and sent < len(messages):
            connection.sendall(b"".join(messages[sent : sent + done]))
            sent = min(sent + done, len(messages))
    return len(messages) / (perf_counter() - begun)


# --- JetStream -----------------------------------------------------------------------------------

_ACK = re.compile(rb'"seq":\d+\s*[,}](?!\s*"duplicate")')


@contextmanager
def jetstream(folder: Path) -> Iterator[int]:
    """Its port. Every message is synced, and ids are remembered."""
    port = _nats.free_port()
    config = f"""
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 100GB }}
"""
    with _nats.server(folder.parent, folder.name, config, port):
        client = _nats.Client(port)
        # Ids for thirty days would be ours; it keeps them in memory, so it is spared most of that.
        stream = {"name": "ACCEPT", "subjects": ["accept"], "storage": "file"}
        client.ask("$JS.API.STREAM.CREATE.ACCEPT", {**stream, "duplicate_window": 120_000_000_000})
        client.close()
        yield port


def jetstream_rate(port: int, bodies: Sequence[bytes], window: int) -> float:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB acks 1\r\nPING\r\n')
        said = b""
        while b"PONG\r\n" not in said:
            said += connection.recv(65536)
        messages = []
        for body in bodies:
            header = b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % os.urandom(16).hex().encode()
            sizes = b"%d %d" % (len(header), len(header) + len(body))
            messages.append(b"HPUB accept acks %s\r\n%s%s\r\n" % (sizes, header, body))
        return drive(connection, messages, window, _ACK)


# --- Redis ---------------------------------------------------------------------------------------

_PLACE = re.compile(rb"\$\d+\r\n\d+-\d+\r\n")


def redis_is_there() -> bool:
    return shutil.which("redis-server") is not None


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """Its port. The log is synced before answers leave, once for all that came at a time."""
    folder.mkdir()
    port = _nats.free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    command += ["--auto-aof-rewrite-percentage", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_up(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = monotonic() + START_S_MAX
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(64).startswith(b"+PONG"):
                    return
        except OSError:
            pass  # not up yet
        if process.poll() is not None or monotonic() > give_up:
            raise RuntimeError("redis-server does not start")
        sleep(0.02)


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def redis_rate(port: int, bodies: Sequence[bytes], window: int) -> float:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_command(b"SCRIPT", b"LOAD", SCRIPT))
        digest = connection.recv(4096).split(b"\r\n")[1]
        messages = [
            _command(b"EVALSHA", digest, b"2", b"accept", b"id:" + os.urandom(16), body)
            for body in bodies
        ]
        return drive(connection, messages, window, _PLACE)
