"""What the Raft logs have answered survives a disk that once failed to sync."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.rules.errors import OutcomeUnknown
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.disk.files import watch_files
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog
from support.quorum_logs import entry, filled, opened, write


class SyncsFail:
    """While `bad`, the WAL cannot be synced."""

    bad = False

    def __call__(self, call: DiskCall) -> Kind | None:
        return "ioerr" if self.bad and call.op == "sync" and call.file.endswith("-wal") else None


@pytest.mark.parametrize("seed", range(6))
def test_Q3_what_was_answered_after_a_failed_sync_and_a_reopening_is_there_without_power(
    seed: int, tmp_path: Path
) -> None:
    plan, rng = SyncsFail(), random.Random(seed)
    with SimulatedDisk(plan, seed=seed) as disk, watch_files(disk, tmp_path):

        def life() -> SqliteQuorumLog:
            return opened(tmp_path, vfs=disk.name, file_number=lambda path: 0)

        def die(log: SqliteQuorumLog, *, power_loss: bool) -> None:
            disk.crash(rng, power_loss=power_loss)
            log.abort()

        log = life()
        filled(log, 1)
        plan.bad = True
        with pytest.raises(OutcomeUnknown):
            log.save(write(2, entry(2, 1), term=1))
        plan.bad = False
        die(log, power_loss=False)
        log = life()
        head = log.head("team")
        log.save(write(head.written + 1, entry(head.last + 1, 2), term=2, vote=3))
        die(log, power_loss=True)
        log = life()
        after = log.head("team")
        assert log.group("team").standing == "voter", log.group("team").reason
        assert (after.term, after.vote, after.last) == (2, 3, head.last + 1)
        die(log, power_loss=False)
