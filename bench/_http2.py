"""A bare gRPC client for the rival of the quorum: one connection, so many calls in flight.

It speaks just enough of HTTP/2 to be as cheap as a client of etcd can be: the headers of a call are
sent once and named by their numbers in the server's table afterwards, and everything that follows
from one read of the socket leaves in one write. Of an answer it looks at the message and at where
the stream ends; an answer without a message is an error.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from time import perf_counter

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
NO_ERROR = bytes(4)
WINDOW_MAX = 2**31 - 1
WINDOW_FIRST = 65_535


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _text(text: bytes) -> bytes:
    return bytes((len(text),)) + text


class GrpcClient:
    """Calls one method of a server, again and again."""

    def __init__(self, port: int, method: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = struct.pack(">HI", 4, WINDOW_MAX)
        more = struct.pack(">I", WINDOW_MAX - WINDOW_FIRST)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, window) + frame(WINDOW, 0, 0, more))
        # Method and scheme are in the table of everybody; the rest is put there by the first call.
        self._headers = (
            b"\x83\x86\x44"
            + _text(method.encode())
            + b"\x41"
            + _text(b"127.0.0.1")
            + b"\x5f"
            + _text(b"application/grpc")
            + b"\x40"
            + _text(b"te")
            + _text(b"trailers")
        )
        self._stream = 1
        self._room = WINDOW_FIRST
        self._rest = b""
        self._answered: set[int] = set()

    def _call(self, message: bytes) -> bytes:
        stream, self._stream = self._stream, self._stream + 2
        head = frame(HEADERS, END_HEADERS, stream, self._headers)
        self._headers = b"\x83\x86\xc1\xc0\xbf\xbe"
        body = b"\0" + len(message).to_bytes(4, "big") + message
        self._room -= len(body)
        if self._room < 0:
            raise RuntimeError("the server gives less room than so many calls need")
        return head + frame(DATA, END_STREAM, stream, body)

    def run(
        self, message: Callable[[int], bytes], in_flight: int, seconds: float
    ) -> tuple[list[float], float]:
        """Calls for so long; how long each call took, and all of them together."""
        took: list[float] = []
        begun = perf_counter()
        until = begun + seconds
        number = in_flight
        open_since = {self._stream + 2 * place: begun for place in range(in_flight)}
        self._socket.sendall(b"".join([self._call(message(place)) for place in range(in_flight)]))
        while open_since:
            ended, answers = self._receive()
            now = perf_counter()
            out = [answers] if answers else []
            for stream in ended:
                took.append(now - open_since.pop(stream))
                if now < until:
                    open_since[self._stream] = now
                    out.append(self._call(message(number)))
                    number += 1
            if out:
                self._socket.sendall(b"".join(out))
        return took, perf_counter() - begun

    def _receive(self) -> tuple[list[int], bytes]:
        """Streams that have ended, and what is to be said to frames about the connection."""
        got = self._socket.recv(1 << 18)
        if not got:
            raise RuntimeError("the server hung up")
        data = self._rest + got
        ended: list[int] = []
        answers = b""
        at = 0
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            body = data[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == DATA:
                self._answered.add(stream)
            elif kind == SETTINGS and not flags & ACK:
                answers += frame(SETTINGS, ACK, 0, b"")
            elif kind == PING and not flags & ACK:
                answers += frame(PING, ACK, 0, body)
            elif kind == WINDOW and not stream:
                self._room += int.from_bytes(body, "big")
            elif kind == RST and body == NO_ERROR:
                pass  # it has answered before it had read the end of the request
            elif kind in (RST, GOAWAY):
                raise RuntimeError(f"the server ends a call: {body!r}")
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                if stream not in self._answered:
                    raise RuntimeError(f"the server refuses a call: {body!r}")
                self._answered.discard(stream)
                ended.append(stream)
        self._rest = data[at:]
        return ended, answers

    def close(self) -> None:
        self._socket.close()


def field(number: int, value: bytes) -> bytes:
    """A field of bytes in a message of protobuf, of less than 16 KiB."""
    size = len(value)
    length = bytes((size,)) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((number << 3 | 2,)) + length + value
