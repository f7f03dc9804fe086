"""A broker of several processes: the parent of them all.

It holds the folder and the listeners, begins the processes anew and fresh (nothing is forked), and
hands every connection to the process that has the fewest. It reads nothing of what members send,
and has no store of its own after the start. A process that ends is begun again; the connections of
the others do not notice. If the parent itself is killed, its processes end with it.

The operator's calls, on the Unix socket, all go to one process: the console keeps there who has
logged in.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from holdfast.broker.broker import ticks_ms
from holdfast.broker.daemon import claim, open_store
from holdfast.broker.identity import Identity
from holdfast.broker.parent.child import ChildProcess, Command
from holdfast.broker.processes.place import ProcessPlace, SharedListener
from holdfast.broker.processes.turns import in_turn
from holdfast.broker.processes.words import Load, ProcessReply, Question, Ready, Reload, Stop
from holdfast.broker.settings import BrokerSettings
from holdfast.rules import limits
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import Unreachable
from holdfast.service.clock import SystemClock
from holdfast.service.instance_lock import DaemonLock, DaemonNote
from holdfast.service.lifecycle import OnEvent, Service, silent
from holdfast.service.listeners import bind_listeners
from holdfast.storage.files.home import HomePaths
from holdfast.transport.listeners import Listener

log = logging.getLogger("holdfast")

SECRET_BYTES: Final = 32
_BACKLOG: Final = 1024
_NOBODY_S: Final = 0.1


class BrokerProcesses(Service):
    """The parent of the processes of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        command: Command,
        *,
        log_level: str,
        log_format: str,
        on_event: OnEvent = silent,
        on_overtime: Callable[[], None] | None = None,
    ) -> None:
        """`command` begins a process, which reads its place from stdin."""
        super().__init__(on_event, on_overtime)
        self._settings, self._command = settings.check(), command
        self._log = log_level, log_format
        self._secret = os.urandom(SECRET_BYTES)
        self._children: dict[int, ChildProcess] = {}
        self._listeners: list[Listener] = []
        self._identity: Identity | None = None
        self._last = 0
        self._ending = False
        self._waits: set[asyncio.TimerHandle] = set()

    @property
    def pids(self) -> dict[int, int]:
        """The processes that live now, by number."""
        return {
            number: child.process.pid
            for number, child in self._children.items()
            if not child.is_gone
        }

    # --- starting ----------------------------------------------------------------------------

    async def _start(self, ending: AsyncExitStack) -> None:
        settings = self._settings
        self._identity = await asyncio.to_thread(Identity, settings.store, settings.name)
        paths = HomePaths(settings.store)
        lock = DaemonLock(paths, what="a broker", end="end it first")
        ending.callback(lock.close)
        ending.callback(self._tell_stopped)
        await self._prepare(self._identity)
        self._listeners, _ = bind_listeners(paths, settings, ending)
        self.addresses[:] = [listener.address for listener in self._listeners]
        for listener in self._listeners:
            assert isinstance(listener.socket, socket.socket), "they are its own"
            listener.socket.setblocking(False)
            listener.socket.listen(_BACKLOG)
        children = [self._begin(number) for number in range(1, settings.processes + 1)]
        lives = [asyncio.create_task(self._keep(child)) for child in children]
        ending.push_async_callback(self._end_processes, lives)
        await self._all_ready(children, lives)
        self._open_doors(ending)
        lock.write(DaemonNote(os.getpid(), self.addresses))
        self._in_background(self._look_after(), ending)
        self._start_watchdog(ending)

    async def _prepare(self, identity: Identity) -> None:
        """What can go wrong with the database goes wrong here, once, and is told by the parent."""
        store = open_store(self._settings)
        await store.open(SystemClock().now_ms())
        try:
            await claim(store, identity, self._settings)
            await store.set_mode(*self._settings.mode)
        finally:
            await store.close()

    async def _all_ready(
        self, children: list[ChildProcess], lives: list[asyncio.Task[None]]
    ) -> None:
        everyone = asyncio.gather(*(child.ready.wait() for child in children))
        try:
            waited: list[asyncio.Future[Any]] = [everyone, *lives]
            await asyncio.wait(
                waited,
                timeout=limits.PROCESS_START_MS_MAX / limits.SECOND_MS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for life in lives:
                if life.done():
                    life.result()
            if not everyone.done():
                raise Unreachable("a process of the broker takes too long to start")
        finally:
            everyone.cancel()
            await asyncio.gather(everyone, return_exceptions=True)

    def _tell_ready(self) -> None:
        assert self._identity is not None
        self._tell_serving(
            {
                "store": str(self._settings.store),
                "database": "postgresql",
                "name": self._identity.name,
                "card": self._identity.card(),
                "processes": self._settings.processes,
            }
        )

    # --- processes ---------------------------------------------------------------------------

    async def _keep(self, child: ChildProcess) -> None:
        """Begins a process again whenever it has ended. Raises if it was never ready."""
        number, failed = child.number, 0
        code = await self._live(child)
        if not child.ready.is_set() and not self._ending:
            raise Unreachable(
                f"process {number} of the broker did not start: it {_how(code)}",
                hint="what it said stands above",
            )
        while not self._ending:
            if ticks_ms() - child.begun >= limits.PROCESS_STEADY_MS:
                failed = 0
            failed += 1
            wait_ms = backoff_ms(failed, random.random())
            log.error(
                "process %d (%d) %s; it is begun again in %d ms",
                *(number, child.process.pid, _how(code), wait_ms),
            )
            await asyncio.sleep(wait_ms / limits.SECOND_MS)
            if self._ending:
                return  # nobody would end it, or wait for it
            try:
                child = self._begin(number)
            except OSError as error:  # no room for one more process, or no file descriptor
                log.error("process %d is not begun: %s", number, error)
                continue
            code = await self._live(child)

    def _begin(self, number: int) -> ChildProcess:
        settings = self._settings

        def place(doors: list[int], line: int) -> ProcessPlace:
            level, form = self._log
            return ProcessPlace(
                number=number,
                parent=os.getpid(),
                settings=settings,
                secret=self._secret,
                listeners=[
                    SharedListener(one.kind, one.address, fd)
                    for one, fd in zip(self._listeners, doors, strict=True)
                ],
                line_fd=line,
                log_level=level,
                log_format=form,
            )

        child = ChildProcess(self._command, place, len(self._listeners))
        self._children[number] = child
        return child

    async def _live(self, child: ChildProcess) -> int:
        """Hears what a process says until it has ended; its exit code."""
        try:
            line = await child.hear()
            while (word := await line.hear()) is not None:
                child.heard = ticks_ms()
                if isinstance(word, Ready):
                    child.ready.set()
                elif isinstance(word, Load):
                    child.connections, child.taken = word.connections, word.taken
                elif isinstance(word, Question | ProcessReply):
                    self._pass_on(word)
        except asyncio.CancelledError:
            child.process.kill()
            raise
        child.is_gone = True
        # It says nothing any more: whatever it does still, nobody will know.
        if not self._ending:
            child.process.kill()
        return await child.gone()

    def _pass_on(self, word: Question | ProcessReply) -> None:
        other = self._children.get(word.to)
        if other is not None and other.line is not None and other.serves:
            other.line.say(word)
        elif isinstance(word, Question):
            self._pass_on(ProcessReply(word.number, word.sender, None))

    async def _look_after(self) -> None:
        """Ends a process whose loop does not turn any more."""
        while True:
            await asyncio.sleep(limits.PROCESS_LOAD_MS / limits.SECOND_MS)
            for number, child in self._children.items():
                silent_ms = ticks_ms() - child.heard
                if silent_ms > limits.PROCESS_SILENT_MS_MAX and child.process.poll() is None:
                    log.error(
                        "process %d has said nothing for %d ms: it is ended", number, silent_ms
                    )
                    child.process.kill()

    # --- connections -------------------------------------------------------------------------

    def _open_doors(self, ending: AsyncExitStack) -> None:
        for door, listener in enumerate(self._listeners):
            self._open_door(door, listener)
            ending.callback(self._close_door, listener)

    def _open_door(self, door: int, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(listener.socket, partial(self._accept, door, listener))

    def _close_door(self, listener: Listener) -> None:
        asyncio.get_running_loop().remove_reader(listener.socket)
        for wait in self._waits:
            wait.cancel()

    def _accept(self, door: int, listener: Listener) -> None:
        if not any(child.serves for child in self._children.values()):
            self._pause(door, listener)  # whoever calls waits until somebody is there
            return
        try:
            connection, _ = listener.socket.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the client closed it in the queue, or no file descriptor is left
            self._pause(door, listener)
            return
        with connection:
            if not self._hand(door, listener.kind, connection):
                # Closed, as by a process that has too many; those behind it wait for a moment.
                self._pause(door, listener)

    def _hand(self, door: int, kind: str, connection: socket.socket) -> bool:
        loads = {number: child.load for number, child in self._children.items() if child.serves}
        order = sorted(loads) if kind == "unix" else in_turn(loads, self._last)
        # Where nothing is said any more, a connection may wait for nobody.
        order.sort(key=lambda number: self._children[number].is_quiet)
        for number in order:
            if self._children[number].hand(door, connection):
                if kind != "unix":
                    self._last = number
                return True
        return False

    def _pause(self, door: int, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.socket)

        def again() -> None:
            self._waits.discard(handle)
            self._open_door(door, listener)

        handle = loop.call_later(_NOBODY_S, again)
        self._waits.add(handle)

    # --- ending ------------------------------------------------------------------------------

    async def reload(self) -> None:
        """Lets every process read a renewed certificate."""
        for child in self._children.values():
            if child.line is not None:
                child.line.say(Reload())

    async def _end_processes(self, lives: list[asyncio.Task[None]]) -> None:
        """Asks all of them to end, and waits. One that hears nothing, because it was stopped, would
        stay behind.
        """
        self._ending = True
        patience_s = limits.PROCESS_END_MS_MAX / limits.SECOND_MS
        late = asyncio.get_running_loop().call_later(patience_s, self._kill_the_rest)
        for child in self._children.values():
            if child.line is not None and child.serves:
                child.line.say(Stop())
            else:
                child.process.kill()
        await asyncio.gather(*(child.gone() for child in self._children.values()))
        late.cancel()
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)

    def _kill_the_rest(self) -> None:
        for number, pid in self.pids.items():
            log.error("process %d (%d) did not end: it is killed", number, pid)
            self._children[number].process.kill()


def _how(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def process_command(module: str) -> list[str]:
    """What begins a process in this Python."""
    return [sys.executable, "-m", module]
