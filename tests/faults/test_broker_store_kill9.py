"""A broker's store is killed at any moment; what it had acknowledged is there, once."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.storage.broker.sqlite import SqliteBrokerStore
from support.broker_stores import NOW, OWNER, TEAM, TOPIC
from support.envelopes import make_id
from support.seeds import seeds

pytestmark = pytest.mark.faults

CHILD = Path(__file__).with_name("broker_store_process.py")
LIVES = 4


def live(folder: Path, lines: int, *options: str) -> dict[int, int]:
    """One life, up to so many answers: the seqs that were acknowledged, by number."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), *options], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    heard: dict[int, int] = {}
    for told, line in enumerate(child.stdout, 1):
        if not line.endswith(b"\n"):
            break
        for pair in line.split():
            number, seq = map(int, pair.split(b":"))
            assert heard.setdefault(number, seq) == seq
        if told == lines:
            child.kill()
    child.stdout.close()
    assert child.wait() == -9
    return heard


def check(folder: Path, heard: dict[int, int]) -> None:
    """Opens the store as the next process would."""

    async def look() -> None:
        store = SqliteBrokerStore(folder)
        await store.open(NOW)
        try:
            mesh = await store.mesh_get(TEAM)
            if mesh is None:
                assert heard == {}
                return
            assert mesh.epoch == 1, "a crash is no step back"
            assert await store.orphans(10) == []
            places = dict(
                store.connection.execute("SELECT id, place & ((1 << 40) - 1) FROM message")
            )
            assert sorted(places.values()) == list(range(1, mesh.seq + 1))
            assert {n: places.get(make_id(n)) for n in heard} == heard
            assert (await store.counts())["messages"] == mesh.seq
            page = await store.feed(TEAM, OWNER, 0, 10**6, 10**9, own=True)
            changes = sum(1 for n in range(len(places) * 2) if n % 3 == 0 and make_id(n) in places)
            assert len(page.rows) == changes
            assert await store.subscribe(TEAM, OWNER, TOPIC) == mesh.seq
            await store.unsubscribe(TEAM, OWNER, TOPIC)
        finally:
            await store.close()

    asyncio.run(look())


@pytest.mark.parametrize("seed", seeds(1))
def test_R2_a_store_killed_at_random_moments_loses_nothing_it_acknowledged(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    heard: dict[int, int] = {}
    for turn in range(LIVES):
        first = max(heard, default=-1) + 1
        said = live(
            tmp_path / "b", rng.randrange(1, 40), "--seed", f"{seed + turn}", "--first", f"{first}"
        )
        for number, seq in said.items():
            assert heard.setdefault(number, seq) == seq
        check(tmp_path / "b", heard)


@pytest.mark.parametrize(
    "point",
    ["insert: before", "insert: after", "commit: before", "commit: after", "mark: before"],
)
def test_R2_a_store_killed_at_a_chosen_point_is_whole(tmp_path: Path, point: str) -> None:
    heard = live(tmp_path / "b", 10**6, "--die-at", point, "4" if point != "mark: before" else "2")
    check(tmp_path / "b", heard)
