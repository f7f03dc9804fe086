"""Entries at the edges of what a lake can hold, all the way into its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from holdfast.pipeline.ingest.ingest import ingest_planned
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.ids import id_text, uuid8
from holdfast.rules.limits import SOURCE_TIME_MS_MAX
from support import envelopes
from support.envelopes import make_id
from support.list_log import ListedEntry, ListLog

FAR = [uuid8(bytes((0xF0 + number,)) * 16) for number in range(8)]
"""As idempotency keys give them: their first bits are a time after the year 9999."""


def rows_of(lake: Lake, name: str) -> list[dict[str, Any]]:
    table = getattr(lake.fresh(), name)
    if not table.exists:
        return []
    found: list[dict[str, Any]] = DeltaTable(table.root).to_pyarrow_table().to_pylist()
    return found


def ingest(lake: Lake, *logs: ListLog) -> None:
    report = ingest_planned(DriverWorkers, lake, make_plan(lake.fresh(), logs))
    assert report.failures == []


def test_P2_ids_that_tell_no_time_reach_bronze_and_are_known_there(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    raws = [envelopes.state_set("k", 1, id=id, lamport=n) for n, id in enumerate(FAR, 1)]
    entries = [ListedEntry(offset, raw, 0, raw) for offset, raw in enumerate(raws, 1)]
    ingest(lake, ListLog("ana", tuple(entries)))
    ingest(lake, ListLog("bob", tuple(entries)))
    assert sorted(row["id"] for row in rows_of(lake, "bronze")) == sorted(map(id_text, FAR))
    assert len(rows_of(lake, "sightings")) == len(FAR)
    assert rows_of(lake, "quarantine") == []


def test_P2_rows_that_no_table_can_hold_are_in_quarantine_with_their_bytes(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    good = envelopes.state_set("k", 1)
    late = envelopes.state_set("k", 1, id=make_id(5, SOURCE_TIME_MS_MAX))
    entries = [
        ListedEntry(1, good, 0, good),
        ListedEntry(2, late, 0, late),
        ListedEntry(3, good, 2**62, envelopes.changed(good, id=make_id(9))),
        ListedEntry(4, envelopes.changed(good, id=make_id(8)), 2**62, b"nothing"),
        ListedEntry(5, envelopes.changed(good, id=make_id(7)), 2**62, b""),
    ]
    ingest(lake, ListLog("ana", tuple(entries)))
    assert [row["offset"] for row in rows_of(lake, "bronze")] == [1]
    aside = {row["offset"]: row for row in rows_of(lake, "quarantine")}
    assert {offset: row["raw"] for offset, row in aside.items()} == {
        entry.offset: entry.raw for entry in entries[1:]
    }
    assert aside[2]["reason"] == "bad_id"
    assert aside[4]["recorded_at"] is None
