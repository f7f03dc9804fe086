"""A talk on a WebSocket: reads frames, has them answered, sends what there is, and wakes up.

An idle connection has no task. One is made when something arrives or is woken, and ends when there
is nothing left to do.

What is pushed is handed in without waiting for the answer to what was pushed before: so the next
group fills while this one is written. What comes in small frames is put together, and answers that
are ready at the same time leave in one frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.broker.accept import Outcome
from holdfast.broker.session import Pushed
from holdfast.protocol.frames import (
    Acks,
    Follow,
    FromBroker,
    FromNode,
    Hello,
    Item,
    MeshMoved,
    Push,
    Refusal,
    SnapshotNeeded,
    SnapshotWanted,
    Take,
    Unfollow,
    encode_frame,
    read_from_node,
)
from holdfast.rules import features, limits
from holdfast.rules.errors import BadAnswer
from holdfast.transport.websocket_server import WebSocketConnection

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

log = logging.getLogger("holdfast")

_SLICE: Final = 256
"""Items that are read in one turn of the loop: others wait meanwhile."""
_HALF_MIN: Final = 32
"""Fewer are not worth a commit of their own."""
_QUICK_S: Final = 0.002
"""About what it takes to read and answer a hundred of them."""
_CHANGES_FOLLOWING: Final = (Follow, Unfollow, Take)
_ENDS_FOLLOWING: Final = (MeshMoved, SnapshotNeeded, Refusal)


class Connection:
    """One node on the other end."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._session = broker.session(listener)
        self._frames: deque[tuple[FromNode, int]] = deque()
        self._out: list[FromBroker] = []
        self._items = self._bytes = 0
        """What was read and has no answer yet."""
        self._paused = False
        self._stopping = self._gone = False
        self._task: asyncio.Task[None] | None = None
        self._pushes = 0
        self._meshes: set[str] = set()
        self._queues: set[tuple[str, str]] = set()
        self._looked = self._caught_up = 0.0

    # --- the line ------------------------------------------------------------------------------

    def opened(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._broker.connections.add(self)
        self._broker.counts.opened += 1
        self._looked = self._caught_up = self._loop.time()
        self._hello_timer = self._loop.call_later(
            limits.HELLO_MS_MAX / limits.SECOND_MS, self._hello_late
        )
        socket.send([encode_frame(self._session.opening())])

    def _hello_late(self) -> None:
        if not self._session.key:
            self._socket.close(features.TOO_SLOW, "no hello came")

    def message(self, raw: bytes) -> None:
        if self._stopping:
            return
        try:
            frame = read_from_node(raw)
        except BadAnswer as error:
            self._socket.close(features.BAD_FRAME, error.message)
            return
        self._frames.append((frame, len(raw)))
        self._items += len(frame.items) if isinstance(frame, Push) else 1
        self._bytes += len(raw)
        self._hold_back()
        self._go()

    def room(self) -> None:
        self._hold_back()
        self._go()

    def stopping(self) -> None:
        """What was pushed is answered first; then the other side is told to come back later."""
        self._stopping = True
        self._end_if_idle()

    def closed(self, code: int) -> None:
        broker = self._broker
        self._gone = True
        self._hello_timer.cancel()
        broker.counts.closed[code] += 1
        broker.connections.discard(self)
        self._frames.clear()
        self._follow_exactly(set(), set())
        broker.in_background(self._ended())

    async def _ended(self) -> None:
        try:
            await self._session.ended()
        except Exception as error:
            # How far it got is told for people; it says so itself when it is back.
            log.warning("could not note how far %r is: %s", self._session.name, error)

    # --- the ear -------------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        return self._session.key

    def topics(self, mesh: str) -> Collection[str] | None:
        return self._session.topics(mesh)

    def subscribed(self, mesh: str, topic: str, *, on: bool) -> None:
        feed = self._session.feeds.by_mesh.get(mesh)
        if feed is not None:
            (feed.topics.add if on else feed.topics.discard)(topic)

    def wake(self, mesh: str, *, urgent: bool) -> None:
        self._session.feeds.news(mesh, urgent=urgent)
        self._go()

    def wake_queue(self, mesh: str, queue: str) -> None:
        self._session.queue_delivery.news(mesh, queue)
        self._go()

    def want_snapshot(self, mesh: str) -> None:
        self._send([SnapshotWanted(mesh)])

    @property
    def follows(self) -> Collection[str]:
        return self._meshes

    def tick(self) -> None:
        """About once a second."""
        session = self._session
        if not session.key or not self._socket.has_room:
            return
        self._send(session.feeds.passed_over())
        session.queue_delivery.look()
        now = self._loop.time()
        if (now - self._looked) * limits.SECOND_MS >= limits.FEED_LOOK_MS:
            self._looked = self._caught_up = now
            session.feeds.look()
        elif (now - self._caught_up) * limits.SECOND_MS >= limits.FEED_CATCH_UP_MS:
            self._caught_up = now
            session.feeds.look(self._broker.wakeups.last)
        self._go()

    # --- at work -------------------------------------------------------------------------------

    def _go(self) -> None:
        if self._task is None and (self._frames or self._may_page()):
            self._task = self._loop.create_task(self._work())

    def _may_page(self) -> bool:
        return self._socket.is_open and self._socket.has_room and self._session.eager

    async def _work(self) -> None:
        try:
            while self._socket.is_open:
                if self._frames:
                    await self._take_in()
                elif self._may_page():
                    out = await self._session.pages(limits.CONNECTION_UNREAD_BYTES)
                    self._send(out)
                    self._note_following(None, out)
                else:
                    break
                if self._session.closing is not None:
                    self._flush()
                    self._socket.close(*self._session.closing)
        except Exception:
            log.exception("a fault of ours while talking with %r", self._session.name)
            self._socket.close(features.INTERNAL, "something went wrong in this broker")
        finally:
            self._task = None
        self._end_if_idle()

    async def _take_in(self) -> None:
        frame, size = self._frames.popleft()
        if isinstance(frame, Push) and self._session.key:
            await self._take_push(frame, size)
            return
        try:
            out = await self._session.on_frame(frame)
        finally:
            self._answered(1, size)
        if isinstance(frame, Hello) and self._session.key:
            self._socket.proved()
        self._send(out)
        self._note_following(frame, out)

    async def _take_push(self, frame: Push, size: int) -> None:
        items = frame.items
        while self._frames and len(items) < _SLICE:
            after, more = self._frames[0]
            if (
                not isinstance(after, Push)
                or (after.mesh, after.epoch) != (frame.mesh, frame.epoch)
                or len(items) + len(after.items) > limits.PUSH_ITEMS_MAX
            ):
                break
            self._frames.popleft()
            items = [*items, *after.items]
            size += more
        if len(items) > limits.PUSH_ITEMS_MAX:
            self._session.closing = (features.TOO_LARGE, "so many items are too many for one push")
            return
        broker = self._broker
        quick = broker.apart and broker.accepting.took_s < _QUICK_S
        most = _most(len(items), by_halves=quick)
        # An empty push is answered too: whoever sent it waits.
        for at in range(0, max(1, len(items)), most):
            if at:
                await asyncio.sleep(0)
            self._push(frame.mesh, frame.epoch, items[at : at + most], 0 if at else size)

    def _push(self, mesh: str, epoch: int, items: list[Item], size: int) -> None:
        pushed = self._session.read_push(mesh, epoch, items)
        self._pushes += 1
        self._broker.accepting.take(pushed.good, partial(self._answer, pushed, size))

    def _answer(self, pushed: Pushed, size: int, outcomes: list[Outcome]) -> None:
        try:
            self._send([pushed.answered(outcomes)])
        except Exception:
            log.exception("a fault of ours while %r handed in", self._session.name)
            self._socket.close(features.INTERNAL, "something went wrong in this broker")
        finally:
            self._pushes -= 1
            self._answered(len(pushed.items), size)
            self._end_if_idle()

    # --- limits --------------------------------------------------------------------------------

    def _answered(self, items: int, size: int) -> None:
        self._items -= items
        self._bytes -= size
        self._hold_back()

    def _hold_back(self) -> None:
        """Nothing is read from one that waits for much, or does not read itself."""
        much = (
            self._items > limits.CONNECTION_ITEMS_MAX
            or self._bytes > limits.CONNECTION_BYTES_MAX
            or not self._socket.has_room
        )
        if much and not self._paused:
            self._paused = True
            self._socket.pause()
        elif self._paused and not much:
            self._paused = False
            self._socket.resume()

    def _end_if_idle(self) -> None:
        if self._stopping and not (self._pushes or self._frames or self._task):
            self._flush()
            self._socket.close(features.GOING_AWAY, "this broker stops")

    # --- sending -------------------------------------------------------------------------------

    def _send(self, frames: Iterable[FromBroker]) -> None:
        was_empty = not self._out
        self._out.extend(frames)
        if was_empty and self._out:
            # At the end of this turn: what else is ready by then goes along.
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._socket.send([encode_frame(frame) for frame in _joined(out)])

    # --- who wakes us --------------------------------------------------------------------------

    def _note_following(self, frame: FromNode | None, out: Iterable[FromBroker]) -> None:
        if self._gone:
            return  # it hung up while this was answered, and nobody is to be woken any more
        if isinstance(frame, _CHANGES_FOLLOWING) or any(
            isinstance(one, _ENDS_FOLLOWING) for one in out
        ):
            session = self._session
            self._follow_exactly(set(session.feeds.by_mesh), set(session.queue_delivery.by_queue))

    def _follow_exactly(self, meshes: set[str], queues: set[tuple[str, str]]) -> None:
        wakeups = self._broker.wakeups
        for mesh in self._meshes - meshes:
            wakeups.unfollow(mesh, self)
        for mesh in meshes - self._meshes:
            wakeups.follow(mesh, self, self._session.feeds.by_mesh[mesh].last)
        for at in self._queues - queues:
            wakeups.leave_queue(*at, self)
        for at in queues - self._queues:
            wakeups.take_from(*at, self)
        self._meshes, self._queues = meshes, queues


def _most(items: int, *, by_halves: bool) -> int:
    """How many of so many are read in one turn, and handed in together.

    A member that waits for answers before it sends more would have this process and that of the
    store take turns. So while the store is quick, each half of what it sends is read, or answered,
    while the other is written. Where a commit takes its time two of them would cost more than the
    turns do, and a store in this process would gain little.
    """
    wanted = (items + 1) // 2 if by_halves and items >= 2 * _HALF_MIN else items
    return max(1, min(_SLICE, wanted))


def _joined(frames: list[FromBroker]) -> list[FromBroker]:
    """Acks of one mesh that follow each other become one frame."""
    out: list[FromBroker] = []
    for frame in frames:
        last = out[-1] if out else None
        if (
            isinstance(frame, Acks)
            and isinstance(last, Acks)
            and (last.mesh, last.epoch) == (frame.mesh, frame.epoch)
        ):
            out[-1] = msgspec.structs.replace(last, answers=[*last.answers, *frame.answers])
        else:
            out.append(frame)
    return out
