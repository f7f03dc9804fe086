"""How every test runs: the same examples each time, and never on somebody's real home.

`HOLDFAST_HYPOTHESIS_PROFILE` chooses how hard hypothesis looks:

    ci      100 examples, the same ones on every machine (the default)
    soak    thousands of new ones each round; tools/soak.py uses it
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import java_archive, memory_folder

# A slow machine is not a fault of the code under test, so no profile looks at the clock.
SPEED_CHECKS = (HealthCheck.too_slow,)

settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=SPEED_CHECKS,
)
settings.register_profile(
    "soak",
    max_examples=5_000,
    stateful_step_count=200,
    deadline=None,
    print_blob=True,
    suppress_health_check=SPEED_CHECKS,
)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS_PROFILE", "ci"))

# Set before any test module is imported, and inherited by every process that a test starts: a test
# that forgets to name its home finds none, instead of the home of whoever runs the tests.
for name in ("HOLDFAST_STORE_SYNC", "HOLDFAST_CONFIG"):
    os.environ.pop(name, None)
os.environ["HOLDFAST_HOME"] = str(Path(tempfile.gettempdir()) / "holdfast-tests-name-their-home")
java_archive.use()
memory_folder.use()


@pytest.fixture(autouse=True)
def _only_declared_answers() -> Iterator[None]:
    """Whatever a test is about: no answer has a status that its route does not declare."""
    if "holdfast.service.http.request" not in sys.modules:
        yield  # nothing was imported that could answer
        return
    from support.declared import only_declared_answers

    with only_declared_answers():
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for a disk, a process or a retry, and then
    somebody else has the core.
    """
    return (os.cpu_count() or 1) + 1


# Single tests that take as long as hundreds of others.
LONG = (
    "compat",
    "faults",
    "simulate",
    "docs",
    "apps/cli/commands/test_pipeline.py",
    "apps/demo",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that shares one Spark goes first, what takes long goes last.

    A worker begins with one stretch of this list, and takes from the end of another's when it is
    through. So few of them need a Spark, on two cores one, and there is little to share out between
    the two ends but what is short.
    """
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    return 2 if item.nodeid.removeprefix("tests/").startswith(LONG) else 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so when nothing was skipped; `-ra` lists what was, with its reason."""
    skipped = len(terminalreporter.getreports("skipped"))
    deselected = len(terminalreporter.getreports("deselected"))
    terminalreporter.write_line(
        f"skipped: {skipped or 'nothing'}"
        + (f" (reasons above); left out by choice: {deselected}" if deselected else "")
    )


def pytest_unconfigure() -> None:
    """Stops the PostgreSQL of this worker, if a test has asked for one."""
    postgres = sys.modules.get("support.postgres")
    if postgres is not None:
        postgres.stop_servers()
