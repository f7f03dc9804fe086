"""Blobs that arrive in pieces: from a caller that goes away, or over a link that breaks."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.node import open_node
from holdfast.node.upkeep.sweep import collect_blobs
from holdfast.rules.errors import (
    BadValue,
    BlobCorrupt,
    BlobMissing,
    DiskFull,
    HoldfastError,
    OverLimit,
    StoreFailed,
)
from holdfast.rules.limits import BLOB_ORPHAN_AGE_MS
from holdfast.simulate.disk.faults import FailAt, healthy
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.storage.files.blobs import BlobFile, BlobStore, DraftFile, FileBlobs, MemoryBlobs
from support.source import HandClock

CONTENT = b"holdfast " * 10_000
PIECE = 30_000


def sha_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


SHA = sha_of(CONTENT)


@pytest.fixture(params=["files", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> FileBlobs | MemoryBlobs:
    return MemoryBlobs() if request.param == "memory" else FileBlobs(tmp_path / "blobs")


@pytest.fixture
def files(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "blobs")


def pull(blobs: BlobStore, content: bytes = CONTENT) -> None:
    """The pieces that are still missing, as a link brings them."""
    sha = sha_of(content)
    while (start := blobs.partial(sha)) < len(content):
        assert blobs.put_piece(sha, start, content[start : start + PIECE]) > start


# --- Pulled in pieces --------------------------------------------------------------------------


def test_Z2_pieces_become_a_blob_when_they_are_all_here(blobs: BlobStore) -> None:
    for start in range(0, len(CONTENT), PIECE):
        assert blobs.partial(SHA) == start
        assert not blobs.exists(SHA)
        blobs.put_piece(SHA, start, CONTENT[start : start + PIECE])
    assert blobs.finish(SHA, len(CONTENT)).size == len(CONTENT)
    assert blobs.read(SHA) == CONTENT
    assert blobs.partial(SHA) == 0
    assert [type(found) for found in blobs.scan()] == [BlobFile]


def test_Z2_a_piece_that_comes_twice_or_overlaps_changes_nothing(blobs: BlobStore) -> None:
    blobs.put_piece(SHA, 0, CONTENT[:PIECE])
    assert blobs.put_piece(SHA, 0, CONTENT[:PIECE]) == PIECE
    assert blobs.put_piece(SHA, 10, CONTENT[10:20]) == PIECE
    assert blobs.put_piece(SHA, PIECE - 5, CONTENT[PIECE - 5 : PIECE + 5]) == PIECE + 5
    pull(blobs)
    blobs.finish(SHA, len(CONTENT))
    assert blobs.read(SHA) == CONTENT


@pytest.mark.parametrize("start", [-1, 1, PIECE + 1])
def test_Z2_a_piece_that_would_leave_a_hole_is_refused(blobs: BlobStore, start: int) -> None:
    if start == PIECE + 1:
        blobs.put_piece(SHA, 0, CONTENT[:PIECE])
    before = blobs.partial(SHA)
    with pytest.raises(BadValue):
        blobs.put_piece(SHA, start, b"x")
    assert blobs.partial(SHA) == before


@pytest.mark.parametrize(
    ("brought", "size"),
    [
        (b"X" + CONTENT[1:], len(CONTENT)),
        (CONTENT[:-1], len(CONTENT)),
        (CONTENT + b"?", len(CONTENT)),
        (CONTENT, len(CONTENT) - 1),
    ],
    ids=["changed", "short", "long", "other size"],
)
def test_Z2_what_does_not_hash_to_its_name_is_discarded_and_can_be_pulled_anew(
    blobs: BlobStore, brought: bytes, size: int
) -> None:
    blobs.put_piece(SHA, 0, brought)
    with pytest.raises(BlobCorrupt, match=SHA):
        blobs.finish(SHA, size)
    assert list(blobs.scan()) == []
    assert blobs.partial(SHA) == 0
    pull(blobs)
    blobs.finish(SHA, len(CONTENT))
    assert blobs.read(SHA) == CONTENT


def test_Z2_finishing_twice_is_once_and_finishing_nothing_is_told(blobs: BlobStore) -> None:
    with pytest.raises(BlobMissing):
        blobs.finish(SHA, len(CONTENT))
    pull(blobs)
    assert blobs.finish(SHA, len(CONTENT)) == blobs.finish(SHA, len(CONTENT))
    assert blobs.finish(sha_of(b""), 0).size == 0
    assert blobs.read(sha_of(b"")) == b""


def test_Z2_pieces_over_the_limit_are_refused(blobs: FileBlobs | MemoryBlobs) -> None:
    blobs.bytes_max = 100
    blobs.put_piece(SHA, 0, CONTENT[:100])
    with pytest.raises(OverLimit):
        blobs.put_piece(SHA, 100, b"x")
    assert blobs.partial(SHA) == 100


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["piece", "bad piece", "finish", "put", "unlink", "partial", "sweep"]),
            st.integers(0, 3),
        ),
        max_size=14,
    )
)
def test_Z2_files_and_memory_agree_on_any_history_of_pieces(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    content = b"abcd"
    sha = sha_of(content)
    both: list[BlobStore] = [FileBlobs(tmp_path_factory.mktemp("blobs")), MemoryBlobs()]

    def told(blobs: BlobStore, verb: str, at: int) -> object:
        match verb:
            case "piece":
                return blobs.put_piece(sha, at, content[at : at + 2])
            case "bad piece":
                return blobs.put_piece(sha, at, b"??")
            case "finish":
                return blobs.finish(sha, len(content))
            case "put":
                return blobs.put(content)
            case "unlink":
                return blobs.unlink(sha)
            case "sweep":
                drafts = [found for found in blobs.scan() if isinstance(found, DraftFile)]
                return [(draft.name, blobs.remove_draft(draft)) for draft in drafts]
            case _:
                return blobs.partial(sha)

    def outcome(blobs: BlobStore, verb: str, at: int) -> object:
        try:
            return told(blobs, verb, at)
        except HoldfastError as error:
            return error.code

    for verb, at in steps:
        first, second = (outcome(blobs, verb, at) for blobs in both)
        assert first == second
        assert both[0].exists(sha) == both[1].exists(sha)
        if both[0].exists(sha):
            assert both[0].read(sha) == both[1].read(sha) == content


def test_Z7_pieces_survive_a_restart_and_only_the_rest_is_pulled(files: FileBlobs) -> None:
    files.put_piece(SHA, 0, CONTENT[:PIECE])
    again = FileBlobs(files.root)
    assert again.partial(SHA) == PIECE
    pull(again)
    again.finish(SHA, len(CONTENT))
    assert again.read(SHA) == CONTENT
    (path,) = (p for p in files.root.rglob("*") if p.is_file())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


READER = """
import signal, sys
from pathlib import Path
from typing import Any
from holdfast.storage.files.blobs import FileBlobs
blobs = FileBlobs(Path(sys.argv[1]))
sha, piece = sys.argv[2], bytes.fromhex(sys.argv[3])
blobs.put_piece(sha, 0, piece)
print("there", flush=True)
signal.pause()
"""


@pytest.mark.faults
def test_Z7_pieces_of_a_process_that_was_killed_are_there(files: FileBlobs) -> None:
    command = [sys.executable, "-c", READER, str(files.root), SHA, CONTENT[:100].hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        child.send_signal(signal.SIGKILL)
    assert files.partial(SHA) == 100
    pull(files)
    files.finish(SHA, len(CONTENT))
    assert files.read(SHA) == CONTENT


def test_Z7_a_sweep_takes_pieces_only_when_nobody_brought_any_for_long(tmp_path: Path) -> None:
    clock = HandClock()
    with open_node(tmp_path / "home", peer="ana", create=True, source=clock) as node:
        engine: NodeEngine = node._engine
        blobs = engine.blobs
        assert isinstance(blobs, FileBlobs)
        blobs.put_piece(SHA, 0, CONTENT[:PIECE])
        (path,) = (p for p in blobs.root.iterdir() if p.is_file())
        written = clock.now_ms() / 1000
        os.utime(path, (written, written))
        clock.advance(BLOB_ORPHAN_AGE_MS)
        assert collect_blobs(engine) == (0, 0)
        assert blobs.partial(SHA) == PIECE
        clock.advance(1)
        assert collect_blobs(engine) == (0, 1)
        assert blobs.partial(SHA) == 0


def test_Z7_old_pieces_make_a_young_blob(files: FileBlobs) -> None:
    files.put_piece(SHA, 0, CONTENT)
    (path,) = (p for p in files.root.iterdir() if p.is_file())
    os.utime(path, (1, 1))
    files.finish(SHA, len(CONTENT))
    (found,) = files.scan()
    assert isinstance(found, BlobFile)
    assert found.mtime_ms > 1000


@pytest.mark.sim
@pytest.mark.parametrize("failing", [None, *range(0, 30, 3)])
def test_Z7_a_finished_pull_survives_a_power_loss_at_any_moment_even_on_a_disk_that_failed(
    failing: int | None,
) -> None:
    content = CONTENT[: 2 * PIECE]
    sha = sha_of(content)

    def workload(directory: Path, vfs: str, acknowledge: Callable[[object], None]) -> None:
        for _ in range(3):  # the tries after an error
            blobs = FileBlobs(directory / "blobs")
            try:
                pull(blobs, content)
                acknowledge(blobs.finish(sha, len(content)).sha256)
                return
            except (StoreFailed, BlobCorrupt, BlobMissing):
                continue

    def check(directory: Path, acknowledged: tuple[object, ...]) -> None:
        survivors = FileBlobs(directory / "blobs")
        for name in acknowledged:
            assert survivors.read(str(name)) == content
        if survivors.exists(sha):
            assert survivors.verify(sha) == len(content)
        else:
            # Whatever the pieces hold now, in the end the content is right.
            for _ in range(2):
                pull(survivors, content)
                try:
                    survivors.finish(sha, len(content))
                    break
                except BlobCorrupt:
                    continue
            assert survivors.read(sha) == content

    recording = record(workload, plan=healthy if failing is None else FailAt(failing, "ioerr"))
    report = cut_power(recording, check, samples=4)
    assert report.failures == []
    assert report.states > 10


@pytest.mark.faults
def test_Z7_after_a_flush_that_failed_no_piece_is_trusted(
    files: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_piece(SHA, 0, CONTENT[:PIECE])
    with monkeypatch.context() as patch:

        def failing(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", failing)
        with pytest.raises(StoreFailed):
            files.put_piece(SHA, PIECE, CONTENT[PIECE : 2 * PIECE])
    assert files.partial(SHA) == 0


@pytest.mark.faults
def test_Z7_pieces_that_met_a_full_disk_are_gone_on_with(
    files: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_piece(SHA, 0, CONTENT[:PIECE])
    real = os.write
    with monkeypatch.context() as patch:

        def filling(fd: int, data: bytes) -> int:
            if len(data) > 1000:
                return real(fd, bytes(data[:1000]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "write", filling)
        with pytest.raises(DiskFull):
            files.put_piece(SHA, PIECE, CONTENT[PIECE : PIECE + 1500])
    assert files.partial(SHA) == PIECE + 1000
    pull(files)
    files.finish(SHA, len(CONTENT))
    assert files.read(SHA) == CONTENT


def test_Z7_two_links_that_bring_the_same_object_cannot_spoil_what_is_finished(
    files: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has the file open when the other gives it its name: it must not write into the blob."""
    files.put_piece(SHA, 0, CONTENT)
    opened, finished = threading.Event(), threading.Event()
    real = os.open

    def slowly(path: str, *args: int) -> int:
        fd = real(path, *args)
        if threading.current_thread() is late and not opened.is_set():
            opened.set()
            assert finished.wait(30)
        return fd

    late = threading.Thread(target=lambda: files.put_piece(SHA, 0, b"spoiled"))
    monkeypatch.setattr(os, "open", slowly)
    late.start()
    assert opened.wait(30)
    files.finish(SHA, len(CONTENT))
    finished.set()
    late.join()
    assert files.read(SHA) == CONTENT
    assert files.partial(SHA) == len(b"spoiled")


