"""`holdfast batch`: changes that are written together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import holdfast
from support.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    with holdfast.open(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team")
    return Cli(tmp_path / "home")


def lines(*changes: Mapping[str, object]) -> str:
    return "\n".join(json.dumps(change) for change in changes) + "\n\n"


SET = {"op": "state.set", "entity": "k", "value": 1, "expect": "absent"}
TASK = {"op": "task.create", "title": "Paint the fence"}


def test_U2_a_batch_prints_the_id_of_each_change(cli: Cli) -> None:
    done = cli("batch", stdin=lines(SET, TASK))
    _, task = done.out.splitlines()
    assert done.err == "wrote 2 changes to team, 1@ana to 2@ana\n"
    assert cli("task", "list", "--json").json[0]["task"] == task


def test_U2_a_batch_from_a_file_is_written_once_under_its_id(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "changes.jsonl"
    file.write_text(lines(SET, TASK))
    first = cli("batch", str(file), "--id", "release 7", "--json").json
    again = cli("batch", str(file), "--id", "release 7", "--json").json
    assert [one["offset"] for one in first["receipts"]] == [1, 2]
    assert [one["id"] for one in again["receipts"]] == [one["id"] for one in first["receipts"]]
    assert [one["duplicate"] for one in again["receipts"]] == [True, True]
    assert "had done it before" in cli("batch", str(file), "--id", "release 7").err


def test_U2_a_batch_that_is_refused_writes_nothing_and_says_why(cli: Cli) -> None:
    cli("batch", stdin=lines(SET))
    refused = cli("batch", "--json", stdin=lines(TASK, SET), code=5).error
    assert refused["code"] == "stamp_moved"
    assert refused["message"].startswith("change 2 of the batch (state.set 'k')")
    assert cli("task", "list", "--json").json == []


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("", 2, "there are no changes to write"),
        ("{}\n", 2, "change 1 of the batch"),
        ("\n{", 2, "line 2: it is not JSON"),
        ('{"op":"state.set","op":"state.set"}', 2, "line 1"),
        ('{"op":"state.sat","entity":"k"}', 2, "there is no op 'state.sat'"),
    ],
)
def test_U2_what_is_no_change_is_refused(cli: Cli, given: str, code: int, said: str) -> None:
    assert said in cli("batch", stdin=given, code=code).err
    missing = cli("batch", "nowhere.jsonl", code=None)
    assert missing.code != 0
    assert "nowhere.jsonl" in missing.err
