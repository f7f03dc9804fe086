"""What people see and can do about the sync with a broker: status, pause, resume, quarantine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.apps.cli.commands.status import _broker_text
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rows import JobRow, QuarantineRow
from holdfast.storage.ports import Transaction
from support.cli import Cli
from support.daemon import running
from support.envelopes import memory_set
from support.live_broker import LiveBroker, share
from support.waiting import until

CARD = card_of("hub", public_key(b"B" * 32))
AWAY = "http://127.0.0.1:9"
LANE = lane_of("team")


@pytest.fixture
def shared(cli: Cli) -> Cli:
    """The mesh is shared through a broker that nobody runs."""
    with holdfast.open(cli.home) as node:
        row = msgspec.structs.replace(
            node.mesh("team").info(),
            kind="shared_owner",
            broker_url=AWAY,
            broker_card=CARD,
            server_id="server-1",
            broker_epoch=1,
        )
        node._engine.write("test", lambda tx: tx.mesh_change(row))
    return cli


def test_U2_the_status_says_what_waits_for_the_broker(shared: Cli) -> None:
    shared("state", "set", "a", "1")
    found = shared("status", "--json").json
    (broker,) = found["brokers"]
    assert (broker["broker"], broker["state"], broker["meshes"][0]["pending"]) == (
        "hub",
        "stopped",
        1,
    )
    assert found["next"] == "holdfast up"
    text = shared("status").out
    assert "broker     hub is stopped\n" in text
    assert "shared     team is stopped: 1 to send\n" in text


def test_S15_the_clock_says_that_nobody_is_there(shared: Cli) -> None:
    assert shared("mesh", "clock", "--json").json["sync_state"] == "offline"


def test_D12_a_mesh_is_paused_and_resumed(shared: Cli) -> None:
    assert shared("mesh", "pause", "--json").json == {"mesh": "team", "sync_paused": True}
    assert shared("mesh", "clock", "--json").json["sync_state"] == "paused"
    assert "go on with: holdfast mesh resume" in shared("status").out
    done = shared("mesh", "resume", "--json").json
    assert done == {"mesh": "team", "was_paused": True, "retried": 0}
    assert shared("mesh", "info", "--json").json["sync_paused"] is False


def test_D12_a_personal_mesh_is_not_paused(cli: Cli) -> None:
    assert cli("mesh", "pause", "--json", code=5).error["code"] == "not_shared"


def test_D12_doctor_tells_of_a_paused_mesh_and_lets_it_go_on(shared: Cli) -> None:
    shared("state", "set", "a", "1")
    _refuse(shared.home)
    shared("mesh", "pause")
    said = shared("doctor", code=None).out
    assert "[WARN] sync: team is paused: 1 changes and messages wait" in said
    assert "fix: look at what failed: holdfast outbox list; then: holdfast doctor" in said
    done = shared("doctor", "--resume-sync", "--json").json
    assert done["resumed"] == [{"mesh": "team", "was_paused": True, "retried": 1}]
    assert not done["daemon"]
    assert shared("doctor", "--resume-sync", "--json").json["resumed"] == []
    with holdfast.open(shared.home) as node:
        (row,) = node._engine.read("test", lambda tx: tx.outbox_list(LANE, (), 0, 9))
        assert (row.state, row.attempts, row.not_before) == (OutboxState.PENDING, 0, 0)


def test_D12_doctor_does_one_thing_at_a_time(shared: Cli) -> None:
    assert shared("doctor", "--resume-sync", "--repair", "--json", code=2).error


def test_D13_what_a_broker_brought_and_was_set_aside_is_tried_again_or_given_up(
    shared: Cli,
) -> None:
    raw = memory_set("m", 1)
    with holdfast.open(shared.home) as node:
        for number, found in enumerate((raw, b"garbage"), 1):
            row = QuarantineRow(
                link=LANE, epoch=1, offset=number, code="x", message="y", raw=found, found_at=1
            )
            node._engine.write("test", partial(_add, row))
    assert "[WARN] sync: 2 envelopes of team" in shared("doctor", code=None).out
    assert len(shared("link", "quarantine", LANE, "--json").json) == 2
    done = shared("link", "retry", LANE, "--json").json
    assert (done["passed"], done["refused"]) == (1, 1)
    assert "bob" in shared("memory", "get", "m", "--scope", "all", "--json").out
    assert shared("link", "drop", LANE, "--all", "--json").json["dropped"] == 1
    assert shared("link", "quarantine", "broker:none", "--json", code=4).error


def test_U2_a_daemon_tells_how_it_stands_with_its_broker(cli: Cli, tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "hub") as broker:
        share(cli.home, broker)
        with running(cli.home) as up:
            cli("state", "set", "a", "1")
            until(lambda: broker.run(broker.store.mesh_get("team")).seq == 1)
            sync_manager = up.daemon.api.sync_manager
            assert sync_manager is not None
            until(lambda: not sync_manager.status()[0].meshes[0].inflight)
            assert "shared     team is active: all is sent\n" in cli("status").out
            cli("mesh", "pause")
            cli("state", "set", "b", "1")
            until(lambda: sync_manager.status()[0].meshes[0].pending == 1)
            cli("doctor", "--resume-sync")
            until(lambda: broker.run(broker.store.mesh_get("team")).seq == 2)


def _add(row: QuarantineRow, tx: Transaction) -> None:
    tx.quarantine_add(row)


def _refuse(home: Path) -> None:
    with holdfast.open(home) as node:
        (row,) = node._engine.read("test", lambda tx: tx.outbox_list(LANE, (), 0, 9))
        refused = msgspec.structs.replace(row, attempts=3, not_before=1 << 50, code="not_granted")
        node._engine.write("test", lambda tx: tx.outbox_put(refused))


def test_D13_the_status_names_the_lane_of_a_mesh_that_is_full() -> None:
    """And what to do about it: `over_limit` alone helps nobody."""
    trouble = {"message": "broker:team has 10000 envelopes in quarantine", "hint": "look at them"}
    mesh = {"mesh": "team", "state": "over_limit", "trouble": trouble, "pending": 0, "inflight": 0}
    broker = {"broker": "hub", "state": "active", "last_error": None, "attempts": 0}
    text = "".join(_broker_text({**broker, "meshes": [{**mesh, "lag": 2, "dead": 0}]}))
    assert "over_limit" in text
    assert "broker:team has 10000" in text
    assert "look at them" in text


def test_D8_what_must_stop_is_told_by_up_check_doctor_and_mesh_sync(
    shared: Cli, tmp_path: Path
) -> None:
    """By its own name and a code that is not 0, whoever looks."""
    code = "outbox_max_age_above_dedupe_window"
    terms = {"mode": "retention_scoped", "days": 3}
    cursor = {**terms, "code": code, "message": "too long", "hint": "less"}
    row = JobRow(name=f"terms:{AWAY}", cursor=cursor, updated_at=1)
    with holdfast.open(shared.home) as node:
        node._engine.write("test", lambda tx: tx.job_put(row))
    assert f"nothing is exchanged with {AWAY}: too long" in shared("check", "outbox", code=2).out
    assert "too long" in shared("doctor", code=1).out
    (tmp_path / "settings.toml").write_text("[outbox]\nmax_age_hours = 72\n")
    env = {"HOLDFAST_CONFIG": str(tmp_path / "settings.toml")}
    for words in (("up",), ("mesh", "sync")):
        refused = shared(*words, "--json", code=None, env=env)
        assert refused.code not in (0, None), words
        assert code in refused.err + refused.out, words
