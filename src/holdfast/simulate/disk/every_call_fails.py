"""Fails every disk call of a workload in turn.

The workload runs once on a healthy disk to count its calls. Then it runs again for each call, each
kind of fault and each mode (only this call fails, or the disk fails from there on for good), every
time in a fresh directory. After each run the disk is healthy again, and `check` opens the database
and looks: is all there that was acknowledged, is nothing half there? SQLite tests itself with this
loop; here it tests what stands on SQLite.

    report = sweep(workload, check)
    assert not report.failures, report.failures[0]

A failure names its fault; `run_with_fault` plays that single case again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.faults import DiskCall, FailAt, Kind, Mode, Plan, healthy
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.disk.workload import Prepare, Workload, describe, empty, scratch

Check = Callable[[Path, Sequence[object], BaseException | None], None]
"""Gets the directory, what was acknowledged and how the workload ended; raises if any is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFailure:
    """One fault that broke a promise; `fault` plays it again, `call` is where it hit."""

    fault: FailAt
    call: DiskCall | None
    problem: str

    def __str__(self) -> str:
        where = f"{self.call.op} of {self.call.file}" if self.call else "never reached"
        fault = self.fault
        return f"call {fault.number} ({where}) {fault.kind} {fault.mode}: {self.problem}"


@dataclass(slots=True, kw_only=True)
class FaultReport:
    """`unreached` counts runs in which the workload never came to the call that was to fail."""

    calls: int
    runs: int = 0
    unreached: int = 0
    failures: list[SweepFailure] = field(default_factory=list)


def sweep(
    workload: Workload,
    check: Check,
    *,
    kinds: Sequence[Kind] = ("ioerr", "full"),
    modes: Sequence[Mode] = ("once", "forever"),
    prepare: Prepare | None = None,
) -> FaultReport:
    """Runs the workload once for every possible fault; `prepare` fills the directory beforehand.

    Raises what the workload or the check raises on a healthy disk: faults teach nothing then.
    """
    with scratch() as origin, scratch() as directory:
        if prepare is not None:
            prepare(origin)
        shutil.copytree(origin, directory, dirs_exist_ok=True)
        clean = _play(workload, directory, healthy, trace=True)
        if clean.error is not None:
            raise clean.error
        check(directory, clean.acknowledged, None)
        assert clean.disk.trace is not None
        report = FaultReport(calls=clean.disk.calls)
        for fault in _faults(clean.disk.trace, kinds, modes):
            empty(directory)
            shutil.copytree(origin, directory, dirs_exist_ok=True)
            failure, reached = _try(workload, check, fault, directory)
            report.runs += 1
            report.unreached += not reached
            if failure is not None:
                report.failures.append(failure)
        return report


def run_with_fault(
    workload: Workload, check: Check, fault: FailAt, directory: Path
) -> SweepFailure | None:
    """Plays one case in a directory of the caller's choice, to look at what it leaves."""
    return _try(workload, check, fault, directory)[0]


def _faults(
    trace: Sequence[DiskCall], kinds: Sequence[Kind], modes: Sequence[Mode]
) -> Iterator[FailAt]:
    for call in trace:
        for kind in kinds:
            # A full disk hurts no read, and "from here on" is the same as from the next write on.
            if kind == "ioerr" or call.needs_space:
                yield from (FailAt(call.number, kind, mode) for mode in modes)


def _try(
    workload: Workload, check: Check, fault: FailAt, directory: Path
) -> tuple[SweepFailure | None, bool]:
    played = _play(workload, directory, fault)
    call, problem = played.disk.first_fault, None
    if isinstance(played.error, AssertionError):
        problem = describe(played.error)  # the workload itself saw something that may not be
    else:
        try:
            check(directory, played.acknowledged, played.error)
        except Exception as error:
            problem = describe(error)
    failure = None if problem is None else SweepFailure(fault=fault, call=call, problem=problem)
    return failure, call is not None


@dataclass(frozen=True, slots=True)
class _Played:
    disk: FaultyDisk
    acknowledged: list[object]
    error: Exception | None


def _play(workload: Workload, directory: Path, plan: Plan, *, trace: bool = False) -> _Played:
    acknowledged: list[object] = []
    error: Exception | None = None
    with FaultyDisk(plan, trace=trace) as disk, watch_files(disk, directory):
        try:
            workload(directory, disk.name, acknowledged.append)
        except Exception as raised:
            # Without its traceback, whose frames would keep the workload's connections open.
            error = raised.with_traceback(None)
        if disk.handles:
            disk.kill()
    return _Played(disk, acknowledged, error)
