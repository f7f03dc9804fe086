"""Homes of real nodes, read as files, compared with the contract written a second time."""

from __future__ import annotations

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from model import model
from model.reading import HomeFiles, Written, written
from support.histories import grow
from support.nodes import Nodes, team
from support.seeds import seeds
from support.source import HandClock


@pytest.fixture(scope="module", params=seeds(2))
def homes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Some nodes that know everything, some that know only a part."""
    folder = tmp_path_factory.mktemp("model")
    grown = grow(request.param, folder, nodes=3, meshes=3, ops=500, settled=bool(request.param % 2))
    return list(grown.homes.values())


def changes(home: Path) -> tuple[HomeFiles, list[Written]]:
    files = HomeFiles(home)
    return files, list(files.log())


def version(row: dict[str, Any], prefix: str = "") -> Any:
    if row[f"{prefix}lamport"] is None:
        return None
    return row[f"{prefix}lamport"], row[f"{prefix}peer"].encode(), row[f"{prefix}id"]


def test_S6_state_memory_and_files_are_what_their_changes_say(homes: list[Path]) -> None:
    for home in homes:
        files, known = changes(home)
        assert {
            (row["mesh"], row["key"]): (*version(row), bool(row["tombstone"]), _value(row))
            for row in files.rows("SELECT * FROM state")
        } == model.state(known)
        assert {
            (row["mesh"], row["owner"], row["key"]): (
                *version(row),
                bool(row["tombstone"]),
                _value(row),
                json.loads(row["tags"]),
            )
            for row in files.rows("SELECT * FROM memory")
        } == model.memory(known)
        assert {
            (row["mesh"], row["owner"], row["path"]): (
                *version(row),
                bool(row["tombstone"]),
                None if row["tombstone"] else (row["sha256"], row["size"]),
            )
            for row in files.rows("SELECT * FROM file")
        } == model.files(known)


def _value(row: dict[str, Any]) -> Any:
    return None if row["tombstone"] else json.loads(row["value"])


def test_S8_every_vector_is_kept_and_the_newest_lives(homes: list[Path]) -> None:
    for home in homes:
        files, known = changes(home)
        assert {
            (row["mesh"], row["owner"], row["key"], row["model"], row["id"].hex()): (
                *version(row),
                bool(row["live"]),
                row["embedding"],
            )
            for row in files.rows("SELECT * FROM vector")
        } == model.vectors(known)


def test_S10_tasks_are_what_their_turns_say(homes: list[Path]) -> None:
    held = 0
    for home in homes:
        files, known = changes(home)
        expected = model.tasks(known)
        rows = {(row["mesh"], row["task"]): row for row in files.rows("SELECT * FROM task")}
        assert rows.keys() == expected.keys()
        events: dict[Any, dict[Any, str]] = {key: {} for key in rows}
        for row in files.rows("SELECT * FROM task_event"):
            events[row["mesh"], row["task"]][version(row)] = row["event"]
        for key, row in rows.items():
            wanted = expected[key]
            assert (row["status"], row["generation"]) == (wanted.status, wanted.generation)
            assert version(row, "ended_") == wanted.ended
            if row["status"] != "open":  # an open one keeps its last holder for late claims
                assert version(row, "holder_") == wanted.holder
                held += wanted.holder is not None
            assert (row["title"] if row["known"] else None) == wanted.title
            assert events[key] == wanted.events
    assert held, "histories without a claim prove nothing"


def test_S18_the_ledger_has_every_lost_value_once_and_no_other(homes: list[Path]) -> None:
    lost = 0
    for home in homes:
        files, known = changes(home)
        rows = files.rows("SELECT * FROM conflict WHERE family <> 'task'")
        found = {(row["family"], _key(row), row["loser_id"].hex()): row for row in rows}
        assert len(found) == len(rows), "each once"
        # What somebody has dealt with stays on record, also when it is no loss any more.
        dealt_with = {lost for lost, row in found.items() if row["resolved_at"] is not None}
        assert found.keys() - dealt_with == model.ledger(known) - dealt_with
        lost += len(found)
    assert lost, "histories without a conflict prove nothing"


@pytest.mark.parametrize("seed", seeds(40))
def test_S18_the_ledger_is_the_same_in_every_order_of_delivery(tmp_path: Path, seed: int) -> None:
    """Four versions of one key by four peers that knew of each other only in part."""
    rng = random.Random(f"orders {seed}")
    clock = HandClock()
    nodes = Nodes("memory", tmp_path, clock)
    writers = [nodes.open(name) for name in ("ana", "bob", "cid", "dan")]
    raws: list[bytes] = []
    for number in range(4):
        node = rng.choice(writers)
        for _ in range(rng.randrange(9)):
            team(node).state.set("another key", number)  # stamps grow apart
        if rng.random() < 0.6:
            node.apply(rng.sample(raws, min(len(raws), 1)))
        team(node).state.set("k", number)
        raws.append(node.log.tail(1)[0].raw)
    lost = {id for _, _, id in model.ledger([written(raw) for raw in raws])}
    for at, order in enumerate(permutations(raws)):
        reader = nodes.open(f"reader-{at}")
        for raw in order:
            reader.apply([raw])
        found = [row.loser.id.hex() for row in reader.conflicts(open_only=False)]
        assert sorted(found) == sorted(lost), order


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    owner = () if row["family"] == "state" else (row["owner"],)
    return (row["mesh"], *owner, row["entity"])
