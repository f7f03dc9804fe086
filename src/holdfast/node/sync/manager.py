"""All brokers of a node: one unit of the supervisor for each broker that a mesh is shared through.

Woken by every commit, of any process, the manager looks which meshes are shared: a new one is
followed, and a broker that no mesh names any more is left. Where nothing is shared that costs one
look now and then, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from holdfast.node.core.engine import NodeEngine
from holdfast.node.sync.connection import BrokerConnection
from holdfast.node.sync.mesh_state import OnDead
from holdfast.node.sync.session import BrokerAddress
from holdfast.node.sync.status import BrokerStatus, BrokerStatusTracker, broker_status, problem_code
from holdfast.node.sync.terms import STOP_CODES
from holdfast.node.trust.trust import Trust
from holdfast.rules.broker_sync import SyncState, status_name
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import SECOND_MS, SYNC_CLOSE_MS_MAX, SYNC_MESHES_MS, SYNC_THREADS
from holdfast.rules.outbox import PARK, Policies
from holdfast.service.problem import Problem
from holdfast.service.supervision import Supervision
from holdfast.service.supervisor import Supervisor, TaskUnit
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")

Changed = Callable[[BrokerAddress, Supervision[SyncState]], None]
_Unit = TaskUnit[SyncState, BrokerConnection]
_END_S = 2 * SYNC_CLOSE_MS_MAX / SECOND_MS


class SyncManager:
    """The sync of one node. All of it belongs to the loop's thread, but `status` and `word`."""

    def __init__(
        self,
        engine: NodeEngine,
        trust: Trust,
        *,
        policies: Policies = PARK,
        max_age_hours: int | None = None,
        on_change: Changed = lambda broker, unit: None,
        on_dead: OnDead = lambda row: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._engine, self._trust = engine, trust
        self._policies, self._max_age_hours = policies, max_age_hours
        self._on_change, self._on_dead, self._chance = on_change, on_dead, chance
        self._threads = ThreadPoolExecutor(SYNC_THREADS, "holdfast-sync")
        self._supervisor: Supervisor[BrokerAddress, _Unit] = Supervisor(self._begin)
        self._rung = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # What was in flight when the last process ended has no answer coming.
        await asyncio.to_thread(self._engine.write, "sync.recover", lambda tx: tx.outbox_recover())
        self._engine.sync_word = self.word
        await self.refresh()
        self._watching = asyncio.create_task(self._watch_on())

    def ring(self) -> None:
        """Something was committed, by this process or by another."""
        for connection in self._connections():
            connection.wake()
        self._rung.set()

    async def refresh(self, *, try_now: bool = False) -> None:
        """Reads again which meshes are shared where, and does as that says. With `try_now` a broker
        that waits for a better time is tried at once.
        """
        units = self._supervisor.refresh(self._engine.read("sync.meshes", _read))
        await _join(units.gone)
        for unit in units.changed:
            await _look(unit.work)
        if try_now:
            for unit in units.changed + units.same:
                unit.wake()

    def check_age(self, max_age_hours: int | None) -> None:
        """Raises if a broker that this node has met would not remember ids for so long."""
        for connection in self._connections():
            connection.sync.age_for(max_age_hours)

    def set_outbox(self, policies: Policies, max_age_hours: int | None) -> None:
        """Other settings of the outbox, from now on, for every broker."""
        self._policies, self._max_age_hours = policies, max_age_hours
        for connection in self._connections():
            connection.sync.set_outbox(policies, max_age_hours)

    async def stop(self) -> None:
        """Ends all connections, after a moment for answers that are on their way."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await _join(self._supervisor.stop())
        self._engine.sync_word = None
        self._threads.shutdown(wait=False)

    # --- for others to see ---------------------------------------------------------------------

    def status(self) -> list[BrokerStatus]:
        return broker_status(
            self._engine, [(link.tracker, dict(link.meshes)) for link in self._connections()]
        )

    def stopped(self) -> Problem | None:
        """Why nothing is exchanged with a broker until a person changes something; None if there
        is no such broker. From any thread.
        """
        for connection in self._connections():
            unit = connection.tracker.supervision
            problem = unit.last_error
            if unit.state is SyncState.STOPPED and problem and problem.code in STOP_CODES:
                return problem
        return None

    @property
    def has_connected(self) -> bool:
        """Every broker has welcomed this node at least once."""
        return all(connection.tracker.connections for connection in self._connections())

    def word(self, mesh: str, kind: str, paused: bool) -> str:
        """How a mesh stands, in one word; from any thread."""
        for connection in self._connections():
            live = connection.meshes.get(mesh)
            if live is not None:
                return status_name(kind, paused, connection.tracker.state, problem_code(live))
        return status_name(kind, paused, None)

    def _connections(self) -> list[BrokerConnection]:
        return [unit.work for unit in list(self._supervisor.units.values())]

    # --- units ---------------------------------------------------------------------------------

    def _begin(self, broker: BrokerAddress) -> _Unit:
        tracker = BrokerStatusTracker(
            broker, self._engine.ctx.now_ms, partial(self._on_change, broker)
        )
        connection = BrokerConnection(
            self._engine,
            self._trust,
            broker,
            tracker,
            threads=self._threads,
            policies=self._policies,
            max_age_hours=self._max_age_hours,
            chance=self._chance,
            on_dead=self._on_dead,
        )
        return TaskUnit(tracker, connection, self._chance)

    async def _watch_on(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            try:
                await self.refresh()
            except HoldfastError as error:
                # The store is closing, or its disk failed: the writers get the error.
                log.info("the shared meshes could not be read: %s", error.message)
            except Exception:
                # It must not be the last look.
                log.exception("looking at the shared meshes met a fault of Holdfast")
            # However often it rings: which meshes are shared changes rarely.
            await asyncio.sleep(SYNC_MESHES_MS / SECOND_MS)


async def _join(units: list[_Unit]) -> None:
    await asyncio.gather(*(unit.join(_END_S) for unit in units))
    for unit in units:
        unit.work.release()


async def _look(connection: BrokerConnection) -> None:
    try:
        await connection.look()
    except HoldfastError as error:
        log.info("the connection ended while its meshes changed: %s", error.message)


def _read(tx: Reader) -> dict[BrokerAddress, frozenset[tuple[str, str | None, bool]]]:
    """By broker: its meshes, with their ids there, and whether each is paused."""
    meshes: dict[BrokerAddress, set[tuple[str, str | None, bool]]] = {}
    for row in tx.mesh_list():
        if row.shared and row.broker_url is not None and row.broker_card is not None:
            broker = BrokerAddress(row.broker_url, row.broker_card)
            meshes.setdefault(broker, set()).add((row.slug, row.server_id, row.sync_paused))
    return {broker: frozenset(shared) for broker, shared in meshes.items()}
