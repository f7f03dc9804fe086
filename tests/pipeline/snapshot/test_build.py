"""Snapshots made by Spark: a home from one has the tables of the nodes, and goes on from there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.node.library.node import open_node
from holdfast.node.recovery.restore_snapshot import restore_snapshot
from holdfast.node.snapshots.manifest import NAME, PARTS, Signer, read_manifest
from holdfast.node.snapshots.parts import envelopes
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.snapshot import build as snapshot
from holdfast.pipeline.snapshot import files
from holdfast.pipeline.snapshot.build import Point, build_snapshot, split_at
from holdfast.rules.bodies import family_of
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import AlreadyExists, BadInput, BadPath, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Entry
from support.filled_lake import pour
from support.histories import Histories, grow
from support.plain_snapshot import TAIL, table_digests, winners

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    folder = tmp_path_factory.mktemp("homes")
    return grow(seed=11, folder=folder, nodes=3, meshes=6, ops=900, message_watch=20)


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, histories: Histories, tmp_path_factory: pytest.TempPathFactory
) -> Lake:
    lake = Lake.open(tmp_path_factory.mktemp("lake") / "lake", create=True)
    pour(lake, *histories.homes.values())
    return lake.fresh()


@pytest.fixture(scope="module")
def entries(histories: Histories) -> list[Entry]:
    return [entry for peer in histories.peers for entry in histories.entries(peer)]


def _held(folder: Path) -> list[Envelope]:
    manifest = read_manifest(folder)
    return [decode(raw) for part in manifest.parts for raw in envelopes(folder, part)]


def test_P6_a_home_from_the_lake_has_the_tables_of_every_node(
    spark: SparkSession,
    lake: Lake,
    histories: Histories,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = _cut_short(spark, lake, tmp_path / "snap", monkeypatch)
    monkeypatch.setattr(snapshot, "SNAPSHOT_PART_BYTES", 10_000)
    signer = Signer("lake", b"l" * 32)
    told: list[tuple[str, int, int]] = []
    report = build_snapshot(
        spark, lake, str(tmp_path / "snap"), sign=signer, progress=lambda *step: told.append(step)
    )
    assert [(done, total) for _, done, total in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    held = _held(tmp_path / "snap")
    _check_files(tmp_path / "snap", report.parts)
    assert report.strays == left > 0
    assert held == winners(entries), "these, once, in the one order"
    assert "message" not in report.counts, "they are for those whom they name"
    assert report.parts > 2
    assert report.rows == len(held) == sum(report.counts.values())
    assert report.signed_by == signer.card
    manifest = read_manifest(tmp_path / "snap")
    for peer in histories.peers:
        log = list(histories.entries(peer))
        (place,) = [found for found in manifest.logs if found.log == peer]
        assert (place.epoch, place.offset) == (1, log[-1].offset)
        assert [id for id, _ in place.tail] == [entry.id.hex() for entry in log[-TAIL:]]
        assert [found for _, found in place.tail] == [
            decode(entry.raw).fingerprint.hex() for entry in log[-TAIL:]
        ]
    restored = restore_snapshot(
        tmp_path / "home", tmp_path / "snap", "new", signed_by=signer.card, sync="normal"
    )
    assert not restored.refused
    meshes = sorted(manifest.meshes)
    with open_node(tmp_path / "home", sync="normal") as node:
        for peer in histories.peers:
            with histories.open(peer) as other:
                assert table_digests(node, meshes) == table_digests(other, meshes)


def test_P6_a_snapshot_ends_where_it_is_told_to(
    spark: SparkSession, lake: Lake, histories: Histories, entries: list[Entry], tmp_path: Path
) -> None:
    mesh = entries[0].mesh
    mine = [entry for entry in entries if entry.mesh == mesh]
    lamports = sorted(entry.lamport for entry in mine)
    bound = lamports[len(lamports) // 2]
    build_snapshot(spark, lake, str(tmp_path / "snap"), mesh=mesh, lamport=bound, facts=False)
    assert _held(tmp_path / "snap") == winners(
        [entry for entry in mine if entry.lamport <= bound], facts=False
    )
    manifest = read_manifest(tmp_path / "snap")
    assert manifest.meshes[mesh].clock == lamports[-1], "a node must be past every stamp"
    for peer in histories.peers:
        log = [entry for entry in histories.entries(peer) if entry.mesh == mesh]
        late = [entry.offset for entry in log if entry.lamport > bound]
        found = [place for place in manifest.logs if place.log == peer]
        if late and late[0] == 1:
            assert not found
            continue
        last = late[0] - 1 if late else list(histories.entries(peer))[-1].offset
        assert found[0].offset == last, "the first that is missing is the next to be read"
        window = [entry.id.hex() for entry in log if last - TAIL < entry.offset <= last]
        assert [id for id, _ in found[0].tail] == window


def test_P9_as_of_a_time_is_what_some_log_had_recorded_by_then(
    spark: SparkSession, lake: Lake, entries: list[Entry]
) -> None:
    recorded: dict[str, int] = {}
    for entry in entries:
        id = id_text(entry.id)
        recorded[id] = min(entry.recorded_at, recorded.get(id, entry.recorded_at))
    times = sorted(set(recorded.values()))
    at = times[(len(times) - 1) // 2]
    inside, later = split_at(spark, lake, lake.bronze.read(spark), Point(at_ms=at))
    assert later is not None
    found = [sorted(row.id for row in frame.select("id").collect()) for frame in (inside, later)]
    assert found[0] == sorted(id for id, when in recorded.items() if when <= at)
    assert found[1] == sorted(id for id, when in recorded.items() if when > at)
    assert all(found)


def test_P6_old_deletions_and_old_vectors_may_be_left_out(
    spark: SparkSession, lake: Lake, entries: list[Entry], tmp_path: Path
) -> None:
    times = sorted(decode(entry.raw).created_at for entry in entries)
    since = times[len(times) // 2]
    build_snapshot(spark, lake, str(tmp_path / "snap"), vectors="newest", deletions_since=since)
    deleting = ("state.delete", "memory.forget", "file.delete", "vector.delete")
    all_won = winners(entries, vectors="newest")
    old = [e for e in all_won if e.op in deleting and e.created_at < since]
    assert old
    assert _held(tmp_path / "snap") == [e for e in all_won if e not in old]
    points = read_manifest(tmp_path / "snap").meshes
    for mesh, point in points.items():
        assert point.forgotten == max((e.lamport for e in old if e.mesh == mesh), default=0)


def _cut_short(
    spark: SparkSession, lake: Lake, target: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """A build that dies before it has told anybody; how many files it leaves."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.SnapshotTarget, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            build_snapshot(spark, lake, str(target), facts=False)
    with pytest.raises(BadPath, match="not a snapshot"):
        restore_snapshot(target.parent / "home", target, "new")
    return len(list((target / PARTS).iterdir()))


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _check_files(target: Path, parts: int) -> None:
    assert len(list((target / PARTS).iterdir())) == parts
    assert sorted(path.name for path in target.iterdir()) == [NAME, PARTS]
    assert {path.stat().st_mode & 0o777 for path in (target / PARTS).iterdir()} == {
        0o666 & ~_umask()
    }


