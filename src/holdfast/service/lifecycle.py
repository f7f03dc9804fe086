"""Running something that serves, a daemon or a broker, in an event loop of its own until a signal
ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

from holdfast.rules import limits
from holdfast.service.systemd import READY, STOPPING, WATCHDOG, Notifier

log = logging.getLogger("holdfast")

OnEvent = Callable[[str, dict[str, Any]], None]
"""Gets every event with its document: `ready`, `stopping`, `stopped`; of a daemon also `link`,
`broker` and `disk`. It is called in any thread, so it must be quick and thread-safe."""


def silent(event: str, document: dict[str, Any]) -> None:
    """An `OnEvent` that ignores all events."""


class Service(ABC):
    """A process that serves until it is asked to stop: a daemon, or a broker. Ending has its time;
    what has not ended by then is left as a crash would leave it.
    """

    def __init__(
        self, on_event: OnEvent = silent, on_overtime: Callable[[], None] | None = None
    ) -> None:
        """`on_overtime` is called, in a thread, when ending took too long; as a rule it ends the
        process.
        """
        self._on_event = on_event
        self._notifier = Notifier()
        self.addresses: list[str] = []
        """Where it listens."""
        self._on_overtime = on_overtime or end_process
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Asks it to end; from the loop's own thread."""
        self._stop.set()

    async def run(self) -> None:
        """Serves until it is asked to stop."""
        overtime: threading.Timer | None = None
        try:
            async with AsyncExitStack() as ending:
                await self._start(ending)
                self._tell_ready()
                await self._stop.wait()
                overtime = threading.Timer(limits.SHUTDOWN_MS_MAX / 1000, self._on_overtime)
                overtime.daemon = True
                overtime.start()
                self._tell_stopping()
        finally:
            # Where it would end the process it stays set until the process has ended: a thread
            # that hangs in a read would otherwise keep it for ever.
            if overtime is not None and self._on_overtime is not end_process:
                overtime.cancel()

    @abstractmethod
    async def reload(self) -> None:
        """Reads again what may change while it serves, and logs what came of it. For SIGHUP."""

    @abstractmethod
    async def _start(self, ending: AsyncExitStack) -> None:
        """Starts to serve. `ending` gets what undoes each step, and undoes them in reverse."""

    @abstractmethod
    def _tell_ready(self) -> None: ...

    def _tell_serving(self, document: dict[str, Any]) -> None:
        """Tells that the service is ready; `document` names it."""
        self._on_event("ready", {**document, "pid": os.getpid(), "listening": self.addresses})
        self._notifier.tell(READY, f"STATUS=serving {', '.join(self.addresses)}")

    def _tell_stopping(self) -> None:
        self._notifier.tell(STOPPING)
        self._on_event("stopping", {})

    def _tell_stopped(self) -> None:
        if self._stop.is_set():
            self._on_event("stopped", {})

    def _in_background(self, work: Coroutine[Any, Any, None], ending: AsyncExitStack) -> None:
        task = asyncio.create_task(work)

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        ending.push_async_callback(end)

    def _start_watchdog(self, ending: AsyncExitStack) -> None:
        """Tells the service manager that the loop turns, if it wants to know."""

        async def watchdog(every_s: float) -> None:
            while True:
                self._notifier.tell(WATCHDOG)
                await asyncio.sleep(every_s)

        if self._notifier.watchdog_s is not None:
            self._in_background(watchdog(self._notifier.watchdog_s), ending)


async def serve(daemon: Service) -> int:
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

    at_terminal = os.isatty(0)
    reloading: set[asyncio.Task[None]] = set()

    def on_hangup() -> None:
        if at_terminal:
            on_signal(signal.SIGHUP)  # the terminal is closed, and nobody else ends us
            return
        task = loop.create_task(daemon.reload())
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    await daemon.run()
    return 130 if came and came[0] == signal.SIGINT else 0


def run(make: Callable[[], Service], connections: int = limits.CONNECTIONS_MAX) -> int:
    """Makes a daemon in an event loop of its own and runs it to its end."""

    async def main() -> int:
        return await serve(make())

    _allow_connections(connections)
    # The store's thread comes back from the disk many times in each group, and every time it would
    # wait for this long while the loop is at work. The process is ours: no program's is changed.
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(limits.SWITCH_US / 1_000_000)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(main())
    finally:
        sys.setswitchinterval(usual_s)


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
