"""`holdfast mesh publish`, `join` and the rest, against a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.settings import BusSettings, Settings
from holdfast.node.sharing import join, publish
from holdfast.rules.errors import Unreachable
from holdfast.rules.invites import Invite, PeerInvite, parse_any_invite
from support.broker_up import PATIENCE_S, BrokerUp, broker_at
from support.cli import Cli
from support.daemon import make_home, running
from support.snapshot import snapshot
from support.waiting import until


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[BrokerUp]:
    with broker_at(tmp_path / "hub") as up:
        yield up


@pytest.fixture
def bob(tmp_path: Path) -> Cli:
    """A second laptop."""
    with holdfast.open(tmp_path / "bob", peer="bob", create=True):
        return Cli(tmp_path / "bob")


def published(cli: Cli, hub: BrokerUp, *more: str) -> str:
    """The invite."""
    return cli("mesh", "publish", "team", "--broker", hub.url, *more).out.strip()


def both(cli: Cli, bob: Cli, hub: BrokerUp) -> None:
    bob("mesh", "join", published(cli, hub))


# --- publish and join ----------------------------------------------------------------------------


def test_S14_where_the_name_is_taken_the_hint_publishes_a_copy_under_one_that_is_free(
    cli: Cli, bob: Cli, hub: BrokerUp
) -> None:
    published(cli, hub)
    bob("mesh", "create", "team")
    bob("state", "set", "k", "1")
    refused = bob("mesh", "publish", "team", "--broker", hub.url, "--json", code=5).error
    done = bob(*refused["hint"].partition(": holdfast ")[2].split())
    assert done.out.startswith("holdfast://join/")
    assert "published team-2" in done.err
    assert "mesh delete" in done.err, "and how the original goes"
    assert [row["mesh"] for row in bob("mesh", "list", "--json").json] == ["team", "team-2"]


def test_S14_publish_says_what_it_did_and_prints_the_invite(cli: Cli, hub: BrokerUp) -> None:
    cli("state", "set", "k", "1")
    done = cli("mesh", "publish", "team", "--broker", hub.url)
    assert done.out.startswith("holdfast://join/")
    assert f"published team at {hub.url}: 1 change from before through the outbox" in done.err
    assert "wait for the broker" not in done.err, "it was brought without a daemon"
    assert "an invite for one member, for 7 days" in done.err
    again = cli("mesh", "publish", "team")
    assert (again.out, "is shared already" in again.err) == ("team\n", True)


def test_S14_publish_and_join_as_documents(cli: Cli, bob: Cli, hub: BrokerUp) -> None:
    cli("state", "set", "k", "1")
    made = cli("mesh", "publish", "--broker", hub.url, "--json").json
    assert (made["mesh"], made["rows"], made["waiting"], made["way"]) == ("team", 1, 0, "backfill")
    joined = bob("mesh", "join", "-", "--json", stdin=made["invite"] + "\n").json
    assert (joined["mesh"], joined["grants"]) == ("team", ["read", "send", "write"])
    settled = bob("mesh", "sync", "--json").json
    assert (settled["waiting"], settled["lag"], settled["by_daemon"]) == (0, 0, False)
    assert bob("state", "get", "k").out == "1\n"


def test_S14_publish_leaves_what_waits_to_the_daemon_if_told_to(cli: Cli, hub: BrokerUp) -> None:
    cli("state", "set", "k", "1")
    done = cli("mesh", "publish", "--broker", hub.url, "--no-wait")
    assert "1 still wait for the broker" in done.err
    cli("mesh", "sync")
    assert cli("mesh", "publish", "--json").json["waiting"] == 0


def test_S14_B6_a_mesh_that_is_shared_both_ways_has_invites_of_both_kinds(
    tmp_path: Path, bob: Cli, hub: BrokerUp
) -> None:
    ana = Cli(make_home(tmp_path / "both", "ana"))
    zoe = Cli(make_home(tmp_path / "zoe", "zoe", "own"))
    assert ana("mesh", "invite", "--via", "bus", "--json", code=5).error["code"] == "not_shared"
    with running(ana.home, Settings(bus=BusSettings(listen=["127.0.0.1:0"]))):
        ana("mesh", "publish", "team", "--broker", hub.url)
        ana("mesh", "share", "team")
        ana("state", "set", "both", "ways", "--mesh", "team")
        plain = ana("mesh", "invite")
        assert "one that leads to this node: --via bus" in plain.err
        told = ana("mesh", "invite", "--via", "broker")
        assert "--via" not in told.err
        for out in (plain.out, told.out):
            assert isinstance(parse_any_invite(out.strip()), Invite)
        over_bus = ana("mesh", "invite", "--via", "bus")
        assert isinstance(parse_any_invite(over_bus.out.strip()), PeerInvite)
        assert len(ana("mesh", "invites", "--via", "bus", "--json").json) == 1
        bob("mesh", "join", plain.out.strip())
        assert (
            "zoe is a member of team, which ana owns"
            in zoe("mesh", "join", over_bus.out.strip()).err
        )
        names = [
            [row["name"] for row in ana("mesh", "members", "--via", via, "--json").json]
            for via in ("broker", "bus")
        ]
        assert names == [["ana", "bob"], ["ana", "zoe"]]
        with running(zoe.home, Settings()) as up:
            team = up.daemon.api.node.mesh("team")
            until(lambda: team.state.get("both") == "ways")
        bob("mesh", "sync", "team")
        assert bob("state", "get", "both", "--mesh", "team").out == "ways\n"
        ana("mesh", "grant", "zoe", "--grant", "read", "--via", "bus", "--mesh", "team")
        ana("mesh", "remove-member", "zoe", "--via", "bus", "--mesh", "team")
        assert len(ana("mesh", "members", "--via", "bus", "--json").json) == 1


def test_S14_publish_waits_for_a_daemon_that_runs(tmp_path: Path, hub: BrokerUp) -> None:
    home = make_home(tmp_path / "served")
    cli = Cli(home)
    cli("state", "set", "k", "1")
    with running(home, Settings()):
        made = cli("mesh", "publish", "team", "--broker", hub.url, "--json").json
        assert made["waiting"] == 0
        settled = cli("mesh", "sync", "--json").json
        assert (settled["by_daemon"], settled["waiting"]) == (True, 0)


def test_S14_what_is_in_the_way_has_an_exit_code_and_a_hint(
    cli: Cli, bob: Cli, hub: BrokerUp
) -> None:
    nowhere = cli("mesh", "publish", "team", "--json", code=2).error
    assert "--broker" in nowhere["hint"]
    away = cli("mesh", "publish", "--broker", "http://127.0.0.1:9", "--json", code=1).error
    assert away["code"] == "unreachable"
    plain = cli("mesh", "publish", "--broker", "http://example.com", "--json", code=2).error
    assert "https" in plain["hint"]
    assert cli("mesh", "members", "--json", code=5).error["code"] == "not_shared"
    invite = published(cli, hub)
    bob("mesh", "join", invite)
    bob("mesh", "create", "own")
    cora = Cli(bob.home.parent / "cora")
    with holdfast.open(cora.home, peer="cora", create=True):
        pass
    assert cora("mesh", "join", invite, "--json", code=7).error["code"] == "invite_ended"
    assert cora("mesh", "join", invite[:-3], "--json", code=2).error["code"] == "bad_input"
    cora("mesh", "create", "team")
    second = cli("mesh", "invite").out.strip()
    assert cora("mesh", "join", second, "--json", code=5).error["code"] == "already_exists"


def test_D15_a_token_comes_from_the_environment(cli: Cli, tmp_path: Path) -> None:
    token = "a token of the broker"
    with broker_at(tmp_path / "g", registration="token", registration_token=token) as up:
        cli("mesh", "publish", "--broker", up.url, code=7)
        cli("mesh", "publish", "--broker", up.url, env={"HOLDFAST_BROKER_TOKEN": token})


# --- members and destinations --------------------------------------------------------------------


def test_D15_invites_are_made_listed_and_taken_back(cli: Cli, hub: BrokerUp) -> None:
    published(cli, hub)
    made = cli("mesh", "invite", "--uses", "3", "--hours", "2", "--grant", "read", "--json").json
    listed = {one["id"]: one for one in cli("mesh", "invites", "--json").json}
    assert len(listed) == 2, "with the one of the publish"
    assert (listed[made["id"]]["uses_left"], listed[made["id"]]["grants"]) == (3, ["read"])
    assert "text" not in listed[made["id"]]
    assert cli("mesh", "invites", "--drop", made["id"][:12], "--json").json["dropped"]
    assert made["id"] not in cli("mesh", "invites").out
    for nothing in ("", made["id"]):
        assert cli("mesh", "invites", "--drop", nothing, "--json", code=4).error
    assert len(cli("mesh", "invites", "--json").json) == 1


def test_D15_members_are_listed_changed_and_removed(cli: Cli, bob: Cli, hub: BrokerUp) -> None:
    both(cli, bob, hub)
    assert [one["name"] for one in bob("mesh", "members", "--json").json] == ["ana", "bob"]
    assert "bob may read" in cli("mesh", "grant", "bob", "--grant", "read").err
    bob("mesh", "topic", "news", code=7)
    assert "is no member of team any more" in cli("mesh", "remove-member", "bob").err
    assert bob("mesh", "members", "--json", code=7).error["code"] == "not_a_member"
    assert "bob" not in cli("mesh", "members").out


def test_D5_topics_and_queues_are_declared_listed_and_dropped(
    cli: Cli, bob: Cli, hub: BrokerUp
) -> None:
    both(cli, bob, hub)
    cli("mesh", "topic", "news")
    cli("mesh", "queue", "work", "--visibility", "5", "--deliveries", "2")
    bob("mesh", "subscribe", "news")
    found = {one["ref"]: one for one in bob("mesh", "destinations", "--json").json}
    assert (found["news"]["subscribed"], found["work"]["visibility_ms"]) == (True, 5000)
    assert bob("mesh", "unsubscribe", "news", "--json").json["ended"]
    assert bob("mesh", "subscribe", "nothing", "--json", code=4).error["code"] == (
        "unknown_destination"
    )
    cli("mesh", "topic", "news", "--drop")
    assert "news" not in cli("mesh", "destinations").out


def test_S14_a_join_that_was_cut_off_is_finished_by_the_sync(
    cli: Cli, bob: Cli, hub: BrokerUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BACKFILL_ROWS_MAX", 0)
    cli("state", "set", "k", "1")
    invite = published(cli, hub)

    def cut(*args: object) -> None:
        raise Unreachable("the line was cut")

    with monkeypatch.context() as patched:
        patched.setattr(join, "_take", cut)
        bob("mesh", "join", invite, code=1)
    bob("state", "get", "k", code=4)
    bob("mesh", "sync")
    assert bob("state", "get", "k").out == "1\n"


# --- queues --------------------------------------------------------------------------------------


def sent(cli: Cli, *texts: str) -> None:
    """To the queue `work`, and at the broker."""
    with holdfast.open(cli.home) as node:
        for text in texts:
            node.mesh("team").send(text, queue="work")
    cli("mesh", "sync")


def test_D5_a_message_of_a_queue_is_taken_by_one_and_settled(
    cli: Cli, bob: Cli, hub: BrokerUp
) -> None:
    both(cli, bob, hub)
    assert "no queue" in cli("queue", "list").err
    cli("mesh", "queue", "work", "--deliveries", "2")
    sent(cli, "one", "two")
    first = bob("queue", "take", "work", "--json").json
    assert [(one["text"], one["sender"], one["deliveries"]) for one in first] == [("one", "ana", 1)]
    second = cli("queue", "take", "work", "--most", "5", "--json").json
    assert [one["text"] for one in second] == ["two"], "nobody gets what another has"
    assert "nothing to take" in bob("queue", "take", "work").err
    bob("queue", "settle", "work", first[0]["handle"])
    cli("queue", "settle", "work", second[0]["handle"], "--again")
    again = bob("queue", "take", "work", "--json").json
    assert (again[0]["text"], again[0]["deliveries"]) == ("two", 2)
    late = cli("queue", "settle", "work", second[0]["handle"], "--json", code=None)
    assert late.code != 0, "it is somebody else's now"
    bob("queue", "settle", "work", again[0]["handle"], "--dead", "--reason", "cannot be done")
    letter = bob("queue", "letters", "work", "--json").json
    assert [one["reason"] for one in letter] == ["cannot be done"]
    cli("queue", "letters", "work", "--revive", str(letter[0]["seq"]))
    assert cli("queue", "list", "--json").json == [
        {"queue": "work", "ready": 1, "taken": 0, "dead": 0}
    ]


def test_D5_a_command_is_run_for_every_message(cli: Cli, bob: Cli, hub: BrokerUp) -> None:
    both(cli, bob, hub)
    cli("mesh", "queue", "work")
    sent(cli, "a", "b")
    done = bob("queue", "run", "work", "--", "tr", "a-z", "A-Z")
    assert (done.out, "2 messages of work done" in done.err) == ("AB", True)
    sent(cli, "c")
    failed = bob("queue", "run", "work", "--", "false", code=1)
    assert "was given back: exit code 1" in failed.err
    assert bob("queue", "take", "work", "--json").json[0]["deliveries"] == 2


# --- killed --------------------------------------------------------------------------------------

ROWS = 12_000


async def _fill(home: Path) -> None:
    async with holdfast.aopen(home, sync="normal") as node:
        team = await node.mesh("team")
        rows = (team.state.set(f"key {n}", {"n": n, "text": "x" * 100}) for n in range(ROWS))
        await asyncio.gather(*rows)


def _hold(hub: BrokerUp, after: int) -> tuple[threading.Event, Callable[[], object]]:
    """The broker stores so many parts of a snapshot, then does not answer until it is let go."""
    store: Any = hub.daemon.broker.store
    kept: Callable[..., Any] = store.snapshot_add
    held, gone = threading.Event(), asyncio.Event()

    async def add(mesh: str, id: str, number: int, rows: int, part: bytes) -> Any:
        following = await kept(mesh, id, number, rows, part)
        if number + 1 == after:
            held.set()
            await gone.wait()
        return following

    store.snapshot_add = add
    return held, lambda: hub.loop.call_soon_threadsafe(gone.set)


def test_S14_R2_a_publish_that_was_killed_half_way_goes_on(
    cli: Cli, bob: Cli, hub: BrokerUp
) -> None:
    asyncio.run(_fill(cli.home))
    held, let_go = _hold(hub, after=1)
    words = ["mesh", "publish", "team", "--broker", hub.url, "--home", str(cli.home)]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], env={**os.environ}, stderr=subprocess.DEVNULL
    )
    assert held.wait(PATIENCE_S)
    process.kill()
    process.wait(PATIENCE_S)
    let_go()
    cli("state", "set", "meanwhile", "works")
    assert cli("mesh", "invite", "--json", code=5).error["code"] == "conflict"
    done = cli("mesh", "publish", "--json").json
    assert (done["way"], done["rows"], done["resumed"], done["waiting"]) == (
        "snapshot",
        ROWS,
        True,
        0,
    )
    bob("mesh", "join", done["invite"])
    bob("mesh", "sync")
    assert bob("state", "get", "meanwhile").out == "works\n"
    with holdfast.open(cli.home) as one, holdfast.open(bob.home) as other:
        mine, theirs = (snapshot(node._engine.store)["team"] for node in (one, other))
        assert mine == theirs


def test_D12_a_lane_that_halts_does_so_without_a_daemon_too(
    cli: Cli, hub: BrokerUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('[outbox]\npolicy = "halt"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(settings))
    published(cli, hub)
    cli("send", "to nowhere", "--topic", "gossip")

    def was_tried() -> bool:
        """On a busy machine its patience may end before that."""
        cli("mesh", "sync", "--patience", "1", code=None)
        return bool(cli("outbox", "list", "--json").json[0]["attempts"])

    until(was_tried)
    cli("state", "set", "k", "1")
    cli("mesh", "sync", "--patience", "1", code=None)
    rows = cli("outbox", "list", "--json").json
    assert [(row["op"], row["state"]) for row in rows] == [
        ("message.send", "pending"),
        ("state.set", "pending"),
    ]


def test_S15_members_are_listed_from_what_is_kept_when_the_broker_is_away(
    cli: Cli, bob: Cli, tmp_path: Path
) -> None:
    with broker_at(tmp_path / "hub") as hub:
        both(cli, bob, hub)
        cli("state", "set", "k", "1")
        cli("mesh", "sync")
        listed = {one["name"]: one for one in cli("mesh", "members", "--json").json}
    alone = cli("mesh", "members", "--json")
    kept = {one["name"]: one for one in alone.json}
    assert kept.keys() == listed.keys() == {"ana", "bob"}
    for name, one in kept.items():
        assert (one["key"], one["grants"]) == (listed[name]["key"], listed[name]["grants"])
        assert (one["seen_at"] or 0) >= (listed[name]["seen_at"] or 0)
    warning = json.loads(alone.err.splitlines()[0])["warning"]
    assert (warning["type"], warning["mesh"]) == ("offline", "team")
    assert warning["since"] == cli("mesh", "clock", "--json").json["last_sync_at"] > 0
    assert "bob" in cli("mesh", "members").out
    never = bob("mesh", "members")
    assert "ana" in never.out, "who has joined was told of them"


def test_S15_the_clock_says_offline_from_any_process_as_soon_as_it_is_so(
    cli: Cli, bob: Cli, tmp_path: Path
) -> None:
    """Also within the minute in which the store still tells that the broker was reached."""
    with broker_at(tmp_path / "hub") as hub:
        both(cli, bob, hub)
        bob("state", "set", "k", "1")
        bob("mesh", "sync")
        cli("mesh", "sync")
        with holdfast.open(cli.home) as node:
            assert node.mesh("team").clock().sync_state == "idle", "by the store alone"
        assert cli("mesh", "clock", "--json").json["sync_state"] == "offline", "nothing exchanges"
    with running(cli.home):
        (broker,) = cli("status", "--json").json["brokers"]
        assert [one["state"] for one in broker["meshes"]] == ["offline"]
        assert cli("mesh", "clock", "--json").json["sync_state"] == "offline"


def test_S20_a_deleted_mesh_stays_away_until_it_is_joined_again_and_is_whole_then(
    cli: Cli, bob: Cli, hub: BrokerUp
) -> None:
    both(cli, bob, hub)
    bob("state", "set", "of bob", "1")
    cli("state", "set", "of ana", "2")
    for one in (bob, cli, bob):
        one("mesh", "sync")
    with running(bob.home):
        refused = bob("mesh", "delete", "team", "--yes", "--json", code=5).error
        assert "a member of it at" in refused["message"]
        bob("mesh", "delete", "team", "--owed-too", "--yes")
        cli("state", "set", "late", "3")
        cli("mesh", "sync")
        assert bob("mesh", "list", "--json").json == [], "the daemon does not bring it back"
    invite = cli("mesh", "invite", "--json").json["text"]
    bob("mesh", "join", invite)
    bob("mesh", "sync")
    found = {row["key"]: row["value"] for row in bob("state", "list", "--json").json}
    assert found == {"of bob": "1", "of ana": "2", "late": "3"}
    bob("state", "set", "of bob", "again")
    for one in (bob, cli):
        one("mesh", "sync")
    assert cli("state", "get", "of bob").out == "again\n"
    assert [
        check
        for check in bob("doctor", "--json", code=None).json["checks"]
        if check["status"] == "fail"
    ] == []