def test_P6_what_makes_no_sense_is_refused(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    target = str(tmp_path / "snap")
    with pytest.raises(UnknownMesh, match="of a mesh 'nowhere'"):
        build_snapshot(spark, lake, target, mesh="nowhere")
    with pytest.raises(BadInput, match="clock of its own"):
        build_snapshot(spark, lake, target, lamport=3)
    with pytest.raises(BadInput, match="not at both"):
        build_snapshot(spark, lake, target, mesh="mesh-0", lamport=3, at=3)
    with pytest.raises(BadInput, match="vectors are"):
        build_snapshot(spark, lake, target, vectors="some")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / NAME).touch()
    with pytest.raises(AlreadyExists, match="holds a snapshot already"):
        build_snapshot(spark, lake, str(tmp_path / "made"))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "else").touch()
    with pytest.raises(AlreadyExists, match="not empty"):
        build_snapshot(spark, lake, str(tmp_path / "used"))
    assert not Path(target).exists()


def test_P6_the_sample_has_something_of_everything(entries: list[Entry]) -> None:
    """Or the tests above would prove less than they say."""
    ids = {entry.id for entry in entries}
    assert len(ids) < len(entries), "logs share entries"
    assert {family_of(entry.op) for entry in entries} == {
        *("state", "memory", "file", "vector", "task", "fact", "message")
    }
    assert len({id_text(entry.id)[:13] for entry in entries}) > 1
