"""The Raft log of a machine, on a disk that takes its time: what the driver's real `LogDisk` uses.

What is submitted is written later, by a call of the calendar, so that death or a full disk can come
before it, in the middle of it, or between the disk and the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import apsw

from holdfast.rules.errors import DiskFull, HoldfastError, StoreFailed
from holdfast.rules.quorum.log_rows import EntryRow, GroupWrite, SaveAnswer, SnapshotIntake
from holdfast.storage.quorum_port import Answer
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog

if TYPE_CHECKING:
    from holdfast.simulate.quorum.machine import VoterMachine

DISK_MS_MAX: Final = 30
ASIDE_MS_MAX: Final = 60


class SlowQuorumLog(SqliteQuorumLog):
    """Writes when the calendar says so. Reads never fail: a read that does ends a real process."""

    machine: VoterMachine
    _next_at: int

    def bind(self, machine: VoterMachine) -> None:
        self.machine, self._next_at = machine, 0

    def submit(self, writes: Sequence[GroupWrite], answer: Answer) -> int:
        taken = list(writes)

        def save() -> None:
            answers = [self._saved(write) for write in taken]
            if not self.machine.weather.dead:
                answer(answers)

        self._at(save, self.machine.rng.randrange(1 + DISK_MS_MAX), f"{len(taken)} writes")
        return len(taken)

    def _saved(self, write: GroupWrite) -> SaveAnswer:
        try:
            return SaveAnswer(write=write, saved=self.save(write))
        except DiskFull as error:
            self.machine.world.happened["disk full"] += 1
            return SaveAnswer(write=write, error=error)
        except HoldfastError as error:
            self._failed()
            return SaveAnswer(write=write, error=error)
        except apsw.Error as error:
            self._failed()
            return SaveAnswer(write=write, error=StoreFailed(str(error)))

    def aside(self, call: Callable[[], None]) -> None:
        """Runs what lasts."""

        def run() -> None:
            call()
            if self.state == "failed":
                self._failed()

        self._at(run, self.machine.rng.randrange(1 + ASIDE_MS_MAX), "aside")

    def _at(self, call: Callable[[], None], takes: int, what: str) -> None:
        now = self.machine.world.ticks
        at = self._next_at = max(self._next_at, now + takes + self.machine.slow_disk_ms)
        self.machine.soon(at - now, call, what)

    def _failed(self) -> None:
        machine = self.machine
        if not machine.weather.dead:
            machine.world.happened["disk failed"] += 1
            machine.world.restart_soon(machine)

    def entries(self, scope: str, start: int, end: int, bytes_max: int) -> list[EntryRow]:
        with self.machine.weather.fine():
            return super().entries(scope, start, end, bytes_max)

    def intake(self, scope: str) -> SnapshotIntake | None:
        with self.machine.weather.fine():
            return super().intake(scope)

    def intake_part(self, scope: str, offset: int) -> bytes:
        with self.machine.weather.fine():
            return super().intake_part(scope, offset)
