"""Accepting connections, up to a limit, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from holdfast.rules import limits

_BACKLOG: Final = 1024
_ACCEPT_AGAIN_S: Final = 0.1


class Doorkeeper:
    """Accepts connections from one socket, up to a limit.

    asyncio's own server counts none of them, and uvicorn does not see a connection before its TLS
    handshake is done: strangers could use up every file descriptor of the process, and the store
    needs some too. So each connection counts from the moment that it is accepted.
    """

    def __init__(
        self,
        listening: socket.socket,
        made: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        taken: Collection[object],
        most: int,
        *,
        whom_to_drop: Callable[[Sequence[str]], int] | None = None,
    ) -> None:
        """`taken` are the connections that count beside those that are being greeted.
        `whom_to_drop` chooses among the hosts of these, the oldest first, who has to make room for
        another one; without it the new connection is closed.
        """
        self._listening, self._made, self._tls = listening, made, tls
        self._taken, self._most, self._whom_to_drop = taken, most, whom_to_drop
        self._greeting: dict[asyncio.Task[None], str] = {}
        """With the host that each comes from, the oldest first."""
        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._listen()

    def close(self) -> None:
        self._loop.remove_reader(self._listening)
        if self._again is not None:
            self._again.cancel()
        for task in self._greeting:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._greeting, return_exceptions=True)

    def _listen(self) -> None:
        """Somebody is accepted in the turn in which the loop says that there is somebody. A task
        that waits for it may be ended between the two, and nobody would close the connection.
        """
        self._again = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._listening.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the client closed it in the queue, or no file descriptor is left
            self._loop.remove_reader(self._listening)
            self._again = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
            return
        connection.setblocking(False)
        if len(self._taken) + len(self._greeting) >= self._most:
            self.dropped += 1
            if self._whom_to_drop is None or not self._greeting:
                connection.close()
                return
            at = self._whom_to_drop(list(self._greeting.values()))
            late = list(self._greeting)[at]
            del self._greeting[late]
            late.cancel()
        task = self._loop.create_task(self._greet(connection))
        self._greeting[task] = str(address[0]) if address else ""
        task.add_done_callback(partial(self._greeted, connection))

    def _greeted(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)
        if task.cancelled():  # perhaps before it began: then nobody else closes the connection
            connection.close()

    async def _greet(self, connection: socket.socket) -> None:
        shake_s = None if self._tls is None else limits.HEAD_MS_MAX / limits.SECOND_MS
        try:
            await self._loop.connect_accepted_socket(
                self._made,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=shake_s,
            )
        except OSError:  # the client speaks no TLS, or too slowly, or is gone
            connection.close()
