"""A home that was copied, and homes to throw away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.node.home import ephemeral, whereabouts
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.settings import Settings
from holdfast.rules.errors import HomeCopied
from holdfast.rules.home_copy import HomeNote, HomePlace
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home, running
from support.nodes import share


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A home that a daemon has served."""
    home = make_home(tmp_path / "home")
    with running(home):
        pass
    return home


def epoch_and_clock(home: Path) -> tuple[int, int]:
    with holdfast.open(home) as node:
        return node.log.head().epoch, node.mesh("team").clock().lamport


def test_S1_a_copy_is_not_served_beside_its_original(served: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(served, tmp_path / "copy"))
    assert whereabouts.place(HomePaths(copy)) is HomePlace.COPIED
    with pytest.raises(HomeCopied, match="as other files") as caught, running(copy):
        pass
    assert "up --moved" in caught.value.hint
    (found,) = [check for check in diagnose(copy).checks if check.name == "place"]
    assert (found.status, "copied or moved" in found.message) == ("warn", True)
    with running(served):
        pass  # the original goes on


def test_S1_a_home_that_was_moved_counts_on_in_a_new_epoch(served: Path, tmp_path: Path) -> None:
    epoch, clock = epoch_and_clock(served)
    copy = Path(shutil.copytree(served, tmp_path / "copy"))
    with running(copy, moved=True):
        pass
    after = epoch_and_clock(copy)
    assert (after[0], after[1] > clock) == (epoch + 1, True)
    with running(copy):
        pass  # it is at home here now
    assert epoch_and_clock(copy) == after
    os.rename(served, tmp_path / "renamed")
    with running(tmp_path / "renamed"):
        pass  # a home that is only renamed is the same home
    assert epoch_and_clock(tmp_path / "renamed") == (epoch, clock)


def test_S1_where_machines_move_homes_a_copy_is_let_pass(served: Path) -> None:
    paths = HomePaths(served)
    note = msgspec.json.decode(paths.whereabouts.read_bytes(), type=HomeNote)
    elsewhere = msgspec.structs.replace(note, host="another")
    # In place: the file keeps its number.
    paths.whereabouts.write_bytes(msgspec.json.encode(elsewhere))
    if note.host is None:
        pytest.skip("this system has no machine id")
    with pytest.raises(HomeCopied, match="another machine"), running(served):
        pass
    epoch, _ = epoch_and_clock(served)
    with running(served, Settings(copied_home="allow")):
        pass
    assert epoch_and_clock(served)[0] == epoch + 1


def test_S1_a_note_that_cannot_be_read_is_not_believed(served: Path) -> None:
    HomePaths(served).whereabouts.write_bytes(b"\xff{")
    with pytest.raises(HomeCopied), running(served):
        pass


def test_U4_an_ephemeral_home_goes_with_its_daemon_unless_it_owes_something(
    tmp_path: Path,
) -> None:
    paths = ephemeral.make({"XDG_RUNTIME_DIR": str(tmp_path)}, "ana", "scratch")
    assert paths.root.parent == tmp_path
    with holdfast.open(paths.root) as node:
        assert node.peer == "ana"
        node.mesh("scratch").state.set("k", 1)
    assert ephemeral.remove(paths) == 0
    assert not paths.root.exists()
    owing = ephemeral.make({"XDG_RUNTIME_DIR": str(tmp_path)}, None, "scratch")
    with holdfast.open(owing.root) as node:
        share(node, "scratch")
        node.mesh("scratch").state.set("k", 1)
    assert ephemeral.remove(owing) == 1
    assert owing.root.exists(), "what nobody else has is not thrown away"


def test_U4_only_a_home_that_was_made_for_it_is_thrown_away(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with pytest.raises(AssertionError):
        ephemeral.remove(HomePaths(home))
    assert home.exists()
