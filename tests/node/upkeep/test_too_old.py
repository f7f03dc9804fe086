"""Too old is what could bring back a deletion that is forgotten, and nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.node.core import intake
from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BadInput, TooOld
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.reconcile import Outcome
from holdfast.rules.retention import is_too_old
from support import envelopes as e
from support.nodes import Nodes, deliver, team
from support.seeds import seeds
from support.source import HandClock

NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0)
FAMILIES = ("state", "memory", "file", "vector")
_WRITES: dict[str, Any] = {
    "state": lambda key, n, **f: e.state_set(key, n, **f),
    "memory": lambda key, n, **f: e.memory_set(key, n, **f),
    "file": lambda key, n, **f: e.file_share(key, b"%d" % n, **f),
    "vector": lambda key, n, **f: e.vector_store(key, [n, 1], **f),
}
_DELETES: dict[str, Any] = {
    "state": lambda key, **f: e.raw("state.delete", key, **f),
    "memory": lambda key, **f: e.raw("memory.forget", key, **f),
    "file": lambda key, **f: e.raw("file.delete", key, **f),
    "vector": lambda key, **f: e.vector_delete(key, **f),
}


def live(node: Node, family: str, owner: str) -> dict[str, int]:
    """The stamp of each live key."""
    with node._engine.store.read() as tx:
        if family == "state":
            return {r.key: r.lamport for r in tx.state_scan("team", "", "", 99) if not r.tombstone}
        if family == "memory":
            rows = tx.memory_scan("team", owner, ("", ""), 99)
            return {row.key: row.lamport for row in rows if not row.tombstone}
        if family == "file":
            files = tx.file_scan("team", owner, ("", ""), 99)
            return {row.path: row.lamport for row in files if not row.tombstone}
        vectors = tx.vector_scan("team", None, 0, 99, live_only=True)
        return {row.key: row.lamport for _, row in vectors}


def shuffle(folder: Path, seed: int) -> None:
    """A random history in a random order, with sweeps in between. Whatever the sweeps have removed,
    the live rows are those that all that arrived makes, and nothing else is refused than what a
    deletion of its key, which had arrived before, had deleted.
    """
    rng, clock = Random(seed), HandClock()
    node = Nodes("memory", folder, clock).open("hub")
    family = rng.choice(FAMILIES)
    history = [
        (key, lamport, rng.random() < 0.4)
        for lamport, key in enumerate(rng.choices("abc", k=rng.randint(3, 9)), 1)
    ]
    rng.shuffle(history)
    newest: dict[str, tuple[int, bool]] = {}
    buried: dict[str, int] = {}
    for key, lamport, deletes in history:
        if rng.random() < 0.5:
            clock.advance(1)
            node.sweep(NOW)
        raw = (
            _DELETES[family](key, lamport=lamport)
            if deletes
            else _WRITES[family](key, lamport, lamport=lamport)
        )
        (result,) = node.apply([raw])
        if result.error is not None:
            assert isinstance(result.error, TooOld)
            assert not deletes, "a deletion brings nothing back"
            assert lamport < buried.get(key, 0), "nothing had deleted it"
        if deletes:
            buried[key] = max(lamport, buried.get(key, 0))
        newest[key] = max(newest.get(key, (0, True)), (lamport, deletes))
        expected = {name: at for name, (at, dead) in newest.items() if not dead}
        assert live(node, family, "bob") == expected, "what was deleted came back, or is missing"


@pytest.mark.parametrize("seed", seeds(300))
def test_S17_sweeps_change_nothing_but_what_is_kept(tmp_path: Path, seed: int) -> None:
    shuffle(tmp_path, seed)


def _all_that_is_old(**case: Any) -> bool:
    """As it was: any stamp below any removed tombstone."""
    return bool(case["lamport"] <= 9 and not case["replaces_live"])


def _a_dead_row_is_proof_too(**case: Any) -> bool:
    return bool(is_too_old(**{**case, "replaces_live": True}))


def _deletions_too(**case: Any) -> bool:
    return is_too_old(**{**case, "deletes": False})


@pytest.mark.parametrize("wrong", [_all_that_is_old, _a_dead_row_is_proof_too, _deletions_too])
def test_S17_the_shuffles_see_a_resurrection_and_a_needless_refusal(
    tmp_path: Path, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "is_too_old", wrong)
    with pytest.raises(AssertionError):
        _shuffles(tmp_path)


def _shuffles(folder: Path) -> None:
    for seed in range(300):
        shuffle(folder, seed)


def hub_and_sensor(nodes: Nodes, clock: HandClock) -> tuple[Node, Node]:
    """A hub that is far ahead of a sensor which it only reads, and has forgotten deletions."""
    sensor, hub = nodes.open("sensor"), nodes.open("hub")
    team(sensor).state.set("temperature", 20)
    team(sensor).state.set("mode", "eco")
    team(sensor).memory.set("place", "roof", tags=["t"])
    team(sensor).files.share("map", b"here")
    deliver(sensor, hub)
    for n in range(40):
        team(hub).state.set("busy", n)
    team(hub).state.delete("busy")
    team(hub).state.delete("mode")
    clock.advance(1)
    hub.sweep(NOW)
    assert team(hub).info().forgotten_lamport > 40
    return sensor, hub


def late(sensor: Node, hub: Node) -> list[TooOld | None]:
    """What became of the last entry of the sensor at the hub."""
    (result,) = hub.apply([list(sensor.log.range())[-1].raw])
    assert result.error is None or isinstance(result.error, TooOld)
    return [result.error]


def test_S17_what_was_deleted_elsewhere_stops_no_other_key(nodes: Nodes, clock: HandClock) -> None:
    sensor, hub = hub_and_sensor(nodes, clock)
    team(sensor).state.set("temperature", 21)
    assert late(sensor, hub) == [None], "a live row proves that nothing of it was forgotten"
    team(sensor).state.set("humidity", 60)
    assert late(sensor, hub) == [None], "nobody deleted this key"
    team(sensor).state.delete("temperature")
    assert late(sensor, hub) == [None]
    assert team(hub).state.get("temperature") is None
    assert team(hub).state.get("humidity") == 60


def test_S17_a_source_that_was_refused_has_a_way_back(nodes: Nodes, clock: HandClock) -> None:
    sensor, hub = hub_and_sensor(nodes, clock)
    team(sensor).state.set("mode", "boost")
    (refused,) = late(sensor, hub)
    assert refused is not None
    command = refused.message.rpartition(": ")[2].strip("`")
    assert command.startswith("holdfast mesh restamp team --past ")
    past = int(command.rpartition(" ")[2])
    report = team(sensor).restamp(past)
    assert (report.state, report.memory, report.files) == (2, 1, 1)
    assert report.lamport > past
    again = team(sensor).restamp(past)
    assert (again.state, again.memory, again.files, again.vectors) == (0, 0, 0, 0)
    results = hub.apply(entry.raw for entry in sensor.log.range())
    assert all(r.error is None or r.error.code == "too_old" for r in results)
    assert team(hub).state.get("mode") == "boost"
    (stale,) = hub.apply([e.state_set("mode", "old", lamport=3, origin="sensor")])
    assert stale.outcome is Outcome.SUPERSEDED, "what was refused once can be tried again"


def test_S17_only_what_is_ones_own_and_live_is_written_again(nodes: Nodes) -> None:
    node = nodes.open("ana")
    node.apply([e.state_set("theirs", 1, lamport=2), e.memory_set("m", 1, lamport=3)])
    mesh = team(node)
    mesh.state.set("gone", 1)
    mesh.state.delete("gone")
    mesh.vectors.store("v", [1, 2], model=e.MODEL, content="text", metadata={"a": 1})
    mesh.vectors.store("v", [2, 2], model=e.MODEL, content="newer")
    before = node.log.head().offset
    report = mesh.restamp(100)
    assert (report.state, report.memory, report.files, report.vectors) == (0, 0, 0, 1)
    (written,) = node.log.range(before + 1)
    assert decode_trusted(written.raw).lamport > 100
    (hit,) = mesh.vectors.search([2, 2], model=e.MODEL)
    assert hit.content == "newer"


@pytest.mark.parametrize("past", [0, -1, LAMPORT_MAX, True, "3"])
def test_S17_a_stamp_that_cannot_be_is_refused(nodes: Nodes, past: Any) -> None:
    with pytest.raises(BadInput):
        team(nodes.open("ana")).restamp(past)
