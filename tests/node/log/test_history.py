"""The past, read from the log by the same fold that made the present."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.library.node import Node, open_node
from holdfast.node.log.history import replay
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.bodies import decode_value
from holdfast.rules.errors import BadInput, BadKey, Truncated, UnknownMesh
from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import CHUNK_ROWS
from support import envelopes as e
from support.envelopes import MESH, MODEL
from support.nodes import Nodes, store_of, team
from support.snapshot import differences, snapshot
from support.source import START_MS, HandClock


def values(node: Node, **point: Any) -> dict[str, object]:
    return {entry.key: entry.value for entry in team(node).state.as_of(**point)}


def write_a_story(node: Node, clock: HandClock) -> None:
    """Offsets 1 to 6, a second apart."""
    mesh = team(node)
    mesh.state.set("a", 1)
    clock.advance(1000)
    mesh.state.set("b", 1)
    clock.advance(1000)
    mesh.state.set("a", 2)
    clock.advance(1000)
    mesh.memory.set("a", "of memory")
    clock.advance(1000)
    mesh.state.delete("b")
    clock.advance(1000)
    mesh.state.set("b", 3)


STORY = [
    {},
    {"a": 1},
    {"a": 1, "b": 1},
    {"a": 2, "b": 1},
    {"a": 2, "b": 1},
    {"a": 2},
    {"a": 2, "b": 3},
]


@pytest.mark.parametrize("offset", range(7))
def test_S19_the_state_as_of_an_offset(node: Node, clock: HandClock, offset: int) -> None:
    write_a_story(node, clock)
    assert values(node, offset=offset) == STORY[offset]
    for key in ("a", "b"):
        found = team(node).state.as_of(key, offset=offset)
        assert [entry.value for entry in found] == [
            value for name, value in STORY[offset].items() if name == key
        ]


@pytest.mark.parametrize("lamport", range(7))
def test_S19_the_state_as_of_a_lamport_time(node: Node, clock: HandClock, lamport: int) -> None:
    write_a_story(node, clock)
    assert values(node, lamport=lamport) == STORY[lamport]


@pytest.mark.parametrize("second", range(6))
def test_S19_the_state_as_of_a_wall_clock_time(node: Node, clock: HandClock, second: int) -> None:
    write_a_story(node, clock)
    at = START_MS + 1000 * second
    assert values(node, at_ms=at - 1) == STORY[second]
    assert values(node, at_ms=at) == STORY[second + 1]
    assert values(node, at_ms=at + 999) == STORY[second + 1]


@pytest.mark.parametrize("limit", [1, 2, 5, 400])
def test_S19_the_past_of_many_keys_is_read_in_parts(node: Node, limit: int) -> None:
    state = team(node).state
    for number in range(150):
        state.set(f"k/{number:03}", number)
    state.set("k", "the prefix itself")
    state.set("k/", "beside them")
    state.set("l", "behind them")
    for number in range(20, 120):
        state.delete(f"k/{number:03}")
    point = node.log.head().offset
    state.set("k/000", "later")
    whole = [entry.key for entry in state.as_of(offset=point) if entry.key.startswith("k/")]
    assert len(whole) == 51
    found: list[str] = []
    while page := state.as_of(
        offset=point, prefix="k/", after=found[-1] if found else "", limit=limit
    ):
        assert len(page) <= limit
        found += [entry.key for entry in page]
    assert found == whole
    assert [entry.key for entry in state.as_of(offset=point, after="k/149")] == ["l"]
    assert state.as_of(offset=point, prefix="k/", after="l") == []
    for wrong in (0, -1, True):
        with pytest.raises(BadInput, match="limit"):
            state.as_of(offset=point, limit=wrong)


def test_S19_beyond_the_end_is_the_present(node: Node, clock: HandClock) -> None:
    write_a_story(node, clock)
    for point in ({"offset": 99}, {"lamport": 10**12}, {"at_ms": 10**15}):
        assert values(node, **point) == STORY[-1]


def test_S19_a_clock_that_jumps_back_does_not_shuffle_the_past(
    node: Node, clock: HandClock
) -> None:
    """Offsets 1 and 2 at noon, then the clock falls back an hour, and 3 and 4 follow."""
    noon, hour = START_MS, 3_600_000
    mesh = team(node)
    mesh.state.set("k", 1)
    clock.advance(1000)
    mesh.state.set("k", 2)
    clock.advance(-hour)
    mesh.state.set("k", 3)
    clock.advance(hour + 5000)
    mesh.state.set("k", 4)
    assert values(node, at_ms=noon - hour + 1000) == {}, (
        "the second eleven o'clock is not the first"
    )
    assert values(node, at_ms=noon) == {"k": 1}
    assert values(node, at_ms=noon + 1000) == {"k": 3}, (
        "recorded no earlier than what was before it"
    )
    assert values(node, at_ms=noon + 5999) == {"k": 3}
    assert values(node, at_ms=noon + 6000) == {"k": 4}
    entry = mesh.state.entry("k")
    assert entry is not None
    assert entry.updated_at == noon + 6000


def test_S19_an_offset_is_what_we_knew_and_a_lamport_time_is_what_was(node: Node) -> None:
    """A late arrival: not known at its offset's past, and yet of that Lamport time."""
    mesh = team(node)
    mesh.state.set("own", 1)
    mesh.state.set("own", 2)
    node.apply([e.state_set("late", "x", lamport=1, origin="bob")])
    assert values(node, offset=2) == {"own": 2}
    assert values(node, lamport=1) == {"own": 1, "late": "x"}


