"""Blobs: one contract for both stores, then what only a disk can do to blobs and other files."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.errors import (
    BadPath,
    BadValue,
    BlobCorrupt,
    BlobMissing,
    DiskFull,
    NotOurs,
    OverLimit,
    StoreFailed,
)
from holdfast.rules.limits import BLOB_CHUNK_BYTES, FILE_BYTES_MAX
from holdfast.simulate.disk.faults import FailAt, healthy
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.storage.files import durable
from holdfast.storage.files.blobs import (
    BlobFile,
    BlobStore,
    DraftFile,
    FileBlobs,
    MemoryBlobs,
    StrangeFile,
)

CONTENT = b"holdfast " * 10_000
OTHER = CONTENT[:70_000]
OVER_TWO_CHUNKS = os.urandom(4096) * (2 * BLOB_CHUNK_BYTES // 4096) + b"and a bit"
LONG_AGO_MS = 1_000_000_000_000


def sha_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FilesUnderTest(FileBlobs):
    """The file store with what a test does behind its back."""

    def damage(self, sha: str, content: bytes) -> None:
        (self.root / sha[:2] / sha).write_bytes(content)

    def grow_old(self, sha: str) -> None:
        os.utime(self.root / sha[:2] / sha, (LONG_AGO_MS / 1000, LONG_AGO_MS / 1000))


class MemoryUnderTest(MemoryBlobs):
    def damage(self, sha: str, content: bytes) -> None:
        self.contents[sha] = content

    def grow_old(self, sha: str) -> None:
        self.mtimes_ms[sha] = LONG_AGO_MS


UnderTest = FilesUnderTest | MemoryUnderTest


@pytest.fixture(params=["files", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> UnderTest:
    return MemoryUnderTest() if request.param == "memory" else FilesUnderTest(tmp_path / "blobs")


@pytest.fixture
def files(tmp_path: Path) -> FilesUnderTest:
    return FilesUnderTest(tmp_path / "blobs")


def everything_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if not path.is_dir())


# --- The contract of both stores ---------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", CONTENT, OVER_TWO_CHUNKS], ids=len)
def test_S9_what_was_put_is_read_back_from_bytes_path_and_stream(
    blobs: UnderTest, tmp_path: Path, content: bytes
) -> None:
    source = tmp_path / "source"
    source.write_bytes(content)
    port: BlobStore = blobs
    assert list(port.scan()) == []
    for put in (content, source, io.BytesIO(content)):
        blob = blobs.put(put)
        assert (blob.sha256, blob.size) == (sha_of(content), len(content))
        assert blobs.read(blob.sha256) == content
        with blobs.open(blob.sha256) as stream:
            assert stream.read() == content
        assert blobs.exists(blob.sha256)
        sizes = {blobs.size(blob.sha256), blobs.check(blob.sha256), blobs.verify(blob.sha256)}
        assert sizes == {len(content)}
        assert blobs.unlink(blob.sha256)


def test_S9_a_stream_that_trickles_is_taken_whole(blobs: UnderTest) -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 7919))

    assert blobs.put(Trickle(CONTENT)).sha256 == sha_of(CONTENT)
    assert blobs.read(sha_of(CONTENT)) == CONTENT


def test_S9_a_stream_without_data_yet_does_not_pass_for_an_empty_one(blobs: UnderTest) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(writing, "wb"), open(reading, "rb", buffering=0) as silent, pytest.raises(TypeError):
        blobs.put(silent)
    assert list(blobs.scan()) == []


def test_S9_reading_verifies_the_hash(blobs: UnderTest) -> None:
    sha = blobs.put(CONTENT).sha256
    blobs.damage(sha, b"X" + CONTENT[1:])
    for look in (blobs.read, blobs.open, blobs.verify):
        with pytest.raises(BlobCorrupt, match=sha):
            look(sha)
    assert blobs.check(sha, len(CONTENT)) == len(CONTENT)  # the cheap test cannot see it


def test_S9_the_cheap_test_sees_another_size(blobs: UnderTest) -> None:
    sha = blobs.put(CONTENT).sha256
    blobs.damage(sha, CONTENT[:-1])
    with pytest.raises(BlobCorrupt, match=str(len(CONTENT) - 1)):
        blobs.check(sha, len(CONTENT))


def test_S9_a_missing_blob_is_told_by_every_verb(blobs: UnderTest) -> None:
    sha = sha_of(b"never stored")
    assert not blobs.exists(sha)
    assert not blobs.unlink(sha)
    for look in (blobs.read, blobs.open, blobs.verify, blobs.size, blobs.check):
        with pytest.raises(BlobMissing):
            look(sha)


def test_S9_unlinking_twice_is_once(blobs: UnderTest) -> None:
    sha = blobs.put(CONTENT).sha256
    assert (blobs.unlink(sha), blobs.unlink(sha)) == (True, False)
    assert not blobs.exists(sha)


@pytest.mark.parametrize("as_stream", [False, True])
@pytest.mark.parametrize("damaged", [b"X" + CONTENT[1:], CONTENT[:-1], b""], ids=len)
def test_S9_putting_again_mends_a_damaged_blob(
    blobs: UnderTest, damaged: bytes, as_stream: bool
) -> None:
    sha = blobs.put(CONTENT).sha256
    blobs.damage(sha, damaged)
    blobs.put(io.BytesIO(CONTENT) if as_stream else CONTENT)
    assert blobs.read(sha) == CONTENT


@pytest.mark.parametrize("as_stream", [False, True])
def test_S9_putting_again_makes_an_old_blob_young_and_not_a_second(
    blobs: UnderTest, as_stream: bool
) -> None:
    sha = blobs.put(CONTENT).sha256
    blobs.grow_old(sha)
    assert list(blobs.scan()) == [BlobFile(sha, len(CONTENT), LONG_AGO_MS)]
    blobs.put(io.BytesIO(CONTENT) if as_stream else CONTENT)
    (seen,) = blobs.scan()
    assert isinstance(seen, BlobFile)
    assert seen.mtime_ms > LONG_AGO_MS


def test_S9_an_open_stream_outlives_unlinking(blobs: UnderTest) -> None:
    sha = blobs.put(CONTENT).sha256
    with blobs.open(sha) as stream:
        assert blobs.unlink(sha)
        assert stream.read() == CONTENT


def test_S9_content_over_the_limit_is_refused_and_leaves_nothing(
    blobs: UnderTest, tmp_path: Path
) -> None:
    blobs.bytes_max = 100
    source = tmp_path / "source"
    source.write_bytes(b"x" * 101)
    for too_much in (b"x" * 101, source, io.BytesIO(b"x" * 101)):
        with pytest.raises(OverLimit, match="100 bytes"):
            blobs.put(too_much)
    assert list(blobs.scan()) == []
    assert blobs.put(b"x" * 100).size == 100


def test_S9_the_named_limit_holds_before_anything_is_copied(
    blobs: UnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, FILE_BYTES_MAX + 1)  # sparse: it takes no space
    monkeypatch.delattr(os, "write")
    with pytest.raises(OverLimit):
        blobs.put(huge)
    assert list(blobs.scan()) == []


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_S9_a_source_that_cannot_be_read_is_the_callers_to_mend(
    blobs: UnderTest, tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "missing" if kind == "missing" else tmp_path
    with pytest.raises(BadPath, match=str(source)):
        blobs.put(source)
    assert list(blobs.scan()) == []


def test_S9_a_stream_that_breaks_leaves_nothing(blobs: UnderTest) -> None:
    class Breaks(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise ConnectionResetError("the other side went away")
            return super().read(1000)

    with pytest.raises(ConnectionResetError):
        blobs.put(Breaks(CONTENT))
    assert list(blobs.scan()) == []


@pytest.mark.parametrize(
    "sha", ["", "ab", "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 65, "a" * 63 + "\n"]
)
def test_S9_only_a_sha256_is_a_name(blobs: UnderTest, sha: str) -> None:
    verbs = (blobs.exists, blobs.size, blobs.check, blobs.verify, blobs.read, blobs.open)
    for verb in (*verbs, blobs.unlink):
        with pytest.raises(BadValue):
            verb(sha)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "stream", "damage", "unlink"]),
            st.sampled_from([b"", b"one", b"two" * 70_000]),
        ),
        max_size=12,
    )
)
def test_S9_files_and_memory_agree_on_any_history(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes]]
) -> None:
    both: list[UnderTest] = [FilesUnderTest(tmp_path_factory.mktemp("blobs")), MemoryUnderTest()]

    def told(blobs: UnderTest, verb: str, content: bytes) -> object:
        sha = sha_of(content)
        if verb in ("put", "stream"):
            return blobs.put(content if verb == "put" else io.BytesIO(content))
        if verb == "unlink":
            return blobs.unlink(sha)
        if blobs.exists(sha):
            blobs.damage(sha, content + b"?")
        try:
            return blobs.read(sha)
        except (BlobMissing, BlobCorrupt) as error:
            return error.code

    for verb, content in steps:
        first, second = (told(blobs, verb, content) for blobs in both)
        assert first == second
    shown = [
        sorted((f.sha, f.size) for f in blobs.scan() if isinstance(f, BlobFile)) for blobs in both
    ]
    assert shown[0] == shown[1]


# --- On a disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_S1_blobs_are_0600_in_0700_folders_whatever_the_umask(
    files: FilesUnderTest, umask: int
) -> None:
    before = os.umask(umask)
    try:
        sha = files.put(CONTENT).sha256
    finally:
        os.umask(before)
    path = files.root / sha[:2] / sha
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (files.root, path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]


def test_S9_scan_tells_blobs_leftovers_and_strangers_apart(files: FilesUnderTest) -> None:
    sha = files.put(CONTENT).sha256
    fd, leftover = durable.create_temporary(files.root)
    os.close(fd)
    os.utime(leftover, (LONG_AGO_MS / 1000, LONG_AGO_MS / 1000))
    (files.root / "README").write_text("a note")
    (files.root / "zz").mkdir()
    elsewhere = files.root / ("00" if sha[:2] != "00" else "01")
    elsewhere.mkdir()
    (elsewhere / sha).write_bytes(CONTENT)  # a blob's name in the wrong folder
    (elsewhere / (elsewhere.name + "a" * 62)).symlink_to("/etc/passwd")

    found = set(files.scan())
    (blob,) = (f for f in found if isinstance(f, BlobFile))
    assert (blob.sha, blob.size) == (sha, len(CONTENT))
    inner = {f"{elsewhere.name}/{name}" for name in (sha, elsewhere.name + "a" * 62)}
    assert {f.name for f in found if isinstance(f, StrangeFile)} == {"README", "zz"} | inner
    (draft,) = (f for f in found if isinstance(f, DraftFile))
    assert draft == DraftFile(leftover.name, 0, LONG_AGO_MS)
    assert (files.remove_draft(draft), files.remove_draft(draft)) == (True, False)


@pytest.mark.parametrize("name", ["README", "../.tmp-1", "ab/" + "a" * 64])
def test_S9_only_a_temporary_file_is_removed_as_one(files: FilesUnderTest, name: str) -> None:
    with pytest.raises(BadValue):
        files.remove_draft(DraftFile(name, 0, 0))


def test_S9_a_link_or_a_pipe_under_a_blobs_name_is_never_followed(
    files: FilesUnderTest, tmp_path: Path
) -> None:
    sha = files.put(CONTENT).sha256
    path = files.root / sha[:2] / sha
    other = tmp_path / "other"
    other.write_bytes(CONTENT)
    for kind in ("link", "pipe"):
        path.unlink()
        path.symlink_to(other) if kind == "link" else os.mkfifo(path)
        assert not files.exists(sha)
        for look in (files.read, files.open, files.verify, files.check):
            with pytest.raises(BlobCorrupt):
                look(sha)
        files.put(CONTENT)
        assert stat.S_ISREG(path.lstat().st_mode)
        assert files.read(sha) == CONTENT
    assert other.read_bytes() == CONTENT


class Trace:
    """Records what goes to the disk, in order, and fails one step if told to."""

    def __init__(self, patch: pytest.MonkeyPatch, fail_at: int = 0, code: int = 0) -> None:
        self.steps: list[str] = []
        self.fail_at, self.code = fail_at, code
        for name in ("open", "write", "fsync", "replace", "mkdir"):
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            if name == "open" and not (isinstance(args[1], int) and args[1] & os.O_CREAT):
                return real(*args)
            what = Path(str(args[1] if name == "replace" else args[0]))
            if name in ("write", "fsync"):
                what = Path(f"/proc/self/fd/{args[0]}").readlink()
            self.steps.append(f"{name} {'draft' if what.name[:5] == '.tmp-' else what.name}")
            if self.fail_at == len(self.steps):
                raise OSError(self.code, os.strerror(self.code))
            return real(*args)

        return call


@pytest.mark.sim
@pytest.mark.parametrize("failing", [None, *range(24)])
def test_S9_what_was_put_survives_a_power_loss_at_any_moment_even_on_a_disk_that_failed(
    failing: int | None,
) -> None:
    def workload(directory: Path, vfs: str, acknowledge: Callable[[object], None]) -> None:
        for content in (CONTENT, OTHER, CONTENT):
            blobs = FileBlobs(directory / "blobs")
            for source in (content, io.BytesIO(content)):  # the second try after an error
                with suppress(StoreFailed):
                    acknowledge(blobs.put(source).sha256)

    def check(directory: Path, acknowledged: tuple[object, ...]) -> None:
        survivors = FileBlobs(directory / "blobs")
        assert {survivors.read(str(sha)) for sha in acknowledged} <= {CONTENT, OTHER}
        for found in survivors.scan():
            assert not isinstance(found, StrangeFile)
            assert isinstance(found, DraftFile) or survivors.verify(found.sha) == found.size

    recording = record(workload, plan=healthy if failing is None else FailAt(failing, "ioerr"))
    report = cut_power(recording, check)
    assert report.failures == []
    assert report.states > 40


def test_S9_content_that_another_process_put_a_moment_ago_is_flushed_again(
    files: FilesUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other may not have come to flush the folders yet; our row must not outlive the blob."""
    sha = FileBlobs(files.root).put(CONTENT).sha256
    trace = Trace(monkeypatch)
    files.put(CONTENT)
    flushed = [f"fsync {sha}", f"fsync {sha[:2]}", f"mkdir {sha[:2]}", "fsync blobs"]
    assert trace.steps == ["mkdir blobs", f"fsync {files.root.parent.name}", *flushed]


