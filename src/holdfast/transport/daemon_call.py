"""A call of a coroutine to the daemon of its home, on a connection of its own.

It waits in a thread, because the client of this project does. A coroutine that is cancelled breaks
the connection, and the daemon then cancels what it did for it.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TypeVar

import msgspec

from holdfast.rules.errors import NoDaemon, Unreachable
from holdfast.rules.limits import BODY_BYTES_MAX, LINK_READ_MS_MAX
from holdfast.transport.http_client import Client

T = TypeVar("T")


async def call_daemon(
    address: str,
    method: str,
    path: str,
    asked: msgspec.Struct | None,
    kind: type[T],
    *,
    wait_ms: int,
    holds: str,
) -> T:
    """`wait_ms`: how long the daemon may wait for others before it answers. `holds` says in words
    what the daemon is asked for. NoDaemon if it is gone.
    """
    client = Client(address, read_ms=LINK_READ_MS_MAX + wait_ms)
    return await call_through(client, method, path, asked, kind, holds=holds)


async def call_through(
    client: Client,
    method: str,
    path: str,
    asked: msgspec.Struct | None,
    kind: type[T],
    *,
    holds: str,
) -> T:
    """The same through a client for this one call."""
    body = None if asked is None else msgspec.json.encode(asked)

    def work() -> T:
        with closing(client):
            answer = client.call(method, path, body=body, bytes_max=2 * BODY_BYTES_MAX)
            return answer.json(kind)

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        client.abort()
        raise
    except Unreachable as error:
        if type(error) is not Unreachable:
            raise  # what the daemon says of a peer
        raise NoDaemon(f"the daemon that holds {holds} is gone: {error.message}") from error
