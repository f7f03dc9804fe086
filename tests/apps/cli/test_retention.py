"""`status` shows how long things are kept, and `sweep` obeys it."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from support.cli import Cli


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings.toml"
    monkeypatch.setenv("HOLDFAST_CONFIG", str(path))
    return path


def test_S17_status_shows_what_is_kept_for_how_long(cli: Cli, file: Path) -> None:
    file.write_text('[retention]\nfacts = "forever"\n[retention.meshes.team]\nlog = "365d"\n')
    said = cli("status").out
    assert (
        "keeps      log 90d, facts forever, tombstones 90d, ids 180d, blobs 1d\n"
        "keeps      in team: log 365d, facts forever, tombstones 90d\n"
    ) in said
    kept = cli("status", "--json").json["retention"]
    assert kept["meshes"] == {"team": {"log": "365d", "facts": "forever", "tombstones": "90d"}}
    file.write_text('[retention]\nlog = "1d"\n')
    bad = cli("status", "--json")
    assert bad.json["retention"] is None
    assert "retention.log is 1d" in bad.err
    assert cli("sweep", "--json", code=1).error["code"] == "retention_below_floor"
    assert cli("up", "--json", code=1).error["code"] == "retention_below_floor"


def test_S17_a_sweep_by_hand_takes_no_facts_that_are_to_stay(cli: Cli, file: Path) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        team = node.mesh("team")
        team.state.set("k", 1)
        team.facts.append("s", "p", 1)
        team.state.set("k", 2)
    for where in ("[retention]", "[retention.meshes.team]"):
        file.write_text(f'{where}\nfacts = "forever"\n')
        said = cli("sweep", "--log-days", "0", "--tombstone-days", "0", "--json").json
        assert said["log_entries"] == (1 if where == "[retention]" else 0), where
    file.write_text("")
    assert cli("sweep", "--log-days", "0", "--json").json["log_entries"] == 1
