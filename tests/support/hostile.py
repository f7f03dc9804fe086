"""Clients that send without end and read nothing, and what that costs the server.

The clients are bare sockets that send one and the same buffer again and again: they cost next to
nothing themselves. So what the process has allocated since before they came is what the server
holds for them.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.rules.limits import MIB

TURNS: Final = 200
"""A server that has taken nothing in so many turns of its loop will take nothing more."""
POURED_MAX: Final = 4 * MIB
"""Far more than a server may hold of one client: enough to see one that takes everything."""


@contextmanager
def counted() -> Iterator[Held]:
    """Counts what this process allocates. What was there before is left out of collections: there
    is much of it in a process that runs tests.
    """
    gc.freeze()
    tracemalloc.start()
    try:
        yield Held()
    finally:
        tracemalloc.stop()


class Held:
    """The bytes that are held now and were not at the beginning."""

    def __init__(self) -> None:
        self._before = tracemalloc.get_traced_memory()[0]

    def now(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - self._before


async def pour(into: socket.socket, data: bytes, *, most: int = POURED_MAX) -> int:
    """Sends `data` again and again, until the server takes no more; returns how much it took."""
    into.setblocking(False)
    # What waits in the kernel costs the server nothing, and would only take time.
    into.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    sent = turns = at = 0
    while sent < most and turns < TURNS:
        try:
            count = into.send(memoryview(data)[at:])
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            turns += 1
            await asyncio.sleep(0)
            continue
        except OSError:  # the server has cut it off
            break
        sent, at, turns = sent + count, (at + count) % len(data), 0
        await asyncio.sleep(0)
    return sent
