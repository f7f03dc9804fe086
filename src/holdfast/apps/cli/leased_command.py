"""Running a command for as long as a lease is held.

The lease is renewed while the command runs. What this process believes is counted on its own clock,
from before it sent the last renewal that was answered, and ends at two thirds of the time to live
(`rules/quorum/lease.py`). When it can no longer believe that it holds the lease, the command gets
SIGTERM, and SIGKILL after a grace. A machine that sleeps notices that late: only a resource that
refuses older fences is safe from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from holdfast.node.quorum.api import QuorumApi
from holdfast.rules.bodies import Body, encode_body
from holdfast.rules.errors import (
    BadInput,
    Conflict,
    HoldfastError,
    LeaseHeld,
    LeaseNotHeld,
    NotAllowed,
    UnknownMesh,
)
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import LEASE_RENEW_PAUSE_MS, QUORUM_COMMIT_MS, SECOND_MS
from holdfast.rules.quorum.intents import LeaseAcquire, LeaseRelease, LeaseRenew
from holdfast.rules.quorum.lease import holder_renews_at_ms, holder_stops_at_ms
from holdfast.rules.quorum.view import LeaseRow

_GONE: Final = (Conflict, NotAllowed, UnknownMesh)
"""Answers after which the lease is not ours, for certain."""
Look = Callable[[], LeaseRow | None]
"""The lease as it is committed in this home's store."""
Talk = Callable[[str], None]


def _now_ms() -> int:
    return int(monotonic() * SECOND_MS)


class HeldLease:
    """A lease of this process, for as long as it can believe that it holds it."""

    def __init__(self, quorum: QuorumApi, mesh: str, name: str, ttl_ms: int, look: Look) -> None:
        self._quorum, self._mesh, self.name, self._ttl_ms = quorum, mesh, name, ttl_ms
        self._look = look
        self._session = b""
        self._sent_ms = 0
        self.fence = ""

    async def take(self, id: str, wait_ms: int) -> None:
        """LeaseHeld if somebody else has it and does not let go of it in this time."""
        self._session, self._sent_ms = parse_id(id), _now_ms()
        body = LeaseAcquire(self._ttl_ms, wait=wait_ms > 0)
        await self._quorum.intend(self._mesh, "lease.acquire", self.name, encode_body(body), id=id)
        if not self._is_granted():
            await self._wait(wait_ms)
            # How long ago it was granted nobody knows here: the time begins with a renewal.
            await self._renew()

    async def _wait(self, wait_ms: int) -> None:
        try:
            granted = await self._quorum.lease_granted(
                self._mesh, self.name, self._session, timeout_ms=wait_ms
            )
        except BaseException:
            await self.release()
            raise
        if not granted or not self._is_granted():
            row = self._look()
            await self.release()
            held = "somebody else" if row is None else row.holder
            raise LeaseHeld(f"lease {self.name!r} is still held by {held}")

    def _is_granted(self) -> bool:
        row = self._look()
        if row is None or row.session != self._session or row.grant is None:
            return False
        self.fence = str(row.grant.order)
        return True

    async def _renew(self) -> None:
        sent_ms = _now_ms()
        left_ms = max(1, self.stops_at_ms - sent_ms)
        await self._send("lease.renew", LeaseRenew(self._session, self._ttl_ms), left_ms)
        self._sent_ms = sent_ms

    @property
    def stops_at_ms(self) -> int:
        return holder_stops_at_ms(self._sent_ms, self._ttl_ms)

    async def keep(self) -> HoldfastError:
        """Renews it again and again; returns why it is lost."""
        problem: HoldfastError = LeaseNotHeld(f"lease {self.name!r} was not renewed in time")
        while True:
            due_ms = holder_renews_at_ms(self._sent_ms, self._ttl_ms)
            try:
                async with asyncio.timeout((self.stops_at_ms - _now_ms()) / SECOND_MS):
                    await asyncio.sleep(max(0, due_ms - _now_ms()) / SECOND_MS)
                    while not await self._is_renewed():
                        await asyncio.sleep(LEASE_RENEW_PAUSE_MS / SECOND_MS)
            except TimeoutError:
                return problem
            except _GONE as error:
                return error

    async def _is_renewed(self) -> bool:
        try:
            await self._renew()
        except _GONE:
            raise
        except HoldfastError:
            return False  # no quorum now, or no daemon: there is time for another try
        return True

    async def release(self) -> None:
        """Gives it back. If that does not go through, it ends by itself."""
        with suppress(HoldfastError, TimeoutError):
            await self._send("lease.release", LeaseRelease(self._session), QUORUM_COMMIT_MS)

    async def _send(self, op: str, body: Body, timeout_ms: int) -> None:
        time = min(timeout_ms, QUORUM_COMMIT_MS)
        await self._quorum.intend(self._mesh, op, self.name, encode_body(body), timeout_ms=time)


async def run_leased(
    lease: HeldLease, command: Sequence[str], about: dict[str, str], *, grace_ms: int, talk: Talk
) -> int:
    """Runs the command under a lease that was taken, and gives the lease back. Returns the exit
    code of the command; LeaseNotHeld if it was ended because the lease was lost.
    """
    try:
        process = await _started(command, {**about, "HOLDFAST_FENCE": lease.fence})
    except BaseException:
        await lease.release()
        raise
    keeping = asyncio.ensure_future(lease.keep())
    ended = asyncio.ensure_future(process.wait())
    passing = _pass_on(process)
    try:
        await asyncio.wait({keeping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            lost = keeping.result()
            talk(f"the lease is lost: {lost.message}; the command gets SIGTERM")
            await _end(process, grace_ms)
            raise LeaseNotHeld(f"the lease {lease.name!r} was lost while the command ran")
        code = ended.result()
        return code if code >= 0 else 128 - code
    finally:
        passing()
        keeping.cancel()
        await _end(process, grace_ms)
        await asyncio.gather(ended, return_exceptions=True)
        await lease.release()


def _alone() -> bool:
    """Whether the command gets a session of its own. At a terminal it must stay in ours, or it
    could not read from it.
    """
    return not sys.stdin.isatty()


async def _started(command: Sequence[str], about: dict[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **about}, start_new_session=_alone()
        )
    except OSError as error:
        raise BadInput(f"{command[0]} cannot be run: {error.strerror}") from None


def _pass_on(process: asyncio.subprocess.Process) -> Callable[[], None]:
    """SIGTERM goes on to the command, whose end ends this process too."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, _signal, process, signal.SIGTERM)
    return lambda: _stop_passing(loop)


def _stop_passing(loop: asyncio.AbstractEventLoop) -> None:
    loop.remove_signal_handler(signal.SIGTERM)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number) if _alone() else process.send_signal(number)


async def _end(process: asyncio.subprocess.Process, grace_ms: int) -> None:
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_ms / SECOND_MS):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()
