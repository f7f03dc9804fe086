"""The sums of a write-ahead log, side by side, are those that SQLite takes one after the other."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from holdfast.storage.sqlite.recovery.wal_frames import look_at_wal
from holdfast.storage.sqlite.recovery.wal_sums import running_sums

HEADER, FRAME = 32, 24 + 4096


def by_the_book(data: bytes, big: bool) -> list[tuple[int, int]]:
    """As https://www.sqlite.org/fileformat2.html has it, word by word."""
    order = "big" if big else "little"
    first, second, found = 3, 5, []
    for at in range(0, len(data) - FRAME + 1, FRAME):
        counted = data[at : at + 8] + data[at + 24 : at + FRAME]
        for pair in range(0, len(counted), 8):
            first += int.from_bytes(counted[pair : pair + 4], order) + second  # type: ignore[arg-type]
            first %= 1 << 32
            second += int.from_bytes(counted[pair + 4 : pair + 8], order) + first  # type: ignore[arg-type]
            second %= 1 << 32
        found.append((first, second))
    return found


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("frames", [0, 1, 2, 7, 8, 9, 33, 300])
def test_S12_sums_taken_side_by_side_are_those_of_the_format(frames: int, big: bool) -> None:
    """Full words too, with which a lane grows fastest, and half a frame at the end."""
    rng = random.Random(frames)
    noise = rng.randbytes(frames // 2 * FRAME)
    data = noise + b"\xff" * (frames * FRAME - len(noise)) + b"half a frame"
    assert list(running_sums(b"head" + data, 4, FRAME, (3, 5), big)) == by_the_book(data, big)


@pytest.mark.parametrize("harmed", [None, 3, 290, 299])
def test_S12_a_log_is_believed_up_to_the_frame_that_was_harmed(
    tmp_path: Path, harmed: int | None
) -> None:
    """One that SQLite has written: a row of three pages in each of a hundred commits."""
    writing = apsw.Connection(str(tmp_path / "data.db"))
    writing.pragma("journal_mode", "WAL")
    writing.pragma("wal_autocheckpoint", 0)
    writing.execute("CREATE TABLE t (x)")
    while len(wal := (tmp_path / "data.db-wal").read_bytes()) < HEADER + 300 * FRAME:
        writing.execute("INSERT INTO t VALUES (randomblob(9000))")
    copy = bytearray(wal)
    if harmed is not None:
        copy[HEADER + harmed * FRAME + 1000] ^= 1
    (tmp_path / "copy").write_bytes(copy)
    end = look_at_wal(tmp_path / "copy")
    whole = (len(wal) - HEADER) // FRAME
    if harmed is None:
        assert (end.frames, end.beyond) == (whole, 0)
    else:
        assert harmed - 5 < end.frames <= harmed
        assert end.frames + end.beyond == whole
    writing.close()
