"""The home: where it is, who may touch it, and who has it open. Presence runs in real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.rules.errors import AlreadyExists, BadPath, NoHome, NotOurs
from holdfast.storage.files import durable, home
from holdfast.storage.files import presence as presences
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.home import HomePaths
from holdfast.storage.files.presence import Presence

NOBODY = 65534


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def paths(tmp_path: Path) -> HomePaths:
    """A home as it stands after the store made its database."""
    made = home.create_home(tmp_path / "home", "ann")
    for file in (made.database, made.wal, made.shm):
        file.touch(mode=0o600)
    return made


# --- Where it is -------------------------------------------------------------------------------


def test_S1_a_named_home_comes_before_the_variable(tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(tmp_path / "b")}
    assert home.resolve_home(str(tmp_path / "a"), environ) == tmp_path / "a"
    assert home.resolve_home(tmp_path / "a", environ) == tmp_path / "a"
    assert home.resolve_home(None, environ) == tmp_path / "b"


@pytest.mark.parametrize("environ", [{}, {"HOLDFAST_HOME": ""}])
def test_S1_without_a_name_it_is_the_platforms_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environ: dict[str, str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = home.resolve_home(None, environ)
    assert found.name == "holdfast"
    assert found.is_absolute()
    if sys.platform == "linux":
        assert found == tmp_path / "holdfast"


def test_S1_a_home_is_absolute_and_knows_the_users_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "ann"))
    assert home.resolve_home("here", {}) == tmp_path / "here"
    assert home.resolve_home(None, {"HOLDFAST_HOME": "~/there"}) == tmp_path / "ann" / "there"


@pytest.mark.parametrize("text", ["", "a\0b", "~no-such-user-here/home"])
def test_S1_a_path_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadPath) as caught:
        home.resolve_home(text, {})
    assert caught.value.hint


def test_S1_naming_a_home_does_not_pay_for_the_search_of_one() -> None:
    script = (
        "import sys; from holdfast.storage.files.home import resolve_home;"
        "resolve_home(None, {'HOLDFAST_HOME': 'x'}); assert 'platformdirs' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# --- Creating it -------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_S1_a_new_home_is_for_our_eyes_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        paths = home.create_home(tmp_path / "data" / "home", "ann")
    finally:
        os.umask(before)
    assert {mode_of(p) for p in (paths.root.parent, paths.root, *paths.folders)} == {0o700}
    assert mode_of(paths.identity) == 0o600
    assert len(paths.identity.read_bytes()) == home.IDENTITY_BYTES
    assert home.check_modes(paths) == []
    assert sorted(os.listdir(paths.root)) == ["blobs", "identity.key", "logs", "processes"]


def test_S1_every_home_has_its_own_key(tmp_path: Path) -> None:
    keys = {home.create_home(tmp_path / n, "ann").identity.read_bytes() for n in "abc"}
    assert len(keys) == 3


def test_S1_an_empty_folder_of_ours_becomes_a_home(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert mode_of(home.create_home(tmp_path, "ann").root) == 0o700


def test_S1_it_is_a_home_once_the_database_is_there(tmp_path: Path) -> None:
    paths = home.create_home(tmp_path / "home", "ann")
    with pytest.raises(NoHome):
        home.require_home(paths.root)
    paths.database.touch()
    assert home.require_home(paths.root) == paths
    with pytest.raises(NoHome):
        home.require_home(paths.database / "no-folder")
    with pytest.raises(NoHome):
        home.check_modes(HomePaths(tmp_path / "nothing"))


def test_S1_a_creation_that_was_cut_short_goes_on_with_its_key(tmp_path: Path) -> None:
    first = home.create_home(tmp_path / "home", "ann")
    key = first.identity.read_bytes()
    first.logs.rmdir()
    os.close(durable.create_temporary(first.root)[0])
    assert home.create_home(tmp_path / "home", "ann").identity.read_bytes() == key
    assert first.logs.is_dir()


def test_S1_a_home_is_not_created_twice(paths: HomePaths) -> None:
    with pytest.raises(AlreadyExists, match="already") as caught:
        home.create_home(paths.root, "bob")
    assert "holdfast init --peer bob --home FOLDER" in caught.value.hint


@pytest.mark.parametrize("stranger", ["notes.txt", ".bashrc", "src"])
def test_S1_a_folder_with_other_things_is_left_alone(tmp_path: Path, stranger: str) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / stranger).write_text("mine")
    with pytest.raises(AlreadyExists, match="not empty"):
        home.create_home(tmp_path, "ann")
    assert os.listdir(tmp_path) == [stranger]
    assert mode_of(tmp_path) == 0o755


@pytest.mark.parametrize("remains", ["data.db-wal", "data.db.corrupt-1", "log.mark", "blobs/ab"])
def test_S1_what_remains_of_a_lost_home_is_not_built_over(tmp_path: Path, remains: str) -> None:
    paths = home.create_home(tmp_path / "home", "ann")
    (paths.root / remains).touch()
    with pytest.raises(AlreadyExists, match="is gone") as caught:
        home.create_home(paths.root, "ann")
    assert "backup" in caught.value.hint


def test_S1_a_file_in_the_way_or_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(AlreadyExists, match="is a file"):
            home.create_home(root, "ann")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "identity.key").write_bytes(b"-----BEGIN KEY-----")
    with pytest.raises(AlreadyExists, match="not a key"):
        home.create_home(tmp_path / "home", "ann")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_S1_a_home_where_we_may_not_write_or_look_is_refused_with_a_hint(paths: HomePaths) -> None:
    os.seteuid(NOBODY)
    try:
        with pytest.raises(NotOurs) as no_writing:
            home.create_home(paths.root.parent / "other", "ann")
        with pytest.raises(NotOurs) as no_looking:
            home.require_home(paths.root)
    finally:
        os.seteuid(0)
    assert "another folder" in no_writing.value.hint
    assert no_looking.value.hint


def test_S1_who_creates_a_home_is_alone_in_it_while_the_key_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one waits at the same lock, and then goes on with the key that is there."""

    def meanwhile(path: Path, data: bytes) -> None:
        second = os.open(path.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(second)
        durable.durable_replace(path, data)

    monkeypatch.setattr(home, "durable_replace", meanwhile)
    key = home.create_home(tmp_path / "home", "ann").identity.read_bytes()
    assert home.create_home(tmp_path / "home", "ann").identity.read_bytes() == key


# --- Modes -------------------------------------------------------------------------------------


def test_S1_modes_that_drifted_are_mended_and_told(paths: HomePaths) -> None:
    sha = FileBlobs(paths.blobs).put(b"content").sha256
    blob_folder = paths.blobs / sha[:2]
    paths.mark.touch(mode=0o600)
    drifted = {
        paths.root: 0o755,
        paths.database: 0o644,
        paths.wal: 0o666,
        paths.shm: 0o640,
        paths.identity: 0o444,
        paths.mark: 0o400,
        paths.blobs: 0o777,
        blob_folder: 0o2750,
        paths.logs: 0o500,
    }
    for path, mode in drifted.items():
        path.chmod(mode)
    told = home.check_modes(paths)
    assert len(told) == len(drifted)
    for path, mode in drifted.items():
        assert mode_of(path) == (0o700 if path.is_dir() else 0o600)
        (sentence,) = (s for s in told if s.startswith(f"{path} had"))
        assert f"{mode:04o}" in sentence
    assert home.check_modes(paths) == []


def test_S1_each_blob_is_looked_at_only_when_asked(paths: HomePaths) -> None:
    blobs = FileBlobs(paths.blobs)
    put = [blobs.put(bytes([n])).sha256 for n in range(20)]
    files = [paths.blobs / sha[:2] / sha for sha in put]
    for file in files:
        file.chmod(0o644)
    stranger = files[0].parent / "README"
    stranger.touch()
    stranger.chmod(0o644)
    assert home.check_modes(paths) == []
    assert {mode_of(file) for file in files} == {0o644}
    told = home.check_modes(paths, full=True)
    assert len(told) == len({file.parent for file in files})
    assert {mode_of(file) for file in files} == {0o600}
    assert mode_of(stranger) == 0o644
    assert home.check_modes(paths, full=True) == []


def test_S1_the_check_does_not_grow_with_the_number_of_blobs(
    paths: HomePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    real = os.stat

    def counted(path: str | Path, *, follow_symlinks: bool = True) -> os.stat_result:
        looked.append(path)
        return real(path, follow_symlinks=follow_symlinks)

    def looks() -> int:
        looked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", counted)
            home.check_modes(paths)
        return len(looked)

    folder = paths.blobs / "ab"
    folder.mkdir(mode=0o700)
    before = looks()
    for n in range(300):
        (folder / f"ab{n:062x}").touch(mode=0o600)
    assert looks() == before


@pytest.mark.parametrize("name", ["data.db", "data.db-wal", "identity.key", "blobs", "blobs/ab"])
def test_S1_a_link_inside_a_home_is_refused(paths: HomePaths, tmp_path: Path, name: str) -> None:
    place = paths.root / name
    target = tmp_path / "elsewhere"
    if place.is_dir() or name == "blobs/ab":
        target.mkdir(mode=0o755)
    else:
        target.touch(mode=0o644)
    if place.exists():
        place.rename(tmp_path / "aside")
    before = mode_of(target)
    place.symlink_to(target)
    with pytest.raises(NotOurs, match="symbolic link") as caught:
        home.check_modes(paths)
    assert caught.value.hint
    assert mode_of(target) == before


def test_S1_the_home_itself_may_be_a_link(paths: HomePaths, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(paths.root)
    assert home.check_modes(HomePaths(tmp_path / "link")) == []


def test_S1_a_folder_where_a_file_belongs_is_refused(paths: HomePaths) -> None:
    paths.database.unlink()
    paths.database.mkdir()
    with pytest.raises(NotOurs, match="where a file belongs"):
        home.check_modes(paths)


@pytest.mark.parametrize("name", ["", "data.db", "identity.key", "blobs", "blobs/ab"])
def test_S1_what_belongs_to_another_user_is_refused(
    paths: HomePaths, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (paths.blobs / "ab").mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(paths.root / name, NOBODY, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(NotOurs, match="belongs to user") as caught:
        home.check_modes(paths)
    assert "run as that user" in caught.value.hint


def test_S1_a_durable_file_is_0600_whatever_the_umask_and_whatever_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.mark"
    path.write_bytes(b"old")
    path.chmod(0o644)
    for umask in (0o000, 0o777):
        before = os.umask(umask)
        try:
            durable.durable_replace(path, b"new")
        finally:
            os.umask(before)
        assert mode_of(path) == 0o600
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == [path.name]


def test_S1_a_file_whose_writer_gives_up_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.mark"
    durable.durable_replace(path, b"old")

    def give_up() -> None:
        with durable.durable_writer(path) as draft:
            draft.write(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert path.read_bytes() == b"old"
    with durable.durable_writer(path) as draft:
        draft.write(b"all ")
        draft.write(b"of it")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"all of it"
    assert os.listdir(tmp_path) == [path.name]


# --- Who has it open ---------------------------------------------------------------------------

ENTER = """
import os, signal, sys, threading
from pathlib import Path
from holdfast.storage.files import home, presence as presences
paths = home.HomePaths(Path(sys.argv[1]))
presence = presences.Presence.enter(paths)
"""
WAIT = "print(os.getpid(), flush=True); sys.stdin.readline()\n"
LEAVE = "presence.leave()\n"

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(paths: HomePaths) -> Iterator[Start]:
    """Starts a child that runs this script and returns it once it has printed its first line."""
    children: list[subprocess.Popen[str]] = []

    def started(script: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(paths.root)]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline().strip()
        return child

    yield started
    for child in children:
        child.kill()
        child.communicate()


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)


def wave(child: subprocess.Popen[str]) -> None:
    """Let the child pass its wait."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def pids(holders: list[presences.Holder]) -> list[int]:
    return sorted(holder.pid for holder in holders)


def test_S1_a_living_process_is_named_with_its_command(paths: HomePaths, start: Start) -> None:
    before_ms = time.time_ns() // 1_000_000
    child = start(ENTER + WAIT + LEAVE)
    (other,) = presences.others(paths)
    assert (other.pid, other.command) == (child.pid, "-c")
    assert before_ms <= other.started_at <= time.time_ns() // 1_000_000
    assert presences.unclean(paths) == []
    child.communicate("\n", timeout=60)
    assert child.returncode == 0
    assert presences.others(paths) == []
    assert os.listdir(paths.processes) == []


def test_S12_a_killed_process_is_noticed_until_it_was_dealt_with(
    paths: HomePaths, start: Start
) -> None:
    living, dying = start(ENTER + WAIT), start(ENTER + WAIT)
    assert pids(presences.others(paths)) == sorted([living.pid, dying.pid])
    kill(dying)
    assert pids(presences.others(paths)) == [living.pid]
    seen = presences.unclean(paths)
    assert pids(seen) == pids(presences.unclean(paths)) == [dying.pid]  # looking changes nothing
    kill(living)
    for _ in range(2):  # forgetting twice is once
        presences.clear_unclean(paths, seen)
    # The one that died after we looked is still to be dealt with.
    assert pids(presences.unclean(paths)) == [living.pid]


def test_S12_an_exception_that_nobody_catches_is_an_unclean_end(
    paths: HomePaths, start: Start
) -> None:
    child = start(ENTER + WAIT + "os.abort()\n")
    child.communicate("\n", timeout=60)
    assert child.returncode == -signal.SIGABRT
    assert pids(presences.unclean(paths)) == [child.pid]


def test_S12_a_reused_process_number_does_not_hide_a_crash(paths: HomePaths) -> None:
    """The file bears the number of a living process, this one, which never held it."""
    left = paths.processes / f"{os.getpid()}-{'0' * 16}"
    left.write_bytes(b'{"pid":%d,"started_at_ms":1,"argv0":"old"}' % os.getpid())
    mine = Presence.enter(paths)
    assert [holder.name for holder in presences.unclean(paths)] == [left.name]
    assert presences.others(paths) == []
    mine.leave()
    with open(left) as asked_by_another:
        fcntl.flock(asked_by_another, fcntl.LOCK_SH)
        assert [holder.command for holder in presences.unclean(paths)] == ["old"]


def test_S12_who_leaves_while_we_look_has_not_crashed(
    paths: HomePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = paths.processes / f"4711-{'a' * 16}"
    left.touch()
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: left.unlink())
    assert presences.unclean(paths) == []


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b'{"pid":', b'{"pid":"x"}', b"\xff\xfe"])
def test_S12_a_sign_whose_content_a_power_cut_took_still_counts(
    paths: HomePaths, content: bytes
) -> None:
    left = paths.processes / f"4711-{'a' * 16}"
    left.write_bytes(content)
    (holder,) = presences.unclean(paths)
    assert holder.pid == 4711
    assert holder.command
    presences.clear_unclean(paths, [holder])
    assert presences.unclean(paths) == []


@pytest.mark.parametrize("name", [".tmp-0123456789abcdef", "README", "12-short", "x-" + "0" * 16])
def test_S12_a_stranger_among_the_signs_is_no_crash(paths: HomePaths, name: str) -> None:
    (paths.processes / name).touch()
    assert presences.unclean(paths) == []
    assert presences.others(paths) == []


def test_S1_one_process_may_open_a_home_twice(paths: HomePaths, start: Start) -> None:
    script = ENTER + "again = presences.Presence.enter(paths)\n" + WAIT + LEAVE + WAIT
    child = start(script)
    assert pids(presences.others(paths)) == [child.pid, child.pid]
    wave(child)
    assert child.stdout is not None
    child.stdout.readline()
    # Leaving once leaves the other sign, its lock and its meaning alone.
    assert pids(presences.others(paths)) == [child.pid]
    kill(child)
    assert pids(presences.unclean(paths)) == [child.pid]


def test_S1_we_are_not_among_the_others_and_leaving_twice_is_once(paths: HomePaths) -> None:
    first, second = Presence.enter(paths), Presence.enter(paths)
    assert first.path != second.path
    assert mode_of(first.path) == 0o600
    assert presences.others(paths) == presences.unclean(paths) == []
    first.leave()
    first.leave()
    assert os.listdir(paths.processes) == [second.path.name]
    second.leave()
    assert os.listdir(paths.processes) == []


def test_S1_a_missing_folder_of_signs_is_made(paths: HomePaths) -> None:
    paths.processes.rmdir()
    assert presences.others(paths) == presences.unclean(paths) == []
    presence = Presence.enter(paths)
    assert mode_of(paths.processes) == 0o700
    presence.leave()


FORK = """
print("up")
ready, told = os.pipe()
if (child := os.fork()) == 0:
    presence.leave()
    assert len(presences.others(paths)) == 1
    presences.Presence.enter(paths)
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
print(child, flush=True)
signal.pause()
"""


def test_S12_a_forked_child_cannot_leave_for_its_parent_nor_keep_it_alive(
    paths: HomePaths, start: Start
) -> None:
    parent = start(ENTER + FORK)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert pids(presences.others(paths)) == sorted([parent.pid, child])
        kill(parent)
        assert pids(presences.others(paths)) == [child]
        assert pids(presences.unclean(paths)) == [parent.pid]
    finally:
        os.kill(child, signal.SIGKILL)


COME_AND_GO = """
import sys
from pathlib import Path
from holdfast.storage.files import home, presence as presences
paths = home.HomePaths(Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.readline()
wrong = 0
for _ in range(300):
    presence = presences.Presence.enter(paths)
    wrong += len(presences.unclean(paths))
    presences.others(paths)
    presence.leave()
print(wrong)
"""


def test_S12_processes_that_come_and_go_at_once_see_no_crash_in_each_other(
    paths: HomePaths, start: Start
) -> None:
    children = [start(COME_AND_GO) for _ in range(3)]
    for child in children:
        wave(child)
    assert [child.communicate()[0].strip() for child in children] == ["0", "0", "0"]
    assert os.listdir(paths.processes) == []


THREADS_FORK = """
stop = threading.Event()
def come_and_go():
    while not stop.is_set():
        presences.Presence.enter(paths).leave()
thread = threading.Thread(target=come_and_go)
thread.start()
children = []
for _ in range(100):
    if (child := os.fork()) == 0:
        # What a child still holds open in the folder of signs would outlive its parent there.
        held = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
        os._exit(any("/processes/" in name for name in held))
    children.append(child)
stop.set()
thread.join()
print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which files a process holds")
def test_S12_a_fork_amid_another_threads_entering_takes_no_lock_along(paths: HomePaths) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ENTER + THREADS_FORK + LEAVE, str(paths.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "0"
