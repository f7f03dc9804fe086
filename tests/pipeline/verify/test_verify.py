"""Nodes against the lake: what is right is the same, what was changed is named, and what is merely
late is counted.

One scene serves all tests. Three nodes have histories in
common and are read into a lake. Then

- ana forgets what it may, and goes on writing what the others do not hear of;
- zoe, whose daemon answers, has rows changed behind its back, and goes on writing while it is
  looked into;
- the fox has its log truncated, goes on, is read, and is then restored from an older backup.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from pyspark.sql import SparkSession

from holdfast.node.exchange.export import export
from holdfast.node.log.digests import BucketRows, HeldRow
from holdfast.node.recovery import backup
from holdfast.node.upkeep.sweep import Ttl
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest.ingest import ingest_logs
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.pipeline.verify.expected import OffsetRange, Reached, ranges_of
from holdfast.pipeline.verify.verify import (
    Difference,
    VerifiedLog,
    VerifyReport,
    _first,
    verify_nodes,
)
from holdfast.rules.digests import TABLES
from holdfast.rules.limits import DAY_MS
from support.daemon import running
from support.filled_lake import pour
from support.histories import Histories, grow

NOW = Ttl(log_ms=0, tombstone_ms=0, dedupe_ms=0, blob_ms=0, orphan_ms=0)
LATER_MS = 30 * DAY_MS
"""Later than anything that happened, however the clocks have jumped."""
ANA, ZOE, FOX = "ana", "\uff5aoe", "\U0001f98a"


@dataclass
class Planted:
    """A row that was changed in the database of zoe."""

    mesh: str
    key: list[Any]
    id: str
    lamport: int
    was: Any


@dataclass
class Scene:
    report: VerifyReport
    planted: Mapping[str, Planted]
    told: list[str] = field(default_factory=list)
    folded: bool = False

    def of(self, log: str) -> VerifiedLog:
        return next(one for one in self.report.logs if one.log == log)

    def difference(self, table: str) -> Difference:
        return next(one for one in self.of(ZOE).differences if one.table == table)


def plant(home: Path) -> dict[str, Planted]:
    """Changes a value, forgets a memory, and damages an entry of the log."""
    with closing(apsw.Connection(str(home / "data.db"))) as con:
        state = con.execute(
            "SELECT mesh, key, lower(hex(id)), lamport, value FROM state "
            "WHERE tombstone = 0 ORDER BY mesh DESC, key LIMIT 1"
        ).get
        con.execute("UPDATE state SET value = '\"planted\"' WHERE lower(hex(id)) = ?", (state[2],))
        memory = con.execute(
            "SELECT mesh, owner, key, lower(hex(id)), lamport, value FROM memory "
            "WHERE tombstone = 0 ORDER BY mesh LIMIT 1"
        ).get
        con.execute("DELETE FROM memory WHERE lower(hex(id)) = ?", (memory[3],))
        entry = con.execute(
            "SELECT mesh, lower(hex(id)), lamport, raw FROM log WHERE offset = 3"
        ).get
        con.execute("UPDATE log SET raw = X'00' WHERE offset = 3")
    return {
        "state": Planted(state[0], [state[1]], *state[2:]),
        "memory": Planted(memory[0], [memory[1], memory[2]], *memory[3:]),
        "log": Planted(entry[0], [entry[1]], *entry[1:]),
    }


def send_back(lake: Lake, histories: Histories, folder: Path) -> None:
    """The fox: truncated, backed up, read once more, restored."""
    home = histories.homes[FOX]
    with histories.open(FOX) as node:
        histories.clocks[FOX].advance(LATER_MS)
        assert node.sweep(NOW).log_entries > 0
        backup.backup(node, folder / "backup")
        for n in range(5):
            node.mesh("mesh-0").state.set(f"lost/{n}", n)
            node.mesh("mesh-1").state.set("k0", f"lost {n}")
    pour(lake, home)
    assert backup.restore(folder / "backup", home, force=True)
    with histories.open(FOX) as node:
        node.mesh("mesh-0").state.set("after", 1)
        assert node.log.head().epoch == 2


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("verify")
    histories = grow(5, folder / "homes", nodes=3, meshes=3, ops=300, message_watch=20)
    lake = Lake.open(folder / "lake", create=True)
    pour(lake, *histories.homes.values())
    send_back(lake.fresh(), histories, folder)
    with histories.open(ANA) as node:
        histories.clocks[ANA].advance(LATER_MS)
        assert node.sweep(NOW).tombstones > 0
        for n in range(4):
            node.mesh("mesh-2").state.set(f"news/{n}", n)
        with (folder / "ana.jsonl").open("wb") as out:
            export(node, out)
    planted = plant(histories.homes[ZOE])
    with running(histories.homes[ZOE]) as up:
        there = [str(histories.homes[ANA]), up.unix, str(histories.homes[FOX])]
        logs = [open_log(location) for location in there]
        others = [
            open_log(str(folder / "backup")),
            open_log(str(folder / "ana.jsonl")),
            open_log("unix:/nowhere/at-all", {"retries": "0"}),
        ]
        scene = Scene(VerifyReport(logs=()), planted)

        def tell(text: str, done: int, total: int) -> None:
            assert 0 <= done <= total
            if "looking for the row" in text and "state" in text:
                up.daemon.api.node.mesh("mesh-0").state.set("meanwhile", 1)
            scene.told.append(text)

        def catch_up() -> None:
            assert not ingest_logs(nobody, lake.fresh(), logs).failures
            if not scene.folded:
                fold_lake(DriverWorkers(), lake.fresh())
                scene.folded = True

        scene.report = verify_nodes(None, lake, [*logs, *others], catch_up=catch_up, progress=tell)
        close_all([*logs, *others])
    return scene


def nobody() -> SparkSession:
    raise AssertionError("so little work needs no Spark")


def close_all(logs: list[ReadableLog]) -> None:
    for log in logs:
        log.close()


def test_P3_a_node_that_folds_as_it_should_is_the_same(scene: Scene) -> None:
    """Also one that has forgotten tombstones and the beginning of its log."""
    ana = scene.of(ANA)
    assert (ana.status, ana.reason, ana.differences) == ("same", "", ())
    assert {one.table for one in ana.tables} == set(TABLES)
    assert all(one.rows == one.expected and one.buckets == 0 for one in ana.tables)
    filled = {one.table for one in ana.tables if one.rows}
    assert filled == set(TABLES) - {"entities"}  # which only quorums make


def test_P3_a_restored_node_is_held_against_the_log_that_it_has_now(scene: Scene) -> None:
    fox = scene.of(FOX)
    assert fox.epoch == 2
    assert (fox.status, fox.reason, fox.differences) == ("same", "", ())


def test_P3_a_backup_is_held_against_the_log_that_it_had_then(scene: Scene) -> None:
    found = scene.report.logs[3]
    assert (found.log, found.epoch, found.status) == (FOX, 1, "same")
    assert found.behind["state"] == 5 + 6


def test_P3_a_changed_row_is_named_with_both_sides_and_their_stamps(scene: Scene) -> None:
    assert scene.report.differs
    assert scene.of(ZOE).status == "differs"
    planted, found = scene.planted["state"], scene.difference("state")
    assert (found.mesh, found.key) == (planted.mesh, planted.key)
    assert found.node is not None
    assert found.lake is not None
    assert (found.node["value"], found.lake["value"]) == ('"planted"', planted.was)
    for side in (found.node, found.lake):
        assert side["id"].replace("-", "") == planted.id
        assert side["lamport"] == planted.lamport


def test_P3_a_row_that_a_node_lost_is_named(scene: Scene) -> None:
    planted, found = scene.planted["memory"], scene.difference("memory")
    assert (found.mesh, found.key, found.node) == (planted.mesh, planted.key, None)
    assert found.lake is not None
    assert found.lake["id"].replace("-", "") == planted.id
    assert found.lake["value"] == planted.was


def test_P3_an_entry_that_changed_in_the_log_is_named(scene: Scene) -> None:
    planted, found = scene.planted["log"], scene.difference("log")
    assert (found.mesh, found.key) == (planted.mesh, planted.key)
    assert found.node is not None
    assert found.lake is not None
    assert found.node["raw"] == "00"
    assert found.lake["raw"] == planted.was.hex()
    assert "doctor --repair" in found.note


def test_P3_nothing_but_what_was_changed_differs(scene: Scene) -> None:
    zoe = scene.of(ZOE)
    assert [found.table for found in zoe.differences] == ["state", "memory", "log"]
    apart = {(one.mesh, one.table, one.buckets) for one in zoe.tables if one.buckets}
    assert apart == {(row.mesh, table, 1) for table, row in scene.planted.items()}


def test_P3_what_a_node_has_not_heard_of_yet_is_counted_and_no_finding(scene: Scene) -> None:
    # Four news of ana, and "after" of the fox; ana does not know the fox's.
    behind = {log: scene.of(log).behind["state"] for log in (ANA, ZOE, FOX)}
    lost = 6  # five keys and one value that only the fox had, before it was restored
    assert behind == {ANA: 1 + lost, ZOE: 4 + 1 + lost, FOX: 4 + lost}
    for log in (ANA, ZOE, FOX):
        assert not any(scene.of(log).astray.values())
        assert not any(scene.of(log).behind[table] for table in ("memory", "files", "tasks"))


def test_P3_what_cannot_be_asked_is_said_and_no_finding(scene: Scene) -> None:
    skipped, away = scene.report.logs[4:]
    assert (skipped.log, skipped.status) == (ANA, "skipped")
    assert (away.status, away.location) == ("unsure", "unix:/nowhere/at-all")
    assert away.reason


# --- which places count --------------------------------------------------------------------------


def test_P3_one_epoch_counts_up_to_where_the_node_stood() -> None:
    assert ranges_of({1: Reached(1, 9)}, 1, 1, 7) == ([OffsetRange(1, 1, 7)], "")
    assert ranges_of({1: Reached(1, 9)}, 1, 5, 9) == ([OffsetRange(1, 1, 9)], "")
    assert ranges_of({}, 1, 1, 0) == ([OffsetRange(1, 1, 0)], "")


def test_P3_a_log_that_was_not_read_so_far_cannot_be_judged() -> None:
    for read in ({}, {1: Reached(1, 6)}, {2: Reached(1, 9)}):
        spans, why = ranges_of(read, 1, 1, 7)
        assert spans == []
        assert "ends at 7" in why


def test_P3_after_a_restore_the_old_epoch_counts_only_below_the_new() -> None:
    # Read up to 9; went back to 5, where 1 to 3 had been truncated; went on to 7.
    read = {1: Reached(1, 9), 2: Reached(4, 7)}
    assert ranges_of(read, 2, 4, 7) == ([OffsetRange(2, 4, 7), OffsetRange(1, 1, 3)], "")
    # And once more: nothing of the third epoch is left to read but 6 and 7.
    read[3] = Reached(6, 7)
    assert ranges_of(read, 3, 6, 7) == (
        [OffsetRange(3, 6, 7), OffsetRange(2, 4, 5), OffsetRange(1, 1, 3)],
        "",
    )
    # Everything is truncated, so there was nothing to read in the new epoch.
    assert ranges_of({1: Reached(1, 9)}, 2, 6, 5) == (
        [OffsetRange(2, 6, 5), OffsetRange(1, 1, 5)],
        "",
    )
    # Read from the beginning: nothing of the old one counts.
    assert ranges_of({1: Reached(1, 9), 2: Reached(1, 7)}, 2, 1, 7) == ([OffsetRange(2, 1, 7)], "")


@pytest.mark.parametrize(
    ("read", "gaps"),
    [
        ({2: Reached(4, 7)}, "1"),
        ({1: Reached(1, 2), 2: Reached(4, 7)}, "3"),
        ({2: Reached(1, 7, (3,))}, "3"),
        ({1: Reached(2, 9, (3,)), 2: Reached(5, 7)}, "1, 3"),
    ],
)
def test_P3_what_the_lake_never_read_is_told(read: dict[int, Reached], gaps: str) -> None:
    spans, why = ranges_of(read, 2, 4, 7)
    assert spans[0].last == 7
    assert why.endswith(f"from offset {gaps}")


@pytest.mark.parametrize(
    ("more", "found"),
    [
        # The node has told of all its rows, so a row that only the lake has is missing there.
        (False, (["c"], None, "c lake")),
        # It has told of its first rows only: it may well have the others.
        (True, None),
    ],
)
def test_P3_of_rows_that_a_node_has_not_told_of_nothing_is_said(
    more: bool, found: tuple[list[str], str | None, str | None] | None
) -> None:
    def row(key: str, side: str) -> HeldRow:
        return HeldRow(key=[key], digest=f"{key} {side}", row={})

    rows = BucketRows(
        peer="ana", epoch=1, first=1, head=9, mesh="team", forgotten_lamport=0, table="state",
        bucket="00", rows=[row("a", "both"), row("b", "both")], more=more,
    )  # fmt: skip
    matched = {"a both", "b both"}
    said = _first(rows, matched, [row("c", "lake")])
    assert (said and (said[0], said[1], said[2] and said[2].digest)) == found
    # One among those that it has told of is found, and shown from both sides.
    apart = _first(rows, {"a both"}, [row("b", "lake"), row("c", "lake")])
    assert apart is not None
    key, node, lake = apart
    assert (key, node and node.digest, lake and lake.digest) == (["b"], "b both", "b lake")
