"""The doctor, a repair and a backup, where a quorum has committed something."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery.check_commits import check_commits
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.rules.bodies import TaskCreate, TaskTurn
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.intents import LeaseAcquire
from holdfast.rules.rows import MeshRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Reader
from holdfast.storage.sqlite.snapshot_copy import open_read_only
from model.test_quorum_model import run
from support.commit_pages import mission, page_of, take
from support.commits import commit, committed_state, entries_of, entry, with_quorum
from support.committed_rows import quorum_row
from support.daemon import make_home
from support.envelopes import MESH, make_id
from support.nodes import store_of
from support.quorum_state import fence, intent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a mesh whose quorum has committed of everything something."""
    folder = make_home(tmp_path_factory.mktemp("made") / "home")
    with open_node(folder, sync="normal") as node:
        node.mesh(MESH).state.set("k", 1)
        node.mesh(MESH).tasks.create("from before there were voters")
        store = store_of(node)
        store.write(lambda tx: tx.quorum_put(quorum_row()))
        order = entries_of(run(1)[1])
        task, number = make_id(900), len(order)
        more = [
            intent("task.create", id_text(task), TaskCreate("build"), id=task),
            intent("task.claim", id_text(task), TaskTurn(0), lamport=2),
            intent("lease.acquire", "to keep", LeaseAcquire(5_000)),
        ]
        order += [entry(one, number + at, fence(at, epoch=1_000)) for at, one in enumerate(more, 1)]
        commit(store, order, node._engine.ctx)
        node.mesh(MESH).state.set("k", 2)
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "home"))


def found(home: Path, *, full: bool) -> list[Check]:
    with open_read_only(HomePaths(home).database) as reader:
        return list(check_commits(reader, "ana", full=full))


def spoil(home: Path, statement: str) -> None:
    connection = apsw.Connection(str(HomePaths(home).database))
    connection.execute(statement)
    assert connection.changes() > 0
    connection.close()


def state_of(reader: Reader) -> dict[str, object]:
    """All but the clock, which a repair moves on."""
    found = committed_state(reader)
    clock = found.pop("clock")
    assert isinstance(clock, MeshRow)
    return found


def test_S12_what_the_commits_make_is_said_to_be_right(home: Path) -> None:
    (check,) = found(home, full=True)
    assert (check.status, "make what is here" in check.message) == ("ok", True)
    (check,) = found(home, full=False)
    assert (check.status, "look right" in check.message) == ("ok", True)
    report = diagnose(home, full=True)
    assert [one for one in report.checks if one.status == "fail"] == []


AT_A_GLANCE = {
    "UPDATE entity SET revision = revision + 1": "is not the last one that was committed",
    "UPDATE entity SET sequence = sequence + 1": "has another fence or time than commit",
    "UPDATE entity SET lamport = lamport + 1": "where the log has something else",
    "UPDATE quorum SET number = number + 1": "and the records do not",
    "UPDATE quorum SET fence = substr(fence, 1, 51) || 'eve'": "is not the one of commit",
}
ONLY_IN_FULL = {
    'UPDATE entity SET fields = \'{"title":"forged"}\' WHERE deleted = 0': "is not what the",
    "DELETE FROM entity": "is missing",
    "UPDATE quorum_lease SET holder = 'eve'": "the leases are not",
    "UPDATE task SET holder_peer = 'eve' WHERE status = 'claimed'": "is not what the commits",
}


@pytest.mark.parametrize("statement", AT_A_GLANCE)
def test_S12_an_entity_that_no_commit_made_is_seen_at_a_glance(home: Path, statement: str) -> None:
    spoil(home, statement)
    (check,) = found(home, full=False)
    assert check.status == "fail"
    assert AT_A_GLANCE[statement] in check.message


@pytest.mark.parametrize("statement", ONLY_IN_FULL)
def test_S12_what_differs_from_the_fold_of_the_commits_is_found(home: Path, statement: str) -> None:
    spoil(home, statement)
    assert [check.status for check in found(home, full=False)] == ["ok"]
    (check,) = found(home, full=True)
    assert check.status == "fail"
    assert ONLY_IN_FULL[statement] in check.message


def test_S12_a_repair_keeps_what_was_committed(home: Path) -> None:
    with open_read_only(HomePaths(home).database) as reader:
        before = state_of(reader)
    repair_home(home)
    with open_read_only(HomePaths(home).database) as reader:
        assert state_of(reader) == before
    assert [check.status for check in found(home, full=True)] == ["ok"]


def test_Q4_the_doctor_tells_what_others_have_otherwise(home: Path) -> None:
    other = with_quorum(MemoryStore())
    commit(other, [entry(mission("else"), 1)])
    with open_node(home, sync="normal") as node:
        assert take(store_of(node), page_of(other), source="eve").outcome == "forked"
    (bad,) = [one for one in found(home, full=False) if one.status == "fail"]
    assert "commit_forked at commit 1, as eve has it" in bad.message
