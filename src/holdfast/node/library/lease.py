"""A lease for callers that wait: an `AsyncLease` on the loop of `node.bus`, which renews it there.

    with mesh.lease("deploy", ttl_ms=10_000) as lease:
        resource.write(data, fence=lease.fence)
        lease.check()

`holdfast.node.library.aio_lease` says what a lease can promise, and what it cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.node.library.aio_lease import AsyncLease
from holdfast.node.library.loop_thread import LoopThread
from holdfast.rules.errors import LeaseNotHeld
from holdfast.rules.limits import SECOND_MS
from holdfast.rules.quorum.intents import Guard


class Lease:
    """One session that asks for a lease. Enter it with `with`; safe to ask from any thread."""

    def __init__(self, thread: LoopThread, make: Callable[[], AsyncLease]) -> None:
        self._thread, self._make = thread, make
        self._lease: AsyncLease | None = None

    def __enter__(self) -> Self:
        self._lease = self._thread.run(_entered(self._make))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process can tell.

        >>> with ship.lease("deploy") as lease:
        ...     lease.is_held
        True
        """
        return self._lease is not None and self._lease.is_held

    @property
    def fence(self) -> str:
        """The fence of this grant, as text that sorts: every later holder has a higher one.

        >>> with ship.lease("deploy") as lease:
        ...     deploy(fence=lease.fence)
        """
        return self._entered().fence

    @property
    def guard(self) -> Guard:
        """What a change of entities needs to be made under this lease, held or not.

        >>> with ship.lease("deploy") as lease:
        ...     lease.guard.lease
        'deploy'
        """
        return self._entered().guard

    def check(self) -> str:
        """The fence, if the lease is still held as far as this process can tell; LeaseNotHeld as
        soon as it may have run out.

        >>> with ship.lease("deploy") as lease:
        ...     lease.check() == lease.fence
        True
        """
        return self._entered().check()

    def checked_guard(self) -> Guard:
        """What a change of entities needs to be made under this lease.

        >>> with ship.lease("deploy") as lease:
        ...     ship.entities.put("mission", "m6", {"title": "Sail"}, lease=lease.checked_guard())
        """
        return self._entered().checked_guard()

    def wait_ended(self, timeout_ms: int | None = None) -> bool:
        """Waits until the lease is held no more; False if it still is when time is over.

        >>> with ship.lease("deploy") as lease:
        ...     lease.wait_ended(timeout_ms=1)
        False
        """
        return self._thread.run(_ended(self._entered(), timeout_ms))

    def release(self) -> None:
        """Gives the lease back.

        >>> with ship.lease("deploy") as lease:
        ...     lease.release()
        """
        self._thread.run(self._entered().release())

    def _entered(self) -> AsyncLease:
        if self._lease is None:
            raise LeaseNotHeld("the lease was not asked for yet", hint="enter it with `with`")
        return self._lease


async def _entered(make: Callable[[], AsyncLease]) -> AsyncLease:
    return await make().__aenter__()


async def _ended(lease: AsyncLease, timeout_ms: int | None) -> bool:
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / SECOND_MS):
            await lease.ended()
    except TimeoutError:
        return False
    return True
