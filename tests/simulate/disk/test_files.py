"""Plain files beside the database: each forgotten sync is found, and the whole protocol holds."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.simulate.disk.disk import FaultyDisk, SimulatedDisk
from holdfast.simulate.disk.every_call_fails import sweep
from holdfast.simulate.disk.faults import DiskCall, FailAt, Kind, healthy
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.simulate.disk.workload import Acknowledge, Workload
from holdfast.storage.files.durable import durable_replace

OLD, NEW = b"old " * 700, b"new " * 900


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(
    path: Path,
    content: bytes,
    *,
    sync_file: Callable[[int], None] = os.fsync,
    sync_folder: Callable[[Path], None] = sync,
) -> None:
    """The protocol of a durable file, with steps that a test may leave out."""
    draft = path.with_suffix(".tmp")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for start in range(0, len(content), 1000):
            os.write(fd, content[start : start + 1000])
        sync_file(fd)
    finally:
        os.close(fd)
    draft.rename(path)
    sync_folder(path.parent)


def twice(put: Callable[[Path, bytes], None]) -> Workload:
    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        for content in (OLD, NEW):
            put(directory / "file", content)
            acknowledge(content)

    return workload


def check(
    directory: Path, acknowledged: Sequence[object], error: BaseException | None = None
) -> None:
    path = directory / "file"
    found = path.read_bytes() if path.exists() else None
    assert found in (None, OLD, NEW), "torn"
    order: list[object] = [None, OLD, NEW]
    last = acknowledged[-1] if acknowledged else None
    assert last in order
    assert order.index(found) >= order.index(last), "lost"


def nothing(what: object) -> None:
    """The forgotten step."""


def sync_now(fd: int) -> None:
    # Looked up at the call, because the watch puts its own function there.
    os.fsync(fd)


def test_R2_the_whole_protocol_of_a_durable_file_survives_every_power_loss() -> None:
    recording = record(twice(lambda path, content: replace(path, content, sync_file=sync_now)))
    report = cut_power(recording, check, samples=30)
    assert report.failures == []
    assert report.states > 50


def test_R2_the_power_cut_finds_a_file_renamed_before_its_content_was_synced() -> None:
    recording = record(twice(lambda path, content: replace(path, content, sync_file=nothing)))
    problems = {loss.problem for loss in cut_power(recording, check).failures}
    assert "AssertionError: torn" in problems


def test_R2_the_power_cut_finds_a_rename_without_a_sync_of_its_folder() -> None:
    def put(path: Path, content: bytes) -> None:
        replace(path, content, sync_file=sync_now, sync_folder=nothing)

    problems = {loss.problem for loss in cut_power(record(twice(put)), check).failures}
    assert problems == {"AssertionError: lost"}


def test_R2_the_power_cut_finds_a_new_folder_whose_parent_was_not_synced() -> None:
    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        (directory / "folder").mkdir()
        replace(directory / "folder" / "file", NEW, sync_file=sync_now)
        acknowledge(NEW)

    def check_folder(directory: Path, acknowledged: tuple[object, ...]) -> None:
        if acknowledged:
            assert (directory / "folder" / "file").exists()

    def with_sync(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        (directory / "folder").mkdir()
        sync(directory)
        replace(directory / "folder" / "file", NEW, sync_file=sync_now)
        acknowledge(NEW)

    assert cut_power(record(workload), check_folder).failures
    assert cut_power(record(with_sync), check_folder).failures == []


def test_R2_the_power_cut_finds_who_syncs_again_after_a_failed_sync() -> None:
    """The second sync succeeds because the system has given up the pages, not because it wrote."""

    def stubborn(fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError:
            os.fsync(fd)

    recording = record(twice(lambda path, content: replace(path, content, sync_file=stubborn)))
    assert cut_power(recording, check).failures == []

    def fail_first_sync(call: DiskCall) -> Kind | None:
        return "ioerr" if call.op == "sync" and call.number < 8 else None

    recording = record(
        twice(lambda path, content: replace(path, content, sync_file=stubborn)),
        plan=_first(fail_first_sync),
    )
    assert recording.error is None
    assert {loss.problem for loss in cut_power(recording, check).failures} == {
        "AssertionError: torn"
    }


def test_R2_opening_for_writing_anew_may_cost_the_old_content() -> None:
    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        replace(directory / "file", OLD, sync_file=sync_now)
        os.close(os.open(directory / "file", os.O_WRONLY | os.O_TRUNC))
        acknowledge("truncated")

    found = set()

    def look(directory: Path, acknowledged: tuple[object, ...]) -> None:
        if acknowledged:
            found.add((directory / "file").read_bytes())

    cut_power(record(workload), look)
    assert found == {OLD, b""}


def test_R2_the_store_s_own_durable_replace_survives_power_losses_and_faults() -> None:
    workload = twice(durable_replace)
    power = cut_power(record(workload), check, samples=30)
    assert power.failures == []
    assert power.states > 25
    faults = sweep(workload, check)
    assert faults.failures == []
    assert faults.calls >= 10


def test_R2_faults_come_as_errors_of_the_operating_system(tmp_path: Path) -> None:
    for kind, number in (("ioerr", errno.EIO), ("full", errno.ENOSPC)):
        plan = FailAt(1, "full" if kind == "full" else "ioerr")
        with FaultyDisk(plan) as disk, watch_files(disk, tmp_path):
            fd = os.open(tmp_path / kind, os.O_WRONLY | os.O_CREAT)
            with pytest.raises(OSError, match=os.strerror(number)):
                os.write(fd, NEW)
            os.close(fd)
        assert disk.first_fault == DiskCall(1, "write", kind)
    assert (tmp_path / "ioerr").stat().st_size == 0
    assert 0 < (tmp_path / "full").stat().st_size < len(NEW), "a disk fills up inside a write"


def test_R2_the_watch_leaves_other_files_alone_and_goes_away(tmp_path: Path) -> None:
    functions = (os.open, os.write, os.fsync, os.unlink, os.mkdir)
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    with FaultyDisk(FailAt(0, "ioerr", "forever")) as disk, watch_files(disk, inside):
        replace(outside / "file", NEW, sync_file=sync_now)
        assert disk.calls == 0
        with pytest.raises(OSError, match="Input/output error"):
            replace(inside / "file", NEW, sync_file=sync_now)
        os.unlink(outside / "file")
    assert functions == (os.open, os.write, os.fsync, os.unlink, os.mkdir)
    replace(inside / "file", NEW)


def test_R1_a_crash_takes_unsynced_files_too(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(20):
        home = tmp_path / str(seed)
        home.mkdir()
        with SimulatedDisk() as disk, watch_files(disk, home):
            replace(home / "safe", OLD, sync_file=sync_now)
            (home / "folder").mkdir()
            replace(home / "folder" / "loose", NEW, sync_file=sync_now)
            disk.crash(random.Random(seed))
            assert (home / "safe").read_bytes() == OLD
            outcomes.add((home / "folder" / "loose").exists())
            # The next life may write there again.
            (home / "folder").mkdir(exist_ok=True)
            replace(home / "folder" / "loose", OLD, sync_file=sync_now)
            assert (home / "folder" / "loose").read_bytes() == OLD
    assert outcomes == {True, False}


def test_R1_a_descriptor_of_the_dead_writes_nothing(tmp_path: Path) -> None:
    with SimulatedDisk() as disk, watch_files(disk, tmp_path):
        fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        os.write(fd, OLD)
        disk.crash(random.Random(1), power_loss=False)
        assert (tmp_path / "file").read_bytes() == OLD
        with pytest.raises(OSError, match="Input/output error"):
            os.write(fd, NEW)
        os.close(fd)
        assert (tmp_path / "file").read_bytes() == OLD


def _first(plan: Callable[[DiskCall], Kind | None]) -> Callable[[DiskCall], Kind | None]:
    """The plan's first fault only."""
    used: list[DiskCall] = []

    def once(call: DiskCall) -> Kind | None:
        if used or plan(call) is None:
            return healthy(call)
        used.append(call)
        return plan(call)

    return once


def test_R1_a_disk_takes_no_file_for_its_own_that_has_the_number_of_a_closed_one(
    tmp_path: Path,
) -> None:
    """Descriptors and inodes are given out again; files of two simulated machines must not mix."""
    homes = [tmp_path / name for name in ("ana", "bob")]
    for home in homes:
        home.mkdir()
    with (
        FaultyDisk(healthy) as first,
        FaultyDisk(healthy) as second,
        watch_files(first, homes[0]),
        watch_files(second, homes[1]),
    ):
        for at, (mine, other) in enumerate(((0, 1), (1, 0))):
            there, here = homes[mine] / "file", homes[other] / "file"
            fd = os.open(there, os.O_WRONLY | os.O_CREAT)
            os.close(fd)
            os.rename(there, here)  # the same inode, on another disk
            again = os.open(here, os.O_WRONLY)
            assert again == fd
            before = first.counts["write"], second.counts["write"]
            os.write(again, b"content")
            os.close(again)
            os.unlink(here)
            wrote = first.counts["write"] - before[0], second.counts["write"] - before[1]
            assert wrote == ((0, 1), (1, 0))[at]
