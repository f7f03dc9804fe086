"""Carries out the effects of a conversation in the daemon: a WebSocket, threads, and a timer.

Work on the store and calls over HTTP run in threads, so that the loop is never held up; their ends
come back into the loop one by one. Frames leave in the order in which they were given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from time import monotonic
from typing import Any

from holdfast.node.sync.conversation import Conversation
from holdfast.node.sync.driver import Driver, Ended
from holdfast.node.sync.effects import (
    BrokerCall,
    Close,
    Effect,
    NoteActive,
    NoteConnected,
    NoteSilence,
    Send,
    StoreWork,
)
from holdfast.node.sync.http_side import BrokerRequests
from holdfast.node.sync.session import SyncSession
from holdfast.node.sync.status import BrokerStatusTracker
from holdfast.protocol.frames import encode_frame
from holdfast.rules.broker_sync import settled
from holdfast.rules.limits import SECOND_MS
from holdfast.transport.websocket_client import WebSocketClient


class ConnectionPort:
    """One connection. All of it belongs to the loop's thread."""

    def __init__(
        self,
        talk: Conversation,
        session: SyncSession,
        requests: BrokerRequests,
        socket: WebSocketClient,
        tracker: BrokerStatusTracker,
        threads: Executor,
        callers: Executor,
    ) -> None:
        """`threads` work on the store, `callers` wait for the broker."""
        self.talk, self.driver = talk, Driver(talk, self)
        self.requests = requests
        self._session, self._socket, self._board = session, socket, tracker
        self._threads, self._callers = threads, callers
        self._loop = asyncio.get_running_loop()
        self._out: asyncio.Queue[tuple[Send, Ended]] = asyncio.Queue()
        self._store_work: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.over: asyncio.Future[Close] = self._loop.create_future()
        """How the conversation ended."""

    async def run(self) -> Close:
        """Until it is over."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            self.driver.begin()
            return await asyncio.shield(self.over)
        finally:
            self.driver.is_over = True
            self.over.cancel()
            self.wake_at(None)
            for task in tasks:
                task.cancel()

    async def hang_up(self, close: Close) -> None:
        """Ends all that is under way. What was in flight is pending again when this returns."""
        self.requests.end()
        await self._socket.close(close.code, close.reason)
        if self._store_work:
            await asyncio.wait(self._store_work)
        await self._loop.run_in_executor(self._threads, self._session.dropped, close.error)
        await self._loop.run_in_executor(self._callers, self.requests.close)

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                raw = await self._socket.receive()
                self.driver.feed(partial(self.talk.on_frame, raw))
        except Exception as error:
            self.driver.lost(error)

    async def _write(self) -> None:
        try:
            while True:
                send, ended = await self._out.get()
                for frame in send.frames:
                    await self._socket.send(encode_frame(frame))
                ended(None)
        except Exception as error:
            self.driver.lost(error)

    # --- what the driver asks for --------------------------------------------------------------

    def begin(self, effect: Effect, ended: Ended) -> None:
        match effect:
            case Send():
                self._out.put_nowait((effect, ended))
            case StoreWork() if effect.inline:
                ended(_result_of(lambda: effect.run(self._session)))
            case StoreWork():
                work = self._in_thread(self._threads, effect.run, self._session, ended)
                self._store_work.add(work)
                work.add_done_callback(self._store_work.discard)
            case BrokerCall():
                self._in_thread(self._callers, effect.run, self.requests, ended)
            case _:
                self._note(effect)
                ended(None)

    def wake_at(self, ticks_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if ticks_ms is not None:
            wait_s = max(0.0, ticks_ms / SECOND_MS - monotonic())
            self._timer = self._loop.call_later(wait_s, self.driver.on_time)

    def hold_back(self, full: bool) -> None:
        if full:
            self._may_read.clear()
        else:
            self._may_read.set()

    def close(self, close: Close) -> None:
        if not self.over.done():
            self.over.set_result(close)

    def _note(self, effect: Effect) -> None:
        tracker = self._board
        match effect:
            case NoteConnected():
                tracker.connected()
            case NoteActive():
                tracker.active()
            case NoteSilence():
                silent_ms = self._session.engine.ctx.now_ms() - tracker.active_at
                tracker.enter(settled(tracker.state, silent_ms, effect.waiting))

    def _in_thread(
        self, pool: Executor, run: Callable[[Any], Any], port: Any, ended: Ended
    ) -> asyncio.Future[Any]:
        work = self._loop.run_in_executor(pool, run, port)
        work.add_done_callback(lambda work: ended(_result_of(work.result)))
        return work


def _result_of(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error
