"""Power cuts and failing disks while the WAL is brought into the database beside the writer.

No thread: the rounds are made at fixed places, between transactions and in the middle of them, so
that every call to the disk has its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import apsw
import pytest

from holdfast.rules.errors import HoldfastError
from holdfast.simulate.disk.every_call_fails import sweep
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.storage.sqlite.connection import connect, shut
from support.checkpoints import Rows, Stepped, numbers, small

pytestmark = pytest.mark.faults

WRITES = 16


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


def prepare(directory: Path) -> None:
    connection = connect(directory / "data.db")
    connection.execute("CREATE TABLE row (number INTEGER PRIMARY KEY, x)")
    shut(connection)


def workload(directory: Path, vfs: str, acknowledge: Acknowledge, sync: str = "full") -> None:
    path = directory / "data.db"
    made = Stepped(path, sync=sync, vfs=vfs)
    try:
        _write(made, Rows(made, path, sync, vfs), acknowledge)
    except apsw.Error as error:
        raise HoldfastError(str(error)) from error
    assert made.rung > 1


def _write(made: Stepped, rows: Rows, acknowledge: Acknowledge) -> None:
    try:
        for number in range(1, WRITES + 1):
            rows.begin(number)
            if number % 3 == 0:
                made.make_round()
            rows.commit()
            acknowledge(number)
            if number % 4 == 0:
                made.make_round()
    finally:
        made.stop(0)
        shut(rows.connection)


def check(directory: Path, acknowledged: Sequence[object], error: BaseException | None) -> None:
    assert error is None or isinstance(error, HoldfastError), repr(error)
    assert numbers(directory / "data.db") >= set(acknowledged)


def test_R2_power_that_goes_at_any_moment_of_a_checkpoint_takes_nothing() -> None:
    recording = record(workload, prepare=prepare)
    report = cut_power(recording, lambda place, told: check(place, told, None), samples=2)
    assert report.states > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


def test_R2_with_less_syncing_the_same_look_at_checkpoints_finds_what_is_lost() -> None:
    recording = record(partial(workload, sync="normal"), prepare=prepare)
    assert cut_power(recording, lambda place, told: check(place, told, None), samples=0).failures


def test_R2_a_disk_that_fails_at_any_call_of_a_checkpoint_loses_nothing() -> None:
    report = sweep(workload, check, modes=("once",), prepare=prepare)
    assert report.calls > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))
