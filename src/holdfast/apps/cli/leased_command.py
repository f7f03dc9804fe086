"""Running a command for as long as a lease is held.

The lease renews itself, and says when this process can no longer believe that it holds it
(`node/library/aio_lease.py`). Then the command gets SIGTERM, and SIGKILL after a grace. A machine
that sleeps notices that late: only a resource that refuses older fences is safe from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.node.library.aio_lease import AsyncLease
from holdfast.rules.errors import BadInput, LeaseNotHeld
from holdfast.rules.limits import SECOND_MS

Talk = Callable[[str], None]


async def run_leased(
    lease: AsyncLease, command: Sequence[str], about: dict[str, str], *, grace_ms: int, talk: Talk
) -> int:
    """Takes the lease, runs the command, and gives the lease back. Returns the exit code of the
    command; LeaseNotHeld if it was ended because the lease was lost.
    """
    async with lease:
        talk(f"holding {lease.name} under the fence {lease.fence}")
        process = await _started(command, {**about, "HOLDFAST_FENCE": lease.fence})
        loop = asyncio.get_running_loop()
        # SIGTERM goes on to the command, whose end ends this process too.
        loop.add_signal_handler(signal.SIGTERM, _signal, process, signal.SIGTERM)
        lost = asyncio.ensure_future(lease.ended())
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({lost, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                code = ended.result()
                return code if code >= 0 else 128 - code
            talk(f"the lease {lease.name} is lost; the command gets SIGTERM")
            await _end(process, grace_ms)
            raise LeaseNotHeld(f"the lease {lease.name!r} was lost while the command ran")
        finally:
            # The command has ended before the lease is given back, however this block is left.
            await _end(process, grace_ms)
            loop.remove_signal_handler(signal.SIGTERM)
            lost.cancel()
            await asyncio.gather(lost, ended, return_exceptions=True)


def _is_alone() -> bool:
    """Whether the command gets a session of its own. At a terminal it must stay in ours, or it
    could not read from it.
    """
    return not sys.stdin.isatty()


async def _started(command: Sequence[str], about: dict[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **about}, start_new_session=_is_alone()
        )
    except OSError as error:
        raise BadInput(f"{command[0]} cannot be run: {error.strerror}") from None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if _is_alone():
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


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
