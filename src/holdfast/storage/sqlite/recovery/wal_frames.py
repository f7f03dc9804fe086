"""What lies in a write-ahead log beyond the place where SQLite stops believing it.

Each frame of the log carries a checksum over all frames before it, so one flipped byte ends the log
there: SQLite takes what follows for never committed and says nothing. The frames are still in the
file, with the salts of this log, and each entry of ours has a hash of its own. So a repair lays all
frames up to the last commit over a copy of the database and looks for entries in its pages.

The end of a log may also be torn by a power cut. Then no later commit follows: a commit is synced
before the next one begins. But where a write may harm its neighbours in a sector, SQLite fills the
sector with repeats of the frame that commits, and these are one commit. (What we acknowledge is in
the log and in what came of it, so each commit of ours has several pages: two that stand side by
side over the same page are not two writes.) The format is that of
https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.storage.sqlite.recovery.wal_sums import checksum, running_sums

_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 24
_MAGIC: Final = (0x377F0682, 0x377F0683)
_PAGE_BYTES: Final = 4096


class WalEnd(NamedTuple):
    """Where a log ends."""

    frames: int
    """Frames that SQLite takes."""
    beyond: int
    """Frames of this log after those, up to the last commit."""
    commits: int
    """Commits among them. More than one cannot be what a power cut tore."""


class _Frame(NamedTuple):
    page: int
    pages_after: int
    """How many pages the database has after this commit; 0 if the frame is none."""
    salts: bytes
    checksum: bytes
    at: int
    """Where its page begins in the file."""

    @property
    def commits(self) -> bool:
        return self.pages_after > 0


def look_at_wal(path: Path) -> WalEnd:
    """Where the log in a file ends; nobody may be writing to it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return WalEnd(0, 0, 0)
    taken, all_frames = _read(data)
    beyond = all_frames[taken:]
    return WalEnd(taken, len(beyond), _commits(beyond))


def _commits(frames: list[_Frame]) -> int:
    """How many there are; a frame that only fills its sector repeats the commit before it."""
    alone = [frame[:2] for frame in frames]
    return sum(
        frame.commits and (at == 0 or alone[at] != alone[at - 1]) for at, frame in enumerate(frames)
    )


def lay_over(wal: Path, database: Path) -> None:
    """Writes the pages of all frames up to the last commit into a copy of their database."""
    data = wal.read_bytes()
    frames = _read(data)[1]
    most = database.stat().st_size // _PAGE_BYTES + len(frames)
    with open(database, "r+b") as file:
        for frame in frames:
            if not 0 < frame.page <= most:
                continue  # its number was harmed
            file.seek((frame.page - 1) * _PAGE_BYTES)
            file.write(data[frame.at : frame.at + _PAGE_BYTES])


def _read(data: bytes) -> tuple[int, list[_Frame]]:
    """How many frames SQLite takes, and all frames up to the last commit."""
    frames = _frames(data)
    if not frames:
        return 0, []
    head = data[:_HEADER_BYTES]
    magic = int.from_bytes(head[:4])
    big = magic == _MAGIC[1]
    sums = checksum(head[:24], (0, 0), big)
    fits = magic in _MAGIC and head[8:12] == _PAGE_BYTES.to_bytes(4)
    believed = fits and _bytes(sums) == head[24:]
    salts = head[16:24] if believed else frames[0].salts
    ours: list[_Frame] = []
    for frame in frames:
        if frame.salts != salts and not any(f.salts == salts for f in frames[len(ours) + 1 :]):
            break  # what an earlier log left behind
        ours.append(frame if _is_of(frame, salts) else frame._replace(page=0, pages_after=0))
    while ours and not ours[-1].commits:
        ours.pop()
    taken = 0
    running = running_sums(data, _HEADER_BYTES, _FRAME_BYTES + _PAGE_BYTES, sums, big)
    for whole, frame in enumerate(ours if believed else (), start=1):
        sums = next(running)
        if frame.salts != salts or _bytes(sums) != frame.checksum:
            break
        if frame.commits:
            taken = whole
    return taken, ours


def _is_of(frame: _Frame, salts: bytes) -> bool:
    """Whether a frame was written for this log. Both salts of an earlier log are others, and a
    power cut may leave frames of it between new ones; a flipped byte changes one salt.
    """
    return frame.salts[:4] == salts[:4] or frame.salts[4:] == salts[4:]


def _frames(data: bytes) -> list[_Frame]:
    found = []
    size = _FRAME_BYTES + _PAGE_BYTES
    for at in range(_HEADER_BYTES, len(data) - size + 1, size):
        head = data[at : at + _FRAME_BYTES]
        page = int.from_bytes(head[:4])
        after = int.from_bytes(head[4:8])
        found.append(_Frame(page, after, head[8:16], head[16:], at + _FRAME_BYTES))
    return found


def _bytes(sums: tuple[int, int]) -> bytes:
    return sums[0].to_bytes(4) + sums[1].to_bytes(4)
