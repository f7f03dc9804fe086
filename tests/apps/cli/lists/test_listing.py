"""Lists as they are asked for: some rows, some fields, one of four forms, a page at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.cli.test_usage import COMMANDS
from holdfast.apps.cli.declare import SessionCommand
from holdfast.apps.cli.lists.listing import Listing, at_path
from holdfast.rules.errors import BadInput
from support.cli import Cli


@pytest.fixture
def full(cli: Cli) -> Cli:
    """Thirty keys, each with a value of two levels."""
    for number in range(30):
        value = json.dumps({"n": number, "parts": [f"a,{number}", 'b"']})
        cli("state", "set", f"key {number:02}", value, "--json-value")
    return cli


def test_U2_every_list_can_be_had_in_every_form() -> None:
    lists = {path for path, command in COMMANDS.items() if path.endswith(" list")}
    asked = {
        path
        for path, command in COMMANDS.items()
        if isinstance(command, SessionCommand) and "output" in command.list_options
    }
    assert lists <= asked
    assert {"task events", "queue letters", "inbox list", "log range"} <= asked


def test_U2_limit_gives_the_first_rows_and_says_that_there_are_more(full: Cli) -> None:
    shown = full("state", "list", "--limit", "2")
    assert [line.split()[1] for line in shown.out.splitlines()[1:]] == ["00", "01"]
    assert shown.err == "the first 2; there are more\n"
    assert full("state", "list", "--limit", "30").err == ""
    assert len(full("state", "list", "--limit", "2", "--json").json) == 2
    assert full("state", "list", "--limit", "0", code=2).raw == b""


def test_U2_fields_are_chosen_by_name_and_by_path(full: Cli) -> None:
    asked = ("state", "list", "--fields", "key,value.n,value.parts.1,value.none", "--limit", "1")
    wanted = {"key": "key 00", "value.n": 0, "value.parts.1": 'b"', "value.none": None}
    assert full(*asked, "--json").json == [wanted]
    assert json.loads(full(*asked, "-o", "jsonl").out) == wanted
    assert full(*asked).out.splitlines()[0].split() == [
        *("KEY", "VALUE.N", "VALUE.PARTS.1", "VALUE.NONE")
    ]
    unknown = full("state", "list", "--fields", "kee", code=2)
    assert "they have: mesh, key, value, lamport, peer, updated_at" in unknown.err
    assert full("state", "list", "--fields", "", code=2).raw == b""


def test_U2_csv_is_read_back_as_it_was(full: Cli) -> None:
    printed = full("state", "list", "-o", "csv", "--fields", "key,value.parts.0,updated_at").out
    head, *rows = csv.reader(io.StringIO(printed))
    assert head == ["key", "value.parts.0", "updated_at"]
    assert [row[:2] for row in rows] == [[f"key {n:02}", f"a,{n}"] for n in range(30)]
    assert all(row[2].endswith("Z") for row in rows)
    assert full("task", "list", "-o", "csv").out == "task,status,claimed_by,title,updated_at\r\n"


def test_U2_json_lines_are_a_document_each(full: Cli) -> None:
    lines = full("state", "list", "-o", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == full("state", "list", "--json").json


def test_U2_rows_are_chosen_by_time(full: Cli) -> None:
    assert len(full("state", "list", "--since", "1h", "--json").json) == 30
    assert full("state", "list", "--until", "1h", "--json").json == []
    assert full("state", "list", "--since", "today", "--until", "yesterday", code=2).raw == b""
    later = full("state", "list", "--until", "yesterday")
    assert (later.out, later.err) == ("", "nothing of that time\n")
    assert "not a time" in full("state", "list", "--since", "soon", code=2).err


def test_U2_a_row_without_that_time_is_neither_older_nor_newer() -> None:
    listing = Listing(since_ms=5, until_ms=9, time="at")
    rows: list[dict[str, int | None]]
    rows = [{"at": None}, {}, {"at": 4}, {"at": 5}, {"at": 8}, {"at": 9}]
    assert [row for row in rows if listing._is_meant(row)] == [{"at": 5}, {"at": 8}]


def test_U2_a_long_list_is_not_held_in_memory() -> None:
    read = 0

    def rows() -> Iterator[dict[str, int]]:
        nonlocal read
        for number in range(1_000_000):
            read += 1
            yield {"n": number}

    Listing(form="jsonl", limit=3, fields=("n",)).print(rows(), ["n"], empty="")
    assert read == 4, "one more, to know whether there are more"


def test_U2_a_field_with_a_dot_in_its_name_is_found() -> None:
    assert at_path({"a.b": 1, "a": {"b": 2, "c.d": 3}}, "a.b") == 1
    assert at_path({"a": {"c.d": 3}}, "a.c.d") == 3
    assert at_path({"a": [1]}, "a.1") is None
    assert at_path({"a": "text"}, "a.b") is None


def test_U2_contradicting_times_are_refused() -> None:
    with pytest.raises(BadInput):
        Listing.of({"since": "1h", "until": "2h"}, as_json=False, time="at")


# --- the pager -----------------------------------------------------------------------------------


def test_U2_a_list_longer_than_the_screen_goes_through_the_pager(full: Cli, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    env = {"HOLDFAST_PAGER": f"cat > '{seen}'"}
    shown = full.on_a_terminal("state", "list", env=env)
    assert shown.out == ""
    assert len(seen.read_text().splitlines()) == 31
    seen.unlink()
    assert len(full.on_a_terminal("state", "list", "--no-pager", env=env).out.splitlines()) == 31
    assert len(full.on_a_terminal("state", "list", "--limit", "5", env=env).out.splitlines()) == 7
    assert full("state", "list", env=env).out.count("\n") == 31, "no terminal, no pager"
    assert not seen.exists()


def test_U2_an_empty_pager_is_none(full: Cli) -> None:
    shown = full.on_a_terminal("state", "list", env={"PAGER": "head -n 2", "HOLDFAST_PAGER": ""})
    assert len(shown.out.splitlines()) == 31


def test_U2_who_leaves_the_pager_has_seen_enough(full: Cli) -> None:
    full("state", "set", "long", "-", stdin="x" * 300_000)  # more than a pipe holds
    env = {"HOLDFAST_PAGER": "head -c 1 > /dev/null"}
    left = full.on_a_terminal("state", "list", "-o", "jsonl", env=env)
    assert (left.code, left.out) == (0, "")
