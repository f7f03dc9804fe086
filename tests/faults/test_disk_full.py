"""A disk that is really full, and one whose sync fails: typed errors, reads go on, nothing torn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Node, open_node
from holdfast.rules.errors import DiskFull, OutcomeUnknown, StoreFailed
from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.integrity import integrity
from support.envelopes import MESH
from support.faults import ID, drafts
from support.small_disk import fill, mounted

pytestmark = pytest.mark.faults

SIZE_KB = 2048


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    with mounted(tmp_path, SIZE_KB) as place:
        yield place


def write_until_full(node: Node) -> dict[str, int]:
    written: dict[str, int] = {}
    for number in range(100_000):
        try:
            node.mesh(MESH).state.set(f"key {number}", "v" * 2000)
        except DiskFull:
            return written
        written[f"key {number}"] = number
    raise AssertionError("the disk never got full")


def make_home(disk: Path) -> Node:
    node = open_node(disk / "home", peer="ana", create=True)
    node.create_mesh(MESH)
    return node


def test_R2_on_a_full_disk_writes_are_refused_reads_go_on_and_space_mends_it(
    small_disk: Path,
) -> None:
    node = make_home(small_disk)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 600_000)
    written = write_until_full(node)
    assert len(written) > 20
    mesh = node.mesh(MESH)
    assert all(mesh.state.get(key) == "v" * 2000 for key in written), "reads go on"
    assert mesh.state.get(f"key {len(written)}") is None, "the refused write is not there"
    with pytest.raises(DiskFull) as refusal:
        mesh.state.set("another", "v" * 100_000)
    assert "free some space" in refusal.value.hint
    ballast.unlink()
    mesh.state.set("after", 1)
    assert mesh.state.get("after") == 1
    assert audit(node) == []
    node.close()
    assert integrity(HomePaths(small_disk / "home").database, ours=True) == []
    with open_node(small_disk / "home") as again:
        assert again.mesh(MESH).state.get("after") == 1
        assert len(list(again.mesh(MESH).state.list("key "))) == len(written)


def test_R2_a_large_file_that_does_not_fit_leaves_no_draft(small_disk: Path) -> None:
    with make_home(small_disk) as node:
        files = node.mesh(MESH).files
        with pytest.raises(DiskFull):
            files.share("large.bin", os.urandom(SIZE_KB * 1024))
        assert drafts(small_disk / "home") == []
        assert list(files.list()) == []
        files.share("fits.bin", os.urandom(100_000))
        assert len(files.read("fits.bin")) == 100_000
        assert audit(node) == []


def test_R2_a_home_can_be_closed_and_opened_on_a_disk_without_a_free_byte(
    small_disk: Path,
) -> None:
    node = make_home(small_disk)
    node.mesh(MESH).state.set("key", "value")
    ballast = fill(small_disk)
    with pytest.raises(DiskFull):
        node.mesh(MESH).files.share("file", b"x" * 60_000)
    node.close()
    assert integrity(HomePaths(small_disk / "home").database, ours=True) == []
    with open_node(small_disk / "home") as again:
        state = again.mesh(MESH).state
        assert state.get("key") == "value"
        assert [entry.key for entry in state.list()] == ["key"]
        assert len(again.log.tail()) == 1
        with pytest.raises(DiskFull):
            state.set("key", "another")
        assert state.get("key") == "value"
        assert audit(again) == []
        ballast.unlink()
        state.set("key", "after")
    with open_node(small_disk / "home") as again:
        assert again.mesh(MESH).state.get("key") == "after"
        assert audit(again) == []


def test_R2_another_process_reads_a_home_on_a_disk_without_a_free_byte(small_disk: Path) -> None:
    home = str(small_disk / "home")
    node = make_home(small_disk)
    node.mesh(MESH).state.set("key", "value")
    node.close()
    fill(small_disk)
    before = os.statvfs(small_disk).f_bfree
    assert before == 0
    environ = {"HOLDFAST_STORE_SYNC": "normal"}  # which would like to note that in a file

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", *words, "--home", home]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **environ}
        )

    got = run("state", "get", "key")
    assert (got.returncode, got.stdout) == (0, "value\n"), got.stderr
    doctor = run("doctor", "--full", "--json")
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert checks["disk"]["status"] == "fail"
    assert checks["database"]["status"] == checks["entries"]["status"] == "ok"
    refused = run("state", "set", "key", "another")
    assert refused.returncode != 0
    assert "disk_full" in refused.stderr or "full" in refused.stderr


def test_R2_a_home_that_was_killed_is_read_on_a_disk_without_a_free_byte(small_disk: Path) -> None:
    node = make_home(small_disk)
    node.mesh(MESH).state.set("key", "value")
    killed = small_disk / "killed"
    shutil.copytree(node.home, killed, ignore=shutil.ignore_patterns("data.db-shm"))
    node.close()
    assert (killed / "data.db-wal").stat().st_size > 0
    fill(small_disk)
    with open_node(killed) as again:
        assert again.mesh(MESH).state.get("key") == "value"
        assert audit(again) == []


def test_R2_a_home_is_not_half_created_on_a_full_disk(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(DiskFull):
        open_node(small_disk / "home", peer="ana", create=True)
    ballast.unlink()
    with make_home(small_disk) as node:
        node.mesh(MESH).state.set("key", 1)
        assert audit(node) == []


def test_S3_after_a_failed_sync_nothing_is_written_until_the_home_is_reopened(
    tmp_path: Path,
) -> None:
    make_home(tmp_path).close()
    failing = False

    def plan(call: DiskCall) -> Kind | None:
        return "ioerr" if failing and call.op == "sync" else None

    with FaultyDisk(plan) as disk:
        node = Node(open_home(tmp_path / "home", vfs=disk.name))
        state = node.mesh(MESH).state
        first = state.set("key", 1)
        failing = True
        with pytest.raises(OutcomeUnknown):
            state.set("key", 2, id=ID)
        failing = False
        with pytest.raises(StoreFailed, match="an earlier write failed"):
            state.set("key", 3)
        assert state.get("key") in (1, 2), "reads go on"
        node.close()
    with open_node(tmp_path / "home") as again:
        state = again.mesh(MESH).state
        assert state.set("key", 2, id=ID).lamport > first.lamport
        assert state.get("key") == 2
        assert [entry.op for entry in again.log.range()] == ["state.set"] * 2
        assert audit(again) == []
