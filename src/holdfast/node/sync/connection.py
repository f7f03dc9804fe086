"""One broker at work: a WebSocket that is kept open, for all meshes that are shared through it.

    connect ─► hello ─► follow every mesh ─► talk until something breaks

The supervisor runs that again and again, after the waits that `rules.broker_sync` says. What is
said on one connection is for `conversation` to decide and for `connection_port` to carry out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from time import monotonic
from typing import Any

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.object_transfer import PieceSize
from holdfast.node.sync.connection_port import ConnectionPort
from holdfast.node.sync.conversation import Conversation
from holdfast.node.sync.effects import Close
from holdfast.node.sync.http_side import BrokerRequests
from holdfast.node.sync.mesh_state import MeshState, OnDead
from holdfast.node.sync.session import BrokerAddress, SyncSession
from holdfast.node.sync.status import BrokerStatusTracker
from holdfast.node.trust.trust import Trust
from holdfast.rules import close_codes, features
from holdfast.rules.broker_sync import SyncPlan, SyncState, after_error
from holdfast.rules.close_codes import CLOSE_CODES
from holdfast.rules.errors import AnotherConnection, Unreachable, ZoneNotTrusted
from holdfast.rules.limits import SECOND_MS, SYNC_THREADS
from holdfast.rules.outbox import PARK, Policies
from holdfast.transport.websocket_client import HungUp, WebSocketClient

log = logging.getLogger("holdfast")

PATH = "/v1/sync"
_BY_CLOSE_CODE = {code: kind for kind, code in CLOSE_CODES.items()}


class BrokerConnection:
    """One broker. Everything here belongs to the loop's thread."""

    def __init__(
        self,
        engine: NodeEngine,
        trust: Trust,
        broker: BrokerAddress,
        tracker: BrokerStatusTracker,
        *,
        threads: Executor,
        policies: Policies = PARK,
        max_age_hours: int | None = None,
        chance: Callable[[], float] = random.random,
        on_dead: OnDead = lambda row: None,
    ) -> None:
        self._engine, self._trust, self._chance = engine, trust, chance
        self._threads = threads
        # Its own: a broker that lets calls wait must not use up what others need.
        self._callers = ThreadPoolExecutor(SYNC_THREADS, f"holdfast-sync-{broker.name}")
        self.tracker = tracker
        self.sync = SyncSession(
            engine,
            trust,
            broker,
            policies=policies,
            max_age_hours=max_age_hours,
            chance=chance,
            on_dead=on_dead,
        )
        self._broker = broker
        self._pieces = PieceSize()
        self._line: ConnectionPort | None = None
        self._hung_up = asyncio.Event()
        """No connection is open, and what was in flight is pending again."""
        self._in_vain = 0
        """Connections in a row that were good for nothing."""
        self._progressed = False
        self._offered: dict[str, dict[str, Any]] = {}

    # --- from outside ------------------------------------------------------------------------

    @property
    def meshes(self) -> dict[str, MeshState]:
        return self.sync.meshes

    def wake(self) -> None:
        """Something was written."""
        if self._line is not None:
            self._line.driver.feed(self._line.talk.wake)

    async def look(self) -> None:
        """The meshes have changed: new ones are followed, a pause begins or ends."""
        if self._line is not None:
            self._line.driver.feed(self._line.talk.look)

    async def end(self) -> None:
        """Sends nothing more, and waits a moment for answers that are on their way."""
        line = self._line
        if line is not None:
            line.driver.feed(line.talk.stop)
            await self._hung_up.wait()

    def release(self) -> None:
        """After the end: its threads go when they have nothing left to do."""
        self._callers.shutdown(wait=False)

    # --- what the supervisor asks ------------------------------------------------------------

    async def run(self) -> None:
        """One connection, until something breaks it."""
        self._progressed = False
        try:
            await self._talk()
        except Exception as error:
            raise self._meant(error) from None

    def plan(self, error: Exception, attempts: int, jitter: float) -> SyncPlan:
        """What follows from an error. A broker that greets us and then hangs up, or sends us round
        in circles, is met again and again by connections that began well. So what counts is whether
        anything came of them.
        """
        before = 0 if self._progressed else self._in_vain
        self._in_vain = before + 1
        return after_error(error, max(attempts, before), jitter)

    def _meant(self, error: Exception) -> Exception:
        """What an error means to us: a close code stands for the error that it names."""
        if not isinstance(error, HungUp):
            return error
        kind = _BY_CLOSE_CODE.get(error.code)
        if kind is not None:
            self._tell_terms(error.code)
            return kind(str(error))
        if error.code == close_codes.ANOTHER_CONNECTION:
            return AnotherConnection(f"the broker keeps one connection of this key: {error}")
        if error.code == close_codes.NOT_TRUSTED:
            return ZoneNotTrusted(str(error), hint="the broker does not believe who we are")
        return Unreachable(str(error))

    # --- one connection ----------------------------------------------------------------------

    async def _talk(self) -> None:
        if self.tracker.state is SyncState.ACTIVE or self.tracker.state is SyncState.IDLE:
            self.tracker.enter(SyncState.RECONNECTING)
        requests = BrokerRequests.of(self._engine, self._trust, self._broker, self._pieces)
        socket = await WebSocketClient.open(self._broker.url, PATH)
        talk = Conversation(self.sync, _ticks_ms, self._chance, certificate=socket.certificate)
        line = self._line = ConnectionPort(
            talk, self.sync, requests, socket, self.tracker, self._threads, self._callers
        )
        self._hung_up.clear()
        close = Close()
        try:
            close = await line.run()
        finally:
            self._offered, self._progressed = talk.offered, talk.progressed
            # Shielded: what was in flight must be pending again, however this ends.
            await asyncio.shield(self._hang_up(line, close))
            self._line = None
        if close.error is not None:
            if close.code in _BY_CLOSE_CODE:
                self._tell_terms(close.code)
            raise close.error

    async def _hang_up(self, line: ConnectionPort, close: Close) -> None:
        for mesh in self.meshes.values():
            self.tracker.counted(mesh)
        try:
            await line.hang_up(close)
        finally:
            self._hung_up.set()

    def _tell_terms(self, code: int) -> None:
        """All that was offered and is needed: without it nobody can tell why."""
        log.warning(
            "no agreement with broker %s (%d): it offers %r, this node needs %r",
            self._broker.name,
            code,
            self._offered,
            features.NEEDS,
        )


def _ticks_ms() -> int:
    return int(monotonic() * SECOND_MS)
