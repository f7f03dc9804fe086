"""How every test runs: the same examples each time, and never on somebody's real home.

`HOLDFAST_HYPOTHESIS_PROFILE` chooses how hard hypothesis looks:

    ci      100 examples, the same ones on every machine (the default)
    soak    thousands of new ones each round; tools/soak.py uses it
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import java_archive, memory_folder
from support.turns import in_turns

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

# A shell ignores interrupts in what it runs in the background, and what is started there inherits
# that. Tests send real ones.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


# Rooms in which single tests take as long as hundreds of others.
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
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = in_turns(items, workers, shares_spark=_shares_spark, long_file=_long_file)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and all that they import stay to the end: a collection need not look at
    them. With them it takes seconds, and some tests ask for many.
    """
    gc.collect()
    gc.freeze()


def _shares_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _long_file(item: pytest.Item) -> str | None:
    place = item.nodeid.removeprefix("tests/")
    return place.partition("::")[0] if place.startswith(LONG) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so when nothing was skipped; `-ra` lists what was, with its reason."""
    skipped = len(terminalreporter.getreports("skipped"))
    deselected = len(terminalreporter.getreports("deselected"))
    terminalreporter.write_line(
        f"skipped: {skipped or 'nothing'}"
        + (f" (reasons above); left out by choice: {deselected}" if deselected else "")
    )


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stops the etcd of this worker with the last test of a file: idle, it costs 7 % of a core."""
    etcd = sys.modules.get("support.etcd_server")
    if etcd is not None and (nextitem is None or nextitem.path != item.path):
        etcd.stop_etcd_servers()


def pytest_unconfigure() -> None:
    """Stops the PostgreSQL of this worker, if a test has asked for one."""
    postgres = sys.modules.get("support.postgres")
    if postgres is not None:
        postgres.stop_servers()
