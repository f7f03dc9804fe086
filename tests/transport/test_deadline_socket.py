"""A connection with a deadline, where the other side ends it at a bad moment."""

from __future__ import annotations

import gc
import select
import socket
import ssl
import struct

import pytest

from holdfast.transport.deadline_socket import Address, DeadlineSocket
from holdfast.transport.tls import client_context

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which a close is a reset."""


class _Late(DeadlineSocket):
    """Begins its TLS when the other side has reset the connection."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__()
        self._listener = listener

    def _encrypt(self, context: ssl.SSLContext, host: str) -> None:
        theirs, _ = self._listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        theirs.close()
        assert self._sock is not None
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        assert waiting.poll(60_000)
        super()._encrypt(context, host)


def test_Z1_a_connection_that_is_reset_before_its_tls_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("https", "127.0.0.1", listener.getsockname()[1])
        line = _Late(listener)
        with pytest.raises(ConnectionResetError):
            line.connect(address, client_context(), 60_000)
        line.close()
    del line
    # What is left open says so when it is collected, and every such warning is an error here.
    gc.collect()
