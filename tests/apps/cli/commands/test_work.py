"""`holdfast task`, `conflict`, `log`, `fact`, `consumer`, and what a peer must be told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import holdfast
from support.cli import ID_MASK, TIME_MASK, Cli

MINTED = "01890a5d-ac96-774b-bcce-b302099a8057"


# --- tasks ---------------------------------------------------------------------------------


def test_U2_a_task_is_created_claimed_released_and_completed(cli: Cli) -> None:
    task = cli("task", "create", "Fix the roof", "--description", "It leaks").out.strip()
    assert cli("task", "list").masked == (
        "TASK                                  STATUS  CLAIMED BY  TITLE         UPDATED\n"
        f"{ID_MASK}  open    -           Fix the roof  {TIME_MASK}\n"
    )
    assert cli("task", "claim", task).err == "claimed 'Fix the roof'\n"
    claimed = cli("task", "show", task, "--json").json
    assert (claimed["status"], claimed["claimed_by"], claimed["generation"]) == (
        "claimed",
        "ana",
        0,
    )
    released = cli("task", "release", task, "--json", "--id", MINTED).json
    assert (released["id"], released["status"]) == (MINTED, "open")
    cli("task", "claim", task)
    assert cli("task", "complete", task, "--json").json["status"] == "completed"
    assert cli("task", "list", "--status", "completed", "--json").json[0]["task"] == task
    assert cli("task", "list", "--status", "open", "--json").json == []
    assert cli("task", "list", "--status", "open").err == "no open task in team\n"


def test_U2_a_task_is_shown_line_by_line(cli: Cli) -> None:
    task = cli("task", "create", "Fix", "--id", MINTED).out.strip()
    cli("task", "cancel", task)
    assert cli("task", "show", task).masked == (
        f"task         {ID_MASK}\n"
        "mesh         team\n"
        "title        Fix\n"
        "description\n"
        "status       cancelled\n"
        "created by   ana\n"
        f"created at   {TIME_MASK}\n"
        "claimed by   -\n"
        "claimed at   -\n"
        "generation   0\n"
        "holder       -\n"
        "ended        2@ana\n"
        f"ended at     {TIME_MASK}\n"
        f"updated at   {TIME_MASK}\n"
    )


def test_U2_the_turns_on_a_task_are_listed(cli: Cli) -> None:
    task = cli("task", "create", "Fix").out.strip()
    cli("task", "claim", task)
    assert cli("task", "events", task).masked == (
        "EVENT    TURN    LAMPORT  PEER  AGAINST  AT\n"
        f"created  create  1        ana   -        {TIME_MASK}\n"
        f"claimed  claim   2        ana   -        {TIME_MASK}\n"
    )
    events = cli("task", "events", task, "--json").json
    assert [event["event"] for event in events] == ["created", "claimed"]


def test_U2_what_a_task_does_not_allow_is_a_conflict(cli: Cli) -> None:
    task = cli("task", "create", "Fix").out.strip()
    refused = cli("task", "complete", task, "--json", code=5)
    assert (refused.error["code"], refused.error["hint"]) == (
        "task_taken",
        f"claim it first: holdfast task claim {task}",
    )
    cli("task", "cancel", task)
    assert cli("task", "claim", task, "--json", code=5).error["code"] == "task_ended"
    for verb in ("show", "events", "claim", "release", "complete", "cancel"):
        unknown = cli("task", verb, MINTED, "--json", code=4)
        assert unknown.error["code"] == "unknown_task"
    cli("task", "list", "--status", "lost", code=2)


# --- conflicts and warnings ------------------------------------------------------------------


@pytest.fixture
def contested(cli: Cli, tmp_path: Path) -> Cli:
    """ana and bo wrote the same key and claimed the same task without knowing of each other."""
    with (
        holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo,
        holdfast.open(cli.home) as ana,
    ):
        bo_team = bo.create_mesh("team")
        team = ana.mesh("team")
        task = team.tasks.create("Fix", id=MINTED)
        bo.apply([entry.raw for entry in ana.log.range()])
        bo_team.tasks.claim(task.task)
        team.state.set("tick", 1)
        team.state.set("tick", 2)
        team.state.set("build", "of ana")
        bo_team.state.set("build", "of bo")
        bo_team.state.set("build", "of bo, later")
        bo_team.state.set("build", "of bo, last")
        team.tasks.claim(task.task)
        ana.apply([entry.raw for entry in bo.log.range()])
    return cli


def test_S18_conflicts_are_listed_shown_and_restored(contested: Cli) -> None:
    cli = contested
    told = cli("conflict", "list", "--json")
    assert json.loads(told.err)["warning"]["message"] == TOLD
    listed = told.json
    state = next(one for one in listed if one["family"] == "state")
    assert (state["winner"]["peer"], state["loser"]["peer"]) == ("bo", "ana")
    assert state["loser_body"] == {"value": "of ana"}
    assert cli("conflict", "list").out.splitlines()[0].split() == [
        *("NO", "MESH", "FAMILY", "ENTITY", "WINNER", "LOSER", "REASON", "FOUND", "RESOLUTION")
    ]
    number = str(state["number"])
    shown = cli("conflict", "show", number).out
    assert 'loser body   {"value":"of ana"}' in shown
    assert cli("conflict", "show", number, "--json").json == state
    assert cli("state", "get", "build").out == "of bo, last\n"
    done = cli("conflict", "restore", number, "--json").json
    assert (done["op"], done["mesh"]) == ("conflict.restore", "team")
    assert cli("state", "get", "build").out == "of ana\n"
    assert cli("conflict", "restore", number, "--json", code=5).error["code"] == "already_resolved"
    assert number not in [str(one["number"]) for one in cli("conflict", "list", "--json").json]
    assert "restored as" in cli("conflict", "list", "--all").out


def test_S18_a_conflict_is_dismissed(contested: Cli) -> None:
    for one in contested("conflict", "list", "--mesh", "team", "--json").json:
        done = contested("conflict", "dismiss", str(one["number"]), "--json").json
        assert done["resolution"] == "dismissed"
    empty = contested("conflict", "list")
    assert (empty.out, empty.err) == ("", "nothing waits for a decision\n")
    assert contested("conflict", "show", "99", "--json", code=4).error["code"] == "unknown_conflict"
    contested("conflict", "dismiss", "99", code=4)
    contested("conflict", "restore", "99", code=4)
    assert contested("conflict", "show", "one", "--json", code=2).error["code"] == "usage"


TOLD = f"your claim on task {MINTED} lost against that of bo"


def test_U2_what_waits_to_be_told_is_told_once_after_any_command(contested: Cli) -> None:
    first = contested("state", "get", "build")
    assert (first.out, first.err) == ("of bo, last\n", f"warning: {TOLD}\n")
    assert contested("state", "get", "build").err == ""


def test_U2_an_object_carries_the_warnings_in_json(contested: Cli) -> None:
    first = contested("state", "get", "build", "--json")
    assert first.err == ""
    assert first.json["warnings"] == [
        {
            "type": "task_claim_superseded",
            "message": TOLD,
            "mesh": "team",
            "entity": MINTED,
            "by_peer": "bo",
            "at_lamport": first.json["warnings"][0]["at_lamport"],
        }
    ]
    assert "warnings" not in contested("state", "get", "build", "--json").json


def test_U2_a_list_in_json_leaves_the_warnings_to_stderr(contested: Cli) -> None:
    first = contested("state", "list", "--json")
    assert isinstance(first.json, list)
    assert json.loads(first.err)["warning"]["message"] == TOLD


def test_U2_status_and_the_ledger_tell_what_waits_too(contested: Cli) -> None:
    assert contested("status", "--json").json["warnings"][0]["message"] == TOLD
    assert "warnings" not in contested("status", "--json").json


def test_U2_a_refused_command_tells_the_warning_that_explains_it(contested: Cli) -> None:
    refused = contested("task", "complete", MINTED, code=5)
    assert refused.err.splitlines() == [
        f"warning: {TOLD}",
        f"error: task {MINTED} is claimed by bo",
        "hint: choose another task, or wait until it is released",
    ]


# --- the log, facts, consumers ---------------------------------------------------------------


def test_U2_the_log_is_shown_by_range_and_from_its_end(cli: Cli) -> None:
    for number in range(5):
        cli("state", "set", "k", str(number))
    assert [entry["offset"] for entry in cli("log", "range", "2", "4", "--json").json] == [2, 3]
    assert [entry["offset"] for entry in cli("log", "range", "--json").json] == [1, 2, 3, 4, 5]
    assert [entry["offset"] for entry in cli("log", "tail", "-n", "2", "--json").json] == [4, 5]
    assert cli("log", "tail", "-n", "1").masked == (
        "OFFSET  MESH  OP         ENTITY  PEER  LAMPORT  RECORDED                  BODY\n"
        f'5       team  state.set  k       ana   5        {TIME_MASK}  {{"value":"4"}}\n'
    )
    entry = cli("log", "tail", "-n", "1", "--json").json[0]
    assert set(entry) == {
        *("offset", "id", "mesh", "op", "entity", "owner", "peer", "lamport", "epoch", "seq"),
        *("created_at", "recorded_at", "meta", "body"),
    }
    assert cli("log", "range", "9", "--json", code=2).error["code"] == "bad_input"
    cli("mesh", "create", "other")
    assert cli("log", "range", "--mesh", "other", "--json").json == []
    # The mesh that is meant by default narrows nothing down.
    assert len(cli("log", "range", "--json", env={"HOLDFAST_MESH": "other"}).json) == 5


def test_Z2_facts_are_appended_fetched_and_confirmed(cli: Cli) -> None:
    cli("consumer", "add", "lake")
    cli("fact", "append", "build:7", "status", "green")
    cli("fact", "append", "build:7", "sizes", "[1, 2]", "--json-value")
    batch = cli("fact", "fetch", "lake", "--json").json
    assert [(entry["entity"], entry["body"]) for entry in batch] == [
        ("build:7", {"predicate": "status", "object": "green"}),
        ("build:7", {"predicate": "sizes", "object": [1, 2]}),
    ]
    assert cli("fact", "fetch", "lake", "--limit", "1", "--json").json == batch[:1]
    assert "build:7" in cli("fact", "fetch", "lake").out
    done = cli("fact", "confirm", "lake", "1")
    assert (done.out, done.err) == ("1\n", "lake has confirmed up to 1, 1 to go\n")
    cli("fact", "confirm", "lake", "--range", "2:3")
    empty = cli("fact", "fetch", "lake")
    assert (empty.out, empty.err) == ("", "nothing new for lake\n")


def test_Z1_a_fact_is_appended_once_by_its_id(cli: Cli) -> None:
    first = cli("fact", "append", "s", "p", "o", "--id", MINTED, "--json").json
    again = cli("fact", "append", "s", "p", "o", "--id", MINTED, "--json").json
    assert (first["offset"], first["duplicate"]) == (1, False)
    assert (again["offset"], again["duplicate"]) == (1, True)
    other = cli("fact", "append", "s", "p", "else", "--id", MINTED, "--json", code=5)
    assert other.error["code"] == "id_reused"


def test_Z4_confirming_past_the_end_or_badly_is_refused(cli: Cli) -> None:
    cli("consumer", "add", "lake")
    assert cli("fact", "confirm", "lake", "1", "--json", code=2).error["code"] == "past_end"
    cli("fact", "confirm", "lake", code=2)
    assert "5:9" in cli("fact", "confirm", "lake", "--range", "3", code=2).err
    for words in (("fact", "fetch", "none"), ("fact", "confirm", "none", "1")):
        assert cli(*words, "--json", code=4).error["code"] == "unknown_consumer"
    assert (
        cli("fact", "fetch", "lake", "--limit", "0", "--json", code=2).error["code"] == "over_limit"
    )


def test_Z5_consumers_are_added_listed_and_retired(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    assert cli("consumer", "add", "lake").out == "lake\n"
    assert cli("consumer", "add", "late", "--from", "now", "--json").json["position"] == 2
    assert cli("consumer", "add", "exact", "--from", "1", "--json").json["position"] == 1
    assert cli("consumer", "list").masked == (
        "NAME   POSITION  FRONTIER  LAG  SEEN\n"
        f"exact  1         0         1    {TIME_MASK}\n"
        f"lake   1         0         1    {TIME_MASK}\n"
        f"late   2         1         0    {TIME_MASK}\n"
    )
    assert cli("consumer", "add", "lake", "--json", code=5).error["code"] == "already_exists"
    cli("consumer", "add", "x", "--from", "9", code=2)
    cli("consumer", "add", "x", "--from", "then", code=2)
    assert cli("consumer", "retire", "lake", "--json").json == {"name": "lake", "retired": True}
    cli("consumer", "retire", "lake", code=4)
    assert [one["name"] for one in cli("consumer", "list", "--json").json] == ["exact", "late"]


def test_U2_the_log_says_what_every_change_holds(cli: Cli) -> None:
    cli("memory", "set", "k", "v", "--tag", "t")
    cli("vector", "store", "e", "[1, 0.5]", "--model", "acme:tiny:1", "--metadata", '{"n":1}')
    cli("file", "share", "f", "--from", "-", stdin=b"\xff")
    task = cli("task", "create", "Fix").out.strip()
    cli("task", "claim", task)
    cli("state", "set", "s", "v")
    cli("state", "delete", "s")
    entries = cli("log", "range", "--json").json
    assert [entry["body"] for entry in entries] == [
        {"value": "v", "tags": ["t"]},
        {
            "provider": "acme",
            "model": "tiny",
            "version": "1",
            "dim": 2,
            "quantization": "float32",
            "embedding": [1.0, 0.5],
            "content": "",
            "metadata": {"n": 1},
        },
        {"sha256": hashlib.sha256(b"\xff").hexdigest(), "size": 1, "content": "/w=="},
        {"title": "Fix", "description": ""},
        {"generation": 0},
        {"value": "v"},
        {},
    ]
    assert [entry["owner"] for entry in entries] == ["ana", "ana", "ana", "", "", "", ""]
    assert [entry["seq"] for entry in entries] == list(range(1, 8))
