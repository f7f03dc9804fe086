"""A lease for coroutines: a name that one session of one node holds, as long as it renews it.

    async with mesh.lease("deploy", ttl_ms=10_000, wait_ms=60_000) as lease:
        resource.write(data, fence=lease.fence)
        lease.check()

What a lease can promise: by the order of commits nobody else is given the name before it was given
back or had run out at the coordinator; and this object stops believing in it at two thirds of its
time after the last renewal that was answered, by a clock that only goes forward and counts also
while the machine sleeps. What it cannot promise: that a process which is stopped between `check`
and what it does next notices that it woke up too late. Only a resource that refuses older fences
is safe from that. Holdfast's own entities are such: hand the lease to the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.quorum_reach import Reach
from holdfast.node.quorum.api import QuorumApi
from holdfast.rules.bodies import Body, encode_body
from holdfast.rules.errors import (
    HoldfastError,
    LeaseHeld,
    LeaseNotHeld,
    NoDaemon,
    NoQuorum,
    Unknown,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import (
    LEASE_RENEW_PAUSE_MS,
    LEASE_TTL_MS,
    QUORUM_COMMIT_MS,
    SECOND_MS,
)
from holdfast.rules.quorum.fence import FenceOrder
from holdfast.rules.quorum.intents import (
    Guard,
    IntentAbandon,
    LeaseAcquire,
    LeaseRelease,
    LeaseRenew,
    check_lease_name,
    check_ttl,
)
from holdfast.rules.quorum.lease import (
    holder_ends_at_ms,
    holder_renews_at_ms,
    holder_stops_at_ms,
)
from holdfast.service.clock import elapsed_ms

log = logging.getLogger("holdfast.quorum")


class HeldBy(NamedTuple):
    """A session that holds a lease, and the fence under which it got it."""

    session: bytes
    grant: FenceOrder


class AsyncLease:
    """One session that asks for a lease. Enter it with `async with`. Belongs to one event loop;
    `fence`, `check` and `is_held` may be asked from any thread.
    """

    def __init__(
        self,
        engine: NodeEngine,
        mesh: str,
        reach: Reach,
        name: str,
        *,
        ttl_ms: int = LEASE_TTL_MS,
        wait_ms: int = 0,
        clock_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """`wait_ms`: how long to wait while another one holds it; 0 for not at all."""
        self._engine, self._mesh, self._reach = engine, mesh, reach
        self._session = b""
        self.name, self.ttl_ms = check_lease_name(name), check_ttl(ttl_ms)
        self._wait_ms, self._clock_ms = wait_ms, clock_ms
        self._asked = self._is_committed = False
        """Whether the request may be in the order, and whether it is."""
        self._grant: FenceOrder | None = None
        self._sent_at = self._stops_at = 0
        self.on_renewed: Callable[[], None] = lambda: None
        self._renewing: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    # --- what its holder asks ----------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        return self._grant is not None and self._clock_ms() < self._stops_at

    @property
    def fence(self) -> str:
        """The fence of this grant, as text that sorts: every later holder has a higher one."""
        return str(self.guard.order)

    @property
    def guard(self) -> Guard:
        if self._grant is None:
            raise LeaseNotHeld(f"lease {self.name!r} was not granted, or was given back")
        return Guard(self.name, *self._grant)

    def check(self) -> str:
        """The fence, if the lease is still held as far as this process can tell. LeaseNotHeld as
        soon as it may have run out.
        """
        fence = self.fence
        if self._clock_ms() >= self._stops_at:
            raise LeaseNotHeld(f"lease {self.name!r} was not renewed in time")
        return fence

    @property
    def stops_at_ms(self) -> int:
        """Until when this process believes in it, by the clock of `elapsed_ms`."""
        return self._stops_at

    @property
    def ends_at_ms(self) -> int:
        """When what it protects must have stopped: soon after it may be somebody else's."""
        return holder_ends_at_ms(self._sent_at, self.ttl_ms)

    def checked_guard(self) -> Guard:
        """What a change of entities needs to be made under this lease."""
        self.check()
        return self.guard

    async def ended(self) -> None:
        """Returns when the lease is held no more, for whatever reason."""
        await self._ended.wait()

    # --- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        assert not self._session, "a lease object is one session: make another one"
        api = await self._reach()
        self._session = self._new_session()
        try:
            await self._acquire(api)
        except BaseException:
            if self._asked:
                await self._withdraw(api)  # else it might be granted, and held by nobody
            raise
        self._renewing = asyncio.create_task(self._renew(api))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()

    async def release(self) -> None:
        """Gives the lease back."""
        renewing, self._renewing = self._renewing, None
        if renewing is None:
            return
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        self._lose()
        await self._withdraw(await self._reach())

    async def _acquire(self, api: QuorumApi) -> None:
        sent = self._clock_ms()
        waits = self._wait_ms > 0
        try:
            self._asked = True
            await self._intend(
                api, "lease.acquire", LeaseAcquire(self.ttl_ms, waits), self._session
            )
        except (LeaseHeld, NoQuorum):
            self._asked = False
            raise
        self._is_committed = True
        if not await self._is_holder():
            left = self._wait_ms - (self._clock_ms() - sent)
            granted = await api.lease_granted(
                self._mesh, self.name, self._session, timeout_ms=max(0, left)
            )
            if not granted:
                raise LeaseHeld(f"lease {self.name!r} was not free within {self._wait_ms} ms")
            # When it was granted is known to others only; so the time counts from a renewal.
            sent = self._clock_ms()
            await self._intend(api, "lease.renew", LeaseRenew(self._session, self.ttl_ms))
            if not await self._is_holder():
                raise LeaseNotHeld(f"lease {self.name!r} ended before it was used")
        self._answered(sent)

    async def _is_holder(self) -> bool:
        found = await self._held_by()
        if found is None or found.session != self._session:
            return False
        self._grant = found.grant
        return True

    # What the home knows; over a connection the daemon is asked (`node/remote/lease.py`).

    def _new_session(self) -> bytes:
        return self._engine.ctx.new_id()

    async def _held_by(self) -> HeldBy | None:
        """The session that holds the lease, as far as was committed."""
        row = self._engine.read("quorum.leases", lambda tx: tx.lease_get(self._mesh, self.name))
        if row is None or row.grant is None:
            return None
        return HeldBy(row.session, row.grant.order)

    def _answered(self, sent: int) -> None:
        self._sent_at, self._stops_at = sent, holder_stops_at_ms(sent, self.ttl_ms)
        self.on_renewed()

    async def _renew(self, api: QuorumApi) -> None:
        """Renews in time, until the lease is lost."""
        at = holder_renews_at_ms(self._sent_at, self.ttl_ms)
        while True:
            await asyncio.sleep(max(0, at - self._clock_ms()) / SECOND_MS)
            sent = self._clock_ms()
            left = self._stops_at - sent
            if left <= 0:
                return self._lose()
            try:
                await self._intend(
                    *(api, "lease.renew", LeaseRenew(self._session, self.ttl_ms)), within_ms=left
                )
            except (NoDaemon, NoQuorum, Unknown) as error:
                log.info("lease %s was not renewed yet: %s", self.name, error.message)
                at = min(self._clock_ms() + LEASE_RENEW_PAUSE_MS, self._stops_at)
            except HoldfastError as error:
                log.warning("lease %s is lost: %s", self.name, error.message)
                return self._lose()
            else:
                self._answered(sent)
                at = holder_renews_at_ms(sent, self.ttl_ms)

    def _lose(self) -> None:
        self._grant = None
        self._ended.set()

    async def _withdraw(self, api: QuorumApi) -> None:
        """Gives it back, or the place in the line. Without a quorum it runs out by itself."""
        try:
            if not self._is_committed:  # then it must not be, later
                abandon = encode_body(IntentAbandon(self._session))
                await api.intend(
                    self._mesh,
                    "intent.abandon",
                    id_text(self._session),
                    abandon,
                    timeout_ms=QUORUM_COMMIT_MS,
                )
            await self._intend(api, "lease.release", LeaseRelease(self._session))
        except HoldfastError as error:
            log.warning("lease %s was not given back, and runs out: %s", self.name, error.message)

    async def _intend(
        self,
        api: QuorumApi,
        op: str,
        body: Body,
        id: bytes | None = None,
        *,
        within_ms: int = QUORUM_COMMIT_MS,
    ) -> None:
        await api.intend(
            self._mesh,
            op,
            self.name,
            encode_body(body),
            id=None if id is None else id_text(id),
            timeout_ms=max(1, within_ms),
        )
