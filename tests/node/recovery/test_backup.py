"""Backups under load, restores that are interrupted, and logs that go back in time."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from holdfast.node.home.opening import LogMark
from holdfast.node.library.node import Node, open_node
from holdfast.node.recovery.backup import JOB, backup, restore
from holdfast.node.recovery.backup_manifest import BackupManifest, read_manifest
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.trust.own_key import OwnKey
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules import limits
from holdfast.rules.errors import (
    AlreadyExists,
    BadPath,
    DiskFull,
    NewerSchema,
    StoreBusy,
    StoreCorrupt,
    UnsupportedProtocol,
)
from holdfast.rules.quorum.log_rows import KnownGroup
from holdfast.storage.files import backup_lock
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite import snapshot_copy as copying
from holdfast.storage.sqlite.integrity import integrity
from holdfast.storage.sqlite.recovery import swap
from holdfast.storage.sqlite.snapshot_copy import open_immutable
from support.keeping import (
    LARGE,
    MODEL,
    crash_at_each_step,
    fail_at_each_step,
    fill,
    garbage,
    make_home,
    overwrite,
    team,
)
from support.quorum_logs import TAG, filled, opened, write
from support.snapshot import differences, snapshot

ANYTHING_OLD = Ttl(blob_ms=0, orphan_ms=0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = make_home(tmp_path / "home")
    fill(team(made))
    return made


@pytest.fixture
def made(node: Node, tmp_path: Path) -> Path:
    """A backup; the home that it is of is closed and has gone on since."""
    backup(node, tmp_path / "backup")
    team(node).state.set("since", 1)
    node.close()
    return tmp_path / "backup"


def read(home: Path, key: str) -> object:
    with open_node(home) as node:
        return team(node).state.get(key)


# --- making --------------------------------------------------------------------------------------


def test_S13_a_backup_holds_all_that_the_home_held(node: Node, tmp_path: Path) -> None:
    before = snapshot(node._engine.store)
    report = backup(node, tmp_path / "backup")
    node.close()
    assert (report.peer, report.epoch, report.blobs, report.missing) == ("ana", 1, 1, ())
    restored = restore(tmp_path / "backup", tmp_path / "again")
    assert (restored.peer, restored.head, restored.blobs) == ("ana", report.head, 1)
    with open_node(tmp_path / "again") as again:
        assert differences(before, snapshot(again._engine.store)) == []
        assert team(again).files.read("large.bin") == LARGE
        assert len(team(again).vectors.search([0, 1, 2], model=MODEL, limit=5)) == 5
    key = (tmp_path / "again" / "identity.key").read_bytes()
    assert key == (tmp_path / "home" / "identity.key").read_bytes()


def test_S13_writes_between_the_steps_of_a_copy_do_not_start_it_over(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "BACKUP_STEP_PAGES", 2)
    written, reached = 0, 0

    def progress(done: int, total: int) -> None:
        nonlocal written, reached
        if total != len(LARGE):
            assert done > reached, "the copy began anew"
            reached = done
            written += 1
            team(node).state.set(f"during-{written}", written)

    head = node.log.head().offset
    report = backup(node, tmp_path / "backup", progress)
    assert written > 10
    assert report.head == head
    assert node.log.head().offset == head + written
    node.close()


def test_S13_a_backup_under_a_writing_thread_is_one_point_of_the_log(
    node: Node, tmp_path: Path
) -> None:
    stop, begun = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            team(node).state.set("counter", number)
            team(node).memory.set("counter", number)
            begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(30)
        for number in range(3):
            backup(node, tmp_path / f"backup-{number}")
    finally:
        stop.set()
        thread.join()
    originals = {entry.offset: entry.raw for entry in node.log.range()}
    node.close()
    for number in range(3):
        home = tmp_path / f"again-{number}"
        report = restore(tmp_path / f"backup-{number}", home)
        with open_node(home) as again:
            entries = list(again.log.range())
            assert [entry.offset for entry in entries] == list(range(1, report.head + 1))
            assert all(entry.raw == originals[entry.offset] for entry in entries)
            state, memory = team(again).state.get("counter"), team(again).memory.get("counter")
            assert memory is not None
            assert state - memory.value in (0, 1)


def test_S13_no_sweep_removes_a_blob_while_it_is_copied(node: Node, tmp_path: Path) -> None:
    def progress(done: int, total: int) -> None:
        if total != len(LARGE):
            # The database is copied and names the blob; now the blob is given up and swept.
            team(node).files.delete("large.bin")
            assert node.sweep(ANYTHING_OLD).blobs == 0

    report = backup(node, tmp_path / "backup", progress)
    assert report.missing == ()
    assert node.sweep(ANYTHING_OLD).blobs == 1
    node.close()


def test_S13_whoever_removes_blobs_is_alone_and_whoever_copies_them_is_not(node: Node) -> None:
    paths = HomePaths(node.home)
    with (
        backup_lock.holding(paths),
        backup_lock.holding(paths),
        backup_lock.free(paths) as nobody_copies,
    ):
        assert not nobody_copies
    with backup_lock.free(paths) as nobody_copies:
        assert nobody_copies
    assert stat.S_IMODE(paths.backup_lock.stat().st_mode) == 0o600
    node.close()


def test_B6_a_restored_home_still_shows_how_it_came_to_its_key(tmp_path: Path) -> None:
    node = make_home(tmp_path / "home")
    key = OwnKey(node._engine, HomePaths(node.home))
    key.make_next()
    key.switch()
    assert len(key.former()) == 1
    backup(node, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    with open_node(tmp_path / "new") as restored:
        assert OwnKey(restored._engine, HomePaths(restored.home)).former() == key.former()


def test_Q4_the_raft_logs_are_in_no_backup_and_outlive_no_restore(
    node: Node, tmp_path: Path
) -> None:
    log = opened(node.home)
    filled(log, 1)
    log.save(write(2, term=5, vote=3))
    backup(node, tmp_path / "backup")
    log.close()
    node.close()
    assert not list((tmp_path / "backup").rglob("quorum*"))
    home = node.home
    report = restore(tmp_path / "backup", home, force=True)
    assert not HomePaths(home).quorum.exists()
    assert any(path.name.startswith("quorum.db.before-restore-") for path in report.aside)
    log = opened(home)
    assert (log.group("team").standing, log.head("team").term) == ("must_rejoin", 5)
    log.close()
    restore(tmp_path / "backup", tmp_path / "fresh")
    assert not list((tmp_path / "fresh").glob("quorum*"))
    known = KnownGroup(scope="team", incarnation=1, tag=TAG, voter=1)
    log = opened(tmp_path / "fresh", known=[known])
    assert log.group("team").standing == "must_rejoin"
    log.close()


def test_S13_a_backup_is_for_our_eyes_only(made: Path) -> None:
    for folder, _, files in os.walk(made):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for file in files:
            assert stat.S_IMODE(os.stat(Path(folder) / file).st_mode) == 0o600


def test_S13_a_backup_never_replaces_something(node: Node, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(AlreadyExists):
        backup(node, tmp_path / "full")
    with pytest.raises(BadPath):
        backup(node, node.home / "backup")
    with pytest.raises(BadPath):
        backup(node, tmp_path / "nowhere" / "backup")
    (tmp_path / "empty").mkdir()
    backup(node, tmp_path / "empty")
    node.close()


def test_S13_a_half_made_backup_never_bears_its_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "no space")
    arm = fail_at_each_step(lambda name, call: monkeypatch.setattr(os, name, call), full)
    for step in range(1, 1000):
        arm(step)
        try:
            backup(node, tmp_path / "backup")
        except DiskFull:
            arm(0)
            assert not (tmp_path / "backup").exists() or _is_whole(tmp_path / "backup")
            shutil.rmtree(tmp_path / "backup", ignore_errors=True)
            assert [path.name for path in tmp_path.iterdir()] == ["home"]
        else:
            break
    assert step > 8, "there are that many steps that can fail"
    assert _is_whole(tmp_path / "backup")
    node.close()


def _is_whole(folder: Path) -> bool:
    """Only the flush of the folder above may fail after the rename, and then all is there."""
    return (folder / "manifest.json").exists()


def test_S13_a_crash_while_backing_up_leaves_no_backup_or_a_whole_one(
    node: Node, tmp_path: Path
) -> None:
    node.close()
    target, again = tmp_path / "backup", tmp_path / "again"

    def work() -> None:
        with open_node(node.home) as inner:
            backup(inner, target)

    def judge() -> None:
        if target.exists():
            assert restore(target, again).peer == "ana"
            shutil.rmtree(target)
            shutil.rmtree(again)

    assert crash_at_each_step(judge, work) > 10
    judge()


def test_S13_damage_is_not_copied_into_a_backup(node: Node, tmp_path: Path) -> None:
    node.close()
    with open_immutable(node.home / "data.db") as reader:
        root = reader.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'forgotten'"
        ).get
    overwrite(node.home / "data.db", root, garbage(1))
    with open_node(node.home) as damaged, pytest.raises(StoreCorrupt):
        backup(damaged, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_S13_content_that_is_damaged_or_gone_is_told_and_left_out(
    node: Node, tmp_path: Path
) -> None:
    team(node).files.share("second.bin", LARGE + b"!")
    first, second = (team(node).files.info(name).sha256 for name in ("large.bin", "second.bin"))
    blobs = node.home / "blobs"
    (blobs / first[:2] / first).unlink()
    (blobs / second[:2] / second).write_bytes(b"rotten")
    report = backup(node, tmp_path / "backup")
    assert sorted(report.missing) == sorted([first, second])
    assert report.blobs == 0
    node.close()
    assert restore(tmp_path / "backup", tmp_path / "again").missing == report.missing


# --- restoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data.db", "identity.key", "blobs", "manifest.json"])
@pytest.mark.parametrize("harm", ["change", "remove"])
def test_S13_a_backup_that_was_tampered_with_is_refused_and_nothing_is_touched(
    made: Path, tmp_path: Path, name: str, harm: str
) -> None:
    file = next((made / name).rglob("*/*")) if name == "blobs" else made / name
    if harm == "remove":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    before = (tmp_path / "home" / "data.db").read_bytes()
    with pytest.raises((StoreCorrupt, BadPath)) as caught:
        restore(made, tmp_path / "home", force=True)
    assert caught.value.hint
    assert (tmp_path / "home" / "data.db").read_bytes() == before
    with pytest.raises((StoreCorrupt, BadPath)):
        restore(made, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def _rewrite(made: Path, **changes: object) -> None:
    """A manifest that fits itself, whatever it says."""
    manifest = msgspec.json.decode((made / "manifest.json").read_bytes(), type=BackupManifest)
    changed = msgspec.structs.replace(manifest, **changes)
    (made / "manifest.json").write_bytes(changed.signed().encode())


def test_S13_a_manifest_cannot_lead_out_of_its_folder(made: Path, tmp_path: Path) -> None:
    manifest = msgspec.json.decode((made / "manifest.json").read_bytes(), type=BackupManifest)
    outside = msgspec.structs.replace(manifest.blobs[0], path="blobs/../../secret")
    _rewrite(made, files=(*manifest.files, outside))
    with pytest.raises(StoreCorrupt, match="does not belong"):
        restore(made, tmp_path / "new")


def test_S13_a_backup_of_a_later_format_is_refused(made: Path, tmp_path: Path) -> None:
    _rewrite(made, version=2)
    with pytest.raises(UnsupportedProtocol):
        restore(made, tmp_path / "new")


def test_S11_a_backup_with_a_newer_schema_is_refused(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.storage.sqlite.migrations.LATEST", 4)
    with pytest.raises(NewerSchema):
        restore(made, tmp_path / "new")


def test_S13_a_restored_log_counts_in_a_new_epoch_and_its_clocks_skip_ahead(
    made: Path, tmp_path: Path
) -> None:
    report = restore(made, tmp_path / "new")
    assert report.epoch == 2
    with open_node(tmp_path / "new") as node:
        assert node.log.head().epoch == 2
        before = max(entry.lamport for entry in node.log.range())
        receipt = team(node).state.set("after", 1)
        assert receipt.lamport > before + limits.RESTORE_LAMPORT_SKIP


def test_S13_a_restored_home_knows_the_backup_that_it_comes_from(
    node: Node, tmp_path: Path
) -> None:
    before = node._engine.ctx.now_ms()
    backup(node, tmp_path / "saved")
    node.close()
    restore(tmp_path / "saved", tmp_path / "again")
    (found,) = [check for check in diagnose(tmp_path / "again").checks if check.name == "backup"]
    assert (found.status, str(tmp_path / "saved") in found.message) == ("ok", True)
    with open_immutable(HomePaths(tmp_path / "again").database) as reader:
        job = reader.job_get(JOB)
    assert job is not None
    assert job.updated_at >= before, "it is as old as the backup, not as the restore"
    assert job.updated_at == read_manifest(tmp_path / "saved").created_at


def test_S13_the_new_epoch_is_above_that_of_the_home_it_replaces(
    made: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for epoch in (2, 3, 4):
        assert restore(made, home, force=True).epoch == epoch
    with open_node(home) as node:
        lamport = team(node).clock().lamport
    # The clocks of the home that is replaced count too: it may have stamped more than the backup.
    restore(made, home, force=True)
    with open_node(home) as node:
        assert team(node).clock().lamport >= lamport + limits.RESTORE_LAMPORT_SKIP


def test_S13_the_epoch_outlives_the_database(made: Path, tmp_path: Path) -> None:
    paths = HomePaths(tmp_path / "home")
    paths.mark.write_bytes(msgspec.json.encode(LogMark(41, 3)))
    paths.database.unlink()
    # What remains of a home needs no force: nothing of it is replaced.
    assert restore(made, paths.root).epoch == 42
    assert msgspec.json.decode(paths.mark.read_bytes(), type=LogMark).epoch == 42


def test_S13_a_home_is_replaced_by_force_only_and_kept_aside(made: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with open_node(home) as node:
        team(node).files.share("only-here.bin", LARGE + b"here")
        sha = team(node).files.info("only-here.bin").sha256
    with pytest.raises(AlreadyExists):
        restore(made, home)
    assert read(home, "since") == 1
    report = restore(made, home, force=True)
    assert read(home, "since") is None
    with open_node(home) as node:
        node.sweep(ANYTHING_OLD)
    database, blobs = report.aside
    assert ".before-restore-" in database.name
    assert (blobs / sha[:2] / sha).read_bytes() == LARGE + b"here"
    # Together they are the old home again.
    old = tmp_path / "old"
    old.mkdir(mode=0o700)
    shutil.copy(database, old / "data.db")
    shutil.copytree(blobs, old / "blobs")
    shutil.copy(home / "identity.key", old / "identity.key")
    with open_node(old) as node:
        assert team(node).state.get("since") == 1
        assert team(node).files.read("only-here.bin") == LARGE + b"here"


def test_S13_only_a_home_or_an_empty_place_is_restored_into(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "letter.txt").touch()
    with pytest.raises(AlreadyExists):
        restore(made, folder, force=True)
    with pytest.raises(AlreadyExists):
        restore(made, folder / "letter.txt", force=True)
    assert os.listdir(folder) == ["letter.txt"]
    with pytest.raises(BadPath):
        restore(folder, tmp_path / "new")


def test_S13_another_nodes_home_is_not_replaced(made: Path, tmp_path: Path) -> None:
    make_home(tmp_path / "bobs", "bob").close()
    with pytest.raises(AlreadyExists, match="identity"):
        restore(made, tmp_path / "bobs", force=True)


def test_S1_a_home_that_is_open_is_not_restored_over(made: Path, tmp_path: Path) -> None:
    with open_node(tmp_path / "home") as node:
        with pytest.raises(StoreBusy, match="this very process"):
            restore(made, tmp_path / "home", force=True)
        assert team(node).state.get("since") == 1


def test_S13_a_crash_while_restoring_leaves_the_old_home_or_the_new_one(
    made: Path, tmp_path: Path
) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.rename(kept)
    seen = set()

    def judge() -> None:
        if home.exists():
            # Without it, opening cannot make up for an epoch that was not raised in time.
            (home / "log.mark").unlink()
            with open_node(home) as node:
                mesh = team(node)
                old = mesh.state.get("since") == 1
                assert node.log.head().epoch == (1 if old else 2)
                assert mesh.files.read("large.bin") == LARGE
                assert len(list(mesh.state.list())) == (6 if old else 5)
                seen.add(old)
            assert integrity(home / "data.db", ours=True) == []
            shutil.rmtree(home)
        shutil.copytree(kept, home)

    steps = crash_at_each_step(judge, lambda: restore(made, home, force=True))
    judge()
    assert steps > 15
    assert seen == {True, False}


def test_S13_a_crash_while_restoring_to_a_new_place_leaves_none_or_the_whole(
    made: Path, tmp_path: Path
) -> None:
    home = tmp_path / "new"
    seen = set()

    def judge() -> None:
        there = (home / "data.db").exists()
        seen.add(there)
        if there:
            assert read(home, "key-1") == {"n": 1, "text": "x" * 300}
        elif home.exists():
            # It can be done again, without force.
            restore(made, home)
            assert read(home, "key-1") == {"n": 1, "text": "x" * 300}
        shutil.rmtree(home, ignore_errors=True)

    assert crash_at_each_step(judge, lambda: restore(made, home)) > 15
    judge()
    assert seen == {True, False}


def test_S13_a_restore_that_fails_changes_nothing_and_leaves_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    names = sorted(os.listdir(home))
    full = OSError(errno.ENOSPC, "no space")
    with monkeypatch.context() as patch:
        arm = fail_at_each_step(lambda name, call: patch.setattr(os, name, call), full)
        for step in range(1, 1000):
            arm(step)
            try:
                restore(made, home, force=True)
            except DiskFull:
                arm(0)
                with open_node(home) as node:
                    old = team(node).state.get("since") == 1
                if not old:
                    break  # only what follows the rename failed: the mark, a flush
                left = {name for name in os.listdir(home) if ".before-restore-" not in name}
                assert left <= {*names, "backup.lock"}
    assert step > 10


def test_S13_a_wal_never_outlives_its_database(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old WAL beside a new database would be played into it."""
    paths = HomePaths(tmp_path / "home")
    with open_node(paths.root) as node:
        for number in range(50):
            team(node).state.set(f"wal-{number}", number)
        shutil.copy(paths.wal, tmp_path / "wal")
    shutil.copy(tmp_path / "wal", paths.wal)
    monkeypatch.setattr(swap, "absorb_wal", lambda paths: False)  # as if it were too damaged
    report = restore(made, paths.root, force=True)
    assert any(path.name.endswith("-wal") for path in report.aside)
    assert integrity(paths.database, ours=True) == []
    assert read(paths.root, "wal-1") is None


def test_S13_without_hard_links_the_old_files_are_kept_as_copies(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "this file system has no hard links")

    monkeypatch.setattr(os, "link", refuse)
    report = restore(made, tmp_path / "home", force=True)
    database = report.aside[0]
    assert integrity(database, ours=True) == []
    assert database.stat().st_nlink == 1


def test_S13_a_database_gets_its_wal_back_where_a_swap_was_cut_short(tmp_path: Path) -> None:
    node = make_home(tmp_path / "home")
    fill(team(node))
    paths = HomePaths(node.home)
    aside = paths.root / "data.db.before-restore-then"
    os.link(paths.database, aside)
    shutil.copy(paths.wal, f"{aside}-wal")
    content = paths.wal.read_bytes()
    node.close()
    assert not paths.wal.exists()
    assert swap.undo_half_swap(paths)
    assert paths.wal.read_bytes() == content
    assert not swap.undo_half_swap(paths)