@pytest.mark.faults
@pytest.mark.parametrize("as_stream", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_S9_a_disk_that_fails_at_any_step_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, as_stream: bool
) -> None:
    expected = DiskFull if code in (errno.ENOSPC, errno.EDQUOT) else StoreFailed
    sha = sha_of(CONTENT)
    # root, its parent's flush; create, write; ab/, the root's flush; flush, rename, ab/'s flush
    for step in range(1, 10):
        files = FileBlobs(tmp_path / str(step) / "blobs")
        files.root.parent.mkdir()
        source = io.BytesIO(CONTENT) if as_stream else CONTENT
        with monkeypatch.context() as patch:
            Trace(patch, step, code)
            with pytest.raises((DiskFull, StoreFailed)) as caught:
                files.put(source)
        assert (caught.type, bool(caught.value.hint)) == (expected, True)
        # Whole or not at all: no temporary file, and a name only with all of its content.
        assert everything_in(files.root) == ([files.root / sha[:2] / sha] if step == 9 else [])
        # The disk is well again: the same call succeeds.
        files.put(CONTENT)
        assert files.read(sha) == CONTENT


@pytest.mark.faults
def test_S9_a_short_write_is_carried_on(
    files: FilesUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:1000])))
    files.put(CONTENT)
    assert files.read(sha_of(CONTENT)) == CONTENT


