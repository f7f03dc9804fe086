"""A WebSocket to a broker, as a node holds it.

Over TLS it accepts any certificate: what counts is its digest, which the hello binds to the
broker's key (see `rules.keys`). Without TLS it connects to this machine only, and zeroes stand for
the certificate.

Nothing is compressed: envelopes are small and often hold compressed content. A frame has a largest
size, and a broker that falls silent is cut off. Every failure is raised as `Unreachable`, or as
`HungUp` if the other side said why it closed.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from holdfast.rules.errors import BadAnswer, BadInput, HoldfastError, Unreachable
from holdfast.rules.limits import (
    FRAME_BYTES_MAX,
    LINK_CONNECT_MS_MAX,
    MIB,
    SECOND_MS,
    SYNC_CLOSE_MS_MAX,
    SYNC_PING_MS,
)
from holdfast.transport.deadline_socket import Address
from holdfast.transport.http_client import reason_of
from holdfast.transport.remote_errors import clean
from holdfast.transport.tls import client_context, digest_of

PLAIN: Final = bytes(32)
"""Stands for the digest of a certificate on a connection without TLS."""
_FRAMES_AHEAD: Final = 4
"""Frames, each up to FRAME_BYTES_MAX, that are read before the caller asks for them; then the other
side has to wait.
"""
_UNSENT_BYTES_MAX: Final = 4 * MIB
_CLOSE_S: Final = 2 * SYNC_CLOSE_MS_MAX / SECOND_MS
"""How long a goodbye may take, the other side's included."""
_REASON_CHARS_MAX: Final = 200
_NORMAL: Final = 1000
_AWAY: Final = 1001
_AWAY_STATUSES: Final = (429, 502, 503, 504)


class HungUp(Exception):
    """The other side closed the connection, and its code says why."""

    def __init__(self, who: str, code: int, reason: str) -> None:
        super().__init__(f"{who} hung up ({code}): {reason or 'it did not say why'}")
        self.code = code
        self.reason = reason


class WebSocketClient:
    """One open connection. One task reads; any may write."""

    def __init__(self, connection: ClientConnection, address: Address, certificate: bytes) -> None:
        self._connection = connection
        self._address = address
        self.certificate = certificate
        """The digest of the other side's certificate, or zeroes without TLS."""

    @classmethod
    async def open(
        cls, url: str, path: str, *, context: ssl.SSLContext | None = None
    ) -> WebSocketClient:
        """Connects. The caller must say hello before it trusts anything that comes."""
        address = Address.parse(url)
        if address.scheme not in ("http", "https") or not address.is_secret:
            raise BadInput(f"{address} is not encrypted", hint="use an https address")
        secret = address.scheme == "https"
        scheme = "wss" if secret else "ws"
        try:
            connection = await connect(
                f"{scheme}://{address.authority}{path}",
                compression=None,
                proxy=None,
                open_timeout=LINK_CONNECT_MS_MAX / SECOND_MS,
                ping_interval=SYNC_PING_MS / SECOND_MS,
                ping_timeout=SYNC_PING_MS / SECOND_MS,
                close_timeout=SYNC_CLOSE_MS_MAX / SECOND_MS,
                max_size=FRAME_BYTES_MAX,
                max_queue=_FRAMES_AHEAD,
                write_limit=_UNSENT_BYTES_MAX,
                user_agent_header=None,
                ssl=(context or client_context()) if secret else None,
            )
        except (InvalidHandshake, InvalidURI) as error:
            raise _no_handshake(address, error) from error
        except (OSError, EOFError) as error:  # TimeoutError and ssl.SSLError among them
            raise Unreachable(f"{address} does not answer: {reason_of(error)}") from error
        try:
            certificate = _certificate(connection) if secret else PLAIN
        except BadAnswer:
            await connection.close()
            raise
        return cls(connection, address, certificate)

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise self._gone(error) from error

    async def receive(self) -> bytes:
        try:
            frame = await self._connection.recv()
        except ConnectionClosed as error:
            raise self._gone(error) from error
        if isinstance(frame, str):
            raise BadAnswer(f"{self._address} sent text where frames are bytes")
        return frame

    async def close(self, code: int = _NORMAL, reason: str = "") -> None:
        """Closes with a code and waits a moment for the other side to close too. Never raises."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.close(code, reason[:_REASON_CHARS_MAX])
        except TimeoutError:
            # Who does not read lets our frames wait, and with them the one that says goodbye.
            self._connection.transport.abort()

    def _gone(self, error: ConnectionClosed) -> Exception:
        close = error.rcvd
        if close is None:
            return Unreachable(f"the connection to {self._address} broke")
        if close.code in (_NORMAL, _AWAY):
            return Unreachable(f"{self._address} went away")
        return HungUp(str(self._address), close.code, clean(close.reason))


def _certificate(connection: ClientConnection) -> bytes:
    tls: ssl.SSLObject | None = connection.transport.get_extra_info("ssl_object")
    der = None if tls is None else tls.getpeercert(binary_form=True)
    if der is None:
        raise BadAnswer("the other side shows no certificate")
    return digest_of(der)


def _no_handshake(address: Address, error: Exception) -> HoldfastError:
    broke = isinstance(error.__cause__, EOFError | OSError)
    away = isinstance(error, InvalidStatus) and error.response.status_code in _AWAY_STATUSES
    if broke or away:  # as while it starts or ends
        return Unreachable(f"{address} is not ready")
    return BadAnswer(f"{address} does not speak WebSocket: {clean(str(error))}")
