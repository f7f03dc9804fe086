"""Nothing is confirmed that the lake does not hold, and an audit can prove it."""

from __future__ import annotations

from pathlib import Path

from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.audits.live_facts import LiveFacts, ask_logs
from holdfast.pipeline.audits.lost import lost_places
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.logs.log import open_log
from support.read_in_turns import held_places, read_in_turns, table_of
from support.set_back import restored


def test_P5_what_was_confirmed_and_is_no_longer_held_is_found(tmp_path: Path) -> None:
    filled = read_in_turns(tmp_path)
    lake = filled.lake
    logs = [open_log(str(home)) for home in filled.histories.homes.values()]
    assert make_plan(lake.fresh(), logs).failures == []  # confirms what the lake has
    facts = ask_logs(logs)
    places = held_places(lake)
    assert lost_places(lake.fresh(), facts) == []

    restored(table_of(lake, "bronze"), filled.older / "bronze")

    lost = places - held_places(lake)
    found = lost_places(lake.fresh(), facts)
    assert {(log, epoch, offset) for log, epoch, offset, *_ in found} <= lost
    heads = filled.histories.heads
    assert all(confirmed == heads[log] for log, _, _, confirmed, *_ in found)
    assert all(one.confirmed is None for one in lost_places(lake.fresh(), LiveFacts()))
    report = run_audits(None, lake, ["offsets", "frontiers"], facts=facts, write=False)
    assert {audit.name: audit.findings >= len(found) for audit in report.audits} == {
        "offsets": True,
        "frontiers": True,
    }
