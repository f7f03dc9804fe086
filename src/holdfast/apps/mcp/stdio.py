"""`holdfast mcp`: the server for agents on the standard streams of a process.

While it runs, only the protocol is written to the stream that the client reads: the SDK takes the
descriptor for itself and points stdout at stderr, so that nothing else can get in between.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from holdfast.apps.mcp.reach import OwnReach
from holdfast.storage.files.home import HomePaths

if TYPE_CHECKING:
    from holdfast.apps.mcp.server import Context
    from holdfast.node.library.node import Node
    from holdfast.node.remote.opening import Place


class OwnReaches:
    """Over stdio every call is of one user."""

    def __init__(self, reach: OwnReach, mesh: str | None) -> None:
        self._reach, self.mesh = reach, mesh

    def of(self, ctx: Context) -> OwnReach:
        return self._reach

    def may_still(self, ctx: Context) -> Callable[[str], bool]:
        return lambda mesh: True


def serve(home: HomePaths | None, place: Place | None, mesh: str | None) -> None:
    """Serves until stdin ends. The home, or what a context names, is opened while the SDK loads."""
    _log_to_stderr()
    reach = OwnReach(home, place)
    reach.open_ahead()
    from holdfast.apps.mcp.server import AgentServer

    server = AgentServer(OwnReaches(reach, mesh), lambda: _followed(home, place))
    try:
        anyio.run(_serve, server, reach)
    except BaseExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is not None:
            raise
        raise BrokenPipeError from None  # the client has gone: nobody is left to be told more
    finally:
        reach.close()


async def _serve(server: object, reach: OwnReach) -> None:
    from mcp.server.stdio import stdio_server

    from holdfast.apps.mcp.server import AgentServer

    assert isinstance(server, AgentServer)
    _end_at_signals(reach)
    async with stdio_server() as (read, write):
        try:
            await server.sdk.run(read, write, server.sdk.create_initialization_options())
        finally:
            server.end_streams()


def _end_at_signals(reach: OwnReach) -> None:
    """Ctrl-C and SIGTERM end the process at once. A thread of the SDK reads stdin, which nothing
    can break off: whoever waited for it would wait for the client's next line.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def end(number: int) -> None:
        try:
            reach.close()
        finally:
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)


@contextmanager
def _followed(home: HomePaths | None, place: Place | None) -> Iterator[Node]:
    """A node of its own for the feed of updates. A home is opened beside its daemon, so that its
    log can be followed whether a daemon serves it or not.
    """
    if home is not None:
        from holdfast.node.library.node import open_node

        with open_node(home.root) as node:
            yield node
        return
    assert place is not None, "there is a home or a place"
    from holdfast.node.remote.opening import connect_at

    with connect_at(place) as node:
        yield node


def _log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s"
    )