def test_S19_the_past_merges_as_the_present_does(node: Node) -> None:
    node.apply(
        [
            e.state_set("k", "high", lamport=9, origin="cyd"),
            e.state_set("k", "low", lamport=3, origin="bob"),
        ]
    )
    assert values(node, offset=2) == {"k": "high"}
    assert values(node, lamport=5) == {"k": "low"}


def test_S19_memory_has_a_past_too(node: Node, clock: HandClock) -> None:
    mesh = team(node)
    mesh.memory.set("k", 1, tags=["t"])
    node.apply([e.memory_set("k", "b", lamport=5, origin="bob")])
    mesh.memory.set("k", 2)
    mesh.memory.forget("k")
    past = mesh.memory.as_of("k", offset=3)
    assert [(m.peer, m.value) for m in past] == [("ana", 2), ("bob", "b")]
    assert [(m.peer, m.value, m.tags) for m in mesh.memory.as_of(offset=1)] == [("ana", 1, ("t",))]
    assert [(m.peer, m.value) for m in mesh.memory.as_of("k", offset=4)] == [("bob", "b")]
    assert mesh.memory.as_of("other", offset=4) == []


def test_S19_a_past_that_the_log_no_longer_holds_is_not_invented(
    node: Node, clock: HandClock
) -> None:
    write_a_story(node, clock)
    clock.advance(1)
    node.sweep(Ttl(log_ms=0))
    for point in ({"offset": 6}, {"lamport": 6}, {"at_ms": clock.at_ms}):
        with pytest.raises(Truncated) as gone:
            values(node, **point)
        assert gone.value.first_available == 6


def test_S19_one_point_and_a_sound_one(node: Node) -> None:
    mesh = team(node)
    for point in ({}, {"offset": 1, "at_ms": 1}, {"lamport": -1}):
        with pytest.raises(BadInput):
            values(node, **point)
    with pytest.raises(BadKey):
        mesh.state.as_of("", offset=1)
    from holdfast.node.library.node import Mesh

    with pytest.raises(UnknownMesh):
        Mesh(node._engine, "nowhere").state.as_of(offset=1)


