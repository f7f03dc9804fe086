"""The disk that counts, fails and crashes, tried with plain SQLite."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from holdfast.simulate.disk.disk import FaultyDisk, SimulatedDisk, seed_sqlite
from holdfast.simulate.disk.faults import DiskCall, FailAt, FailSometimes, Kind, Op, healthy
from holdfast.simulate.disk.platter import Event, FileWritten, Synced, SyncFailed
from holdfast.simulate.disk.workload import scratch
from support.plain_rows import FULL, NORMAL, OFF, add, connect, expect, pairs_in, writing


def test_R2_a_healthy_disk_passes_everything_through_and_counts_it(tmp_path: Path) -> None:
    with FaultyDisk(trace=True) as disk:
        writing(20)(tmp_path, disk.name, lambda number: None)
        assert disk.trace is not None
        files = {call.file for call in disk.trace}
        assert files == {"rows.db", "rows.db-wal", "rows.db-journal"}
        assert {call.op for call in disk.trace} >= {"open", "read", "write", "sync", "size"}
        assert [call.number for call in disk.trace] == list(range(disk.calls))
        assert sum(disk.counts.values()) == disk.calls
        assert disk.first_fault is None
        assert disk.handles == 0
    assert pairs_in(tmp_path / "rows.db") == set(range(20))


def test_R2_many_disks_live_side_by_side_and_leave_no_name_behind(tmp_path: Path) -> None:
    before = apsw.vfs_names()
    with FaultyDisk() as one, FaultyDisk(FailAt(0, "ioerr", "forever")) as other:
        assert one.name != other.name
        with closing(connect(tmp_path / "rows.db", one.name)) as connection:
            add(connection, 1)
        with pytest.raises(apsw.CantOpenError):
            connect(tmp_path / "rows.db", other.name)
    assert apsw.vfs_names() == before


@pytest.mark.parametrize(
    ("op", "kind", "error", "code"),
    [
        ("open", "ioerr", apsw.CantOpenError, apsw.SQLITE_CANTOPEN),
        ("read", "ioerr", apsw.IOError, apsw.SQLITE_IOERR_READ),
        ("size", "ioerr", apsw.IOError, apsw.SQLITE_IOERR_FSTAT),
        ("write", "ioerr", apsw.IOError, apsw.SQLITE_IOERR_WRITE),
        ("sync", "ioerr", apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
        ("delete", "ioerr", apsw.IOError, apsw.SQLITE_IOERR_DELETE),
        ("write", "full", apsw.FullError, apsw.SQLITE_FULL),
    ],
)
def test_R2_a_fault_reaches_the_caller_as_the_error_that_sqlite_gives(
    tmp_path: Path, op: Op, kind: Kind, error: type[apsw.Error], code: int
) -> None:
    def plan(call: DiskCall) -> Kind | None:
        return kind if call.op == op else None

    with FaultyDisk(plan) as disk:
        with pytest.raises(error) as caught:
            writing(20)(tmp_path, disk.name, lambda number: None)
        assert getattr(caught.value, "extendedresult", None) == code
        assert disk.first_fault is not None
        assert disk.first_fault.op == op


def test_R2_a_fault_once_is_over_and_a_fault_forever_stays(tmp_path: Path) -> None:
    with FaultyDisk() as disk, closing(connect(tmp_path / "rows.db", disk.name)) as connection:
        disk.plan = FailAt(disk.calls, "ioerr", "once")
        with pytest.raises(apsw.IOError):
            add(connection, 1)
        add(connection, 2)
        disk.plan = FailAt(disk.calls, "ioerr", "forever")
        for number in (3, 4, 5):
            with pytest.raises(apsw.IOError):
                add(connection, number)
        disk.plan = healthy
    assert pairs_in(tmp_path / "rows.db") == {2}


def test_R2_a_full_disk_refuses_writes_and_goes_on_reading(tmp_path: Path) -> None:
    with FaultyDisk() as disk, closing(connect(tmp_path / "rows.db", disk.name)) as connection:
        add(connection, 1)
        disk.plan = FailAt(disk.calls, "full", "forever")
        with pytest.raises(apsw.FullError):
            add(connection, 2)
        assert pairs_in(tmp_path / "rows.db", disk.name) == {1}
        disk.plan = healthy
        add(connection, 3)
    assert pairs_in(tmp_path / "rows.db") == {1, 3}


def test_R2_a_disk_fills_up_in_the_middle_of_a_write(tmp_path: Path) -> None:
    seen: list[Event] = []
    with (
        FaultyDisk(witness=seen.append) as disk,
        closing(connect(tmp_path / "rows.db", disk.name)) as connection,
    ):
        disk.plan = FailAt(disk.calls + 1, "full", "forever")
        seen.clear()
        with pytest.raises(apsw.FullError):
            add(connection, 1)
        assert [len(event.data) for event in seen if isinstance(event, FileWritten)] == [24, 2048]
        disk.plan = healthy


def test_R2_the_witness_hears_of_a_failed_sync(tmp_path: Path) -> None:
    seen: list[Event] = []
    with (
        FaultyDisk(witness=seen.append) as disk,
        closing(connect(tmp_path / "rows.db", disk.name)) as connection,
    ):
        disk.plan = lambda call: "ioerr" if call.op == "sync" else None
        seen.clear()
        with pytest.raises(apsw.IOError):
            add(connection, 1)
        assert isinstance(seen[-1], SyncFailed)
        assert not any(isinstance(event, Synced) for event in seen)
        disk.plan = healthy


def test_R1_a_killed_process_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with SimulatedDisk() as disk:
        dead = connect(path, disk.name, sync=OFF)
        for number in range(5):
            add(dead, number)
        dead.execute("BEGIN IMMEDIATE")
        dead.execute("INSERT INTO rows VALUES (100, 'half of a pair')")
        assert disk.crash(random.Random(0), power_loss=False).mode == "kill"
        assert Path(f"{path}-shm").exists()
        assert pairs_in(path, disk.name) == set(range(5))
        dead.close()


def test_R1_the_dead_change_nothing_and_are_told_so(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with SimulatedDisk() as disk:
        dead = connect(path, disk.name)
        add(dead, 1)
        disk.crash(random.Random(0), power_loss=False)
        left = _hash(tmp_path)
        with pytest.raises(apsw.IOError):
            add(dead, 2)
        with closing(apsw.Connection(str(path), vfs=disk.name)) as alive:
            # The dead one holds no lock that the living would have to wait for.
            alive.execute("BEGIN EXCLUSIVE")
            alive.execute("ROLLBACK")
            dead.close()
            assert Path(f"{path}-shm").exists(), "closing the dead took the living's shared memory"
            add(alive, 3)
        assert left != _hash(tmp_path)
        assert pairs_in(path) == {1, 3}


def test_R1_closing_the_dead_does_no_checkpoint(tmp_path: Path) -> None:
    with SimulatedDisk() as disk:
        dead = connect(tmp_path / "rows.db", disk.name)
        add(dead, 1)
        disk.crash(random.Random(0))
        left = _hash(tmp_path)
        assert not (tmp_path / "rows.db-shm").exists()
        assert (tmp_path / "rows.db-wal").stat().st_size > 0
        dead.close()
        assert _hash(tmp_path) == left


def test_R1_the_dead_do_not_delete_the_journal_of_the_living(tmp_path: Path) -> None:
    journal = tmp_path / "rows.db-journal"
    with SimulatedDisk() as disk:
        dead = connect(tmp_path / "rows.db", disk.name, journal="delete")
        dead.execute("BEGIN IMMEDIATE")
        dead.execute("INSERT INTO rows VALUES (0, 'half of a pair')")
        assert journal.exists()
        disk.crash(random.Random(0), power_loss=False)
        dead.close()
        assert journal.exists()
        assert pairs_in(tmp_path / "rows.db", disk.name) == set()


def test_R1_a_crash_leaves_alone_what_this_disk_never_saw(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with SimulatedDisk() as first, SimulatedDisk() as second:
        dead = connect(path, first.name)
        add(dead, 1)
        first.crash(random.Random(0), power_loss=False)
        # Opened but not read yet, so the log of the life before has not been looked at.
        idle = apsw.Connection(str(path), vfs=second.name)
        second.crash(random.Random(0))
        idle.close()
        dead.close()
        assert pairs_in(path) == {1}


@pytest.mark.parametrize(("sync", "may_lose"), [(FULL, False), (NORMAL, True), (OFF, True)])
def test_R1_a_power_loss_takes_only_what_was_not_synced(sync: int, may_lose: bool) -> None:
    lost = sum(_survivors(seed, sync) < set(range(9)) for seed in range(60))
    assert (lost > 0) is may_lose


def test_R1_what_a_kill_left_unsynced_the_next_power_loss_may_still_take() -> None:
    taken = 0
    for seed in range(20):
        with scratch() as directory, SimulatedDisk() as disk:
            dead = connect(directory / "rows.db", disk.name, sync=NORMAL)
            add(dead, 1)
            disk.crash(random.Random(seed), power_loss=False)
            dead.close()
            disk.crash(random.Random(seed))
            taken += pairs_in(directory / "rows.db", disk.name) == set()
    assert 0 < taken < 20


def test_R1_the_same_seed_leaves_the_same_bytes() -> None:
    def crash(seed: int) -> str:
        seed_sqlite(seed)
        with scratch() as directory, SimulatedDisk(seed=seed) as disk:
            dead = connect(directory / "rows.db", disk.name, sync=NORMAL)
            for number in range(9):
                add(dead, number)
            disk.crash(random.Random(seed))
            dead.close()
            return _hash(directory)

    hashes = [crash(seed) for seed in range(20)]
    assert hashes == [crash(seed) for seed in range(20)]
    assert len(set(hashes)) > 15


def test_R1_a_crash_reports_what_became_of_unsynced_writes(tmp_path: Path) -> None:
    with SimulatedDisk() as disk:
        dead = connect(tmp_path / "rows.db", disk.name, sync=OFF)
        for number in range(20):
            add(dead, number)
        crash = disk.crash(random.Random(4))
        assert min(crash.kept, crash.lost, crash.torn) > 0, crash
        assert disk.crash(random.Random(4)).kept == 0, "what a power loss left is safe"
        dead.close()


@pytest.mark.parametrize("seed", range(6))
def test_R1_nothing_acknowledged_is_lost_over_many_lives(seed: int) -> None:
    """Each life ends inside some disk call, by an error, a kill or a power loss."""
    rng = random.Random(seed)
    acknowledged: set[int] = set()
    with scratch() as directory, SimulatedDisk(seed=seed) as disk:
        for life in range(25):
            disk.plan = FailAt(disk.calls + rng.randrange(60), "ioerr", "forever")
            connection = None
            with suppress(apsw.Error):
                connection = connect(directory / "rows.db", disk.name)
                for number in range(life * 100, life * 100 + 100):
                    add(connection, number)
                    acknowledged.add(number)
            disk.crash(rng, power_loss=rng.random() < 0.7)
            if connection is not None:
                connection.close()
            disk.plan = healthy
            expect(directory, acknowledged, disk.name)
    assert len(acknowledged) > 25


def test_R1_random_faults_come_as_often_as_asked() -> None:
    plan = FailSometimes(random.Random(1), ioerr=0.1, full=0.2)
    kinds = [plan(DiskCall(number, "write", "rows.db")) for number in range(5000)]
    assert 400 < kinds.count("ioerr") < 600
    assert 850 < kinds.count("full") < 1150
    reads = [plan(DiskCall(number, "read", "rows.db")) for number in range(5000)]
    assert "full" not in reads


def _survivors(seed: int, sync: int) -> set[int]:
    with scratch() as directory, SimulatedDisk(seed=seed) as disk:
        # The table is safe before the story begins, so that only rows can be lost.
        connect(directory / "rows.db").close()
        dead = connect(directory / "rows.db", disk.name, sync=sync)
        for number in range(9):
            add(dead, number)
        disk.crash(random.Random(seed))
        dead.close()
        try:
            return pairs_in(directory / "rows.db", disk.name)
        except (AssertionError, apsw.CorruptError, apsw.NotADBError):
            assert sync == OFF, "only without any sync may the file itself be damaged"
            return set()


def _hash(directory: Path) -> str:
    digest = sha256()
    for path in sorted(directory.iterdir()):
        if not path.name.endswith("-shm"):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()
