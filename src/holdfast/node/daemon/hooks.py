"""Runs the commands that an operator set up for events: a hook gets the event as JSON on its stdin.

A hook runs in a session of its own with a small environment: what a program needs to find others
(PATH, HOME, the language, the time zone), which home and event it is about, and the variables that
`hook_environment` names. So no secret of the daemon's own environment reaches it by accident. At
its time limit the whole process group is ended, with all that the hook has started.

The hook for messages runs once for each message (`message_hook`). The others (`EventHooks`) run for
what is in no log: the outbox, links, brokers, the disk. They run one after another, at most once
for each event; events that come faster than hooks end are missed, counted and logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Final

import msgspec

from holdfast.node.watching.log_watch import LogWatch, Notice
from holdfast.rules.limits import HOOK_GRACE_MS, HOOK_MS_MAX, LAMPORT_MAX, SECOND_MS

log = logging.getLogger("holdfast")

PASSED_ON: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ"),
    *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_TIME"),
)
"""What a hook gets of the daemon's environment without being asked."""
_OUTPUT_BYTES: Final = 500
_PIPE_BYTES: Final = 65_536
_LOOK_S: Final = 60.0


class HookRunner:
    """Runs hooks and counts how they end."""

    def __init__(
        self, about: Mapping[str, str], passed_on: Sequence[str] = (), *, ms_max: int = HOOK_MS_MAX
    ) -> None:
        """`about` are variables of this node for every hook; `passed_on` names further variables of
        the daemon's environment.
        """
        self._about, self.passed_on, self._ms_max = dict(about), tuple(passed_on), ms_max
        self._limit: asyncio.Timeout | None = None
        self.runs: Counter[tuple[str, str]] = Counter()
        """Runs by event and result: `done`, `failed`, `late`."""

    def environment(self, event: str) -> dict[str, str]:
        names = (*PASSED_ON, *self.passed_on)
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {**kept, **self._about, "HOLDFAST_EVENT": event}

    async def run(self, event: str, command: Sequence[str], document: bytes, about: str) -> str:
        """Runs one hook to its end; returns how it went. Never raises for what the hook does."""
        how = await self._run(event, command, document, about)
        self.runs[event, how] += 1
        return how

    def hurry(self) -> None:
        """The time of the hook that runs now is over."""
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _run(self, event: str, command: Sequence[str], document: bytes, about: str) -> str:
        with closing(_Output()) as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=output.write_end,
                    env=self.environment(event),
                    start_new_session=True,
                )
            except OSError as error:
                log.warning("the hook for %s cannot be run: %s", about, error)
                return "failed"
            try:
                async with asyncio.timeout(self._ms_max / SECOND_MS) as self._limit:
                    await process.communicate(document)
            except TimeoutError:
                log.warning("the hook for %s took over %d ms and was ended", about, self._ms_max)
                await _end_group(process)
                return "late"
            except BaseException:
                _signal_group(process, signal.SIGKILL)  # this daemon is ending
                raise
            if process.returncode:
                said = output.last_words()
                log.warning("the hook for %s ended with %d: %s", about, process.returncode, said)
                return "failed"
            return "done"


class _Output:
    """The last words of a hook on its stderr. What the hook leaves behind may keep the pipe open:
    nobody waits for its end, and only the tail is kept.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.write_end, True)  # the hook's side
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def _read(self) -> bool:
        """Takes what is there; False when there is nothing."""
        try:
            piece = os.read(self._read_end, _PIPE_BYTES)
        except BlockingIOError:
            return False
        self._tail = (self._tail + piece)[-_OUTPUT_BYTES:]
        return bool(piece)

    def last_words(self) -> str:
        while self._read():
            pass
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self.write_end)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ends all that a hook has started: asked first, and after a moment without asking."""
    _signal_group(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(HOOK_GRACE_MS / SECOND_MS):
            await process.wait()
    _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)  # the leader of its session: its number is the group's


class EventHooks:
    """A task of the daemon that runs the hooks for events that are in no log."""

    def __init__(
        self, runner: HookRunner, log_watch: LogWatch, commands: Mapping[str, list[str]]
    ) -> None:
        self._runner, self._log_watch = runner, log_watch
        self.commands = dict(commands)
        self._seen = log_watch.last_notice
        self.missed = 0
        """Events that were gone before their hook could run."""

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while not self._log_watch.closing:
            for notice in self._log_watch.news(self._seen):
                self._note_gap(notice)
                command = self.commands.get(notice.kind)
                if command:
                    about = f"an event of kind {notice.kind}"
                    document = msgspec.json.encode({"event": notice.kind, **notice.document})
                    await self._runner.run(notice.kind, command, document, about)
            await self._log_watch.wait(LAMPORT_MAX, _LOOK_S, after=self._seen)

    def _note_gap(self, notice: Notice) -> None:
        missed = notice.number - self._seen - 1
        self._seen = notice.number
        if missed and any(self.commands.values()):
            self.missed += missed
            log.warning("%d events came faster than their hooks ended and were missed", missed)