def test_S19_a_past_with_great_leaps_of_the_clock_can_be_read(node: Node) -> None:
    """Only part of the log is replayed: what was no leap for the whole must not be one here."""
    leap = ceiling(0) // 2
    node.apply([e.state_set("one", 1, lamport=leap), e.state_set("two", 2, lamport=2 * leap)])
    assert [entry.value for entry in team(node).state.as_of("two", offset=2)] == [2]
    assert values(node, offset=2) == {"one": 1, "two": 2}


def test_S6_the_tables_are_the_fold_of_the_log(nodes: Nodes) -> None:
    node = nodes.open("ana")
    mesh = team(node)
    mesh.state.set("k", 1)
    mesh.memory.set("k", 1, tags=["t"])
    mesh.vectors.store("k", [1, 2], model=MODEL)
    mesh.vectors.store("k", [3, 4], model=MODEL)
    mesh.files.share("small", b"x")
    mesh.files.share("big", bytes(70_000))
    mesh.files.delete("small")
    task = mesh.tasks.create("t").task
    mesh.tasks.claim(task)
    node.apply([e.task_claim(task, lamport=3, origin="bob"), e.state_set("k", 0, lamport=1)])
    folded = replay(node.log.range(), node.meshes(), node.peer)
    assert differences(snapshot(store_of(node)), snapshot(folded)) == []


def _by_the_whole_log(node: Node, family: str, end: int, lamport: int | None) -> list[Any]:
    """The past by folding every entry, which takes memory for all of them."""
    entries = [
        entry
        for entry in node.log.range(1, end + 1)
        if entry.op.startswith(f"{family}.") and (lamport is None or entry.lamport <= lamport)
    ]
    with replay(iter(entries), node.meshes(), "").read() as past:
        if family == "state":
            found: list[Any] = past.state_scan(MESH, "", "", 999)
        else:
            found = list(past.memory_scan(MESH, None, ("", ""), 999))
        return [
            (row.key, decode_value(row.value), row.lamport, row.peer)
            for row in found
            if not row.tombstone
        ]


@pytest.mark.parametrize("seed", range(4))
def test_S19_the_past_of_a_mesh_is_that_of_its_whole_log(node: Node, seed: int) -> None:
    """Found key by key, in pages of which there are several."""
    rng = random.Random(seed)
    raws = []
    for n in range(1, 700):
        key, origin = f"k{rng.randrange(300)}", rng.choice(["bob", "cyd", "zoë"])
        given: dict[str, Any] = {"lamport": rng.randrange(1, 200), "origin": origin}
        make = rng.choice([e.state_set, e.memory_set])
        raws.append(make(key, n, id=e.make_id(n), **given))
    node.apply(raws)
    mesh = team(node)
    points: list[dict[str, Any]] = [{"offset": 650}, {"offset": 9}, {"lamport": 100}]
    for point in points:
        end, lamport = point.get("offset", 700), point.get("lamport")
        for family, found in (
            ("state", mesh.state.as_of(**point)),
            ("memory", mesh.memory.as_of(**point)),
        ):
            past = [(one.key, one.value, one.lamport, one.peer) for one in found]
            assert past == _by_the_whole_log(node, family, end, lamport)


def test_S19_the_past_of_a_mesh_takes_memory_for_the_answer_and_not_for_the_log(
    tmp_path: Path, clock: HandClock
) -> None:
    """The planted bug was the whole log in memory. Two pages of a key's entries are."""

    def peak(versions: int) -> int:
        node = open_node(
            tmp_path / str(versions), peer="ana", create=True, sync="normal", source=clock
        )
        node.create_mesh(MESH)
        node.apply(
            e.state_set(f"k{n % 4}", "x" * 100, lamport=n, id=e.make_id(n))
            for n in range(1, 4 * versions)
        )
        tracemalloc.start()
        try:
            assert len(team(node).state.as_of(offset=4 * versions - 5)) == 4
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            node.close()

    assert peak(6 * CHUNK_ROWS) < 1.3 * peak(3 * CHUNK_ROWS)
