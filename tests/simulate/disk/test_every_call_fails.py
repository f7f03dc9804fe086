"""Every disk call fails once and for ever, and the loop that does it must notice a lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from holdfast.simulate.disk.every_call_fails import run_with_fault, sweep
from holdfast.simulate.disk.faults import FailAt
from holdfast.simulate.disk.workload import Acknowledge
from support.plain_rows import add, connect, expect, pairs_in, writing


def check(
    directory: Path, acknowledged: Sequence[object], error: BaseException | None = None
) -> None:
    expect(directory, acknowledged)


def test_R2_no_single_disk_fault_breaks_sqlite() -> None:
    report = sweep(writing(12), check)
    assert report.failures == []
    assert report.calls > 100
    # Each call fails once and for ever; those that need space also for want of it.
    assert report.runs > 2 * report.calls
    assert report.unreached == 0


def test_R2_the_sweep_catches_an_acknowledgement_before_the_commit() -> None:
    report = sweep(writing(6, too_early=True), check)
    assert {failure.fault.kind for failure in report.failures} == {"ioerr", "full"}
    assert {failure.fault.mode for failure in report.failures} == {"once", "forever"}
    assert all("lost" in failure.problem for failure in report.failures)


def test_R2_the_sweep_catches_who_swallows_an_error() -> None:
    def careless(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        with closing(connect(directory / "rows.db", vfs)) as connection:
            for number in range(4):
                with suppress(apsw.Error):
                    add(connection, number)
                acknowledge(number)

    assert sweep(careless, check, modes=["once"]).failures


def test_R2_a_failing_case_of_a_sweep_replays_alone(tmp_path: Path) -> None:
    workload = writing(3, too_early=True)
    for number, failure in enumerate(sweep(workload, check, kinds=["full"]).failures):
        home = tmp_path / str(number)
        home.mkdir()
        again = run_with_fault(workload, check, failure.fault, home)
        assert again == failure
        assert failure.call is not None
        assert str(failure).startswith(f"call {failure.call.number} ({failure.call.op} of rows.db")
    assert run_with_fault(writing(3), check, FailAt(40, "full"), tmp_path) is None


def test_R2_a_workload_that_leaves_its_connection_open_is_cut_off() -> None:
    left: list[apsw.Connection] = []

    def untidy(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        connection = connect(directory / "rows.db", vfs)
        left.append(connection)
        for number in range(3):
            add(connection, number)
            acknowledge(number)
        connection.execute("BEGIN EXCLUSIVE")

    def check_and_write(
        directory: Path, acknowledged: Sequence[object], error: BaseException | None
    ) -> None:
        expect(directory, acknowledged)
        with closing(connect(directory / "rows.db")) as connection:
            add(connection, 99)  # would be busy, did the cut-off one still hold its lock

    report = sweep(untidy, check_and_write, modes=["forever"])
    assert report.failures == []
    for connection in left:
        connection.close()


def test_R2_an_assertion_inside_the_workload_is_a_failure() -> None:
    def suspicious(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        with closing(connect(directory / "rows.db", vfs)) as connection:
            try:
                add(connection, 1)
            except apsw.FullError:
                raise AssertionError("saw what may not be") from None

    report = sweep(suspicious, check, kinds=["full"])
    assert {failure.problem for failure in report.failures} == {
        "AssertionError: saw what may not be"
    }


def test_R2_a_sweep_can_start_from_a_prepared_home() -> None:
    def prepare(directory: Path) -> None:
        with closing(connect(directory / "rows.db")) as connection:
            add(connection, 7)
        (directory / "blobs").mkdir()
        (directory / "blobs" / "one").write_bytes(b"1")

    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        assert (directory / "blobs" / "one").read_bytes() == b"1"
        os.unlink(directory / "blobs" / "one")
        with closing(connect(directory / "rows.db", vfs)) as connection:
            add(connection, 8)
            acknowledge(8)

    def check_both(
        directory: Path, acknowledged: Sequence[object], error: BaseException | None
    ) -> None:
        assert pairs_in(directory / "rows.db") >= {7, *acknowledged}

    report = sweep(workload, check_both, prepare=prepare)
    assert report.failures == []
    assert report.runs > 0


def test_R2_a_workload_that_fails_on_a_healthy_disk_stops_the_sweep() -> None:
    def broken(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        raise RuntimeError("not the disk's fault")

    with pytest.raises(RuntimeError, match="not the disk's fault"):
        sweep(broken, check)

    with pytest.raises(AssertionError, match="lost"):
        sweep(lambda directory, vfs, acknowledge: acknowledge(5), check)
