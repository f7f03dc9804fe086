"""Digests of a node: the same for what is the same, other for anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.node.library.node import Node
from holdfast.node.log.digests import BucketRows, Digests, bucket_rows, digests
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.digests import TABLES
from holdfast.rules.errors import BadInput, UnknownMesh
from support import envelopes as e
from support.envelopes import MESH, MODEL
from support.nodes import Nodes, deliver, store_of, team
from support.source import HandClock
from support.story import Story

NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)


def look(node: Node, *meshes: str) -> Digests:
    with store_of(node).read() as reader:
        return digests(reader, node.peer, meshes)


def rows(node: Node, table: str, bucket: int, mesh: str = MESH) -> BucketRows:
    with store_of(node).read() as reader:
        return bucket_rows(reader, node.peer, mesh, table, bucket)


def counts(node: Node) -> dict[str, int]:
    return {name: table.rows for name, table in look(node).meshes[MESH].tables.items()}


def write_some(node: Node) -> None:
    mesh = team(node)
    for n in range(20):
        mesh.state.set(f"s/{n}", {"n": n, "text": "ä🦊"})
        mesh.memory.set(f"m/{n}", None, tags=["t", "ü"])
    mesh.files.share("f", b"small")
    mesh.files.share("big", bytes(70_000))
    mesh.vectors.store("v", [1.0, 2.0], model=MODEL)
    mesh.vectors.store("v", [1.0, 3.0], model=MODEL)
    task = mesh.tasks.create("one").task
    mesh.tasks.claim(task)
    mesh.facts.append("s", "is", 1)


@pytest.mark.parametrize("seed", range(3))
def test_P3_nodes_that_know_the_same_have_the_same_digests(tmp_path: Path, seed: int) -> None:
    """Whatever order things arrived in: all tables, and the log as the set that it is."""
    story = Story("memory", tmp_path, seed)
    story.run(400)
    apart = [look(peer.node).meshes[MESH].tables for peer in story.peers]
    assert apart[0] != apart[1], "some of it is still on its way"
    story.end()
    together = [look(peer.node).meshes[MESH] for peer in story.peers]
    assert together[0] == together[1] == together[2]
    assert all(together[0].tables[table].rows for table in TABLES if table != "entities")


def test_P3_both_stores_give_the_same_digests(tmp_path: Path) -> None:
    said = []
    for kind in ("memory", "sqlite"):
        story = Story(kind, tmp_path / kind, 5, restarts=False)
        story.run(200)
        said.append([look(peer.node) for peer in story.peers])
        story.end()
    assert said[0] == said[1]


def test_P3_the_digests_belong_to_a_place_in_the_log(node: Node) -> None:
    write_some(node)
    said = look(node)
    assert (said.peer, said.epoch, said.first) == ("ana", 1, 1)
    assert said.head == node.log.head().offset
    assert said.repaired_to is None
    assert counts(node) == {
        **{"state": 20, "memory": 20, "files": 2, "vectors": 2, "tasks": 1, "task_events": 2},
        **{"entities": 0, "log": said.head},
    }


def test_P3_every_change_of_a_row_changes_its_bucket_and_no_other(node: Node) -> None:
    write_some(node)
    before = look(node).meshes[MESH].tables
    team(node).state.set("s/7", "another")
    after = look(node).meshes[MESH].tables
    changed = {
        bucket
        for bucket, digest in after["state"].buckets.items()
        if before["state"].buckets.get(bucket) != digest
    }
    assert len(changed) == 1
    assert {name for name in TABLES if before[name] != after[name]} == {"state", "log"}
    held = rows(node, "state", int(changed.pop(), 16))
    assert [7 for row in held.rows if row.key == ["s/7"] and row.row["value"] == '"another"'] == [7]


def test_P3_the_rows_of_all_buckets_are_the_rows_of_the_table(node: Node) -> None:
    write_some(node)
    team(node).state.delete("s/3")
    said = look(node).meshes[MESH].tables
    for table in TABLES:
        found = [rows(node, table, int(bucket, 16)) for bucket in said[table].buckets]
        assert sum(len(bucket.rows) for bucket in found) == said[table].rows
        for bucket in found:
            total = sum(int(row.digest, 16) for row in bucket.rows) % (1 << 256)
            assert f"{total:064x}" == said[table].buckets[bucket.bucket]
            assert [row.key for row in bucket.rows] == sorted(row.key for row in bucket.rows)
            assert not bucket.more
            assert bucket.head == node.log.head().offset


def test_P3_rows_come_in_pages_and_none_is_passed_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(node)
    for n in range(5):
        node.apply([e.memory_set(f"m/{n}", n, lamport=n + 1), e.file_share(f"f/{n}", b"x")])
        team(node).tasks.create(f"task {n}")
        team(node).vectors.store(f"v/{n}", [1.0, n], model=MODEL)
    whole = look(node)
    monkeypatch.setattr("holdfast.storage.scans.CHUNK_ROWS", 2)
    monkeypatch.setattr("holdfast.node.log.digests.RANGE_BATCH_ROWS", 2)
    assert look(node) == whole


def test_P3_a_bucket_with_too_many_rows_gives_the_first(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.apply(e.state_set(f"k/{n}", n, lamport=n + 1) for n in range(2000))
    whole = rows(node, "state", 0)
    assert len(whole.rows) > 3
    monkeypatch.setattr("holdfast.node.log.digests.DIGEST_ROWS_MAX", 2)
    some = rows(node, "state", 0)
    assert some.more
    assert some.rows == whole.rows[:2]


def test_P3_what_one_node_has_forgotten_is_in_no_digest(nodes: Nodes, clock: HandClock) -> None:
    ana, bo = nodes.open("ana"), nodes.open("bo")
    write_some(ana)
    for n in range(5):
        team(ana).state.delete(f"s/{n}")
        team(ana).memory.forget(f"m/{n}")
    team(ana).files.delete("f")
    team(ana).vectors.delete("v", model=MODEL)
    deliver(ana, bo)
    assert look(ana).meshes == look(bo).meshes
    clock.advance(1000)
    assert ana.sweep(NOW).tombstones
    forgotten = look(ana).meshes[MESH].forgotten_lamport
    assert forgotten > 0
    kept = look(ana).meshes[MESH].tables
    assert kept["state"].rows == kept["memory"].rows == 15
    assert kept["vectors"].rows == 0
    # The other one, told up to where it need not look, comes to the same.
    store_of(bo).write(lambda tx: tx.forget_below(MESH, forgotten))
    there = look(bo).meshes[MESH].tables
    assert {**kept, "log": None} == {**there, "log": None}
    # And what is deleted later counts again, on both.
    team(ana).state.delete("s/19")
    bo.apply([entry.raw for entry in ana.log.range(ana.log.head().offset)])
    assert look(ana).meshes[MESH].tables["state"] == look(bo).meshes[MESH].tables["state"]
    assert look(ana).meshes[MESH].tables["state"].rows == 15


def test_P3_a_task_counts_before_its_creation_has_arrived(nodes: Nodes) -> None:
    ana, bo = nodes.open("ana"), nodes.open("bo")
    task = team(ana).tasks.create("one").task
    team(ana).tasks.claim(task)
    claim = list(ana.log.range())[-1]
    bo.apply([claim.raw])
    assert counts(bo)["tasks"] == counts(bo)["task_events"] == 1
    assert list(team(bo).tasks.list()) == []
    deliver(ana, bo)
    assert look(ana).meshes == look(bo).meshes


def test_P3_digests_are_of_the_meshes_that_were_asked_for(nodes: Nodes) -> None:
    node = nodes.open("ana", "team", "other")
    for slug in ("team", "other"):
        node.mesh(slug).state.set("k", slug)
    assert set(look(node).meshes) == {"team", "other"}
    only = look(node, "other")
    assert only.meshes == {"other": look(node).meshes["other"]}
    assert only.meshes["other"].tables["log"].rows == 1
    with pytest.raises(UnknownMesh):
        rows(node, "state", 0, "nowhere")
    with pytest.raises(BadInput):
        rows(node, "models", 0)


def test_P3_an_entry_of_an_unknown_op_is_in_the_log_and_in_no_table(node: Node) -> None:
    raw = e.raw("later.thing", "k", lamport=3)
    assert node.apply([raw])[0].error is None
    assert {name: count for name, count in counts(node).items() if count} == {"log": 1}


COLUMNS: list[tuple[str, str, Any]] = [
    ("state", "value", "2"),
    ("state", "lamport", 999),
    ("memory", "tags", '["x"]'),
    ("memory", "peer", "bo"),
    ("file", "size", 77),
    ("file", "updated_at", 1),
    ("vector", "metadata", "{}"),
    ("vector", "live", 0),
    ("task", "title", "two"),
    ("task", "holder_peer", "bo"),
    ("task_event", "event", "superseded"),
    ("log", "raw", b"x"),
]


@pytest.mark.parametrize(("table", "column", "value"), COLUMNS)
def test_P3_a_row_changed_behind_the_back_of_the_node_shows(
    tmp_path: Path, table: str, column: str, value: Any
) -> None:
    nodes = Nodes("sqlite", tmp_path, HandClock())
    node = nodes.open("ana")
    write_some(node)
    before = look(node).meshes[MESH].tables
    connection = apsw.Connection(str(node.home / "data.db"))
    where = f"WHERE id = (SELECT max(id) FROM {table})"
    connection.execute(f"UPDATE {table} SET {column} = ? {where}", (value,))
    connection.close()
    after = look(node).meshes[MESH].tables
    ours = {"file": "files", "vector": "vectors", "task": "tasks", "task_event": "task_events"}
    changed = [name for name in TABLES if before[name] != after[name]]
    assert changed == [ours.get(table, table)]
    nodes.close()
