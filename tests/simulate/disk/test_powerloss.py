"""The power goes at every moment of a plain workload; only FULL keeps every promise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.simulate.disk.platter import DirectorySynced, FileWritten, Synced
from holdfast.simulate.disk.powerloss import Acknowledged, cut_power, rebuild, record
from holdfast.simulate.disk.workload import Acknowledge
from support.plain_rows import EXTRA, FULL, NORMAL, OFF, add, connect, expect, pairs_in, writing


def test_R2_with_full_sync_no_power_loss_takes_an_acknowledged_row() -> None:
    report = cut_power(record(writing(30)), expect, samples=16)
    assert report.failures == []
    assert report.states >= 1000


def test_R2_the_power_cut_finds_that_normal_sync_loses_rows_but_tears_none() -> None:
    report = cut_power(record(writing(12, sync=NORMAL)), expect)
    assert len(report.failures) > 50
    assert all("lost" in failure.problem for failure in report.failures)


def test_R2_the_power_cut_finds_that_without_sync_even_the_file_breaks() -> None:
    report = cut_power(record(writing(12, sync=OFF)), expect)
    problems = {failure.problem.partition(":")[0] for failure in report.failures}
    assert len(report.failures) > report.states / 2
    assert problems >= {"AssertionError", "CorruptError"}


def test_R2_the_power_cut_catches_an_acknowledgement_before_the_commit() -> None:
    report = cut_power(record(writing(6, too_early=True)), expect)
    assert report.failures
    assert all("lost" in failure.problem for failure in report.failures)


@pytest.mark.parametrize(("sync", "loses"), [(FULL, True), (EXTRA, False)])
def test_R2_a_deleted_journal_comes_back_unless_its_directory_is_synced(
    sync: int, loses: bool
) -> None:
    """SQLite's own warning about FULL without a write-ahead log: names have to be synced too."""
    report = cut_power(record(writing(6, sync=sync, journal="delete")), expect)
    assert bool(report.failures) is loses


def test_R2_both_extremes_of_every_moment_are_tried() -> None:
    recording = record(writing(3, sync=NORMAL))  # too few for a checkpoint, which would sync
    last = max(at for at, entry in enumerate(recording.entries) if isinstance(entry, Acknowledged))
    found = []
    cut_power(
        recording,
        lambda directory, acknowledged: found.append(pairs_in(directory / "rows.db")),
        points=[last + 1],
        samples=0,
    )
    assert len(found) == 2
    assert found[0] == {0, 1, 2}
    assert found[1] < found[0]


def test_R2_only_the_first_sync_of_a_log_makes_names_safe() -> None:
    recording = record(writing(3), prepare=lambda home: connect(home / "rows.db").close())
    story = recording.entries[recording.start :]
    assert sum(isinstance(entry, Synced) for entry in story) > 3
    assert sum(isinstance(entry, DirectorySynced) for entry in story) == 1


def test_R2_two_threads_on_one_disk_keep_their_promises_too() -> None:
    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        def write(numbers: range) -> None:
            with closing(connect(directory / "rows.db", vfs)) as connection:
                for number in numbers:
                    add(connection, number)
                    acknowledge(number)

        connect(directory / "rows.db", vfs).close()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, (range(8), range(8, 16))))

    recording = record(workload)
    assert sum(isinstance(entry, Acknowledged) for entry in recording.entries) == 16
    assert cut_power(recording, expect).failures == []


def test_R2_the_same_seed_finds_the_same_losses_and_another_seed_others() -> None:
    recording = record(writing(6, sync=NORMAL))
    first = cut_power(recording, expect, seed=5)
    again = cut_power(recording, expect, seed=5)
    other = cut_power(recording, expect, seed=6)
    assert (first.states, first.failures) == (again.states, again.failures)
    assert [loss.fates for loss in first.failures] != [loss.fates for loss in other.failures]


def test_R2_a_loss_can_be_rebuilt_and_looked_at(tmp_path: Path) -> None:
    recording = record(writing(6, sync=NORMAL))
    promised = [entry.what for entry in recording.entries if isinstance(entry, Acknowledged)]
    for number, loss in enumerate(cut_power(recording, expect, samples=1).failures):
        home = tmp_path / str(number)
        home.mkdir()
        rebuild(recording, loss, home)
        with pytest.raises(AssertionError, match="lost"):
            expect(home, promised[: loss.acknowledged])
        assert f"at point {loss.point} with {loss.acknowledged} acknowledged" in str(loss)


def test_R2_points_can_be_shared_out_between_runs() -> None:
    recording = record(writing(6, sync=NORMAL))
    whole = cut_power(recording, expect)
    points = range(len(recording.entries) + 1)
    halves = [cut_power(recording, expect, points=points[start::2]) for start in (0, 1)]
    assert whole.points == len(points) == sum(half.points for half in halves)
    # A state that two neighbours share is looked at in both halves.
    assert sum(half.states for half in halves) >= whole.states


def test_R2_what_was_there_before_the_recording_is_safe() -> None:
    def prepare(directory: Path) -> None:
        with closing(connect(directory / "rows.db", sync=OFF)) as connection:
            add(connection, 50)
        (directory / "empty").mkdir()

    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        acknowledge(50)
        writing(4)(directory, vfs, acknowledge)

    def check(directory: Path, acknowledged: tuple[object, ...]) -> None:
        assert (directory / "empty").is_dir()
        assert pairs_in(directory / "rows.db") >= {50, *acknowledged}

    report = cut_power(record(workload, prepare=prepare), check)
    assert report.failures == []
    assert report.states > 50


def test_R2_a_process_that_dies_with_its_files_open_is_recorded_like_any_other() -> None:
    left = []

    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        connection = connect(directory / "rows.db", vfs)
        left.append(connection)
        for number in range(4):
            add(connection, number)
            acknowledge(number)

    recording = record(workload)
    entries = len(recording.entries)
    left[0].close()
    assert len(recording.entries) == entries, "closing the dead was recorded"
    assert any(isinstance(entry, FileWritten) for entry in recording.entries)
    assert cut_power(recording, expect).failures == []
