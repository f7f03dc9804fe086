"""Keeps a link to one wanted peer: a unit of the supervisor.

While a link is up, whoever dialled it, the unit waits for its end. Else it dials all addresses of
the peer, one shortly after the other, until one of them proves the right key. A link that comes in
meanwhile ends the dial. Which of two connections wins was decided before
(`rules/bus/links/link_choice.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from holdfast.bus.links.link import PeerLink
from holdfast.rules.backoff import RetryPlan
from holdfast.rules.bus.links.dial_plan import DialState, after_dial_error
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.errors import PeerClosing, PeerUnreachable
from holdfast.rules.limits import (
    BUS_ADDRESSES_MAX,
    BUS_BACK_MS_MAX,
    BUS_FIRST_DIAL_MS,
    BUS_STAGGER_MS,
    BUS_STEADY_MS,
    SECOND_MS,
)
from holdfast.service.problem import Problem
from holdfast.service.supervision import Supervision
from holdfast.service.supervisor import UnitStatus


class WantedPeer(msgspec.Struct, frozen=True):
    """A peer that we want a link to."""

    keys: tuple[PeerKey, ...]
    addresses: tuple[str, ...] = ()


class DialView(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands with a wanted peer, for others to see."""

    name: str
    state: DialState
    since: int
    attempts: int
    retry_at: int | None
    last_error: Problem | None


class DialStatus(UnitStatus[DialState, DialView]):
    def __init__(
        self, peer: str, now_ms: Callable[[], int], changed: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(
            f"the link to {peer}",
            DialState.WAITING,
            DialState.STOPPED,
            now_ms,
            lambda view: changed(),
        )
        self._peer = peer

    def _view(self) -> DialView:
        return DialView(name=self._peer, **self.supervision.shown())

    view = _view


class Dialler(Protocol):
    """What a unit needs of the links."""

    key: PeerKey

    def link_to(self, keys: Collection[PeerKey]) -> PeerLink | None: ...
    async def dial(self, address: str, keys: Collection[PeerKey]) -> PeerLink: ...
    def missed(self, keys: Collection[PeerKey]) -> None:
        """A wanted peer was at none of its addresses."""


class Dial:
    """The work of one unit."""

    def __init__(self, name: str, wanted: WantedPeer, links: Dialler, status: DialStatus) -> None:
        self.name, self.status, self._links = name, status, links
        self._keys, self._addresses = wanted.keys, list(wanted.addresses)
        self._came = asyncio.Event()
        """Set when a link to the peer has come up."""
        self._left_at: float | None = None
        """When the peer said goodbye, by the loop's time; None if it did not, or is back."""
        self._soon = 0
        """How many failures in a row came shortly after that."""

    # --- what others say -----------------------------------------------------------------------

    def change(self, wanted: WantedPeer) -> None:
        """Other keys or addresses, from the next dial on."""
        self._keys, self._addresses = wanted.keys, list(wanted.addresses)

    def found(self, addresses: Sequence[str]) -> bool:
        """The peer may be there: these are tried before the others. True if one of them is new."""
        is_new = any(address not in self._addresses for address in addresses)
        known = [address for address in self._addresses if address not in addresses]
        self._addresses = [*dict.fromkeys(addresses), *known][:BUS_ADDRESSES_MAX]
        return is_new

    def came(self, peer: PeerKey) -> bool:
        """A link to this key is up; True if that is the wanted peer."""
        if peer in self._keys:
            self._came.set()
        return peer in self._keys

    # --- AsyncWork -----------------------------------------------------------------------------

    async def run(self) -> DialState | None:
        ended: Exception | None = None
        while (link := self._links.link_to(self._keys)) is not None:
            self.status.enter(DialState.LINKED)
            self._left_at, self._soon = None, 0
            # A link that comes up and ends at once, again and again, has not worked: each dial
            # waits longer than the one before.
            await asyncio.wait([link.ended], timeout=BUS_STEADY_MS / SECOND_MS)
            if not link.ended.done():
                self.status.apply(Supervision.worked)
                await asyncio.wait([link.ended])
            ended = link.ended.result() or PeerUnreachable(f"the link to {self.name} was closed")
        if isinstance(ended, PeerClosing):
            self._left_at = asyncio.get_running_loop().time()
        if ended is not None:
            raise ended
        if not self._addresses:
            return DialState.NOWHERE
        self.status.enter(DialState.DIALLING)
        self._came.clear()
        if self._links.key > min(self._keys) and not self.status.attempts:
            # The other side is the one to dial, if it can.
            with suppress(TimeoutError):
                async with asyncio.timeout(BUS_FIRST_DIAL_MS / SECOND_MS):
                    await self._came.wait()
        if not self._came.is_set():
            await self._dial_unless_it_comes()
        return None  # runs anew, and finds the link

    async def end(self) -> None:
        """Nothing is under way that has to be finished: links are closed by their owner."""

    def plan(self, error: Exception, attempts: int, jitter: float) -> RetryPlan[DialState]:
        now = asyncio.get_running_loop().time()
        is_soon = self._left_at is not None and now - self._left_at < BUS_BACK_MS_MAX / SECOND_MS
        # What was tried while the peer was thought to be back soon does not lengthen later waits.
        before = max(0, attempts - self._soon)
        self._soon += is_soon
        return after_dial_error(error, before, jitter, is_back_soon=is_soon)

    async def _dial_unless_it_comes(self) -> None:
        tasks = [
            asyncio.create_task(self._dial_each()),
            asyncio.create_task(self._came.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not self._came.is_set():
                tasks[0].result()
        finally:
            await _end(tasks)

    async def _dial_each(self) -> None:
        """Dials the addresses, each a moment after the one before, until one of them works."""
        waiting = list(self._addresses)
        running: list[asyncio.Task[PeerLink]] = []
        errors: list[BaseException] = []
        try:
            while waiting or running:
                if waiting:
                    dial = self._links.dial(waiting.pop(0), self._keys)
                    running.append(asyncio.create_task(dial))
                await asyncio.wait(
                    running,
                    timeout=BUS_STAGGER_MS / SECOND_MS if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in running if task.done()]:
                    running.remove(task)
                    error = task.exception()
                    if error is None:
                        self.found([task.result().address])
                        return
                    errors.append(error)
        finally:
            await _end(running)
        self._links.missed(self._keys)
        raise _worst(errors)


def _worst(errors: Sequence[BaseException]) -> BaseException:
    """The one that tells most: that somebody refused tells more than that nobody was there."""
    telling = (error for error in errors if not isinstance(error, PeerUnreachable))
    return next(telling, errors[0])


async def _end(tasks: Sequence[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
