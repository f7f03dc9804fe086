"""The sockets of a home: where they are found, and that nobody else can set them up."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rules.errors import NotOurs
from holdfast.storage.files import home
from holdfast.storage.files.home import HomePaths, socket_path, wake_path


@pytest.fixture
def paths(tmp_path: Path) -> HomePaths:
    return home.create_home(tmp_path / "home", "ann")


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[HomePaths]:
    """A home whose path is too long for a socket."""
    made = home.create_home(tmp_path / ("d" * 60) / ("e" * 60) / "home", "ann")
    yield made
    folder = socket_path(made).parent
    assert folder.parent == Path("/tmp")
    shutil.rmtree(folder)


def listen(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    return made


def test_D10_the_sockets_lie_in_the_home(paths: HomePaths) -> None:
    assert socket_path(paths) == paths.root / "api.sock"
    assert wake_path(paths) == paths.root / "wake.sock"


def test_D10_a_home_with_a_long_path_has_its_sockets_near(deep: HomePaths) -> None:
    path, wake = socket_path(deep), wake_path(deep)
    assert path != wake
    assert path.parent == wake.parent
    assert len(os.fsencode(path)) <= 100
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listen(path).close()


def test_D10_whoever_only_nudges_leaves_nothing_behind(deep: HomePaths) -> None:
    folder = wake_path(deep).parent
    assert not folder.exists()
    assert wake_path(deep, make=True).parent == folder
    assert folder.is_dir()


def test_D10_whichever_way_one_comes_to_a_home_its_socket_is_the_same(
    deep: HomePaths, paths: HomePaths, tmp_path: Path
) -> None:
    for name, target in (("short", deep), ("x" * 90, paths)):
        link = tmp_path / name
        link.symlink_to(target.root)
        assert socket_path(HomePaths(link)) == socket_path(target)


def test_D10_the_environment_does_not_move_a_socket(
    deep: HomePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = socket_path(deep)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_path(deep) == before


def test_D10_a_trap_where_everybody_may_write_is_not_stepped_into(
    deep: HomePaths, tmp_path: Path
) -> None:
    folder = socket_path(deep).parent
    folder.rmdir()
    folder.symlink_to(tmp_path)
    for find in (socket_path, lambda paths: wake_path(paths, make=True)):
        with pytest.raises(NotOurs):
            find(deep)
    assert wake_path(deep).parent == folder, "who only nudges is never stopped"
    folder.unlink()
    if os.geteuid() == 0:
        folder.mkdir()
        os.chown(folder, 65534, -1)
        with pytest.raises(NotOurs):
            socket_path(deep)
        folder.rmdir()
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert socket_path(deep).parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_S1_sockets_do_not_upset_the_look_at_a_home(paths: HomePaths) -> None:
    with listen(paths.socket), listen(paths.wake):
        os.chmod(paths.wake, 0o600)
        os.chmod(paths.socket, 0o666)
        assert home.check_modes(paths) == [
            f"{paths.socket} had mode 0666; it is 0600 again",
        ]
        assert home.check_modes(paths, full=True) == []


def test_S1_what_is_no_socket_where_one_belongs_is_told(paths: HomePaths) -> None:
    paths.socket.symlink_to("/dev/null")
    with pytest.raises(NotOurs, match="where a socket belongs"):
        home.check_modes(paths)


def test_S1_the_files_of_a_daemon_are_for_our_eyes_only(paths: HomePaths) -> None:
    files = (paths.identity_next, paths.tls_cert, paths.tls_key, paths.ballast)
    for file in files:
        file.touch(mode=0o644)
        file.chmod(0o644)
    assert len(home.check_modes(paths)) == len(files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
