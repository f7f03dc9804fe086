"""Snapshots of a mesh with voters: a node that starts from one stands at a commit, and goes on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.node.library.node import open_node
from holdfast.node.recovery.restore_snapshot import restore_snapshot
from holdfast.node.snapshots.manifest import VotedManifest, read_manifest
from holdfast.pipeline.jobs.run import run
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.snapshot.build import build_snapshot
from holdfast.rules.errors import BadInput, HasVoters, StoreCorrupt
from support.daemon import make_home
from support.envelopes import MESH
from support.lake_rows import Rows, held
from support.strong_orders import StrongOrder


def rows_of(home: Path) -> Rows:
    with open_node(home, sync="normal") as node:
        return held(node._engine.store)


def test_P6_a_node_from_a_snapshot_holds_what_was_committed_and_follows_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    home = make_home(tmp_path / "ana", "ana", MESH)
    with open_node(home, sync="normal") as node:
        node.mesh(MESH).state.set("limit", 6)
    order = StrongOrder(31, home)
    order.grow(70)
    lake = Lake.open(tmp_path / "lake", create=True)
    with closing(open_log(str(home))) as log:
        assert run(spark, lake.fresh(), [log]).ok
    built = build_snapshot(spark, lake, str(tmp_path / "made"), mesh=MESH)
    manifest = read_manifest(tmp_path / "made")
    assert isinstance(manifest, VotedManifest)
    assert manifest.commits == {MESH: order.number}
    assert built.counts["commit"] == order.number
    before = rows_of(home)
    new = tmp_path / "new"
    report = restore_snapshot(new, tmp_path / "made", "zoe", sync="normal")
    assert (report.refused, report.rows) == ((), built.rows)
    assert rows_of(new) == before
    with open_node(new, sync="normal") as node:
        standing = node._engine.read("test", lambda tx: tx.quorum_get(MESH))
        assert standing is not None
        assert (standing.number, standing.voter, standing.tag) == (order.number, None, b"")
    order.grow(20)
    order.spread(new)  # by pages, from the commit where the snapshot ended
    assert rows_of(new) == rows_of(home)
    with pytest.raises(BadInput, match="a lamport is no place"):
        build_snapshot(spark, lake, str(tmp_path / "then"), mesh=MESH, lamport=5)
    early = build_snapshot(spark, lake, str(tmp_path / "early"), mesh=MESH, at=0)
    assert early.rows == 0
    damaged(tmp_path / "made", manifest)
    with pytest.raises(StoreCorrupt):
        restore_snapshot(tmp_path / "other", tmp_path / "made", "dan", sync="normal")


def damaged(folder: Path, manifest: VotedManifest) -> None:
    """Changes a byte in the last part, which is one of commits."""
    path = folder / manifest.parts[-1].path
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_P6_an_order_with_a_hole_makes_no_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    home = make_home(tmp_path / "ana", "ana", MESH)
    StrongOrder(32, home).grow(10)
    lake = Lake.open(tmp_path / "lake", create=True)
    with closing(open_log(str(home))) as log:
        assert run(spark, lake.fresh(), [log]).ok
    commits = lake.fresh().commits
    rows, _ = commits.load(commits.files(), commits.schema.names)
    kept = commits.stage_rows(rows.filter([number != 4 for number in rows["number"].to_pylist()]))
    commits.commit(kept.files, commits.files())
    with pytest.raises(HasVoters, match="no envelope of commit 4"):
        build_snapshot(spark, lake.fresh(), str(tmp_path / "made"), mesh=MESH)
    assert not (tmp_path / "made").exists()
