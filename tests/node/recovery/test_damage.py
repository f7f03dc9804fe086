"""Any damage: the doctor says what is wrong, a repair saves what can be read, nobody crashes."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery.doctor import UNFORESEEN, Report, diagnose
from holdfast.node.recovery.repair import repair_home
from holdfast.rules.errors import StoreCorrupt
from holdfast.storage.sqlite.recovery.wal_frames import look_at_wal
from support.damage import Entries, readable, small_home, spoil
from support.keeping import MESH, garbage, overwrite, team
from support.seeds import seeds

Made = dict[bool, tuple[Path, Entries]]

_TOLD_LATER = {"links", "blobs"}
"""Checks that may fail after a repair, for a person to act on: trust that is lost, content that is
not on the disk.
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A home that was closed, and one that was killed; tests work on copies."""
    homes = {}
    for killed in (False, True):
        home = tmp_path_factory.mktemp("small") / "home"
        homes[killed] = home, small_home(home, killed=killed)
    return homes


def copied(made: Made, tmp_path: Path, *, killed: bool = False) -> tuple[Path, Entries]:
    source, entries = made[killed]
    shutil.copytree(source, tmp_path / "home")
    return tmp_path / "home", entries


def told(report: Report) -> list[str]:
    for check in report.checks:
        assert check.name != UNFORESEEN, check.message
        assert check.message
        assert check.status == "ok" or check.fix, check
    return [check.name for check in report.checks if check.status == "fail"]


@pytest.mark.parametrize("seed", seeds(24))
def test_S12_doctor_and_repair_stand_whatever_a_disk_does(
    made: Made, tmp_path: Path, seed: int
) -> None:
    killed = seed // 10 % 2 == 1
    home, entries = copied(made, tmp_path, killed=killed)
    how = spoil(home, seed)
    could = readable(home, entries)
    found = {name for full in (False, True) for name in told(diagnose(home, full=full))}
    report = repair_home(home, peer="ana")
    assert set(told(diagnose(home, full=True))) <= _TOLD_LATER, how
    with open_node(home) as node:
        left = {entry.id: entry.raw for entry in node.log.range(node.log.head().first)}
        team(node).state.set("after", 1)
    whole = dict(entries.values())
    assert left.items() <= whole.items(), f"{how}: nothing is made up"
    assert could <= left.keys(), f"{how}: what SQLite can read is not lost"
    lost = len(whole) - len(left)
    if not killed:  # else nothing knows how far the log was
        assert report.tables["log"].lost == lost, how
        assert not lost or found, f"{how}: the doctor sees what a repair cannot save"


@pytest.mark.parametrize(
    "change",
    [
        "raw = CAST(x'00' || substr(raw, 2) AS BLOB)",
        "raw = substr(raw, 1, length(raw) - 1)",
        "leaf = zeroblob(32)",
        "id = zeroblob(16)",
        "mesh = 'other'",
        "op = 'state.delete'",
        "entity = 'other'",
        "entity = CAST(x'ff' AS TEXT)",
        "origin = 'eve'",
        "lamport = lamport + 1",
    ],
)
def test_S12_a_full_look_finds_a_change_of_any_column_of_an_entry(
    made: Made, tmp_path: Path, change: str
) -> None:
    home, _ = copied(made, tmp_path)
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        connection.execute(f"UPDATE log SET {change} WHERE offset = 5")
    said = {check.name: check.message for check in diagnose(home, full=True).checks}
    assert "1 entry of the log damaged, at offset 5" in said["entries"]


def test_S12_one_changed_byte_or_column_of_an_entry_is_mended_without_help(
    made: Made, tmp_path: Path
) -> None:
    home, entries = copied(made, tmp_path)
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        connection.execute(
            "UPDATE log SET raw = CAST(substr(raw, 1, 40) || x'00' || substr(raw, 42) AS BLOB), "
            "op = 'x' WHERE offset = 5"
        )
        connection.execute("UPDATE log SET entity = 'other', lamport = 7 WHERE offset = 6")
        connection.execute(
            "UPDATE log SET leaf = CAST(x'00' || substr(leaf, 2) AS BLOB) WHERE offset = 7"
        )
    report = repair_home(home)
    assert report.tables["log"].lost == 0
    with open_node(home) as node:
        assert {e.offset: (e.id, e.raw) for e in node.log.range()} == entries
        assert node.log.range(6, 7).__next__().entity != "other"


def test_S12_commits_after_a_flipped_byte_in_the_wal_are_told_and_saved(
    made: Made, tmp_path: Path
) -> None:
    home, entries = copied(made, tmp_path, killed=True)
    wal = home / "data.db-wal"
    whole = look_at_wal(wal)
    assert whole.frames > 20
    assert whole.beyond == 0
    data = bytearray(wal.read_bytes())
    data[5 * 4120] ^= 1
    wal.write_bytes(data)
    assert look_at_wal(wal).commits > 10
    (check,) = [c for c in diagnose(home).checks if c.name == "wal" and c.status == "fail"]
    assert "lost when the home is opened" in check.message
    with pytest.raises(StoreCorrupt, match="commits follow"):
        open_node(home)
    assert repair_home(home).tables["log"].lost == 0
    with open_node(home) as node:
        assert {e.offset: (e.id, e.raw) for e in node.log.range()} == entries
        assert node.mesh(MESH).state.get("key-11") == {"late": 11, "text": "y" * 300}


def test_S12_a_wal_that_a_power_cut_tore_is_opened(made: Made, tmp_path: Path) -> None:
    home, entries = copied(made, tmp_path, killed=True)
    wal = home / "data.db-wal"
    data = bytearray(wal.read_bytes())
    data[-1] ^= 1
    wal.write_bytes(data)
    assert look_at_wal(wal).commits == 1
    with open_node(home) as node:
        assert 0 < len(entries) - node.log.head().offset <= 2


def test_S12_a_torn_commit_that_filled_its_sector_is_one(made: Made, tmp_path: Path) -> None:
    """SQLite repeats the frame that commits, where the disk may harm what stands beside a write."""
    home, entries = copied(made, tmp_path, killed=True)
    wal = home / "data.db-wal"
    data = bytearray(wal.read_bytes())
    last = data[-4120:]
    data[-1] ^= 1
    wal.write_bytes(data + last + last)
    assert look_at_wal(wal).beyond > 2
    assert look_at_wal(wal).commits == 1
    with open_node(home) as node:
        assert 0 < len(entries) - node.log.head().offset <= 2


def test_S12_frames_of_an_earlier_log_within_a_torn_commit_are_no_commits(
    made: Made, tmp_path: Path
) -> None:
    """The file is used again after a checkpoint; a power cut may keep the end of a commit only."""
    home, entries = copied(made, tmp_path, killed=True)
    wal = home / "data.db-wal"
    data = bytearray(wal.read_bytes())
    last = data[-4120:]
    earlier = bytearray(last)
    earlier[3] ^= 1  # another page
    earlier[8:16] = b"earlier!"
    wal.write_bytes(data[:-4120] + earlier + last)
    assert look_at_wal(wal).commits == 1
    earlier[8:16] = last[8:15] + bytes([last[15] ^ 1])
    wal.write_bytes(data[:-4120] + earlier + last)
    assert look_at_wal(wal).commits == 2, "a flipped byte, and a commit after it"
    earlier[8:16] = b"earlier!"
    wal.write_bytes(data[:-4120] + earlier + last)
    with open_node(home) as node:
        assert 0 < len(entries) - node.log.head().offset <= 2


@pytest.mark.parametrize("lost", [False, True])
def test_S17_a_repair_keeps_what_was_buried_or_lets_nothing_old_in(
    made: Made, tmp_path: Path, lost: bool
) -> None:
    home, _ = copied(made, tmp_path)
    name = b"n" * 32
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        connection.execute("INSERT INTO buried VALUES (?, ?, 7)", (MESH, name))
        if lost:
            root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'buried'")
            page = int(str(root.get))
    if lost:
        overwrite(home / "data.db", page, garbage(1))
    repair_home(home, peer="ana")
    with open_node(home) as node, node._engine.store.read() as tx:
        mesh = tx.mesh_get(MESH)
        assert mesh is not None
        assert tx.buried(MESH, name) == (0 if lost else 7)
        assert (mesh.forgotten_lamport > 0) == lost


def test_S12_text_that_is_not_text_costs_its_own_row_only(made: Made, tmp_path: Path) -> None:
    home, _ = copied(made, tmp_path)
    with closing(apsw.Connection(str(home / "data.db"))) as connection:
        for name in "abcde":
            connection.execute("INSERT INTO job VALUES (?, '{}', 1)", (name,))
        connection.execute("UPDATE job SET cursor = CAST(x'ff' AS TEXT) WHERE name IN ('b', 'd')")
    assert repair_home(home).tables["job"].lost == 2
    with open_node(home) as node, node._engine.store.read() as tx:
        assert [name for name in "abcde" if tx.job_get(name) is not None] == ["a", "c", "e"]