# --- Handed over in pieces ---------------------------------------------------------------------


def test_Z2_content_handed_over_in_pieces_is_a_blob_when_it_is_finished(blobs: BlobStore) -> None:
    incoming = blobs.receive()
    for start in range(0, len(CONTENT), PIECE):
        assert not blobs.exists(SHA)
        incoming.write(CONTENT[start : start + PIECE])
    assert incoming.size == len(CONTENT)
    assert incoming.finish(SHA).sha256 == SHA
    incoming.discard()
    assert blobs.read(SHA) == CONTENT
    assert [type(found) for found in blobs.scan()] == [BlobFile]


def test_Z2_content_that_is_not_what_was_said_is_not_kept(blobs: BlobStore) -> None:
    incoming = blobs.receive()
    incoming.write(CONTENT)
    with pytest.raises(BadValue, match=SHA):
        incoming.finish(sha_of(b"something else"))
    assert list(blobs.scan()) == []


def test_Z2_content_that_is_given_up_leaves_nothing(blobs: FileBlobs | MemoryBlobs) -> None:
    incoming = blobs.receive()
    incoming.write(CONTENT)
    blobs.bytes_max = len(CONTENT)
    with pytest.raises(OverLimit):
        blobs.receive().write(CONTENT + b"?")
    incoming.discard()
    for found in blobs.scan():
        assert isinstance(found, DraftFile)  # of the one that was never discarded
        assert found.size == 0


def test_Z3_an_unchecked_stream_gives_any_range_of_what_lies_there(blobs: BlobStore) -> None:
    blobs.put(CONTENT)
    with blobs.open_unchecked(SHA) as stream:
        stream.seek(1000)
        assert stream.read(10) == CONTENT[1000:1010]
    with pytest.raises(BlobMissing):
        blobs.open_unchecked(sha_of(b"never stored"))


def test_Z7_pieces_of_another_process_are_written_again_before_they_count(
    files: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of that process may have failed, and left bytes that only look flushed."""
    written: list[int] = []
    write = os.write

    def note(fd: int, data: Any) -> int:
        written.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", note)
    for finisher, again in ((files, 0), (FileBlobs(files.root), len(CONTENT))):
        files.put_piece(SHA, 0, CONTENT[:50])
        files.put_piece(SHA, 50, CONTENT[50:])
        written.clear()
        finisher.finish(SHA, len(CONTENT))
        assert sum(written) == again
        assert files.unlink(SHA)
