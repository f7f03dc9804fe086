"""A session on a WebSocket: the shell that carries out what `session` decides.

An idle connection has no task. One is made when something arrives or is woken, and ends when there
is nothing left to do; a push of a member needs none. Answers that are ready in the same turn of the
loop leave in one frame, and the last answer that the other side waits for leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from holdfast.broker.effects import Accept, Effect, HangUp, Listen, Proved, SendFrames
from holdfast.broker.pushes.push_frame import PackedAcks, encoded
from holdfast.broker.verdicts import Outcome
from holdfast.protocol.frames import Acks, FromBroker, encode_frame
from holdfast.rules import close_codes, limits
from holdfast.transport.websocket_server import WebSocketConnection

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

log = logging.getLogger("holdfast")


class Connection:
    """One node on the other end."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._session = broker.session(listener)
        self._out: list[FromBroker | PackedAcks] = []
        self._paused = False
        self._gone = False
        self._task: asyncio.Task[None] | None = None
        self._reading = False
        """A push is read in the next turn of the loop."""
        self._meshes: frozenset[str] = frozenset()
        self._queues: frozenset[tuple[str, str]] = frozenset()

    # --- the line ------------------------------------------------------------------------------

    def opened(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._broker.connections.add(self)
        self._broker.counts.opened += 1
        self._hello_timer = self._loop.call_later(
            limits.HELLO_MS_MAX / limits.SECOND_MS, self._hello_late
        )
        socket.send([encode_frame(self._session.opening())])

    def _hello_late(self) -> None:
        self._carry_out(self._session.hello_late())

    def message(self, raw: bytes) -> None:
        self._carry_out(self._session.receive(raw))
        self._hold_back()
        self._go()

    def room(self) -> None:
        self._hold_back()
        self._go()

    def stopping(self) -> None:
        """Everything that was pushed is answered before the connection is closed."""
        self._carry_out(self._session.stop())

    def replaced(self) -> None:
        """A newer connection of this member takes its place."""
        self._carry_out(self._session.replaced())

    def closed(self, code: int) -> None:
        broker = self._broker
        self._gone = True
        self._hello_timer.cancel()
        broker.counts.closed[code] += 1
        broker.closed(self)
        self._listen(Listen(frozenset(), frozenset()))
        broker.in_background(self._ended())

    async def _ended(self) -> None:
        try:
            await self._session.ended()
        except Exception as error:
            # Operators read there how far it is; the node itself says so again when it is back.
            log.warning("could not note how far %r is: %s", self._session.name, error)

    # --- what wakes it -------------------------------------------------------------------------

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
        self._carry_out(self._session.want_snapshot(mesh))

    @property
    def follows(self) -> Collection[str]:
        return self._meshes

    def tick(self) -> None:
        """About once a second."""
        if self._socket.has_room:
            now_ms = int(self._loop.time() * limits.SECOND_MS)
            self._carry_out(self._session.tick(now_ms, self._broker.wakeups.last))
            self._go()

    # --- at work -------------------------------------------------------------------------------

    def _go(self) -> None:
        if self._task is not None or self._reading or not self._has_work():
            return
        if self._session.has_plain_push:
            # With the next turn: what arrives together is read together.
            self._reading = True
            self._loop.call_soon(self._read)
        else:
            self._task = self._loop.create_task(self._work())

    def _read(self) -> None:
        """Reads a push without a task, which would cost a lone one more than its reading."""
        self._reading = False
        try:
            if self._has_work() and self._session.has_plain_push:
                self._carry_out(self._session.push_step())
                self._hold_back()
        except Exception:
            self._fault("talked with it")
        self._go()

    def _has_work(self) -> bool:
        # Every frame may need an answer: none is looked at while there is no room for one.
        line = self._socket
        return line.is_open and line.has_room and self._session.has_work(may_page=True)

    async def _work(self) -> None:
        try:
            while self._has_work():
                if self._session.in_push:
                    await asyncio.sleep(0)
                self._carry_out(await self._session.step())
                self._hold_back()
        except Exception:
            self._fault("talked with it")
        finally:
            self._task = None

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrames():
                    self._send(effect.frames)
                case Accept():
                    answered = partial(self._accepted, effect)
                    self._broker.accepting.take(effect.slice.good, answered)
                case Listen():
                    if not self._gone:  # else it hung up meanwhile, and nothing wakes it any more
                        self._listen(effect)
                case Proved():
                    if not self._gone:
                        self._broker.proved(self)
                    self._socket.proved(member=effect.member)
                case HangUp():
                    self._flush()
                    self._hang_up(effect)

    def _hang_up(self, end: HangUp) -> None:
        if not end.wait_ms:
            self._socket.close(end.code, end.reason)
            return
        self._paused = True
        self._socket.pause()
        close = partial(self._socket.close, end.code, end.reason)
        self._loop.call_later(end.wait_ms / limits.SECOND_MS, close)

    def _accepted(self, accept: Accept, outcomes: Sequence[Outcome]) -> None:
        try:
            self._carry_out(self._session.accepted(accept, outcomes))
            if not self._session.items:
                self._flush()  # it waits for nothing more, and may wait with its next push
            self._hold_back()
        except Exception:
            self._fault("answered its push")

    def _fault(self, doing: str) -> None:
        log.exception("a fault of ours while this broker %s: %r", doing, self._session.name)
        self._socket.close(close_codes.INTERNAL, "something went wrong in this broker")

    def _hold_back(self) -> None:
        """Reads nothing more while too much waits for an answer, or the other side does not read
        what it was sent.
        """
        much = self._session.is_full or self._session.has_ended or not self._socket.has_room
        if much and not self._paused:
            self._paused = True
            self._socket.pause()
        elif self._paused and not much:
            self._paused = False
            self._socket.resume()

    def _send(self, frames: Iterable[FromBroker | PackedAcks]) -> None:
        was_empty = not self._out
        self._out.extend(frames)
        if was_empty and self._out:
            # At the end of this turn: what else is ready by then goes along.
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._socket.send([encoded(frame) for frame in _joined(out)])

    def _listen(self, to: Listen) -> None:
        wakeups = self._broker.wakeups
        for mesh in self._meshes - to.meshes:
            wakeups.unfollow(mesh, self)
        for mesh in to.meshes - self._meshes:
            wakeups.follow(mesh, self, self._session.feeds.by_mesh[mesh].last)
        for at in self._queues - to.queues:
            wakeups.leave_queue(*at, self)
        for at in to.queues - self._queues:
            wakeups.take_from(*at, self)
        self._meshes, self._queues = to.meshes, to.queues


def _joined(frames: list[FromBroker | PackedAcks]) -> list[FromBroker | PackedAcks]:
    """Acks of one mesh that follow each other become one frame."""
    out: list[FromBroker | PackedAcks] = []
    for (kind, *_), those in groupby(frames, _joins):
        alike = list(those)
        first, rest = alike[0], alike[1:]
        if kind is None or not rest:
            out += alike
        elif isinstance(first, PackedAcks):
            out.append(first.followed_by([one for one in rest if isinstance(one, PackedAcks)]))
        else:
            answers = [answer for one in alike if isinstance(one, Acks) for answer in one.answers]
            out.append(msgspec.structs.replace(first, answers=answers))
    return out


def _joins(frame: FromBroker | PackedAcks) -> tuple[type[Acks] | type[PackedAcks] | None, str, int]:
    """Frames of which this is the same may become one."""
    if isinstance(frame, Acks | PackedAcks):
        return type(frame), frame.mesh, frame.epoch
    return None, "", 0
