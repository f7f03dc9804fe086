"""Random operations over three peers, and they always end as one. In a soak half a million."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.seeds import seeds
from support.story import Story

MEMORY_STEPS, MEMORY_SEEDS = 4_000, 5
SQLITE_STEPS, SQLITE_SEEDS = 1_000, 5


@pytest.mark.parametrize("seed", seeds(MEMORY_SEEDS))
def test_S6_peers_in_memory_converge_whatever_happens(seed: int, tmp_path: Path) -> None:
    story = Story("memory", tmp_path, seed)
    story.run(MEMORY_STEPS)
    assert story.refused < MEMORY_STEPS // 2, "most of it must do something"
    story.end()


@pytest.mark.parametrize("seed", seeds(SQLITE_SEEDS))
def test_S6_peers_on_disk_converge_whatever_happens(seed: int, tmp_path: Path) -> None:
    story = Story("sqlite", tmp_path, seed)
    story.run(SQLITE_STEPS)
    story.end()


def test_R1_the_same_seed_tells_the_same_story(tmp_path: Path) -> None:
    digests = []
    for n, kind in enumerate(("memory", "memory", "sqlite")):
        story = Story(kind, tmp_path / str(n), 5, restarts=False)
        story.run(300)
        digests.append(story.end())
    assert len(set(digests)) == 1, "and on every store"
    other = Story("memory", tmp_path, 6, restarts=False)
    other.run(300)
    assert other.end() != digests[0]
