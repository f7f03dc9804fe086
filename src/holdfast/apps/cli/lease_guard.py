"""Ends the command of a lease in time if the process that holds the lease does not.

That process may be stopped (SIGSTOP, a debugger, a full machine) or killed, and its command would
run on under a lease that is soon somebody else's. This program is started beside the command, in a
session of its own, and hears by its input until when the lease is believed in:

    STOPS ENDS    after every renewal, milliseconds of the clock that goes on in sleep: when the
                  command is to be told to stop, and when it must be gone
    done          the command has ended, or whoever holds the lease ends it

If nothing newer comes by then, or the input just ends, it sends SIGTERM, and SIGKILL after the
grace, before the lease is given away. It exits with 1 if it had to act.

The command is not begun before its guard is there: until then its process stands at a gate, which
opens by a byte and is gone with whoever would have sent it.

Both are run by their path, with nothing but the standard library, to be there in milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
ACTED = 1


def now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


class Guarded:
    """The command: a process, or all of its session."""

    def __init__(self, pid: int, *, is_group: bool) -> None:
        self._pid, self._is_group = pid, is_group
        opened = getattr(os, "pidfd_open", None)
        # A number can be another process by and by; this handle cannot.
        self.handle = -1 if opened is None else opened(pid)

    def has_ended(self, wait_ms: int = 0) -> bool:
        watched = [] if self.handle < 0 else [self.handle]
        return bool(select.select(watched, [], [], wait_ms / 1000)[0])

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._is_group:
                os.killpg(self._pid, number)
            else:
                os.kill(self._pid, number)


def guard(command: Guarded, grace_ms: int) -> int:
    """Returns the exit code. Says a byte when it knows until when."""
    rest, stops_at, ends_at = b"", 0, 0
    while True:
        wait_s = None if not stops_at else max(0, stops_at - now_ms()) / 1000
        watched = [0] if command.handle < 0 else [0, command.handle]
        ready = select.select(watched, [], [], wait_s)[0]
        if command.handle in ready:
            return 0
        if not ready:
            break
        data = os.read(0, 4096)
        if not data:
            break  # whoever holds the lease is gone
        *lines, rest = (rest + data).split(b"\n")
        if b"done" in lines:
            return 0
        for line in lines:
            if not stops_at:
                os.write(1, b".")
            stops_at, ends_at = map(int, line.split())
    _end(command, grace_ms if not ends_at else min(grace_ms, ends_at - now_ms()))
    return ACTED


def _end(command: Guarded, grace_ms: int) -> None:
    command.send(signal.SIGTERM)
    command.send(signal.SIGCONT)  # one that is stopped with its holder would not hear it
    command.has_ended(max(0, grace_ms))
    command.send(signal.SIGKILL)  # also for what it has started


def gate(opens: int, told: int, words: list[str]) -> int:
    """Becomes the command as soon as it may; tells the number of the error if it cannot."""
    if not os.read(opens, 1):
        return ACTED
    os.close(opens)
    os.set_inheritable(told, False)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and commands do not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(told, b"%d" % (error.errno or 0))
    return ACTED


def main(words: list[str]) -> int:
    first, second, third = map(int, words[1:4])
    if words[0] == "gate":
        return gate(first, second, words[4:])
    try:
        guarded = Guarded(first, is_group=bool(second))
    except ProcessLookupError:
        return 0  # it has ended already
    return guard(guarded, third)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
