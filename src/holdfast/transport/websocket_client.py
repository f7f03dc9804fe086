"""A WebSocket to a broker, as a node holds it.

Over TLS any certificate is taken, as everywhere here: what counts is its digest, which the hello
binds to the broker's key (see `rules.keys`). Without TLS only this machine is spoken to, and zeroes
stand for the certificate.

Nothing is compressed: envelopes are small and often hold what was packed before. One frame has a
size that is not exceeded, a peer that falls silent is cut, and whatever goes wrong is told as
`Unreachable`, or as `HungUp` where the other side said why it closed.
"""

from __future__ import annotations

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
from holdfast.transport.remote_errors import clean
from holdfast.transport.tls import client_context, digest_of

PLAIN: Final = bytes(32)
"""Stands for the certificate where nothing is encrypted."""
_FRAMES_AHEAD: Final = 16
"""Frames that are read before anybody asks for them; then the other side has to wait."""
_UNSENT_BYTES_MAX: Final = 4 * MIB
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
        """The digest of what the other side shows, or zeroes on this machine."""

    @classmethod
    async def open(
        cls, url: str, path: str, *, context: ssl.SSLContext | None = None
    ) -> WebSocketClient:
        """Connects. Nothing that was said on it is believed before a hello."""
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
            raise Unreachable(f"{address} does not answer: {_reason(error)}") from error
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
        """Says good-bye and waits a moment for the other side's. Never raises."""
        await self._connection.close(code, reason[:_REASON_CHARS_MAX])

    def _gone(self, error: ConnectionClosed) -> Exception:
        told = error.rcvd
        if told is None:
            return Unreachable(f"the connection to {self._address} broke")
        if told.code in (_NORMAL, _AWAY):
            return Unreachable(f"{self._address} went away")
        return HungUp(str(self._address), told.code, clean(told.reason))


def _certificate(connection: ClientConnection) -> bytes:
    found: ssl.SSLObject | None = connection.transport.get_extra_info("ssl_object")
    der = None if found is None else found.getpeercert(binary_form=True)
    if der is None:
        raise BadAnswer("the other side shows no certificate")
    return digest_of(der)


def _no_handshake(address: Address, error: Exception) -> HoldfastError:
    broke = isinstance(error.__cause__, EOFError | OSError)
    away = isinstance(error, InvalidStatus) and error.response.status_code in _AWAY_STATUSES
    if broke or away:  # as while it starts or ends
        return Unreachable(f"{address} is not ready")
    return BadAnswer(f"{address} does not speak WebSocket: {clean(str(error))}")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return clean(str(text))
