"""Whatever happens between nodes that share a mesh, they end up with the same."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from support.envelopes import MESH
from support.mesh_links import MemoryLink, MeshNode, connect, cut, trouble_of, until_same
from support.nodes import Nodes
from support.seeds import seeds
from support.source import HandClock

_STEPS = 40


@pytest.mark.parametrize("seed", seeds(4))
def test_B4_any_story_of_cuts_and_writes_ends_with_the_same(seed: int, tmp_path: Path) -> None:
    nodes = Nodes("memory" if seed % 2 else "sqlite", tmp_path, HandClock(seed=seed))
    try:
        asyncio.run(_story(nodes, random.Random(seed)))
    finally:
        nodes.close()


async def _story(nodes: Nodes, rng: random.Random) -> None:
    made = [MeshNode(nodes.open(name)) for name in ("ana", "bob", "cyd", "dan")]
    for one in made:
        one.knows(*(other for other in made if other is not one), relay=True)
        await one.exchange.start()
        await one.exchange.share(MESH)
    lines: dict[tuple[int, int], MemoryLink] = {}
    for _ in range(_STEPS):
        await _step(made, lines, rng)
    for a, b in pairwise(range(len(made))):
        if (a, b) not in lines:
            lines[a, b] = connect(made[a], made[b])
    await until_same(*made)
    assert [trouble for one in made for trouble in trouble_of(one)] == []
    states = [{key: one.node.mesh(MESH).state.get(key) for key in "abc"} for one in made]
    assert all(state == states[0] for state in states)
    for one in made:
        await one.exchange.close()


async def _step(
    made: list[MeshNode], lines: dict[tuple[int, int], MemoryLink], rng: random.Random
) -> None:
    what = rng.random()
    if what < 0.6:
        mesh = rng.choice(made).node.mesh(MESH)
        mesh.state.set(rng.choice("abc"), rng.random())
        for number in range(rng.randint(0, 30)):
            mesh.facts.append("s", "p", number)
    elif what < 0.8:
        a, b = sorted(rng.sample(range(len(made)), 2))
        if (a, b) in lines:
            cut(lines.pop((a, b)))
        else:
            lines[a, b] = connect(made[a], made[b])
    else:
        await asyncio.sleep(rng.choice([0, 0.001, 0.03]))  # so that something is under way