@pytest.mark.faults
def test_S9_an_unreadable_sector_is_told_and_mended_by_putting_again(
    files: FilesUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = files.put(CONTENT).sha256

    class BadSector(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def readall(self) -> bytes:
            return self.read()

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.storage.files.blobs.io.FileIO", BadSector)
        for look in (files.read, files.open, files.verify):
            with pytest.raises(BlobCorrupt, match="cannot be read"):
                look(sha)
        inode = (files.root / sha[:2] / sha).stat().st_ino
        files.put(CONTENT)
    assert (files.root / sha[:2] / sha).stat().st_ino != inode
    assert files.read(sha) == CONTENT


def test_S9_a_blob_that_vanishes_while_it_is_verified_is_written_again(
    files: FilesUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = files.put(CONTENT).sha256
    monkeypatch.setattr(os, "utime", lambda fd: files.unlink(sha))
    files.put(CONTENT)
    assert files.read(sha) == CONTENT
    shutil.rmtree(files.root)  # somebody tidied up
    files.put(CONTENT)
    assert files.read(sha) == CONTENT


def test_S9_a_folder_that_we_may_not_write_in_is_told_with_a_hint(files: FilesUnderTest) -> None:
    files.put(b"makes the root")
    before, user = everything_in(files.root), os.geteuid()
    files.root.chmod(0o500)
    os.seteuid(user or 65534)  # root may write anywhere, so root becomes nobody for a moment
    try:
        with pytest.raises(StoreFailed, match="Permission denied") as caught:
            files.put(CONTENT)
    finally:
        os.seteuid(user)
        files.root.chmod(0o700)
    assert "owns the home" in caught.value.hint
    assert everything_in(files.root) == before


TINY_DISK = """
import io, os, subprocess, sys
from pathlib import Path
from holdfast.rules.errors import DiskFull, StoreFailed
from holdfast.storage.files.blobs import FileBlobs
disk = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tiny", disk], check=True)
blobs = FileBlobs(Path(disk) / "blobs")
small = blobs.put(b"fits" * 1000)
for big in (os.urandom(1 << 20), io.BytesIO(os.urandom(1 << 20))):
    try:
        blobs.put(big)
    except DiskFull as error:
        print(error.code)
print(*(type(found).__name__ for found in blobs.scan()), blobs.read(small.sha256)[:4])
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
for content in (b"new", b"fits" * 1000):
    try:
        blobs.put(content)
    except StoreFailed as error:
        print(error.hint.split(";")[0])
print(blobs.verify(small.sha256))
"""


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_S9_a_full_and_then_read_only_disk_is_told_and_what_was_there_stays_readable(
    tmp_path: Path,
) -> None:
    # In a mount namespace of its own, so that nothing is left mounted however this ends.
    command = ["unshare", "--mount", sys.executable, "-c", TINY_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine does not let us mount: {done.stderr.strip()}")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        *("disk_full", "disk_full"),
        "BlobFile b'fits'",
        *["the file system is mounted read-only"] * 2,
        "4000",
    ]


STALL = """
import signal, sys
from pathlib import Path
from holdfast.storage.files.blobs import FileBlobs
class Stalls:
    reads = 0
    def read(self, size):
        self.reads += 1
        if self.reads == 4:
            print("stalled", flush=True)
            signal.pause()
        return b"x" * size
FileBlobs(Path(sys.argv[1])).put(Stalls())
"""


@pytest.mark.faults
def test_S9_a_process_killed_while_it_writes_leaves_only_a_temporary_file(
    files: FilesUnderTest,
) -> None:
    command = [sys.executable, "-c", STALL, str(files.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"stalled\n"
        child.send_signal(signal.SIGKILL)
    (left,) = files.scan()
    assert isinstance(left, DraftFile)
    assert left.size == 3 * BLOB_CHUNK_BYTES


# --- The durable file --------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_S9_a_durable_file_is_the_old_or_the_new_at_every_failing_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, code: int
) -> None:
    path = tmp_path / "log.mark"
    durable.durable_replace(path, b"old")
    with monkeypatch.context() as patch:
        Trace(patch, step, code)
        with pytest.raises(DiskFull if code == errno.ENOSPC else StoreFailed):
            durable.durable_replace(path, b"new")
    assert path.read_bytes() == (b"new" if step == 5 else b"old")
    assert everything_in(tmp_path) == [path]


@pytest.mark.faults
def test_S9_a_leftover_that_cannot_be_removed_is_noted_on_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    Trace(monkeypatch, 3, errno.EIO)
    monkeypatch.setattr(Path, "unlink", stuck)
    with pytest.raises(StoreFailed, match="Input/output") as caught:
        durable.durable_replace(tmp_path / "log.mark", b"12")
    assert "could not remove" in caught.value.__notes__[0]


@pytest.mark.parametrize("linked", ["blobs/ab", "blobs"])
def test_S9_a_folder_that_became_a_link_is_not_followed(tmp_path: Path, linked: str) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    content = next(
        text for text in (b"%d" % n for n in range(10_000)) if sha_of(text).startswith("ab")
    )
    blobs.put(content)
    outside = tmp_path / "outside"
    (tmp_path / linked).rename(outside)
    (tmp_path / linked).symlink_to(outside)
    before = everything_in(outside)
    sha = sha_of(content)
    for verb in (
        lambda: blobs.put(content),
        lambda: blobs.put(io.BytesIO(content)),
        lambda: blobs.unlink(sha),
        lambda: blobs.verify(sha),
        lambda: blobs.finish(sha, blobs.put_piece(sha, 0, content)),
    ):
        with pytest.raises(NotOurs, match="symbolic link"):
            verb()
    assert everything_in(outside) == before, "nothing was written or removed there"
