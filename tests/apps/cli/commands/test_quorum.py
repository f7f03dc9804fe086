"""`holdfast quorum`, `entity`, `writes`: by hand, on a daemon whose majority the test switches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import ID, Cli
from support.daemon import make_home
from support.envelopes import MESH
from support.quorum_daemon import QuorumUp, quorum_daemon
from support.quorum_state import change, operation


@pytest.fixture
def up(tmp_path: Path) -> Iterator[QuorumUp]:
    with quorum_daemon(tmp_path) as made:
        yield made


@pytest.fixture
def cli(up: QuorumUp) -> Cli:
    return Cli(up.home)


def test_U2_Q5_an_entity_is_put_patched_read_and_deleted(cli: Cli) -> None:
    done = cli("entity", "put", "mission", "m1", "title=Sail", "legs:=3", "--base", "0")
    assert "wrote mission m1 in team at revision 1 (applied)" in done.err
    assert ID.fullmatch(done.out.strip())
    assert cli("entity", "put", "mission", "m1", "title=Row", "--base", "0", code=5).err.startswith(
        "error: it was made for other revisions"
    )
    cli("entity", "patch", "mission", "m1", '{"title": "Row"}', "--remove", "legs", "--base", "1")
    shown = cli("entity", "get", "mission", "m1")
    assert json.loads(shown.out) == {"title": "Row"}
    assert shown.err.startswith("fresh: confirmed by a majority at 20")
    found = cli("entity", "get", "mission", "m1", "--json").json
    assert (found["revision"], found["read"]["mode"]) == (2, "fresh")
    assert "m1  2" in cli("entity", "list", "mission").out
    assert cli("entity", "list", "mission", "--json").json["entities"][0]["id"] == "m1"
    tried = cli("entity", "delete", "mission", "m1", "--dry-run")
    assert "would delete the mission 'm1' of team at revision 2; nothing was changed" in tried.err
    assert cli("entity", "delete", "mission", "m1", "--dry-run", "--json").json["revision"] == 2
    cli("entity", "delete", "mission", "m1", "--base", "2")
    cli("entity", "delete", "mission", "m1", "--dry-run", code=4)
    cli("entity", "get", "mission", "m1", code=4)
    past = cli("entity", "history", "mission", "m1", "--json").json["revisions"]
    assert [one["deleted"] for one in past] == [False, False, True]
    assert cli("entity", "history", "mission", "m1").out.splitlines()[3].startswith("3")


def test_U2_Q5_fields_and_fences_that_cannot_be_meant_are_refused(cli: Cli) -> None:
    put = ("entity", "put", "mission", "m1")
    for words in (("title",), ("title=a", "title=b"), ("=a",), ("title:=nope",), ("{", "a=1")):
        cli(*put, *words, code=2)
    assert "LEASE" not in cli(*put, "title=a", "--fence", "deploy", code=2).out
    cli(*put, "title=a", "--fence", "deploy@7", code=2)
    cli("entity", "put", "ship", "s", "title=a", code=2)
    assert cli(*put, "title=a", "--json").json["outcome"] == "applied"
    piped = cli("entity", "put", "mission", "m2", "-", stdin='{"title":"from stdin"}', code=0)
    assert "wrote mission m2" in piped.err


def test_U2_Q6_a_queued_write_exits_with_6_and_its_outcome_is_shown(up: QuorumUp, cli: Cli) -> None:
    cli("entity", "put", "mission", "m1", "title=Sail")
    up.lose_quorum()
    queued = cli("entity", "put", "mission", "m1", "title=Row", "--timeout", "100ms", code=6)
    id = queued.out.strip()
    assert "queued: no quorum was there in time (no_quorum)" in queued.err
    assert f"holdfast writes show {id} --mesh team" in queued.err
    listed = cli("writes", "list").out.splitlines()
    assert listed[1].split()[:3] == [id, "pending", "0"]
    assert max(map(len, listed)) <= 80
    assert cli("writes", "show", id).out.splitlines()[0].split() == ["id", id]
    # Reads: the newest is refused, a local one says that it is degraded.
    assert "error: " in cli("entity", "get", "mission", "m1", code=6).err
    local = cli("entity", "get", "mission", "m1", "--local")
    assert "degraded: as of 20" in local.err
    assert "1 of this node's writes wait" in local.err
    cli("entity", "get", "mission", "m1", "--max-staleness", "1h")
    cli("entity", "get", "mission", "m1", "--local", "--linearizable", code=2)
    up.regain()
    cli("writes", "replay")
    assert cli("writes", "list").err.strip() == "no strong write of team waits"
    assert cli("writes", "show", id, "--json").json["outcome"] == "applied"
    assert cli("writes", "list", "--all", "--json").json[0]["status"] == "applied"


def test_U2_Q7_a_conflict_is_shown_and_settled(up: QuorumUp, cli: Cli) -> None:
    cli("entity", "put", "mission", "m1", "title=Sail")
    up.lose_quorum()
    words = ("title=Mine", "--base", "1", "--timeout", "100ms")
    id = cli("entity", "put", "mission", "m1", *words, code=6).out.strip()
    up.decided_elsewhere(change(operation("put", "mission", "m1", {"title": "Theirs"}, base=1)))
    up.regain()
    cli("quorum", "replay", "--json")
    shown = cli("writes", "show", id)
    assert "status" in shown.out
    assert f"hint: holdfast writes resolve {id}" in shown.err
    table = cli("writes", "conflicts").out.splitlines()
    assert max(map(len, table)) <= 80
    number = table[1].split()[0]
    assert cli("writes", "conflicts", "--json").json[0]["sides"][0]["wanted"] == {"title": "Mine"}
    cli("writes", "resolve", id, "--take", "fields", code=2)
    cli("writes", "resolve", id, "title=x", "--take", "committed", code=2)
    done = cli("writes", "resolve", id, "title=Both", "--take", "fields", "--by", "ana")
    assert done.err.startswith("settled: fields by ana")
    assert json.loads(cli("entity", "get", "mission", "m1").out) == {"title": "Both"}
    cli("writes", "resolve", number, "--take", "committed", code=5)
    cli("writes", "resolve", "99", "--take", "committed", code=4)
    assert "nothing in team needs a decision" in cli("writes", "conflicts").err


def test_U2_Q13_the_status_is_for_people_and_for_programs(up: QuorumUp, cli: Cli) -> None:
    shown = cli("quorum", "status")
    lines = {line.split("  ")[0]: line for line in shown.out.splitlines()}
    assert "ana, lease epoch 1, incarnation 1" in lines["coordinator"]
    assert lines["minority"].endswith("queue")
    assert "ana   coordinator" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "warning: one voter decides alone" in shown.err
    assert cli("quorum", "status", "--json").json["order"]["coordinator"] == "ana"
    assert cli("quorum", "members", MESH).out.splitlines()[0].split()[0] == "PEER"
    up.lose_quorum()
    assert "not heard" in cli("quorum", "status").out


def test_U2_Q13_operators_change_what_they_must(up: QuorumUp, cli: Cli) -> None:
    assert "bo votes in team" in cli("quorum", "add", "bo").err
    assert "bo votes no more" in cli("quorum", "remove", "bo", "--timeout", "9s").err
    assert "ana coordinates team" in cli("quorum", "transfer", "ana").err
    cli("quorum", "step-down")
    paused = cli("quorum", "pause")
    assert "hint: holdfast quorum resume team" in paused.err
    assert cli("quorum", "status", "--json").json["paused"]
    cli("quorum", "resume")
    cli("quorum", "add", "nobody", code=4)
    refused = cli("quorum", "recover", MESH, code=2)
    assert "are lost for good" in refused.err
    assert "holdfast quorum recover team --accept-loss" in refused.err
    assert "incarnation 2" in cli("quorum", "recover", "--accept-loss").err
    dry = cli("quorum", "forget-claim", "dora", "--dry-run")
    assert "would forget the claim of dora to the order of team; nothing was changed" in dry.err
    dry = cli("quorum", "forget-claim", "dora", "--dry-run", "--json")
    assert json.loads(dry.out) == {"mesh": MESH, "peer": "dora", "dry_run": True}
    assert "the claim of dora to the order" in cli("quorum", "forget-claim", "dora").err
    cli("quorum", "forget-claim", "nobody", code=4)
    cli("quorum", "forget-claim", "nobody", "--dry-run", code=4)
    cli("quorum", "move", MESH, "--engine", "embedded", "--voter", "bo")
    assert up.operators.asked[-1] == ("move", (("bo",), "embedded"))
    even = cli("quorum", "init", MESH, "--voter", "bo", code=5)
    assert "warning: 2 voters survive the loss of as many as 1 would" in even.err
    assert [name for name, _ in up.operators.asked] == [
        *("add", "remove", "transfer", "step_down", "recover"),
        *("forget_claim?", "forget_claim?", "forget_claim", "move"),
    ]


def test_U2_Q13_without_a_daemon_only_a_local_read_works(tmp_path: Path) -> None:
    with quorum_daemon(tmp_path) as up:
        Cli(up.home)("entity", "put", "mission", "m1", "title=Sail")
        home = up.home
    cli = Cli(home)
    refused = cli("quorum", "status", code=3)
    assert f"hint: start it: holdfast up --home {home}" in refused.err
    cli("entity", "get", "mission", "m1", code=3)
    local = cli("entity", "get", "mission", "m1", "--local")
    assert local.err.startswith("degraded")
    assert json.loads(local.out) == {"title": "Sail"}
    cli("entity", "get", "mission", "m1", "--max-staleness", "1h", code=6)
    other = Cli(make_home(tmp_path / "bo", "bo"))
    assert "holdfast quorum init team" in other("entity", "list", "mission", "--local", code=5).err
