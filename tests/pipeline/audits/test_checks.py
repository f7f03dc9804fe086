"""What a run of audits keeps: the worst rows, all counts, and whether each audit has passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.audits.claims import as_now
from holdfast.pipeline.audits.gold import (
    Threshold,
    checks_table,
    findings_table,
    needs_spark,
    rows_of,
    run_audits,
)
from holdfast.pipeline.audits.shape import FINDINGS
from holdfast.pipeline.fold.tasks import TURN, fold_turns
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_ranges import cuts
from holdfast.pipeline.lake.schema import SILVER, arrow_schema, without
from holdfast.rules.errors import UnknownKey
from support.audit_world import START, World

KEPT = "holdfast.pipeline.audits.shape.AUDIT_ROWS_MAX"


def torn(holes: int) -> World:
    """A log with so many holes, each wider than the one before."""
    world, at = World(), 1
    for width in range(holes + 1):
        world.own("torn", "torn", str(width + 1), start=at)
        at += width + 2
    return world


def rows(table: Any) -> list[dict[str, Any]]:
    return list(rows_of(table).to_pylist())


def test_P5_the_worst_rows_are_kept_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KEPT, 3)
    monkeypatch.setattr("holdfast.pipeline.audits.job.AUDIT_SHARE_ROWS", 4)
    lake = torn(9).lake(tmp_path / "lake")
    report = run_audits(None, lake, ["offsets", "stamps"], sample=2)
    offsets, stamps = report.audits
    assert (offsets.level, offsets.findings, offsets.passed) == ("finding", 9, False)
    assert (stamps.level, stamps.findings, stamps.passed) == ("ok", 0, True)
    assert [row.weight for row in offsets.sample] == [9, 8]
    kept = rows(findings_table(lake))
    assert [(row["rank"], row["weight"], row["total"]) for row in kept] == [
        (1, 9, 9), (2, 8, 9), (3, 7, 9),
    ]  # fmt: skip


def test_P5_each_run_says_how_each_audit_ended(tmp_path: Path) -> None:
    lake = torn(2).lake(tmp_path / "lake")
    allowed = {"offsets": Threshold(findings_max=2)}
    assert not run_audits(None, lake, ["offsets", "gaps"]).passed
    report = run_audits(None, lake, ["offsets"], thresholds=allowed)
    assert report.passed
    assert (report.audits[0].level, report.audits[0].findings_max) == ("finding", 2)
    ended = [
        (row["name"], row["findings"], row["findings_max"], row["level"], row["passed"])
        for row in rows(checks_table(lake))
    ]
    assert ended == [
        ("offsets", 2, 0, "finding", False),
        ("gaps", 0, 0, "ok", True),
        ("offsets", 2, 2, "finding", True),
    ]
    first, _, last = rows(checks_table(lake))
    assert (first["rows"], first["bronze_version"]) == (report.rows, lake.bronze.version)
    assert first["checked_at"] < last["checked_at"]


def test_P5_too_many_notices_fail_where_a_number_is_set(tmp_path: Path) -> None:
    world = World()
    world.own("late", "lea", "8 9", start=20)
    lake = world.lake(tmp_path / "lake")
    for most, passed in ((None, True), (1, True), (0, False)):
        limit = {"gaps": Threshold(notices_max=most)}
        report = run_audits(None, lake, ["gaps"], thresholds=limit, write=False)
        assert (report.audits[0].level, report.audits[0].notices) == ("notice", 1)
        assert report.passed is passed
    with pytest.raises(UnknownKey, match="gap"):
        run_audits(None, lake, thresholds={"gap": Threshold()})


def test_P5_old_checks_leave_the_table_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pipeline.audits.gold.CHECKS_ROWS_MAX", 3)
    lake = torn(0).lake(tmp_path / "lake")
    for name in ("gaps", "stamps", "repeats", "offsets"):
        run_audits(None, lake, [name])
    assert [row["name"] for row in rows(checks_table(lake))] == ["stamps", "repeats", "offsets"]


def test_P9_findings_of_an_older_version_get_the_new_columns(tmp_path: Path) -> None:
    lake = torn(1).lake(tmp_path / "lake")
    before = lake.gold("findings", without(FINDINGS, "weight", "rank", "total"))
    old = {name: None for name in before.schema.names} | {"audit": "gaps", "detail": "long ago"}
    writer = before.writer()
    before.commit(writer.write([pa.Table.from_pylist([old], schema=writer.schema)]))
    run_audits(None, lake, ["offsets"])
    found = {(row["audit"], row["weight"], row["detail"]) for row in rows(findings_table(lake))}
    assert found == {("gaps", None, "long ago"), ("offsets", 1, "offsets 2 to 2 were not read")}


def test_P10_spark_finds_what_the_driver_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pipeline.audits.job.AUDIT_SHARE_ROWS", 12)
    lake = torn(5).lake(tmp_path / "lake")
    assert not needs_spark(lake)
    monkeypatch.setattr("holdfast.pipeline.audits.gold.AUDIT_DRIVER_ROWS_MAX", 5)
    assert needs_spark(lake)
    alone = run_audits(None, lake)
    kept = rows(findings_table(lake))
    assert run_audits(spark, lake) == alone
    assert rows(findings_table(lake)) == kept != []


def test_P5_turns_that_wait_as_an_increment_are_judged_with_the_others() -> None:
    world = World()
    held = world.turn("one", 1, "ana", "claim", "claimed")
    world.turn("one", 2, "bob", "claim", "superseded", generation=0)
    world.turn("two", 1, "ana", "claim", "claimed")
    turns = [{**row, "title": "", "description": ""} for row in world.rows["task_events"]]
    events = pa.Table.from_pylist(turns, schema=arrow_schema(SILVER["task_events"]))
    empty = arrow_schema(SILVER["tasks"]).empty_table()
    done = [*fold_turns("tasks", iter(events.slice(2).select(TURN).to_batches()))]
    made = pa.Table.from_batches(done, arrow_schema(SILVER["tasks"]))
    for tasks, stale in ((made, False), (empty, True)):
        columns = ["mesh", "task", "status", "holder_id", "holder_peer", "ended_id", "updated_at"]
        now, judged = as_now(
            tasks.select(columns),
            _narrow(events.slice(0, 1)),
            _narrow(events.slice(1)),
            stale=stale,
        )
        assert {row["task"]: row["holder_id"] for row in now.to_pylist()} == {
            "one": held,
            "two": turns[2]["id"],
        }
        assert sorted(row["event"] for row in judged.to_pylist()) == [
            "claimed", "claimed", "superseded",
        ]  # fmt: skip
        assert {row["updated_at"] for row in now.to_pylist()} == {START}


def _narrow(events: pa.Table) -> pa.Table:
    return events.select([*TURN, "event", "against_peer", "against_id"])


def test_P5_ids_are_divided_by_what_the_commits_say() -> None:
    def file(low: int, high: int, rows: int) -> File:
        ids = [f"{time:012x}" for time in (low, high)]
        texts = [f"{id[:8]}-{id[8:]}-7000-8000-000000000000" for id in ids]
        return File(path="", size=1, rows=rows, low={"id": texts[0]}, high={"id": texts[1]})

    (middle,) = cuts([file(0, 999, 100), file(1000, 1999, 100)], 2)
    assert middle == f"{0:08x}-{1000:04x}-"
    dense = cuts([file(0, 99, 900), file(100, 10_000, 100)], 10)
    assert len(dense) == 9
    assert all(cut <= f"{0:08x}-{100:04x}-" for cut in dense)
    assert cuts([File(path="", size=1, rows=5)], 4) == []
    assert cuts([], 4) == []
