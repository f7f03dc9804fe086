"""Audit streams and telemetry through what befalls a home: the doctor, a repair, a restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.core.receive import receive_arrivals
from holdfast.node.library.node import Node, open_node
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.rules.arrivals import read_arrivals
from holdfast.storage.sqlite.integrity import integrity
from holdfast.storage.sqlite.snapshot_copy import open_immutable
from support.keeping import garbage, make_home, overwrite, team
from support.nodes import Nodes
from support.source import HandClock

STREAM = "activityLog"


def other(folder: Path, count: int = 3, word: str = "bob's") -> list[bytes]:
    """What another node has appended."""
    bob = Nodes("memory", folder, HandClock(seed=word)).open("bob")
    for number in range(count):
        team(bob).audit.append(STREAM, [word, number])
    return [entry.raw for entry in bob.log.range()]


def take(node: Node, *envelopes: bytes) -> None:
    """As a link brings them: what is refused goes to the quarantine."""
    arrivals, engine = read_arrivals(envelopes), node._engine
    places = range(1, len(arrivals) + 1)
    engine.write(
        "intake",
        lambda tx: receive_arrivals(engine, tx, arrivals, lane="link", epoch=1, offsets=places),
    )


def found(home: Path, *, full: bool = False) -> list[Check]:
    return [one for one in diagnose(home, full=full).checks if one.name == "audit"]


def test_Q14_the_doctor_warns_of_a_gap_until_it_is_filled(tmp_path: Path) -> None:
    home, (first, second, third) = tmp_path / "home", other(tmp_path)
    with make_home(home) as node:
        take(node, first, third)
    gap, told = found(home)
    assert (gap.status, told.status) == ("warn", "ok")
    assert "1 events of bob in 'activityLog' are missing" in gap.message
    with open_node(home) as node:
        take(node, second)
    (told,) = found(home, full=True)
    assert (told.status, told.message) == ("ok", "3 events of audit streams are here")


def test_Q14_the_doctor_fails_at_a_fork_and_says_where_the_evidence_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with make_home(home) as node:
        take(node, *other(tmp_path))
        take(node, *other(tmp_path, 1, "another past"))
    fork, told = found(home)
    assert (fork.status, told.status) == ("fail", "ok")
    assert "link quarantine link" in (fork.fix)


@pytest.mark.parametrize("table", ["audit", "audit_chain", "telemetry", "telemetry_count"])
def test_Q14_a_repair_gives_the_events_again_and_counts_them_anew(
    tmp_path: Path, table: str
) -> None:
    home = tmp_path / "home"
    with make_home(home) as node:
        mesh = team(node)
        for number in range(40):
            mesh.audit.append(STREAM, {"n": number, "text": "x" * 300})
            mesh.telemetry.set("run", f"{number:02}", "x" * 300)
        events, rows = list(mesh.audit.list(STREAM)), list(mesh.telemetry.list())
    with open_immutable(home / "data.db") as reader:
        page = reader.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
        ).get
    assert isinstance(page, int)
    overwrite(home / "data.db", page, garbage(7))
    repair_home(home)
    assert integrity(home / "data.db", ours=True) == []
    assert [one.status for one in found(home, full=True)] == ["ok"]
    with open_node(home) as node:
        mesh = team(node)
        assert list(mesh.audit.list(STREAM)) == events
        assert [(one.last, one.events) for one in mesh.audit.streams()] == [(40, 40)]
        kept = list(mesh.telemetry.list())
        assert kept == rows if table != "telemetry" else all(row in rows for row in kept)
        counted = node._engine.read("test", lambda tx: tx.telemetry_count("team"))
        assert counted == len(kept)
        # A repaired home has a log of its own, so its chain is another one.
        mesh.audit.append(STREAM, "after")
        assert [(one.epoch, one.last, one.sound) for one in mesh.audit.verify()] == [
            *((1, 40, True), (2, 1, True))
        ]


def test_Q14_a_restored_home_begins_a_chain_and_the_old_one_stays_verified(tmp_path: Path) -> None:
    cyd = Nodes("memory", tmp_path, HandClock()).open("cyd")
    with make_home(tmp_path / "home") as node:
        for number in range(3):
            team(node).audit.append(STREAM, number)
        team(node).telemetry.set("agent", "a", 7)
        backup(node, tmp_path / "backup")
        team(node).audit.append(STREAM, "after the backup")
        cyd.apply([entry.raw for entry in node.log.range()])
    restore(tmp_path / "backup", tmp_path / "again")
    with open_node(tmp_path / "again") as again:
        team(again).audit.append(STREAM, "another fourth")
        chains = [(one.epoch, one.last, one.sound) for one in team(again).audit.verify()]
        assert chains == [(1, 3, True), (2, 1, True)]
        assert team(again).telemetry.get("agent", "a") == 7
        applied = cyd.apply([entry.raw for entry in again.log.range()])
    assert [one.error for one in applied if one.error] == []
    told = [(one.epoch, one.last, one.sound, one.forks) for one in team(cyd).audit.verify()]
    assert told == [(1, 4, True, ()), (2, 1, True, ())], "no place was given twice"
