"""A lake remembers its logs, and nothing that is secret."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import holdfast
from holdfast.pipeline.jobs.sources import LogSource, forget, log_source, remember, remembered
from holdfast.pipeline.jobs.status import status
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.errors import BadInput, StoreCorrupt


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def test_P11_a_lake_remembers_its_logs_until_it_is_told_to_forget(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert remembered(lake) == []
    home = log_source("home")
    node = log_source("https://plant:7440", name="plant", token_file="token", pin="ab" * 32)
    assert remember(lake, [home, node]) == [home, node]
    assert remembered(Lake.open(lake.root)) == [home, node]
    assert home.location == str(tmp_path / "home")
    assert node.options() == {
        "name": "plant",
        "token_file": str(tmp_path / "token"),
        "pin": "ab" * 32,
    }
    renamed = log_source("home", name="ana")
    assert remember(lake, [renamed]) == [renamed, node]
    assert forget(lake, "plant")
    assert not forget(lake, "plant")
    assert remembered(lake) == [renamed]


def test_P11_what_is_remembered_is_private_and_has_no_secret(lake: Lake) -> None:
    remember(lake, [log_source("https://plant:7440", token_file="t")])
    kept = Path(lake.root) / "sources.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for address in ("https://user:secret@plant:7440", "http://plant?token=secret"):
        with pytest.raises(BadInput, match="no secret"):
            log_source(address)
    assert "secret" not in kept.read_text()


def test_P11_a_memory_that_cannot_be_read_is_named(lake: Lake) -> None:
    (Path(lake.root) / "sources.json").write_text("{")
    with pytest.raises(StoreCorrupt, match=r"sources\.json"):
        remembered(lake)


def test_P11_status_tells_of_logs_that_answer_and_of_those_that_do_not(
    lake: Lake, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team").state.set("build", "green")
    here = log_source(str(tmp_path / "home"))
    away = LogSource(location="http://127.0.0.1:9", log="ben")
    remember(lake, [here, away])
    ana, ben = status(lake).logs
    assert (ana.log, ana.epoch, ana.offset, ana.head, ana.lag) == ("ana", 1, None, 1, 1)
    assert ana.trouble is None
    assert (ben.log, ben.head, ben.lag) == ("ben", None, None)
    assert ben.trouble
    assert [log.trouble for log in status(lake, ask=False).logs] == [None, None]
    assert status(lake).tables == ()
