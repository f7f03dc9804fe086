"""Following the log: each change once, by filter, from any cursor."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.node.watching.changes import LogChange, LogFollowing
from holdfast.node.watching.watches import ChangeWatch
from holdfast.rules.errors import BadInput, BadKey, EpochChanged, PastEnd, Truncated
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.order import Stamp
from support.envelopes import MODEL
from support.nodes import Nodes, deliver, store_of, team
from support.source import HandClock

NOTHING = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)


def seen(watch: ChangeWatch[LogChange], count: int) -> list[tuple[str, str]]:
    with watch:
        return [(change.op, change.key) for change in islice(watch, count)]


def offsets(changes: Iterable[LogChange]) -> list[int]:
    return [change.offset for change in changes]


def test_U1_a_change_says_what_was_done_by_whom_and_where_to_go_on(node: Node) -> None:
    mesh = team(node)
    with mesh.state.watch() as watch:
        receipt = mesh.state.set("k", {"a": 1}, meta={"why": "so"})
        mesh.state.delete("k")
        first, second = islice(watch, 2)
    assert (first.op, first.mesh, first.key, first.value) == ("state.set", "team", "k", {"a": 1})
    assert (first.id, first.offset, first.stamp) == (receipt.id, 1, Stamp(1, "ana"))
    assert (first.peer, first.owner, first.meta, first.deleted) == ("ana", "", {"why": "so"}, False)
    assert (first.body, str(first.cursor)) == ({"value": {"a": 1}}, "1:1")
    assert first.created_at == first.recorded_at
    assert (second.deleted, second.value, second.cursor) == (True, None, (1, 2))
    assert repr(second) == "LogChange(1:2 state.delete team/k 2@ana)"


def test_Z4_a_watch_goes_on_after_a_cursor_without_missing_or_repeating_one(nodes: Nodes) -> None:
    """Also in another process, which has only the text of the cursor."""
    node = nodes.open("ana")
    watch = team(node).state.watch()
    found: list[int] = []
    for number in range(20):
        team(node).state.set(f"k{number % 3}", number)
        team(node).memory.set("other", number)
        if number % 4 == 3:
            found += offsets(islice(watch, 1 + number % 3))
            cursor = str(watch.cursor)
            watch.close()
            node = nodes.reopen(node)
            watch = team(node).state.watch(since=cursor)
    found += offsets(islice(watch, 20 - len(found)))
    watch.close()
    assert found == list(range(1, 41, 2))


def test_Z4_the_cursor_moves_on_where_nothing_passes(node: Node) -> None:
    mesh = team(node)
    with mesh.state.watch("wanted", since="start") as watch:
        for number in range(3 * CHUNK_ROWS):
            mesh.state.set("other", number)
        mesh.state.set("wanted", 1)
        assert next(watch).cursor == watch.cursor == (1, 3 * CHUNK_ROWS + 1)


def test_R5_a_slow_reader_holds_a_page_and_no_more(node: Node) -> None:
    mesh = team(node)
    with mesh.state.watch(since="start") as watch:
        for number in range(5 * CHUNK_ROWS):
            mesh.state.set("k", number)
        held, source = [], watch._source
        assert isinstance(source, LogFollowing)
        for change in islice(watch, 5 * CHUNK_ROWS):
            held.append(len(source._ready))
            assert watch.cursor == change.cursor
    assert max(held) < CHUNK_ROWS


def test_U1_every_family_is_watched_by_itself(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("a/1", 1)
    mesh.state.set("b/1", 1)
    mesh.memory.set("a/1", 1)
    mesh.vectors.store("a/1", [1, 2], model=MODEL)
    mesh.files.share("a/1", b"x")
    task = mesh.tasks.create("t").task
    other = mesh.tasks.create("u").task
    mesh.tasks.claim(task)
    mesh.facts.append("a/1", "is", 1)
    mesh.audit.append("activityLog", 1)
    assert seen(mesh.state.watch("a/", since="start"), 1) == [("state.set", "a/1")]
    assert seen(mesh.state.watch(since=0), 2)[1] == ("state.set", "b/1")
    assert seen(mesh.memory.watch(since="start"), 1) == [("memory.set", "a/1")]
    assert seen(mesh.vectors.watch("a", since="start"), 1) == [("vector.store", "a/1")]
    assert seen(mesh.files.watch(since="start"), 1) == [("file.share", "a/1")]
    created, claimed = ("task.create", task), ("task.claim", task)
    assert seen(mesh.tasks.watch(since="start"), 3) == [created, ("task.create", other), claimed]
    assert seen(mesh.tasks.watch(task, since="start"), 2) == [created, claimed]
    assert seen(mesh.facts.watch("a/", since="start"), 1) == [("fact.append", "a/1")]
    assert seen(mesh.audit.watch(since="start"), 1) == [("audit.append", "activityLog")]


def test_U1_the_log_is_watched_by_mesh_op_prefix_and_peer(nodes: Nodes) -> None:
    ana, ben = nodes.open("ana", "team", "other"), nodes.open("ben")
    team(ben).state.set("a", "ben")
    deliver(ben, ana)
    team(ana).state.set("a", 1)
    team(ana).state.delete("a")
    ana.mesh("other").state.set("b", 1)
    task = team(ana).tasks.create("t").task
    team(ana).tasks.cancel(task)
    log = ana.log

    def found(count: int, **terms: Any) -> list[int]:
        with log.watch(since="start", **terms) as watch:
            return offsets(islice(watch, count))

    assert found(6) == [1, 2, 3, 4, 5, 6]
    assert found(1, mesh="other") == [4]
    assert found(3, ops=["state.set"]) == [1, 2, 4]
    assert found(3, ops=["state.delete", "task"]) == [3, 5, 6]
    assert found(1, prefix="b") == [4]
    assert found(1, peer="ben") == [1]
    assert found(2, ops=["task"], mesh="team") == [5, 6]


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"ops": ["state.sat"]}, BadInput),
        ({"ops": "state"}, BadInput),
        ({"mesh": "No Mesh"}, BadInput),
        ({"prefix": "\0"}, BadKey),
        ({"prefix": 1}, BadInput),
        ({"peer": ""}, BadInput),
        ({"since": "never"}, BadInput),
        ({"since": 1}, PastEnd),
        ({"since": "2:0"}, EpochChanged),
    ],
)
def test_U1_a_watch_that_makes_no_sense_is_refused_at_once(
    node: Node, terms: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        node.log.watch(**terms)


def test_Z5_a_watch_whose_entries_are_gone_says_what_is_left(node: Node, clock: HandClock) -> None:
    mesh = team(node)
    watch = mesh.state.watch(since="start")
    for number in range(3):
        mesh.state.set("k", number)
    clock.advance(1000)
    node.sweep(NOTHING)
    first = node.log.head().first
    assert first > 1, "the sweep has truncated"
    with pytest.raises(Truncated, match=f"offset 1 is gone: the log begins at {first}") as gone:
        next(watch)
    assert gone.value.first_available == first
    assert list(watch) == [], "a watch that failed has ended"
    with mesh.state.watch(since=first - 1) as again:
        assert next(again).offset == first


def test_S13_a_watch_notices_that_its_log_counts_in_a_new_epoch(node: Node) -> None:
    mesh = team(node)
    with mesh.state.watch() as watch:
        mesh.state.set("k", 1)
        assert next(watch).cursor == (1, 1)
        store_of(node).write(lambda tx: tx.set_epoch(2))
        with pytest.raises(EpochChanged) as changed:
            next(watch)
    assert changed.value.epoch == 2
