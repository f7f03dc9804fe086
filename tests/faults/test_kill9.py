"""A real process is killed at any moment; what it had acknowledged is there, once."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.library.node import Node, open_node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.ids import parse_id
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files import presence as presences
from holdfast.storage.files.blobs import BlobFile
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader
from support.seeds import seeds

pytestmark = pytest.mark.faults

CHILD = Path(__file__).with_name("writer_process.py")
LIVES = 10


class Child:
    """A writer process and what it has acknowledged so far."""

    def __init__(self, home: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(home), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.acknowledged: list[str] = []
        self.said = ""

    def read(self, most: int) -> None:
        """Waits for so many acknowledgements, or for the end of the process."""
        assert self.process.stdout is not None
        for _ in range(most):
            line = self.process.stdout.readline()
            if not line.endswith(b"\n"):
                return
            self.acknowledged.append(line.decode().strip())

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """What it still said before its end counts; -9 is a kill."""
        self.read(10**9)
        _, said = self.process.communicate()
        self.said = said.decode()
        assert "Error" not in self.said, self.said
        return self.process.returncode


def check(home: Path, acknowledged: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Opens the home as the next process would."""
    paths = HomePaths(home)
    crashed = presences.unclean(paths)
    with caplog.at_level(logging.WARNING, logger="holdfast"), open_node(home) as node:
        if crashed:
            assert "was not closed cleanly; what was written last is whole" in caplog.text
        assert audit(node) == []
        assert _missing(node, acknowledged) == []
        node.sweep(Ttl(blob_ms=0, orphan_ms=-(10**15)))
        assert _blob_files(node) == _blob_rows(node)
    assert presences.unclean(paths) == []
    caplog.clear()


def _missing(node: Node, acknowledged: list[str]) -> list[str]:
    def look(tx: Reader) -> list[str]:
        return [
            id
            for id in acknowledged
            if tx.log_find(parse_id(id)) is None and tx.forgotten(parse_id(id)) is None
        ]

    return node._engine.read("promises", look)


def _blob_files(node: Node) -> set[str]:
    return {found.sha for found in node._engine.blobs.scan() if isinstance(found, BlobFile)}


def _blob_rows(node: Node) -> set[str]:
    return {row.sha256 for row in node._engine.read("blobs", lambda tx: tx.blob_scan("", 1000))}


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        if child.process.poll() is None:
            child.kill()
            child.process.wait()
        for pipe in (child.process.stdout, child.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("options", [("--threads", "4"), ("--tasks", "20")])
@pytest.mark.parametrize("seed", seeds(1))
def test_R2_a_writer_killed_at_random_moments_loses_nothing_it_acknowledged(
    tmp_path: Path,
    children: list[Child],
    caplog: pytest.LogCaptureFixture,
    options: tuple[str, str],
    seed: int,
) -> None:
    rng = random.Random(f"kill -9 {seed}")
    acknowledged: list[str] = []
    for life in range(LIVES):
        child = Child(tmp_path / "home", *options, "--seed", str(seed * LIVES + life))
        children.append(child)
        child.read(rng.randrange(1, 120))
        child.kill()
        assert child.end() == -signal.SIGKILL
        assert child.acknowledged, "the kill came before the first write: it proves little"
        acknowledged += child.acknowledged
        check(tmp_path / "home", acknowledged, caplog)


POINTS = [
    *(
        f"{point}: {side}"
        for point in ("commit", "publish", "unlink")
        for side in ("before", "after")
    ),
    *("begin: after", "tick: after", "log append: after", "answer: before"),
    *("draft: after", "draft write: after", "folder sync: before", "blob: after"),
    *("migration: after", "identify: after"),
    *("last sweep: before", "mark: before", "mark: after", "checkpoint: before"),
]
"""Where nothing, or half of it, or all of it has happened, and nobody was told."""
AT_THE_END = ("last sweep", "mark", "checkpoint")
DURING_CREATION = ("folder sync",)


@pytest.mark.parametrize("point", POINTS)
def test_R2_a_writer_that_dies_at_a_named_point_loses_nothing_it_acknowledged(
    tmp_path: Path, children: list[Child], caplog: pytest.LogCaptureFixture, point: str
) -> None:
    nth = "1" if point.startswith((*AT_THE_END, "identify", "migration")) else "4"
    writes = ["--writes", "8"] if point.startswith(AT_THE_END) else []
    child = Child(tmp_path / "home", "--threads", "2", *writes, "--die-at", point, nth)
    children.append(child)
    assert child.end() == -signal.SIGKILL
    noticed = bool(presences.unclean(HomePaths(tmp_path / "home")))
    again = Child(tmp_path / "home", "--threads", "2", "--writes", "3")
    children.append(again)
    assert again.end() == 0
    assert ("was not closed cleanly; " in again.said) == noticed
    assert noticed or point.startswith(DURING_CREATION)
    check(tmp_path / "home", child.acknowledged + again.acknowledged, caplog)


def test_S12_a_log_that_was_left_behind_tells_of_a_bad_end_by_itself(
    tmp_path: Path, children: list[Child], caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut may take the sign of the process that had the home open."""
    child = Child(tmp_path / "home", "--threads", "1")
    children.append(child)
    child.read(5)
    child.kill()
    child.end()
    paths = HomePaths(tmp_path / "home")
    for holder in presences.unclean(paths):
        (paths.processes / holder.name).unlink()
    assert paths.wal.stat().st_size > 0
    with caplog.at_level(logging.WARNING, logger="holdfast"), open_node(paths.root) as node:
        assert "was not closed cleanly; checking its database" in caplog.text
        assert _missing(node, child.acknowledged) == []


def test_S1_a_process_that_is_killed_leaves_the_home_to_the_other_one(
    tmp_path: Path, children: list[Child], caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    first, second = (Child(home, "--threads", "2", "--seed", str(seed)) for seed in (1, 2))
    children += [first, second]
    first.read(20)
    second.read(20)
    first.kill()
    assert first.end() == -signal.SIGKILL
    second.read(40)
    second.kill()
    assert second.end() == -signal.SIGKILL
    check(home, first.acknowledged + second.acknowledged, caplog)
