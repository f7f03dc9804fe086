"""Plays one operation of the library on a disk that fails, and looks at what is left.

`sweep_operation` opens a prepared home on a faulty disk, lets every disk call of one operation fail
in turn (`every_fault`), and after each run asks:

* did the caller get an answer or a typed error, and nothing else?
* does the home open on a healthy disk, and does everything in it agree (`audit`)?
* is there what was acknowledged, and not there what was refused?
* does the same request with the same id, asked again, end in exactly one effect?

Opening and closing are not failed there, so that each operation costs only its own calls; they have
`sweep_life`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Node
from holdfast.rules.errors import HoldfastError, StoreFailed, Unknown
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import DAY_MS
from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.every_call_fails import Check, SweepFailure, run_with_fault
from holdfast.simulate.disk.faults import DiskCall, FailAt, Kind
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.disk.workload import Prepare, Workload, describe, empty, scratch
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files.durable import TEMPORARY_PREFIX
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.integrity import integrity
from support.envelopes import MESH, make_id
from support.seeds import part
from support.source import START_MS, HandClock

HOME = "home"
PEER = "ana"
LONG_LIFE, DAYS = 300, 5
"""A life with more faults than this goes through all of them in so many days."""
_lives = count(1)
ID = id_text(make_id(1_000_000))
"""The id of the operation under test, where it takes one."""


def _nothing(node: Node) -> None:
    """The home as it was created is all that the operation needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One verb of the library: what comes before it, how it is asked, how a reader sees it."""

    name: str
    act: Callable[[Node], object]
    before: Callable[[Node], None] = _nothing
    happened: Callable[[Node], bool] | None = None
    """None for an operation that has no single effect: the audit alone speaks then."""
    id: str | None = ID
    """The id under which the log must hold it exactly once; None if it appends nothing."""
    again: tuple[type[HoldfastError], ...] = ()
    """What asking once more may be answered with, for operations that take no id."""
    looks_first: bool = False
    """It writes only if it finds something to do, so a second one need not write."""
    warm: bool = True
    """A connection for reading is open already: what opening one can meet is the same for all."""
    days_later: int = 0
    """So long after `before` it happens."""


@dataclass(slots=True)
class OperationReport:
    calls: int = 0
    runs: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class ArmedPlan:
    """Counts and fails only the calls of one stretch, while `armed`."""

    def __init__(self, fault: FailAt | None) -> None:
        self.fault = fault
        self.armed = False
        self.calls: list[DiskCall] = []

    def __call__(self, call: DiskCall) -> Kind | None:
        if not self.armed:
            return None
        numbered = call._replace(number=len(self.calls))
        self.calls.append(numbered)
        return None if self.fault is None else self.fault(numbered)


def sweep_operation(operation: Operation) -> OperationReport:
    """Plays the operation once for every possible fault."""
    with scratch() as origin, scratch() as stage:
        with new_node(origin / HOME) as node:
            operation.before(node)
        report = OperationReport()
        shutil.copytree(origin / HOME, stage / HOME)
        clean = _play(operation, stage, None)
        assert clean.first is None, f"{operation.name} fails on a healthy disk: {clean.first!r}"
        report.failures += _judge(operation, stage, clean)
        report.calls = len(clean.calls)
        assert report.calls or operation.id is None, f"{operation.name} never touched the disk"
        for fault in every_fault(clean.calls):
            empty(stage)
            shutil.copytree(origin / HOME, stage / HOME)
            played = _play(operation, stage, fault)
            report.runs += 1
            name = type(played.first).__name__
            report.errors[name] = report.errors.get(name, 0) + 1
            where = clean.calls[fault.number]
            report.failures += [
                f"{operation.name}, call {fault.number} ({where.op} {where.file}) "
                f"{fault.kind} {fault.mode}, answered {name}: {problem}"
                for problem in _judge(operation, stage, played)
            ]
        return report


def expect_no_failures(report: OperationReport) -> None:
    print(f"{report.calls} calls, {report.runs} runs, {report.errors}")
    assert not report.failures, "\n".join(
        [f"{len(report.failures)} failures", *report.failures[:8]]
    )
    assert report.runs >= report.calls


def new_node(home: Path) -> Node:
    """A new home with one mesh, made on a healthy disk."""
    node = Node(open_home(home, peer=PEER, create=True, source=HandClock(seed="before")))
    node.create_mesh(MESH)
    return node


def reopen(home: Path, *, days_later: int = 0) -> Node:
    return Node(open_home(home, source=_clock(days_later)))


def is_typed(error: BaseException | None) -> bool:
    """Nothing, or one of the leaves of our own tree."""
    if error is None:
        return True
    return isinstance(error, HoldfastError) and not type(error).__subclasses__()


def examine(home: Path) -> list[str]:
    """What is wrong with the database of a closed home."""
    return integrity(HomePaths(home).database, ours=True)


def drafts(home: Path) -> list[str]:
    """Content that was left on its way in."""
    return sorted(path.name for path in home.rglob(f"{TEMPORARY_PREFIX}*"))


def count_of(node: Node, id: str) -> int:
    """How often the log holds an id."""
    wanted = parse_id(id)
    return sum(entry.id == wanted for entry in node.log.range(node.log.head().first))


@dataclass(slots=True)
class _Played:
    fault: FailAt | None
    calls: list[DiskCall]
    first: Exception | None
    """How the operation ended; None is success."""
    problems: list[str]
    acknowledged: bool = False
    unknown: bool = False


def _play(operation: Operation, stage: Path, fault: FailAt | None) -> _Played:
    plan = ArmedPlan(fault)
    with FaultyDisk(plan) as disk, watch_files(disk, stage):
        node = Node(open_home(stage / HOME, vfs=disk.name, source=_clock(operation.days_later)))
        if operation.warm:
            node.meshes()
        plan.armed = True
        first = _attempt(lambda: operation.act(node))
        played = _Played(fault, list(plan.calls), first, [])
        played.acknowledged = first is None
        played.unknown = isinstance(first, Unknown)
        if fault is not None and fault.mode == "once":
            plan.armed = False
            _go_on(operation, node, played)
        closing = _attempt(node.close)
        if not is_typed(closing):
            played.problems.append(f"closing raised {closing!r}")
        if disk.handles:
            disk.kill()
    return played


def _go_on(operation: Operation, node: Node, played: _Played) -> None:
    """The disk is well again and the node was not closed: reads work, and so do writes, unless
    nobody knows what the failed one left.
    """
    if operation.happened is not None:
        there = operation.happened(node)
        if there and not (played.acknowledged or played.unknown):
            played.problems.append("a refused operation is there")
        if not there and played.acknowledged:
            played.problems.append("an acknowledged operation is not there")
    again = _attempt(lambda: operation.act(node))
    if played.unknown:
        if not isinstance(again, StoreFailed) and not (again is None and operation.looks_first):
            played.problems.append(f"after an unknown outcome a write was answered {again!r}")
    elif again is None:
        played.acknowledged = True
    elif not isinstance(again, operation.again):
        played.problems.append(f"asked again without reopening, it was answered {again!r}")


def _judge(operation: Operation, stage: Path, played: _Played) -> list[str]:
    problems = list(played.problems)
    if not is_typed(played.first):
        problems.append(f"the caller got {played.first!r}")
    home = stage / HOME
    if _could_tidy_up(played):
        problems += [f"{name} was left behind" for name in drafts(home)]
    problems += examine(home)
    try:
        with reopen(home, days_later=operation.days_later) as node:
            problems += audit(node)
            problems += _judge_effect(operation, node, played)
    except Exception as error:
        problems.append(f"on a healthy disk: {describe(error)}")
    return problems


def _could_tidy_up(played: _Played) -> bool:
    """Not if the disk was dead by then, or refused the very removal."""
    fault = played.fault
    if fault is None or (fault.kind, fault.mode) == ("ioerr", "forever"):
        return fault is None
    return played.calls[fault.number].op != "delete"


def _judge_effect(operation: Operation, node: Node, played: _Played) -> list[str]:
    problems = []
    if operation.happened is not None:
        there = operation.happened(node)
        if played.acknowledged and not there:
            problems.append("an acknowledged operation is lost")
        if there and not (played.acknowledged or played.unknown):
            problems.append("a refused operation is there")
    again = _attempt(lambda: operation.act(node))
    if again is not None and not isinstance(again, operation.again):
        problems.append(f"asked again on a healthy disk, it was answered {again!r}")
    if operation.happened is not None and not operation.happened(node):
        problems.append("it was done again on a healthy disk and is not there")
    if operation.id is not None and (count := count_of(node, operation.id)) != 1:
        problems.append(f"the log holds it {count} times")
    return problems


def _attempt(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:
        # Without its traceback, whose frames would keep what the operation had open.
        return error.with_traceback(None)
    return None


def _clock(days_later: int) -> HandClock:
    # Each life mints ids of its own.
    return HandClock(START_MS + days_later * DAY_MS, seed=f"life {next(_lives)}")


def every_fault(calls: Sequence[DiskCall]) -> Iterator[FailAt]:
    """Each call fails once; the disk dies for good at the first and last of each row of like calls.

    The frames of one commit are such a row: dying at one in its middle leaves the same as at the
    one after it, less a frame that nothing refers to.
    """
    for before, call, after in zip((None, *calls), calls, (*calls[1:], None), strict=False):
        for kind in ("ioerr", "full") if call.needs_space else ("ioerr",):
            yield FailAt(call.number, kind, "once")
            if not (_alike(before, call) and _alike(call, after)):
                yield FailAt(call.number, kind, "forever")


def _alike(one: DiskCall | None, other: DiskCall | None) -> bool:
    return one is not None and other is not None and one[1:] == other[1:]


def sweep_life(
    workload: Workload, check: Check, *, prepare: Prepare | None = None
) -> tuple[int, list[SweepFailure]]:
    """Plays a workload that opens and closes its own home, once for each of `every_fault`. A long
    life is played for a part of them each day, and in a soak for each.
    """
    failures = []
    runs = 0
    with scratch() as origin, scratch() as directory:
        if prepare is not None:
            prepare(origin)
        shutil.copytree(origin, directory, dirs_exist_ok=True)
        acknowledged: list[object] = []
        with FaultyDisk(trace=True) as disk, watch_files(disk, directory):
            workload(directory, disk.name, acknowledged.append)
        check(directory, acknowledged, None)
        assert disk.trace is not None
        faults = list(every_fault(disk.trace))
        for fault in part(faults, DAYS) if len(faults) > LONG_LIFE else faults:
            empty(directory)
            shutil.copytree(origin, directory, dirs_exist_ok=True)
            runs += 1
            failure = run_with_fault(workload, check, fault, directory)
            if failure is not None:
                failures.append(failure)
    return runs, failures
