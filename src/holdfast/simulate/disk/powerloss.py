"""Cuts the power at every moment of a workload.

The workload runs once, on a disk that records each write, sync, truncation, creation and deletion,
and each acknowledgement between them. From the record every moment can be rebuilt as the disk may
look when the power goes right then: what was synced is there, and each unsynced write is kept, lost
or torn at its sectors. For every moment the two extremes are tried (all unsynced things kept, all
lost) and a number of random mixtures. `check` opens the database in what is left and looks for
everything that had been acknowledged.

    recording = record(workload)
    report = cut_power(recording, check, seed=1)
    assert not report.failures, report.failures[0]

Nothing here knows how the workload syncs. Run it on purpose with synchronous NORMAL: if then no
acknowledgement is ever lost, the check is blind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.faults import Plan, healthy
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.disk.platter import DirectoryMade, DirectorySynced, Event, Fates, Platter
from holdfast.simulate.disk.workload import Prepare, Workload, describe, empty, lay_out, scratch

Check = Callable[[Path, tuple[object, ...]], None]
"""Gets a directory and what had been acknowledged when the power went; raises if any is lost."""


class Acknowledged(NamedTuple):
    """A mark in the record: from here on a caller relies on this."""

    what: object


@dataclass(frozen=True, slots=True)
class Recording:
    """All that a workload did to its disk, in order, and the error that it ended with, if any.

    A point in it is a number of entries: those before the power goes. The first point is `start`;
    the entries before it say what was there.
    """

    root: str
    entries: list[Event | Acknowledged]
    start: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLoss:
    """One power loss that broke a promise; `rebuild` makes its files again."""

    point: int
    seed: int
    fates: Fates
    acknowledged: int
    problem: str

    def __str__(self) -> str:
        return (
            f"power lost at point {self.point} with {self.acknowledged} acknowledged "
            f"(seed {self.seed}, fates {self.fates}): {self.problem}"
        )


@dataclass(slots=True, kw_only=True)
class PowerReport:
    """`states` counts the different states that were checked."""

    points: int = 0
    states: int = 0
    failures: list[PowerLoss] = field(default_factory=list)


def record(
    workload: Workload, *, prepare: Prepare | None = None, plan: Plan = healthy
) -> Recording:
    """Runs a workload and keeps its record; what `prepare` made beforehand counts as safe.

    On a healthy disk the workload must not raise. With another plan its error is kept, for a disk
    that fails before the power goes is the harder test.
    """
    entries: list[Event | Acknowledged] = []
    error: Exception | None = None
    with scratch() as directory, FaultyDisk(plan, witness=entries.append) as disk:
        if prepare is not None:
            prepare(directory)
            _find_all(disk, directory)
        start = len(entries)
        try:
            with watch_files(disk, directory):
                workload(directory, disk.name, lambda what: entries.append(Acknowledged(what)))
        except Exception as raised:
            if plan is healthy:
                raise
            error = raised.with_traceback(None)
        if disk.handles:
            disk.kill()
        return Recording(str(directory), entries, start, error)


def cut_power(
    recording: Recording,
    check: Check,
    *,
    seed: int = 0,
    samples: int = 8,
    points: Collection[int] | None = None,
) -> PowerReport:
    """Checks every point (or those named), in `samples` random states beside the extremes."""
    report = PowerReport()
    platter = Platter(random.Random(seed))
    acknowledged: tuple[object, ...] = ()
    seen: set[_StateName] = set()
    with scratch() as directory:
        for point in range(len(recording.entries) + 1):
            if point:
                acknowledged = _advance(platter, recording.entries[point - 1], acknowledged)
            if point < recording.start or (points is not None and point not in points):
                continue
            report.points += 1
            for fates in _choices(platter, seed, point, samples):
                name = _StateName(platter.version, _up_to_last_kept(fates), len(acknowledged))
                if name in seen:
                    continue  # the same files and the same promises need no second look
                seen.add(name)
                report.states += 1
                empty(directory)
                lay_out(platter.image(fates).moved(recording.root, str(directory)))
                try:
                    check(directory, acknowledged)
                except Exception as error:
                    report.failures.append(
                        PowerLoss(
                            point=point,
                            seed=seed,
                            fates=fates,
                            acknowledged=len(acknowledged),
                            problem=describe(error),
                        )
                    )
    return report


def rebuild(recording: Recording, loss: PowerLoss, directory: Path) -> None:
    """Lays out the files of one power loss in an empty directory, to look at them."""
    platter = Platter(random.Random(loss.seed))
    for entry in recording.entries[: loss.point]:
        _advance(platter, entry, ())
    lay_out(platter.image(loss.fates).moved(recording.root, str(directory)))


class _StateName(NamedTuple):
    version: int
    fates: Fates
    acknowledged: int


def _advance(
    platter: Platter, entry: Event | Acknowledged, acknowledged: tuple[object, ...]
) -> tuple[object, ...]:
    if isinstance(entry, Acknowledged):
        return (*acknowledged, entry.what)
    platter.apply(entry)
    return acknowledged


def _choices(platter: Platter, seed: int, point: int, samples: int) -> Iterator[Fates]:
    yield platter.all_kept()
    yield platter.all_lost()
    rng = random.Random(f"{seed} {point}")
    for _ in range(samples):
        yield platter.random_fates(rng)


def _up_to_last_kept(fates: Fates) -> Fates:
    """Without the lost ones at the end: those leave what was there before they were written."""
    end = len(fates)
    while end and not fates[end - 1]:
        end -= 1
    return fates[:end]


def _find_all(disk: FaultyDisk, directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            disk.witness(DirectoryMade(str(path)))
            disk.witness(DirectorySynced(str(path.parent)))
        elif not path.name.endswith("-shm"):
            disk.find(str(path), path.read_bytes())
