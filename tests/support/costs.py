"""What each test costs in CPU seconds, together with the processes that it starts.

    make test ARGS="-p support.costs --costs=costs.tsv"

Wall time on a busy machine says little, and a test whose work is done by a daemon or a Java looks
cheap to a profiler. So this plugin adds up what Linux has booked for the worker and for all that
descend from it, before and after each test. The file has a line per test, the dearest first: CPU
seconds, wall seconds, the test. A shared fixture is charged to the test that came first.

What a process that has left its parents behind does is nobody's child and stays uncounted.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SHOWN = 15
TRIES = 5

_costs: dict[str, tuple[float, float]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="where CPU seconds per test go")


def cpu_s() -> float:
    """Of this process and its descendants, those that have ended and were waited for included."""
    for _ in range(TRIES):
        found = set(_descendants(os.getpid()))
        ticks = sum(_ticks(pid) for pid in found)
        own = os.times()
        if found == set(_descendants(os.getpid())):
            break  # else one that has ended meanwhile would count twice, or not at all
    return sum(own[:4]) + ticks / TICKS_PER_S


def _descendants(pid: int) -> Generator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # it has ended meanwhile
    for child in children(pid, threads):
        yield child
        yield from _descendants(child)


def children(pid: int, threads: Iterable[str]) -> list[int]:
    """The children of these threads. A Java begins and ends threads all the time: one that is gone
    has none, and must not take those of the others along, or all that they have ever cost would be
    charged to the test after this.
    """
    found: list[int] = []
    for thread in threads:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _ticks(pid: int) -> int:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, after_name[11:15]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEGAN] = (cpu_s(), monotonic())
    return (yield)


_BEGAN = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        cpu_before, wall_before = item.stash[_BEGAN]
        cost = (max(0.0, cpu_s() - cpu_before), monotonic() - wall_before)
        report.user_properties.append(("cost", cost))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == "cost" and isinstance(value, tuple | list):
            cpu, wall = value
            _costs[report.nodeid] = (float(cpu), float(wall))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    dearest = sorted(_costs.items(), key=lambda entry: -entry[1][0])
    lines = [f"{cpu:.2f}\t{wall:.2f}\t{test}" for test, (cpu, wall) in dearest]
    target = terminalreporter.config.getoption("--costs")
    if target:
        Path(target).write_text("\n".join(lines) + "\n", encoding="utf-8")
    total = sum(cpu for cpu, _ in _costs.values())
    terminalreporter.write_line(f"CPU: {total:.0f} s in {len(lines)} tests; the dearest:")
    for line in lines[:SHOWN]:
        terminalreporter.write_line(line)
