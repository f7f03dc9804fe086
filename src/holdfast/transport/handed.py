"""Connections that one process accepts and another one serves.

The process that listens hands each connection on through a pair of sockets, a byte and the
connection's file descriptor at a time. At the other end `HandedSocket` looks to a doorkeeper like
the socket that listens. A connection that was handed over and not yet taken is closed with the
pair.
"""

from __future__ import annotations

import socket
from typing import Any, Final

_ONE: Final = b"\1"


class HandedSocket(socket.socket):
    """What a doorkeeper asks for connections in the process that serves."""

    def __init__(self, fd: int) -> None:
        super().__init__(fileno=fd)
        self.taken = 0
        """How many connections have come through."""

    def listen(self, backlog: int = 0) -> None:
        """The other process does."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection, and where it comes from; OSError if the other process is gone."""
        said, fds, _, _ = socket.recv_fds(self, len(_ONE), 1)
        if not said or not fds:
            raise ConnectionAbortedError("nobody hands connections over any more")
        self.taken += 1
        connection = socket.socket(fileno=fds[0])
        try:
            return connection, connection.getpeername()
        except OSError:  # it is gone already, which whoever reads from it will find
            return connection, ""


def hand_over(end: socket.socket, connection: socket.socket) -> bool:
    """Hands a connection on; False if the other process takes none now. The caller closes its own
    copy.
    """
    try:
        return socket.send_fds(end, [_ONE], [connection.fileno()]) == len(_ONE)
    except OSError:  # it is full of connections that were not taken yet, or gone
        return False
