"""Running a command for as long as a lease is held.

The lease renews itself, and says when this process can no longer believe that it holds it
(`node/library/aio_lease.py`). Then the command gets SIGTERM, and SIGKILL after a grace, but before
the lease is given away. If this process is stopped or killed, a guard beside it does the same
(`lease_guard.py`). A machine that sleeps notices that late: only a resource that refuses older
fences is safe from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from io import FileIO

from holdfast.apps.cli import lease_guard
from holdfast.node.library.aio_lease import AsyncLease
from holdfast.rules.errors import BadInput, LeaseNotHeld
from holdfast.rules.limits import SECOND_MS
from holdfast.service.clock import elapsed_ms

Talk = Callable[[str], None]


async def run_leased(
    lease: AsyncLease, command: Sequence[str], about: dict[str, str], *, grace_ms: int, talk: Talk
) -> int:
    """Takes the lease, runs the command, and gives the lease back. Returns the exit code of the
    command; LeaseNotHeld if it was ended because the lease was lost.
    """
    async with lease:
        talk(f"holding {lease.name} under the fence {lease.fence}")
        process, guard = await _started(
            command, {**about, "HOLDFAST_FENCE": lease.fence}, lease, grace_ms
        )
        loop = asyncio.get_running_loop()
        # SIGTERM goes on to the command, whose end ends this process too.
        loop.add_signal_handler(signal.SIGTERM, _signal, process, signal.SIGTERM)
        lost = asyncio.ensure_future(lease.ended())
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({lost, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                talk(f"the lease {lease.name} is lost; the command gets SIGTERM")
                left_ms = max(0, lease.ends_at_ms - elapsed_ms())
                await _end(process, min(grace_ms, left_ms))
            elif not await _has_acted(guard):
                code = ended.result()
                return code if code >= 0 else 128 - code
            raise LeaseNotHeld(f"the lease {lease.name!r} was lost while the command ran")
        finally:
            # The command has ended before the lease is given back, however this block is left.
            await _end(process, grace_ms)
            await _has_acted(guard)
            loop.remove_signal_handler(signal.SIGTERM)
            lost.cancel()
            await asyncio.gather(lost, ended, return_exceptions=True)


async def _guarded(
    process: asyncio.subprocess.Process, lease: AsyncLease, grace_ms: int
) -> asyncio.subprocess.Process:
    """Starts what ends the command if this process cannot, and tells it of every renewal. Returns
    when it watches.
    """
    guard = await asyncio.create_subprocess_exec(
        *_own_program("guard", process.pid, int(_is_alone()), grace_ms),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    told, watches = guard.stdin, guard.stdout
    assert told is not None, "it was asked for"
    assert watches is not None, "it was asked for"

    def tell() -> None:
        if not told.is_closing():
            told.write(b"%d %d\n" % (lease.stops_at_ms, lease.ends_at_ms))

    lease.on_renewed = tell
    tell()
    await watches.read(1)
    return guard


async def _has_acted(guard: asyncio.subprocess.Process) -> bool:
    """Lets the guard go; whether it had ended the command before."""
    told = guard.stdin
    assert told is not None, "it was asked for"
    if not told.is_closing():
        told.write(b"done\n")
        told.close()
    return await guard.wait() == lease_guard.ACTED


def _is_alone() -> bool:
    """Whether the command gets a session of its own. At a terminal it must stay in ours, or it
    could not read from it.
    """
    return not sys.stdin.isatty()


async def _started(
    command: Sequence[str], about: dict[str, str], lease: AsyncLease, grace_ms: int
) -> tuple[asyncio.subprocess.Process, asyncio.subprocess.Process]:
    """The command, and its guard, which watches before it begins."""
    with ExitStack() as ends:
        opens, opener = _pipe(ends)
        told, teller = _pipe(ends)
        process = await asyncio.create_subprocess_exec(
            *(*_own_program("gate", opens.fileno(), teller.fileno(), 0), *command),
            env={**os.environ, **about},
            start_new_session=_is_alone(),
            pass_fds=(opens.fileno(), teller.fileno()),
        )
        try:
            guard = await _guarded(process, lease, grace_ms)
        except BaseException:
            await _end(process, grace_ms)
            raise
        teller.close()
        opener.write(b".")
        failed = await asyncio.to_thread(told.read)  # until it has become the command, or cannot
    if failed:
        await process.wait()
        await _has_acted(guard)
        raise BadInput(f"{command[0]} cannot be run: {os.strerror(int(failed))}")
    return process, guard


def _own_program(name: str, *words: int) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", lease_guard.__file__, name, *map(str, words))


def _pipe(ends: ExitStack) -> tuple[FileIO, FileIO]:
    read, write = os.pipe()
    return ends.enter_context(FileIO(read, "rb")), ends.enter_context(FileIO(write, "wb"))


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
