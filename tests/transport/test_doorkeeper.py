"""Whoever is accepted is let in or closed, whenever the door is shut."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from holdfast.transport.doorkeeper import Doorkeeper


class Goodbye(asyncio.Protocol):
    """Lets nobody stay."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.parametrize("turns", range(8))
def test_D10_a_connection_that_comes_while_the_door_is_shut_is_closed(turns: int) -> None:
    """The door is shut so many turns of the loop after a client has knocked."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            door = Doorkeeper(listening, Goodbye, None, (), 10)
            await asyncio.sleep(0)  # it listens
            with socket.create_connection(listening.getsockname()):
                for _ in range(turns):
                    await asyncio.sleep(0)
                door.close()
                await door.wait_closed()
                await asyncio.sleep(0)  # a transport closes its socket with the next turn

    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(story())
        gc.collect()
    assert [str(one.message) for one in left] == []
