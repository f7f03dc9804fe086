"""The ballast takes real space, gives it back at once, and never is what fills a disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.rules.errors import DiskFull, StoreFailed
from holdfast.rules.limits import MIB
from holdfast.storage.files import ballast as ballasts
from holdfast.storage.files.ballast import Ballast
from support.small_disk import mounted

SIZE = 256 * 1024


@pytest.fixture
def ballast(tmp_path: Path) -> Ballast:
    return Ballast(tmp_path, size=SIZE)


def taken(ballast: Ballast) -> int:
    return ballast.path.stat().st_blocks * 512


def test_Z7_the_ballast_takes_real_space_for_our_eyes_only(ballast: Ballast) -> None:
    assert not ballast.present()
    assert ballast.lay()
    assert ballast.present()
    assert taken(ballast) >= SIZE
    assert stat.S_IMODE(ballast.path.stat().st_mode) == 0o600


def test_Z7_laying_twice_and_releasing_twice_is_harmless(ballast: Ballast) -> None:
    assert ballast.lay()
    assert ballast.lay()
    assert ballast.release() is True
    assert not ballast.path.exists()
    assert ballast.release() is False
    assert ballast.lay()


@pytest.mark.parametrize("left", [b"", b"half", bytes(SIZE - 1)])
def test_Z7_half_a_ballast_that_a_crash_left_is_none_and_is_completed(
    ballast: Ballast, left: bytes
) -> None:
    ballast.path.write_bytes(left)
    assert not ballast.present()
    assert ballast.lay()
    assert ballast.present()


def test_Z7_a_file_with_holes_is_no_ballast(ballast: Ballast) -> None:
    with open(ballast.path, "wb") as file:
        file.truncate(SIZE)
    assert not ballast.present()
    assert ballast.lay()
    assert taken(ballast) >= SIZE


def test_Z7_it_is_not_laid_where_it_would_fill_the_disk(
    ballast: Ballast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ballasts, "free_bytes", lambda folder: 4 * SIZE - 1)
    assert ballast.lay() is False
    assert not ballast.path.exists()
    monkeypatch.setattr(ballasts, "free_bytes", lambda folder: 4 * SIZE)
    assert ballast.lay() is True


def test_Z7_a_ballast_that_does_not_fit_after_all_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may take the space between the look and the laying. On a disk of its own: the
    space is taken until there is none left, which others would notice.
    """
    with mounted(tmp_path, 2 * SIZE // 1024) as disk:
        large = Ballast(disk, size=4 * SIZE)
        monkeypatch.setattr(ballasts, "free_bytes", lambda folder: 16 * SIZE)
        with pytest.raises(DiskFull):
            large.lay()
        assert not large.present()
        assert taken(large) == 0


def test_Z7_where_space_cannot_be_reserved_it_is_written(
    ballast: Ballast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve(fd: int, offset: int, size: int) -> None:
        os.ftruncate(fd, size)  # as an emulation on a file system that compresses would

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    assert ballast.lay()
    assert taken(ballast) >= SIZE


def test_Z7_a_link_in_its_place_is_refused_and_not_followed(
    ballast: Ballast, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    ballast.path.symlink_to(other)
    with pytest.raises(StoreFailed):
        ballast.lay()
    assert ballast.release() is False
    assert other.read_bytes() == b"of somebody else"


def test_Z7_the_real_size_is_sixteen_megabytes(tmp_path: Path) -> None:
    assert Ballast(tmp_path).size == 16 * MIB
