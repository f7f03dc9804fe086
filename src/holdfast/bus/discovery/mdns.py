"""Discovery by mDNS: says where we are, and listens for the peers that we look for.

What keeps it going is the supervisor that keeps links: a network that refuses multicast, or says
too much, becomes a state that people see, and it is tried again. Peers that were found stay found:
their addresses are remembered elsewhere, and whether one is there is told by its link alone.

Quiet means quiet: no instance is made, not even one that only listens, because listening asks.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from holdfast.bus.discovery.interfaces import interface_addresses, watch_interfaces
from holdfast.bus.ports import DiscoveryStatus, FoundPeer
from holdfast.rules.backoff import RetryPlan, backoff_ms
from holdfast.rules.bus.links.discovery import (
    InterfaceAddress,
    RecordBudget,
    SoughtNames,
    Surroundings,
    browse_again_ms,
    candidates,
    instance_of,
    surroundings,
)
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import DiscoveryFailed
from holdfast.rules.limits import (
    BUS_DEAF_MS,
    BUS_RESOLVING_MAX,
    BUS_SETTLE_MS,
    SECOND_MS,
)
from holdfast.service.address import parse_address
from holdfast.service.clock import Clock, SystemClock
from holdfast.service.supervision import Supervision
from holdfast.service.supervisor import PlannedFailure, TaskUnit, UnitStatus

if TYPE_CHECKING:
    from holdfast.bus.discovery.responder import MdnsResponder

log = logging.getLogger("holdfast")

_STOP_S = 5.0
"""A goodbye takes a quarter of a second."""


class DiscoveryState(StrEnum):
    """What people see."""

    STARTING = "starting"
    ON = "on"
    QUIET = "quiet"
    DEAF = "deaf"
    FAILED = "failed"
    STOPPED = "stopped"


class _Status(UnitStatus[DiscoveryState, Supervision[DiscoveryState]]):
    def _view(self) -> Supervision[DiscoveryState]:
        return self.supervision


class MdnsDiscovery:
    """Finds peers on the networks that the bus listens on."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        addresses: Callable[[], list[InterfaceAddress]] = interface_addresses,
    ) -> None:
        self._quiet, self._jitter, self._addresses = quiet, jitter, addresses
        self._clock = clock or SystemClock()
        self._names = SoughtNames()
        self._budget = RecordBudget()
        self._around = Surroundings()
        self._listening: list[tuple[str, int]] = []
        self._finders: dict[str, list[asyncio.Future[Sequence[str]]]] = {}
        self._resolving: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._questions = 0
        """How often the network was asked for those of whom nothing is heard."""
        self._browse_timer: asyncio.TimerHandle | None = None
        self._responder: MdnsResponder | None = None
        self._unit: TaskUnit[DiscoveryState, MdnsDiscovery] | None = None
        self._status: _Status | None = None

    # --- the port --------------------------------------------------------------------------------

    async def start(self, key: PeerKey, listening: Sequence[str], found: FoundPeer) -> None:
        assert self._unit is None, "it was started before"
        self._instance, self._found = instance_of(key), found
        self._names.own = self._instance
        self._listening = [parse_address(text) for text in listening]
        if self._quiet:
            return
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._too_much = self._is_changed = self._shall_browse = False
        self._status = _Status(
            "discovery",
            DiscoveryState.STARTING,
            DiscoveryState.STOPPED,
            self._clock.now_ms,
            lambda _: None,
        )
        self._unit = TaskUnit(self._status, self, self._jitter)

    def seek(self, keys: Iterable[PeerKey]) -> None:
        has_new = self._names.seek(keys)
        self._asked = {name: None for name in self._asked if self._names.key_of(name)}
        if has_new:
            self._browse_now()

    def look(self, key: PeerKey) -> None:
        instance = instance_of(key)
        if self._unit is None or self._names.key_of(instance) is None:
            return
        if self._names.is_sighted(instance):
            self._asked[instance] = None
            self._names.queue(instance, self._now_ms())
            self._pump()

    async def find(self, instance: str) -> Sequence[str]:
        if self._unit is None:
            raise DiscoveryFailed("this bus is quiet: nobody is looked for on the network")
        future: asyncio.Future[Sequence[str]] = self._loop.create_future()
        self._finders.setdefault(instance, []).append(future)
        if self._names.want(instance):
            self._browse_now()
        else:
            self._names.queue(instance, self._now_ms())
            self._pump()
        try:
            return await future
        finally:
            self._names.unwant(instance)
            self._finders[instance].remove(future)
            if not self._finders[instance]:
                del self._finders[instance]

    def status(self) -> DiscoveryStatus:
        unit = None if self._status is None else self._status.supervision
        problem = None if unit is None else unit.last_error
        state = DiscoveryState.QUIET if unit is None else unit.state
        is_on = state is DiscoveryState.ON
        return DiscoveryStatus(
            state=state,
            announced=self._around.addresses if is_on else (),
            strangers=self._names.strangers,
            foreign=self._names.foreign,
            dropped=self._names.dropped,
            problem="" if problem is None or is_on else problem.message,
        )

    async def stop(self) -> None:
        for finder in [finder for finders in self._finders.values() for finder in finders]:
            if not finder.done():
                finder.set_exception(DiscoveryFailed("the bus is stopping"))
        if self._unit is not None:
            self._unit.stop()
            await self._unit.join(_STOP_S)

    # --- one run, under the supervisor -----------------------------------------------------------

    async def run(self) -> None:
        """Works until it is cancelled or fails."""
        from holdfast.bus.discovery.responder import MdnsResponder

        self._budget, self._too_much = RecordBudget(), False
        self._around = surroundings(self._listening, self._addresses())
        end_watch = watch_interfaces(self._interfaces_changed)
        try:
            self._responder = MdnsResponder(
                self._instance, self._around, self._heard, self._counted
            )
            await self._responder.begin(self._around)
            self._plan_browse()
            assert self._status is not None
            self._status.apply(Supervision.worked)
            self._status.enter(DiscoveryState.ON)
            while True:
                await self._woken.wait()
                self._woken.clear()
                await self._turn(self._responder)
        finally:
            end_watch()
            await self._close()

    async def end(self) -> None:
        """Nothing is under way that has to be finished: what is announced is taken back when the
        run ends.
        """

    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[DiscoveryState]:
        return RetryPlan(DiscoveryState.FAILED, backoff_ms(attempts + 1, jitter))

    async def _turn(self, responder: MdnsResponder) -> None:
        if self._too_much:
            error = DiscoveryFailed("the network says more by mDNS than anybody can listen to")
            raise PlannedFailure(error, RetryPlan(DiscoveryState.DEAF, BUS_DEAF_MS))
        if self._is_changed:
            await asyncio.sleep(BUS_SETTLE_MS / SECOND_MS)  # an address seldom comes alone
            self._is_changed = self._shall_browse = False
            self._around = surroundings(self._listening, self._addresses())
            self._questions = 0
            await responder.follow(self._around)
            self._plan_browse()
        if self._shall_browse:
            self._shall_browse = False
            await responder.browse()
            self._plan_browse()

    async def _close(self) -> None:
        for timer in (self._timer, self._browse_timer):
            if timer is not None:
                timer.cancel()
        tasks = list(self._resolving.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        responder, self._responder = self._responder, None
        if responder is not None:
            await responder.close()

    # --- what is heard ---------------------------------------------------------------------------

    def _interfaces_changed(self) -> None:
        self._is_changed = True
        self._woken.set()

    def _counted(self, records: int) -> None:
        if not self._budget.spend(records, self._now_ms()) and not self._too_much:
            self._too_much = True
            self._woken.set()

    def _heard(self, name: str) -> None:
        if self._names.heard(name, self._now_ms()):
            self._pump()

    def _browse_now(self) -> None:
        """Somebody new is looked for."""
        if self._unit is not None:
            self._questions = 0
            self._shall_browse = True
            self._woken.set()

    def _browse_again(self) -> None:
        self._shall_browse = self._names.is_one_missing()
        if self._shall_browse:
            self._questions += 1
            self._woken.set()

    def _plan_browse(self) -> None:
        if self._browse_timer is not None:
            self._browse_timer.cancel()
        wait_ms = browse_again_ms(self._questions, self._jitter())
        self._browse_timer = self._loop.call_later(wait_ms / SECOND_MS, self._browse_again)

    def _pump(self) -> None:
        """Resolves what may be resolved now, and sets the alarm for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        responder, now = self._responder, self._now_ms()
        if responder is None:
            return
        while len(self._resolving) < BUS_RESOLVING_MAX:
            instance = self._names.take(now)
            if instance is None:
                break
            if instance in self._resolving:
                continue
            task = asyncio.create_task(self._resolve(responder, instance))
            self._resolving[instance] = task
            task.add_done_callback(partial(self._resolved, instance))
        at = self._names.next_at()
        if at is not None and len(self._resolving) < BUS_RESOLVING_MAX:
            self._timer = self._loop.call_later(max(0, at - now) / SECOND_MS, self._pump)

    async def _resolve(self, responder: MdnsResponder, instance: str) -> None:
        ask = instance in self._asked
        self._asked.pop(instance, None)
        places = candidates(await responder.resolve(instance, ask=ask), self._around)
        if not places:
            return
        for finder in self._finders.get(instance, ()):
            if not finder.done():
                finder.set_result(places)
        key = self._names.key_of(instance)
        if key is not None:
            self._found(key, places)

    def _resolved(self, instance: str, task: asyncio.Task[None]) -> None:
        self._resolving.pop(instance, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.warning("the addresses of a peer could not be looked up: %s", error, exc_info=error)
        self._pump()

    def _now_ms(self) -> int:
        return int(self._loop.time() * SECOND_MS)
