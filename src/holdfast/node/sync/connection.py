"""One broker at work: a WebSocket that is kept open, for all meshes that are shared through it.

    connect ─► hello ─► follow every mesh ─► talk until something breaks

The supervisor runs that again and again, after the waits that `rules.broker_sync` says. Work on
the store and calls over HTTP run in threads, so that the loop is never held up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import monotonic
from typing import Any, TypeVar

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.sync.http_side import BrokerHttpRequests
from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.mesh_tasks import MeshTasks
from holdfast.node.sync.session import BrokerAddress, SyncSession
from holdfast.node.sync.status import BrokerStatusTracker
from holdfast.node.trust.trust import Trust
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Entries,
    FromBroker,
    FromNode,
    MeshMoved,
    QueueMessage,
    Refusal,
    SnapshotNeeded,
    SnapshotWanted,
    Urgent,
    Welcome,
    encode_frame,
    read_from_broker,
)
from holdfast.rules import features
from holdfast.rules.backoff import longest_ms
from holdfast.rules.broker_sync import SyncPlan, SyncState, after_error, settled
from holdfast.rules.errors import BadAnswer, HoldfastError, Unreachable, ZoneNotTrusted
from holdfast.rules.features import CLOSE_CODES, close_code
from holdfast.rules.limits import HELLO_MS_MAX, SECOND_MS, SEEN_MS, SYNC_CLOSE_MS_MAX, SYNC_LOOK_MS
from holdfast.rules.outbox import PARK, Policies
from holdfast.storage.ports import Transaction
from holdfast.transport.websocket_client import HungUp, WebSocketClient

log = logging.getLogger("holdfast")

T = TypeVar("T")
F = TypeVar("F", Challenge, Welcome)

PATH = "/v1/sync"
_BY_CLOSE_CODE = {code: kind for kind, code in CLOSE_CODES.items()}
_QUIET_S = 0.005


class BrokerConnection:
    """One broker. Everything here belongs to the loop's thread."""

    def __init__(
        self,
        engine: NodeEngine,
        trust: Trust,
        broker: BrokerAddress,
        board: BrokerStatusTracker,
        *,
        threads: Executor,
        callers: Executor,
        policies: Policies = PARK,
        max_age_hours: int | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._engine, self._trust, self._chance = engine, trust, chance
        self._threads, self._callers = threads, callers
        self.board = board
        self.sync = SyncSession(
            engine, trust, broker, policies=policies, max_age_hours=max_age_hours, chance=chance
        )
        self._broker = broker
        self._lanes: dict[str, MeshTasks] = {}
        self._socket: WebSocketClient | None = None
        self._side: BrokerHttpRequests | None = None
        self._group: asyncio.TaskGroup | None = None
        self._stopping = False
        self._in_vain = 0
        self._offered: dict[str, dict[str, Any]] = {}

    # --- from outside ------------------------------------------------------------------------

    @property
    def meshes(self) -> dict[str, MeshState]:
        return self.sync.meshes

    def wake(self) -> None:
        """Something was written."""
        for lane in self._lanes.values():
            lane.wake()

    async def look(self) -> None:
        """The meshes have changed: new ones are followed, a pause begins or ends."""
        if self._group is None or self._stopping:
            return
        told = await self._run(self.sync.look)
        if self._group is None:
            return  # the line broke meanwhile; the next one begins with what is shared then
        self._open_lanes()
        await self._send(told)
        self.wake()

    async def end(self) -> None:
        """Sends nothing more, and waits a moment for answers that are on their way."""
        self._stopping = True
        for lane in self._lanes.values():
            lane.closing = True
            lane.wake()
        until = monotonic() + SYNC_CLOSE_MS_MAX / SECOND_MS
        while self._lanes and monotonic() < until:
            if all(lane.is_quiet for lane in self._lanes.values()):
                break
            await asyncio.sleep(_QUIET_S)
        if self._side is not None:
            self._side.end()

    # --- what the supervisor asks ------------------------------------------------------------

    async def run(self) -> None:
        """One connection, until something breaks it."""
        try:
            await self._talk()
        except Exception as error:
            raise self._meant(error) from None

    def plan(self, error: Exception, attempts: int, jitter: float) -> SyncPlan:
        """What follows from an error. A broker that greets us and then refuses something is met
        again and again by connections that began well: those failures count too.
        """
        before = self._in_vain
        refused = isinstance(error, HoldfastError) and not isinstance(error, Unreachable)
        self._in_vain = before + 1 if refused else 0
        return after_error(error, max(attempts, before if refused else 0), jitter)

    def _meant(self, error: Exception) -> Exception:
        """What an error means to us: the first of several, and a close code as what it says."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, HungUp):
            return error
        kind = _BY_CLOSE_CODE.get(error.code)
        if kind is not None:
            self._tell_terms(error.code)
            return kind(str(error))
        if error.code == features.NOT_TRUSTED:
            return ZoneNotTrusted(str(error), hint="the broker does not believe who we are")
        return Unreachable(str(error))

    # --- one connection ----------------------------------------------------------------------

    async def _talk(self) -> None:
        if self.board.state is SyncState.ACTIVE or self.board.state is SyncState.IDLE:
            self.board.enter(SyncState.RECONNECTING)
        self._side = BrokerHttpRequests(self._engine, self._trust, self._broker)
        self._socket = socket = await WebSocketClient.open(self._broker.url, PATH)
        try:
            await self._greet(socket)
            self.board.connected()
            async with asyncio.TaskGroup() as self._group:
                self._open_lanes()
                self._group.create_task(self._read_on(socket))
                self._group.create_task(self._watch_on())
        finally:
            self._group, self._lanes = None, {}
            self._side.end()
            # Shielded: what was in flight must be pending again, however this ends.
            await asyncio.shield(self._hang_up(socket, self._side))

    async def _hang_up(self, socket: WebSocketClient, side: BrokerHttpRequests) -> None:
        for mesh in self.meshes.values():
            self.board.counted(mesh)
        await socket.close(features.GOING_AWAY if self._stopping else 1000)
        self._socket = None
        await self._run(self.sync.dropped)
        await self._call(side.close)

    async def _greet(self, socket: WebSocketClient) -> None:
        challenge = await self._expect(socket, Challenge)
        self._offered = challenge.supported
        try:
            hello = await self._run(self.sync.hello, challenge, socket.certificate)
        except HoldfastError as error:
            if type(error) in CLOSE_CODES:
                self._tell_terms(close_code(error))
                await socket.close(close_code(error), error.message)
            raise
        await socket.send(encode_frame(hello))
        welcome = await self._expect(socket, Welcome)
        told = await self._run(self.sync.welcomed, welcome)
        await self._send(told)

    def _tell_terms(self, code: int) -> None:
        """All that was offered and is needed: without it nobody can tell why."""
        log.warning(
            "no agreement with broker %s (%d): it offers %r, this node needs %r",
            self._broker.name,
            code,
            self._offered,
            features.NEEDS,
        )

    async def _expect(self, socket: WebSocketClient, kind: type[F]) -> F:
        try:
            async with asyncio.timeout(HELLO_MS_MAX / SECOND_MS):
                frame = read_from_broker(await socket.receive())
        except TimeoutError:
            raise Unreachable(f"{self._broker.url} does not say hello") from None
        if not isinstance(frame, kind):
            raise BadAnswer(f"{self._broker.url} does not begin as a broker does")
        return frame

    def _open_lanes(self) -> None:
        assert self._side is not None
        group = self._group
        assert group is not None
        for slug in self.meshes:
            if slug in self._lanes:
                continue
            lane = self._lanes[slug] = MeshTasks(
                self.sync, slug, self._send, self._run, self._call, self._side, self.board.active
            )
            for work in lane.tasks():
                group.create_task(work)
            group.create_task(self._meet(slug))

    async def _read_on(self, socket: WebSocketClient) -> None:
        while True:
            frame = read_from_broker(await socket.receive())
            if isinstance(frame, Urgent):
                assert self._group is not None
                self.board.active()
                self._group.create_task(self._run(self.sync.on_express, frame))
                continue
            lane = self._lanes.get(_mesh_of(frame))
            if lane is not None:
                lane.heard(frame)
                if isinstance(frame, SnapshotWanted) and self._group is not None:
                    self._group.create_task(self._bring_snapshot(frame.mesh))

    # --- now and then ------------------------------------------------------------------------

    async def _watch_on(self) -> None:
        """Looks whether all is silent, and asks again, rarely, for what was refused."""
        seen_at = retried_at = monotonic()
        patience_s = longest_ms(self._chance()) / SECOND_MS
        while True:
            await asyncio.sleep(SYNC_LOOK_MS / SECOND_MS)
            silent = self._engine.ctx.now_ms() - self.board.active_at
            self.board.enter(settled(self.board.state, silent, self.sync.waiting()))
            if monotonic() - seen_at >= SEEN_MS / SECOND_MS:
                seen_at = monotonic()
                await self._run(self._note_seen)
                await self._run(self.sync.expire)
            if monotonic() - retried_at >= patience_s:
                retried_at = monotonic()
                await self._retry()

    async def _retry(self) -> None:
        troubled = [mesh.slug for mesh in self.meshes.values() if mesh.trouble is not None]
        await self._send(self.sync.retry())
        for slug in troubled:
            await self._meet(slug)

    def _note_seen(self) -> None:
        """The broker is there, even if it has nothing to say."""
        slugs = [mesh.slug for mesh in self.meshes.values() if mesh.trouble is None]
        now = self._engine.ctx.now_ms()
        self._engine.write("sync.seen", lambda tx: _seen(tx, slugs, now))

    async def _meet(self, slug: str) -> None:
        """Reads anew who takes part. It is a cache: that it fails is no reason to stop."""
        assert self._side is not None
        try:
            members = await self._call(self._side.members, slug)
            await self._run(self.sync.known_members, slug, members)
        except HoldfastError as error:
            log.info("the members of %s could not be read: %s", slug, error.message)

    async def _bring_snapshot(self, slug: str) -> None:
        assert self._side is not None
        mesh = self.meshes.get(slug)
        if mesh is None or mesh.bringing:
            return
        mesh.bringing = True
        try:
            await self._call(self._side.upload_snapshot, slug)
        except HoldfastError as error:
            # Others may bring one; the broker asks again.
            log.warning("a snapshot of %s could not be brought: %s", slug, error.message)
        finally:
            mesh.bringing = False

    # --- threads and frames ------------------------------------------------------------------

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    async def _call(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._callers, work, *args)

    async def _send(self, frames: Sequence[FromNode]) -> None:
        for frame in frames:
            if self._socket is None:
                raise Unreachable("the connection is gone")
            await self._socket.send(encode_frame(frame))


def _seen(tx: Transaction, slugs: Sequence[str], now: int) -> None:
    for slug in slugs:
        row = tx.mesh_get(slug)
        if row is not None:
            tx.mesh_change(msgspec.structs.replace(row, last_sync_at=now))


def _mesh_of(frame: FromBroker) -> str:
    match frame:
        case MeshMoved():
            return frame.place.mesh
        case Refusal():
            return frame.about
        case Entries() | Acks() | SnapshotNeeded() | QueueMessage() | SnapshotWanted():
            return frame.mesh
        case _:
            raise BadAnswer(f"the broker sent {type(frame).__name__} where it has no place")
