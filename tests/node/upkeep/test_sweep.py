"""Forgetting is safe: old enough, and past every reader, and never a resurrection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import BadInput, TooOld
from holdfast.rules.reconcile import Outcome
from support import envelopes as e
from support.envelopes import MODEL
from support.nodes import Nodes, blob_names, deliver, grow_old, store_of, team
from support.snapshot import snapshot
from support.source import HandClock

DAY_MS = 24 * 3600 * 1000
NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)
BIG = bytes(70_000)


def dead_rows(node: Node) -> int:
    whole, live = (snapshot(store_of(node), dead=dead)["team"] for dead in (True, False))
    return sum(len(whole[family]) - len(live[family]) for family in ("state", "memory", "file"))


def bury(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("k", 1)
    mesh.state.delete("k")
    mesh.memory.set("k", 1)
    mesh.memory.forget("k")
    mesh.files.share("k", b"x")
    mesh.files.delete("k")


def test_S17_a_tombstone_goes_when_it_is_old_and_everyone_has_read_it(
    node: Node, clock: HandClock
) -> None:
    bury(node)
    assert dead_rows(node) == 3
    node.log.add_consumer("reader")
    assert node.sweep().tombstones == 0, "too young and unread"
    clock.advance(90 * DAY_MS + 1)
    assert node.sweep().tombstones == 0, "unread"
    node.log.confirm("reader", 3)
    assert node.sweep().tombstones == 1, "read up to the first of them"
    node.log.confirm("reader", 6)
    assert node.sweep().tombstones == 2
    assert dead_rows(node) == 0


def test_S17_a_tombstone_that_was_read_stays_while_it_is_young(
    node: Node, clock: HandClock
) -> None:
    bury(node)
    node.log.add_consumer("reader", start="now")
    clock.advance(90 * DAY_MS - 1)
    assert node.sweep().tombstones == 0
    clock.advance(2)
    assert node.sweep().tombstones == 3


def test_S17_a_log_that_is_truncated_early_takes_no_young_tombstone_along(
    node: Node, clock: HandClock
) -> None:
    """A tombstone is as old as its entry; when that is gone, it is not known to be old."""
    bury(node)
    team(node).state.set("last", 1)
    clock.advance(1000)
    swept = node.sweep(Ttl(log_ms=0))
    assert (swept.log_entries, swept.tombstones) == (6, 0)
    assert node.sweep(Ttl(log_ms=0)).tombstones == 0
    assert dead_rows(node) == 3
    clock.advance(90 * DAY_MS)
    assert node.sweep().tombstones == 3, "all before an old entry is old"


def test_S17_a_write_from_before_a_forgotten_deletion_is_refused(
    node: Node, clock: HandClock
) -> None:
    mesh = team(node)
    late = e.state_set("k", "risen", lamport=3, origin="bob")
    node.apply([e.state_set("k", 1, lamport=2, origin="bob")])
    mesh.state.delete("k")
    assert mesh.clock().lamport == 4
    mesh.state.set("other", 1)
    clock.advance(1)
    assert node.sweep(NOW).tombstones == 1
    before = snapshot(store_of(node))
    (refused,) = node.apply([late])
    assert isinstance(refused.error, TooOld)
    assert "4" in refused.error.message
    assert mesh.state.get("k") is None
    assert snapshot(store_of(node)) == before
    (newer,) = node.apply([e.state_set("k", "new", lamport=5, origin="bob")])
    assert newer.outcome is Outcome.APPLIED
    assert mesh.state.get("k") == "new"


@pytest.mark.parametrize("family", ["state", "memory", "file", "vector"])
def test_S17_nothing_rises_again_in_any_family(node: Node, clock: HandClock, family: str) -> None:
    makers: dict[str, tuple[Callable[[int], bytes], Callable[[int], bytes]]] = {
        "state": (
            lambda lamport: e.state_set("k", lamport, lamport=lamport),
            lambda lamport: e.raw("state.delete", "k", lamport=lamport),
        ),
        "memory": (
            lambda lamport: e.memory_set("k", lamport, lamport=lamport),
            lambda lamport: e.raw("memory.forget", "k", lamport=lamport),
        ),
        "file": (
            lambda lamport: e.file_share("k", b"%d" % lamport, lamport=lamport),
            lambda lamport: e.raw("file.delete", "k", lamport=lamport),
        ),
        "vector": (
            lambda lamport: e.vector_store("k", [lamport, 0], lamport=lamport),
            lambda lamport: e.vector_delete("k", lamport=lamport),
        ),
    }
    write, delete = makers[family]
    node.apply([write(1), delete(5), e.state_set("last", 1, lamport=6)])
    clock.advance(1)
    node.sweep(NOW)
    live = snapshot(store_of(node), dead=False)["team"]
    for lamport in (2, 4, 5):
        (result,) = node.apply([write(lamport)])
        assert isinstance(result.error, TooOld)
    assert snapshot(store_of(node), dead=False)["team"] == live
    (result,) = node.apply([write(6)])
    assert result.error is None


def test_S17_an_old_write_that_a_present_one_beats_anyway_is_let_in(
    node: Node, clock: HandClock
) -> None:
    """It can bring nothing back, so whoever sends it need not start again from a snapshot."""
    node.apply([e.state_set("kept", 1, lamport=8), e.raw("state.delete", "gone", lamport=9)])
    node.apply([e.state_set("last", 1, lamport=10)])
    clock.advance(1)
    assert node.sweep(NOW).tombstones == 1
    (beaten,) = node.apply([e.state_set("kept", 0, lamport=3)])
    assert beaten.error is None
    assert beaten.outcome is Outcome.SUPERSEDED


def test_S17_tasks_and_facts_are_never_too_old(node: Node, clock: HandClock) -> None:
    node.apply([e.raw("state.delete", "gone", lamport=9), e.state_set("last", 1, lamport=10)])
    clock.advance(1)
    node.sweep(NOW)
    results = node.apply(
        [
            e.task_create(e.TASK, lamport=1),
            e.task_claim(e.TASK, lamport=2),
            e.fact_append("s", "is", 1),
        ]
    )
    assert [result.error for result in results] == [None] * 3


def test_S17_a_write_of_ones_own_is_never_too_old(node: Node, clock: HandClock) -> None:
    mesh = team(node)
    bury(node)
    clock.advance(1)
    assert node.sweep(NOW).tombstones >= 2
    mesh.state.set("k", "again")
    assert mesh.state.get("k") == "again"


def test_S17_each_mesh_forgets_for_itself(nodes: Nodes, clock: HandClock) -> None:
    node = nodes.open("ana", "one", "two")
    node.apply([e.raw("state.delete", "k", lamport=50, mesh="one")])
    node.apply([e.state_set("l", 1, lamport=2, mesh="two")])
    clock.advance(1)
    assert node.sweep(NOW).tombstones == 1
    (result,) = node.apply([e.state_set("k", 1, lamport=3, mesh="two")])
    assert result.error is None
    (result,) = node.apply([e.state_set("k", 1, lamport=3, mesh="one")])
    assert isinstance(result.error, TooOld)


def test_S17_what_was_forgotten_is_known_after_a_restart(nodes: Nodes, clock: HandClock) -> None:
    node = nodes.open()
    node.apply([e.raw("state.delete", "k", lamport=5), e.state_set("last", 1, lamport=6)])
    clock.advance(1)
    node.sweep(NOW)
    node = nodes.reopen(node)
    (result,) = node.apply([e.state_set("k", 1, lamport=4)])
    assert isinstance(result.error, TooOld)


def test_S17_dead_vectors_go_and_the_live_one_stays(node: Node, clock: HandClock) -> None:
    mesh = team(node)
    for n in range(3):
        mesh.vectors.store("k", [n, 0], model=MODEL, content=str(n))
    mesh.vectors.store("gone", [1, 1], model=MODEL)
    mesh.vectors.delete("gone", model=MODEL)
    clock.advance(1)
    assert node.sweep(NOW).tombstones == 4
    assert [row["content"] for row in snapshot(store_of(node))["team"]["vector"]] == ["2"]
    assert [hit.content for hit in mesh.vectors.search([0, 0], model=MODEL)] == ["2"]


def test_S17_ids_are_remembered_for_their_window(node: Node, clock: HandClock) -> None:
    raws = [e.state_set(f"k{n}", n, lamport=n + 1) for n in range(3)]
    node.apply(raws)
    clock.advance(91 * DAY_MS)
    assert node.sweep().log_entries == 2
    clock.advance(180 * DAY_MS - 1)
    assert node.sweep().dedupe_rows == 0
    assert node.apply([raws[0]])[0].outcome is Outcome.NOOP_ALREADY_APPLIED
    clock.advance(1)
    assert node.sweep().dedupe_rows == 2


def test_S17_sweeping_goes_in_chunks(node: Node, clock: HandClock) -> None:
    node.apply([e.raw("state.delete", f"k{n}", lamport=n + 1) for n in range(450)])
    node.apply([e.state_set("last", 1, lamport=500)])
    clock.advance(1)
    swept = node.sweep(NOW)
    assert (swept.log_entries, swept.tombstones, swept.dedupe_rows) == (450, 450, 450)


# --- readers that lag -----------------------------------------------------------------------------


def test_Z5_a_reader_that_more_waits_for_than_it_declared_is_retired(
    node: Node, clock: HandClock
) -> None:
    facts = team(node).facts
    node.log.add_consumer("patient")
    node.log.add_consumer("brief", retire_lag=3)
    for n in range(4):
        facts.append("s", "n", n)
    node.log.confirm("brief", ranges=[(2, 3)])
    assert node.sweep().consumers == (), "three wait, and not more than declared"
    node.log.retire("patient")
    facts.append("s", "n", 4)
    clock.advance(1)
    swept = node.sweep(NOW)
    assert (swept.consumers, swept.log_entries) == (("brief",), 4), "and holds nothing back"
    assert node.log.consumers() == []


def test_Z5_a_reader_that_keeps_up_is_kept_however_long_the_log_is(node: Node) -> None:
    node.log.add_consumer("brief", retire_lag=1)
    for n in range(5):
        team(node).facts.append("s", "n", n)
        node.log.confirm("brief", n + 1)
    assert node.sweep().consumers == ()
    for lag in (0, -1):
        with pytest.raises(BadInput):
            node.log.add_consumer("odd", retire_lag=lag)


# --- blobs ----------------------------------------------------------------------------------------


def age_blobs(node: Node, clock: HandClock) -> None:
    for sha in blob_names(node):
        grow_old(node, sha, clock.at_ms - 10)


def test_S9_a_released_blob_goes_when_it_is_old_and_every_reader_is_past_it(
    node: Node, clock: HandClock
) -> None:
    mesh = team(node)
    mesh.files.share("k", BIG)
    node.log.add_consumer("reader")
    mesh.files.delete("k")
    assert node.sweep(NOW).blobs == 0
    assert len(blob_names(node)) == 1
    clock.advance(DAY_MS + 1)
    assert node.sweep().blobs == 0, "unread"
    node.log.confirm("reader", 2)
    assert node.sweep().blobs == 1
    assert blob_names(node) == set()


def test_S9_a_released_blob_waits_a_day(node: Node, clock: HandClock) -> None:
    mesh = team(node)
    mesh.files.share("k", BIG)
    mesh.files.delete("k")
    clock.advance(DAY_MS - 1)
    assert node.sweep().blobs == 0
    clock.advance(1)
    assert node.sweep().blobs == 1


def test_S9_a_file_that_no_row_names_is_found_when_it_is_old(node: Node, clock: HandClock) -> None:
    orphan = node.receive_blob(BIG)
    kept = team(node).files.share("k", b"y" * 70_000)
    assert kept
    grow_old(node, orphan, clock.at_ms)
    clock.advance(3600 * 1000)
    assert node.sweep().orphans == 0, "its envelope may be on the way"
    clock.advance(1)
    age_blobs(node, clock)
    swept = node.sweep(Ttl(orphan_ms=0))
    assert (swept.orphans, swept.blobs) == (1, 0)
    assert orphan not in blob_names(node)
    assert team(node).files.read("k") == b"y" * 70_000


def test_S9_a_blob_of_a_share_that_lost_is_an_orphan(nodes: Nodes, clock: HandClock) -> None:
    ana, bob = nodes.open("ana"), nodes.open("bob")
    ana.apply([e.file_share("k", b"newer", lamport=90, origin="bob", owner="bob")])
    team(bob).files.share("k", BIG)
    deliver(bob, ana)
    assert len(blob_names(ana)) == 1
    clock.advance(1)
    age_blobs(ana, clock)
    assert ana.sweep(NOW).orphans == 1
    assert team(ana).files.read("k", peer="bob") == b"newer"
