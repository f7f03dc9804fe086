"""A job of the pipeline is killed at any moment: the next goes on, and nothing is lost or twice.

The lake of each test outlives several processes: each goes on with what the one before left. What
is asked after each of them is what a node relies on that truncates its log; what is asked at the
end is everything: bronze, silver and the snapshot are what the nodes hold.

A soak (tools/soak.py) sets HOLDFAST_SEED: then there are many more lives, which may end anywhere.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event

import pyspark
import pytest

from holdfast.node.snapshots.manifest import NAME
from holdfast.pipeline.lake.lake import Lake
from support.histories import Histories, grow
from support.pipeline_child import PATIENCE_S, PipelineChild, parent_of
from support.seeds import rotating, seeds
from support.waiting import until
from support.whole_lake import check_compacted, check_promises, check_snapshot, check_whole

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

EXECUTOR = "CoarseGrainedExecutorBackend"
LIVES_ANYWHERE = 12 if "HOLDFAST_SEED" in os.environ else 0
LINES = 150
"""About as many as a whole cycle says."""
DELAY_S = 0.4
EXACT = (
    *("commit bronze: before", "flush bronze: before", "commit bronze: after"),
    *("commit sightings: after", "confirm: before", "confirm: after", "ingest: read: after"),
    *(
        "commit silver/state: after",
        "commit increments/state: before",
        "flush silver/tasks: before",
    ),
    *("commit silver/task_events: after", "commit increments/task_events: after"),
    *("stage silver/facts: after", "prepare snapshot: after", "draft snapshot: after"),
    *("publish snapshot: before", "publish snapshot: after"),
)
"""Where half of it has happened."""


class Lives:
    """One lake, and one process after the other that works on it."""

    def __init__(self, folder: Path, histories: Histories) -> None:
        self.folder = folder
        self.histories = histories
        self.children: list[PipelineChild] = []
        folder.mkdir()

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> PipelineChild:
        homes = list(self.histories.homes.values())
        child = PipelineChild(self.folder, homes, *options, env=dict(env or {}))
        self.children.append(child)
        return child

    def ended(self, child: PipelineChild) -> bool:
        """Checks what must hold now; whether the work was finished before the kill."""
        code = child.end()
        assert code in (0, -signal.SIGKILL), child.errors
        assert "Traceback" not in child.errors, child.errors
        if (self.folder / "lake" / "lake.json").exists():
            check_promises(self.lake, self.histories)
        return "done" in child.lines

    def finish(self) -> None:
        """The last life is let live."""
        child = self.start()
        assert self.ended(child), child.errors
        self.check()

    def check(self) -> None:
        check_whole(self.lake, self.histories)
        check_compacted(self.lake, self.histories)
        snapshot = self.folder / "snapshot"
        check_snapshot(snapshot, self.folder / "restored", self.histories)

    @property
    def lake(self) -> Lake:
        return Lake.open(self.folder / "lake")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[int], Lives]]:
    begun: list[Lives] = []

    def make(seed: int) -> Lives:
        """Three nodes with the same in other orders."""
        place = tmp_path / f"{len(begun)}"
        place.mkdir()
        histories = grow(seed, place, nodes=3, meshes=3, ops=130)
        begun.append(Lives(place / "work", histories))
        return begun[-1]

    yield make
    for lives in begun:
        for child in lives.children:
            child.close()


def kill_after(child: PipelineChild, rng: random.Random) -> None:
    """A little later than what it said last: in the midst of something."""
    Event().wait(rng.random() * DELAY_S)
    child.kill(whole=rng.random() < 0.5)


@pytest.mark.parametrize("seed", seeds(1))
def test_R2_P10_killed_drivers_and_executors_leave_nothing_lost_or_twice(
    begin: Callable[[int], Lives], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(f"pipeline {seed}")
    lives = begin(seed)
    # Ingest, in several processes as on a cluster. First an executor dies over a log: its work is
    # done again. Then the driver: what else there is to say is said, bronze does not have it yet.
    held = tmp_path / "held"
    held.mkdir()
    child = lives.start(
        *("--master", "local-cluster[2,1,1024]", "--held", str(held)),
        *("--die-at", "commit bronze: before", "2", "--whole"),
        env={"SPARK_HOME": str(spark_home(tmp_path / "spark")), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    lose_executor(child, held)
    assert not lives.ended(child)
    assert child.lines[-1] == "commit bronze: before"
    if LIVES_ANYWHERE:
        for kill in LATER:
            kill(lives, rng)
    else:
        LATER[rotating(1, len(LATER))[0]](lives, rng)  # another one each day
    for life in range(LIVES_ANYWHERE):
        if lives.ended(killed_anywhere(lives, rng)):
            lives.check()
            lives = begin(seed * LIVES_ANYWHERE + life)
    lives.finish()


def lose_executor(child: PipelineChild, held: Path) -> None:
    """Kills the process in which a task reads a log, and lets the one that replaces it go on."""
    assert child.read_until("ingest: read: before"), child.errors
    until(lambda: any(held.iterdir()), PATIENCE_S)
    (first,) = held.iterdir()
    killed = executor_of(child, int(first.name.removeprefix("reading-")))
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(list(held.iterdir())) > 1, PATIENCE_S)
    assert killed not in child.processes()
    (held / "go").touch()


def executor_of(child: PipelineChild, worker: int) -> int:
    """The Java process that a worker works for."""
    alive = child.processes()
    while EXECUTOR not in alive[worker]:
        worker = parent_of(worker)
    return worker


def spark_home(folder: Path) -> Path:
    """Spark as it is installed, in a place where workers may leave their files."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def in_a_fold(lives: Lives, rng: random.Random) -> None:
    """One table is folded, the others are not."""
    child = lives.start("--die-at", "commit silver/memory: before", "1", "--whole")
    assert not lives.ended(child)


def in_a_compaction(lives: Lives, rng: random.Random) -> None:
    """In the midst of a job of Spark; at the latest when all of it is done."""
    child = lives.start("--die-at", "prepare snapshot: before", "1")
    child.read_until("compact")
    child.read_until("stage silver/state: before")
    kill_after(child, rng)
    assert not lives.ended(child)


def in_a_snapshot(lives: Lives, rng: random.Random) -> None:
    """All parts are there, and its draft, but not its name."""
    child = lives.start("--die-at", "draft snapshot: after", "1")
    assert not lives.ended(child)
    assert not (lives.folder / "snapshot" / NAME).exists()


LATER = (in_a_fold, in_a_compaction, in_a_snapshot)


def killed_anywhere(lives: Lives, rng: random.Random) -> PipelineChild:
    if rng.random() < 0.5:
        whole = ["--whole"] if rng.random() < 0.5 else []
        return lives.start("--die-at", rng.choice(EXACT), str(rng.randint(1, 2)), *whole)
    child = lives.start()
    for _ in range(rng.randint(1, LINES)):
        if not child.next_line():
            break
    kill_after(child, rng)
    return child
