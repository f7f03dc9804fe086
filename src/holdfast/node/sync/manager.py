"""All brokers of a node: one connection for each that a mesh is shared through.

Woken by every commit, by whichever process, it looks which meshes are shared: a new one is
followed, a broker that no mesh names any more is left. Where nothing is shared that costs one look
now and then, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from holdfast.node.core.engine import NodeEngine
from holdfast.node.sync.connection import BrokerConnection
from holdfast.node.sync.session import BrokerAddress
from holdfast.node.sync.status import BrokerStatus, BrokerStatusTracker, broker_status, problem_code
from holdfast.node.trust.trust import Trust
from holdfast.rules.broker_sync import status_name
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import SECOND_MS, SYNC_CLOSE_MS_MAX, SYNC_MESHES_MS, SYNC_THREADS
from holdfast.rules.outbox import PARK, Policies
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")

Changed = Callable[[BrokerStatusTracker], None]
_Asked = dict[BrokerAddress, frozenset[tuple[str, str | None, bool]]]
"""By broker: its meshes, with their ids there, and whether each is paused."""


class SyncManager:
    """The sync of one node. All of it belongs to the loop's thread, but `status` and `word`."""

    def __init__(
        self,
        engine: NodeEngine,
        trust: Trust,
        *,
        policies: Policies = PARK,
        max_age_hours: int | None = None,
        on_change: Changed = lambda board: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._engine, self._trust = engine, trust
        self._policies, self._max_age_hours = policies, max_age_hours
        self._on_change, self._chance = on_change, chance
        self._threads = ThreadPoolExecutor(SYNC_THREADS, "holdfast-sync")
        self._callers = ThreadPoolExecutor(SYNC_THREADS, "holdfast-sync-call")
        self._links: dict[BrokerAddress, tuple[BrokerConnection, asyncio.Task[None]]] = {}
        self._asked: _Asked = {}
        self._rung = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._open = False

    async def start(self) -> None:
        """What was in flight when the last process ended has no answer coming."""
        self._open = True
        await asyncio.to_thread(self._engine.write, "sync.recover", lambda tx: tx.outbox_recover())
        self._engine.sync_word = self.word
        await self.refresh()
        self._watching = asyncio.create_task(self._watch_on())

    def ring(self) -> None:
        """Something was committed, here or by another process."""
        for link, _ in self._links.values():
            link.wake()
        self._rung.set()

    async def refresh(self, *, try_now: bool = False) -> None:
        """Reads again what is shared where, and does as it says."""
        asked = self._engine.read("sync.meshes", _read)
        for broker in self._links.keys() - asked.keys():
            link, task = self._links.pop(broker)
            await self._end(link, task)
        for broker in asked:
            known = self._links.get(broker)
            if known is None:
                self._begin(broker)
            elif self._asked.get(broker) != asked[broker]:
                await _looking(known[0])
            if known is not None and try_now:
                known[0].try_now()
        self._asked = asked

    async def stop(self) -> None:
        """Ends all of them, after a moment for answers that are on their way."""
        self._open = False
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        links = list(self._links.values())
        await asyncio.gather(*(self._end(link, task) for link, task in links))
        self._links = {}
        self._engine.sync_word = None
        self._threads.shutdown(wait=False)
        self._callers.shutdown(wait=False)

    # --- for others to see ---------------------------------------------------------------------

    def status(self) -> list[BrokerStatus]:
        links = [link for link, _ in list(self._links.values())]
        return broker_status(self._engine, [(link.board, dict(link.meshes)) for link in links])

    def word(self, mesh: str, kind: str, paused: bool) -> str:
        """How a mesh stands, in one word; from any thread."""
        for link, _ in list(self._links.values()):
            live = link.meshes.get(mesh)
            if live is not None:
                return status_name(kind, paused, link.board.state, problem_code(live))
        return status_name(kind, paused, None)

    # --- links -----------------------------------------------------------------------------------

    def _begin(self, broker: BrokerAddress) -> None:
        board = BrokerStatusTracker(broker, self._engine.ctx.now_ms, self._on_change)
        link = BrokerConnection(
            self._engine,
            self._trust,
            broker,
            board,
            threads=self._threads,
            callers=self._callers,
            policies=self._policies,
            max_age_hours=self._max_age_hours,
            chance=self._chance,
        )
        self._links[broker] = (link, asyncio.create_task(link.run()))

    async def _end(self, link: BrokerConnection, task: asyncio.Task[None]) -> None:
        await link.stop()
        try:
            async with asyncio.timeout(2 * SYNC_CLOSE_MS_MAX / SECOND_MS):
                await task
        except TimeoutError:
            log.warning("the sync with broker %s did not end in time", link.board.broker.name)

    async def _watch_on(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            try:
                await self.refresh()
            except HoldfastError as error:
                # The store is closing, or its disk failed: whoever writes is told so.
                log.info("the shared meshes could not be read: %s", error.message)
            except Exception:
                # It must not be the last look.
                log.exception("looking at the shared meshes met a fault of Holdfast")
            # However often it rings: which meshes are shared changes rarely.
            await asyncio.sleep(SYNC_MESHES_MS / SECOND_MS)


async def _looking(link: BrokerConnection) -> None:
    try:
        await link.look()
    except HoldfastError as error:
        log.info("the connection ended while its meshes changed: %s", error.message)


def _read(tx: Reader) -> _Asked:
    found: dict[BrokerAddress, set[tuple[str, str | None, bool]]] = {}
    for row in tx.mesh_list():
        if row.shared and row.broker_url is not None and row.broker_card is not None:
            broker = BrokerAddress(row.broker_url, row.broker_card)
            found.setdefault(broker, set()).add((row.slug, row.server_id, row.sync_paused))
    return {broker: frozenset(meshes) for broker, meshes in found.items()}
