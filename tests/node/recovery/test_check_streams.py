"""The doctor and the streams of meshes on the bus."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.node.bus.meshes import backfill
from holdfast.node.library.node import open_node
from holdfast.node.recovery.check_streams import REPAIR_STREAMS, check_streams
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.recount_streams import recount_streams
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.snapshot_copy import open_read_only
from support.cli import Cli
from support.daemon import make_home
from support.envelopes import fact_append, make_id
from support.nodes import share

MESH = "team"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a mesh on the bus: entries of its own, a message, and some of another, with a
    hole.
    """
    folder = make_home(tmp_path_factory.mktemp("made") / "home")
    with open_node(folder, sync="normal") as node:
        share(node)
        mesh = node.mesh(MESH)
        mesh.state.set("k", 1)
        backfill.switch_on(node._engine, MESH)
        while backfill.count_next(node._engine, MESH):
            pass
        mesh.facts.append("s", "p", 1)
        mesh.send("for some", topic="builds")
        mesh.state.set("k", 2)
        for seq in (1, 2, 5):
            node.apply([fact_append("s", "p", seq, seq=seq, id=make_id(seq), origin="bob")])
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "home"))


def found(home: Path, *, full: bool = True) -> list[Check]:
    with open_read_only(HomePaths(home).database) as reader:
        return list(check_streams(reader, "ana", full=full))


def spoil(home: Path, statement: str) -> None:
    connection = apsw.Connection(str(HomePaths(home).database))
    connection.execute(statement)
    connection.close()


def test_S12_streams_that_agree_with_the_log_are_said_to(home: Path) -> None:
    (check,) = found(home)
    assert (check.status, check.message) == (
        "ok",
        "2 streams of 1 meshes on the bus agree with the log",
    )
    assert [check.status for check in found(home, full=False)] == ["ok"]
    assert recount_streams(home) == []


AT_A_GLANCE = {
    "UPDATE stream SET base = 99 WHERE origin = 'bob'": "begins after 99",
    "UPDATE stream SET floor = 99 WHERE origin = 'bob'": "was truncated up to 99, and ends at 5",
    "UPDATE stream SET ranges = '4-6,5-8' WHERE origin = 'bob'": "cannot be read",
    "UPDATE stream SET ranges = '1-6' WHERE origin = 'bob'": "cannot be read",
    "UPDATE stream_place SET offset = 99 WHERE seq = 5": "1 numbers that lead to no entry",
    "UPDATE stream SET prefix = 9 WHERE origin = 'ana'": "has written 4 numbers",
    "UPDATE stream SET prefix = 2 WHERE origin = 'ana'": "has written 4 numbers",
}
BY_ENTRIES = {
    "UPDATE stream_place SET offset = 2 WHERE seq = 5": "the entry of another place under number 5",
    "DELETE FROM stream_place WHERE seq = 5": "has 2 entries, and the log 3",
    "UPDATE stream SET ranges = '' WHERE origin = 'bob'": "number 5, which it does not cover",
    "UPDATE stream SET d3 = d3 + 1 WHERE origin = 'bob'": "another digest",
    "UPDATE stream SET entries = 7 WHERE origin = 'bob'": "another digest",
    "UPDATE stream SET origin = 'bea' WHERE origin = 'bob'": "of another place",
    "DELETE FROM stream WHERE origin = 'bob'": "3 entries of bob in epoch 1 are in no stream",
    "DELETE FROM stream_place WHERE stream = 1 AND seq = 4": "has 2 entries, and the log 3",
}


@pytest.mark.parametrize("statement", [*AT_A_GLANCE, *BY_ENTRIES])
def test_S12_streams_that_tell_peers_something_else_than_the_log_are_found(
    home: Path, statement: str
) -> None:
    spoil(home, statement)
    checks = [check for check in found(home) if check.status == "fail"]
    assert [check.fix for check in checks] == [REPAIR_STREAMS]
    assert (AT_A_GLANCE | BY_ENTRIES)[statement] in checks[0].message
    quick = [check.status for check in found(home, full=False)]
    assert ("fail" in quick) == (statement in AT_A_GLANCE)
    assert recount_streams(home) == [MESH]
    assert [check.status for check in found(home)] == ["ok"]


def test_S12_two_homes_under_one_name_are_told_by_the_doctor(home: Path) -> None:
    spoil(home, "UPDATE stream SET trouble = 'number 5 has two contents' WHERE origin = 'bob'")
    checks = found(home)
    assert [check.status for check in checks] == ["warn", "ok"]
    assert "what bob wrote to team: number 5 has two contents" in checks[0].message


def test_S12_the_command_counts_streams_again_and_leaves_the_log_alone(home: Path) -> None:
    spoil(home, "DELETE FROM stream_place WHERE seq = 5")
    found_by_all = [check for check in diagnose(home, full=True).checks if check.status == "fail"]
    assert [(check.name, check.fix) for check in found_by_all] == [("streams", REPAIR_STREAMS)]
    told = Cli(home)("doctor", "--repair")
    assert told.code == 0
    assert "counted again what peers get over the bus: team" in told.err
    assert not list(home.glob("*.corrupt-*")), "no new database was made"
    with open_node(home) as node:
        assert node._engine.ctx.epoch == 1
    assert [check.status for check in found(home)] == ["ok"]
