"""The network of the bus: TLS 1.3 on TCP.

A certificate only encrypts; who is behind it is proved by the hello of a link, which covers the
certificate's digest (`rules/keys.py`). The digest is therefore told to both sides, as the
`certificate` of their transport.

The system is asked to hold little and to give up early: a few bytes that were not sent yet, so that
what is urgent has little to queue behind, and an end after a while without an acknowledgement, so
that a pulled cable is noticed beneath the link's own signs of life.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from holdfast.rules.bus.links.strangers import whom_to_drop
from holdfast.rules.errors import PeerUnreachable
from holdfast.rules.limits import (
    BUS_CLOSE_MS_MAX,
    BUS_HELLO_MS_MAX,
    BUS_PING_MS,
    BUS_PONG_MS_MAX,
    BUS_STRANGERS_MAX,
    BUS_TRANSPORT_BYTES,
    SECOND_MS,
)
from holdfast.service.address import parse_address
from holdfast.transport.doorkeeper import Doorkeeper
from holdfast.transport.listeners import tcp_listener
from holdfast.transport.tls import client_context, digest_of, memory_context

CERTIFICATE: Final = "certificate"
Made = Callable[[], asyncio.Protocol]

_SILENT_MS: Final = BUS_PING_MS + BUS_PONG_MS_MAX
_TCP_OPTIONS: Final = (
    ("TCP_USER_TIMEOUT", _SILENT_MS),
    ("TCP_KEEPIDLE", BUS_PING_MS // SECOND_MS),
    ("TCP_KEEPINTVL", BUS_PONG_MS_MAX // SECOND_MS),
    ("TCP_KEEPCNT", 2),
    ("TCP_NODELAY", 1),
)
_NOTSENT_LOWAT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
"""Python names it from 3.12 on; this is its number on Linux."""


class TlsNet:
    """A `Net` on the machine's own network."""

    def __init__(self, certificate: tuple[ssl.SSLContext, bytes] | None = None) -> None:
        """`certificate`: the context of a server and the digest of what it shows; without it, one
        that lives as long as the process.
        """
        self._server, self._digest = certificate or memory_context()
        self._client = client_context()

    async def dial(self, address: str, protocol: Made) -> None:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(BUS_HELLO_MS_MAX / SECOND_MS):
                await loop.create_connection(
                    lambda: _Greeting(protocol, None),
                    host,
                    port,
                    ssl=self._client,
                    server_hostname="",  # nobody on the way is told whom we look for
                    ssl_shutdown_timeout=BUS_CLOSE_MS_MAX / SECOND_MS,
                )
        except (OSError, ssl.SSLError, UnicodeError) as error:
            reason = str(error) or "it does not answer"
            raise PeerUnreachable(f"{address} cannot be reached: {reason}") from None

    async def listen(self, address: str, protocol: Made) -> TlsListening:
        host, port = parse_address(address)
        listener = tcp_listener(host, port, self._server)
        return TlsListening(
            listener.address.partition("//")[2],
            listener.socket,
            Doorkeeper(
                *(listener.socket, lambda: _Greeting(protocol, self._digest), self._server),
                *((), BUS_STRANGERS_MAX),
                whom_to_drop=whom_to_drop,
            ),
        )


class TlsListening:
    """A `Listening` with its socket."""

    def __init__(self, address: str, listening: socket.socket, door: Doorkeeper) -> None:
        self.address = address
        self._socket, self._door = listening, door

    async def close(self) -> None:
        self._door.close()
        await self._door.wait_closed()
        self._socket.close()


class _Greeting(asyncio.Protocol):
    """Stands before the real protocol until the connection is encrypted."""

    def __init__(self, made: Made, digest: bytes | None) -> None:
        """`digest`: of the certificate that we show; None: the other side shows one."""
        self._made, self._digest = made, digest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = cast(asyncio.Transport, transport)
        _set_options(real.get_extra_info("socket"))
        real.set_write_buffer_limits(high=BUS_TRANSPORT_BYTES)
        digest = self._digest
        if digest is None:
            shown = real.get_extra_info("ssl_object").getpeercert(binary_form=True)
            digest = digest_of(shown or b"")
        protocol = self._made()
        real.set_protocol(protocol)
        protocol.connection_made(_TlsTransport(real, digest))


class _TlsTransport(asyncio.Transport):
    """A transport that knows the digest of the certificate on it."""

    def __init__(self, real: asyncio.Transport, digest: bytes) -> None:
        super().__init__()
        self._real, self._digest = real, digest
        self.write = real.write  # type: ignore[method-assign]  # no step between, for each message

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._digest if name == CERTIFICATE else self._real.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._real.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._real.pause_reading()

    def resume_reading(self) -> None:
        self._real.resume_reading()

    def is_closing(self) -> bool:
        return self._real.is_closing()

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()


def _set_options(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS:
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, BUS_TRANSPORT_BYTES)
