"""Running something that serves, a daemon or a broker, in an event loop of its own until a signal
ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Protocol

from holdfast.rules import limits

log = logging.getLogger("holdfast")


class Runs(Protocol):
    """What runs until it is asked to stop: a daemon, or a broker."""

    def stop(self) -> None: ...
    async def run(self) -> None: ...


async def serve(daemon: Runs) -> int:
    """Runs a daemon until a signal ends it, and returns the exit code. A second one ends it at
    once.
    """
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def on_signal(number: int) -> None:
        if came:
            end_process()
        came.append(number)
        daemon.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    await daemon.run()
    return 130 if came and came[0] == signal.SIGINT else 0


def run(make: Callable[[], Runs], connections: int = limits.CONNECTIONS_MAX) -> int:
    """Makes a daemon in an event loop of its own and runs it to its end."""

    async def main() -> int:
        return await serve(make())

    _allow_connections(connections)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main())


def _allow_connections(most: int) -> None:
    """As many open files as the connections that we take, where the system lets us."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * most
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def end_process() -> None:
    """At once, as a crash would: the next start checks the database."""
    log.error("ending took too long or was asked for twice; the next start checks the database")
    os._exit(1)
