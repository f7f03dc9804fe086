"""A connection that keeps to its time, whatever the other side does.

A timeout for each read is not enough: another side that sends a byte now and then would hold a
caller for ever. So a connection has a deadline for the whole exchange, and every byte that arrives
buys a little more time, at the slowest pace that is still worth waiting for, but never more than it
had at first. An honest slow connection gets through; one that sends a byte now and then, or falls
silent after a burst, is cut. One that sends more bytes than the caller allows is cut too.

`break_off` may be called by any thread, at any moment, and wakes a thread that waits here.
"""

from __future__ import annotations

import errno
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import KIB, LINE_BYTES_PER_S_MIN, SECOND_MS
from holdfast.transport.tls import digest_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES: Final = 64 * KIB
_SEND_BYTES: Final = 256 * KIB
_OVERHEAD_BYTES: Final = 256 * KIB
"""Room for the head of an answer and for the marks of chunks."""
_PORTS: Final = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """Where a node listens: `unix:/path`, `http://host:port` or `https://host:port`."""

    scheme: str
    host: str
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path or "\0" in path:
                raise BadInput("a unix address names a socket", hint="write it as unix:/path")
            return cls("unix", path)
        try:
            found = urlsplit(text)
            port = found.port
        except ValueError:
            raise _not_an_address() from None
        extra = found.path.rstrip("/") or found.query or found.fragment or "@" in found.netloc
        if found.scheme not in _PORTS or not found.hostname or extra or not _plain(found):
            raise _not_an_address()
        return cls(found.scheme, found.hostname, port or _PORTS[found.scheme])

    @property
    def is_secret(self) -> bool:
        """Whether a secret may travel to this address: not unencrypted over a network."""
        return self.scheme != "http" or _is_loopback(self.host)

    @property
    def authority(self) -> str:
        if self.scheme == "unix":
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.host}" if self.scheme == "unix" else f"{self.scheme}://{self.authority}"


class DeadlineSocket:
    """One connection, and how long it may still take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.certificate = b""
        """The digest of the other side's certificate; empty on a connection without TLS."""
        self.received = 0
        """Bytes received in the current exchange."""
        self._sock: socket.socket | None = None
        self._deadline = self._allowed_s = 0.0
        self._bytes_max = 0
        self._gate = threading.Lock()
        self._broken = False

    def connect(self, address: Address, context: ssl.SSLContext | None, ms: int) -> None:
        """Connects, and encrypts if there is a context; raises OSError, ssl.SSLError among them."""
        self.allow(ms, 0)
        if address.scheme == "unix":
            self._try(socket.AF_UNIX, address.host)
        else:
            self._connect_host(address)
        if context is not None:
            self._encrypt(context, address.host)

    def _connect_host(self, address: Address) -> None:
        # Looking up the name cannot be broken off; all that follows can.
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        last: OSError = OSError(f"{address.host} has no address")
        for family, _, _, _, place in places:
            try:
                self._try(family, place)
            except OSError as error:
                last = error
                continue
            assert self._sock is not None
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return
        raise last

    def _try(self, family: int, place: Any) -> None:
        with self._gate:
            # Stored before it waits, so that `break_off` can wake it.
            self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._arm(sock)
            sock.connect(place)
            self._arm(sock)
        except BaseException:
            self.close()
            raise

    def _encrypt(self, context: ssl.SSLContext, host: str) -> None:
        assert self._sock is not None
        if context.sslsocket_class is ssl.SSLSocket:  # else it is a class that looks closer
            context.sslsocket_class = TlsSocket
        with self._gate:
            self._sock = sock = context.wrap_socket(
                self._sock, server_hostname=host, do_handshake_on_connect=False
            )
        self._arm(sock)
        sock.do_handshake()
        der = sock.getpeercert(binary_form=True)
        self.certificate = b"" if der is None else digest_of(der)

    # --- time ----------------------------------------------------------------------------------

    def allow(self, ms: int, bytes_max: int) -> None:
        """Begins an exchange, or a wait within one: how long it may take, how many bytes it may
        bring.
        """
        self._allowed_s = ms / SECOND_MS
        self._deadline = self._clock() + self._allowed_s
        self._bytes_max = 2 * bytes_max + _OVERHEAD_BYTES
        self.received = 0

    def _arm(self, sock: socket.socket) -> None:
        left = self._deadline - self._clock()
        if self._broken:
            raise ConnectionAbortedError("broken off")
        if left <= 0:
            raise TimeoutError("the time is over")
        sock.settimeout(left)

    def _paid(self, size: int) -> None:
        bought = self._deadline + size / LINE_BYTES_PER_S_MIN
        self._deadline = min(bought, self._clock() + self._allowed_s)

    # --- what an HTTP response is read from and a request written to -----------------------------

    def sendall(self, data: bytes) -> None:
        assert self._sock is not None
        rest = memoryview(data)
        while rest:
            self._arm(self._sock)
            sent = self._sock.send(rest[:_SEND_BYTES])
            self._paid(sent)
            rest = rest[sent:]

    def readinto(self, buffer: WriteableBuffer) -> int:
        assert self._sock is not None
        self._arm(self._sock)
        size = self._sock.recv_into(buffer)
        if self._broken:
            raise ConnectionAbortedError("broken off")  # it would look like a good end
        self._paid(size)
        self.received += size
        if self.received > self._bytes_max:
            raise ValueError("it sends more than was asked for")
        return size

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reading(self.readinto), _BUFFER_BYTES)

    # --- the end -------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether something waits to be read between two exchanges: the end, or bytes not for
        us.
        """
        assert self._sock is not None
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        return bool(waiting.poll(0))

    def close(self) -> None:
        with self._gate:
            if self._sock is not None:
                self._sock.close()

    def break_off(self) -> None:
        """Ends every wait on this connection, and every later one at once."""
        self._broken = True
        with self._gate, suppress(OSError):
            if self._sock is not None:
                # The plain socket's shutdown: that of an SSL socket would remove its state, which
                # the thread that wakes up still uses.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


class TlsSocket(ssl.SSLSocket):
    """Closed also where Python itself gives it up and forgets it: when the connection was reset
    before its TLS began, which is looked for by a `recv`.
    """

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EINVAL):  # with those it goes on
                self.close()
            raise


class _Reading(io.RawIOBase):
    def __init__(self, readinto: Callable[[WriteableBuffer], int]) -> None:
        self._readinto = readinto

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._readinto(buffer)


def _not_an_address() -> BadInput:
    # Does not repeat the text: a user may have put a secret into it.
    return BadInput(
        "this is not the address of a node",
        hint="write it as https://HOST:PORT, without a path, a user or a query",
    )


def _plain(found: SplitResult) -> bool:
    return found.netloc.isascii() and found.netloc.isprintable() and " " not in found.netloc


def _is_loopback(host: str) -> bool:
    parts = host.split(".")
    four = len(parts) == 4 and all(part.isdecimal() for part in parts) and parts[0] == "127"
    return host in ("localhost", "::1") or four
