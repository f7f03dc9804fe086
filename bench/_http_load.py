"""Requests over many connections at a time, one under way on each, from one thread."""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

TIMEOUT_S = 60.0


class _Call:
    """One connection, and what has come of the answer that it waits for."""

    __slots__ = ("held", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = b""

    def answered(self) -> int:
        """The status when the whole answer is there; 0 before."""
        got = self.socket.recv(65536)
        if not got:
            raise RuntimeError("the server hung up")
        held = self.held = self.held + got
        head, end, body = held.partition(b"\r\n\r\n")
        if not end:
            return 0
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        if len(body) < size:
            return 0
        self.held = b""
        return int(head[9:12])


def rate(port: int, requests: Sequence[bytes], connections: int, status: int) -> float:
    """Answers a second. All must have this status."""
    calls = [_Call(port) for _ in range(connections)]
    by_file = {call.socket.fileno(): call for call in calls}
    poll = select.epoll()
    for file in by_file:
        poll.register(file, select.EPOLLIN)
    waiting = iter(requests)
    seen: Counter[int] = Counter()
    try:
        begun = perf_counter()
        for call, request in zip(calls, waiting, strict=False):
            call.socket.sendall(request)
        while seen.total() < len(requests):
            ready = poll.poll(TIMEOUT_S)
            if not ready:
                raise RuntimeError("no answer in time")
            for file, _ in ready:
                call = by_file[file]
                if found := call.answered():
                    seen[found] += 1
                    if request := next(waiting, b""):
                        call.socket.sendall(request)
        took = perf_counter() - begun
    finally:
        poll.close()
        for call in calls:
            call.socket.close()
    if set(seen) != {status}:
        raise RuntimeError(f"answers were {dict(seen)}, not {status}")
    return len(requests) / took


def request(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
