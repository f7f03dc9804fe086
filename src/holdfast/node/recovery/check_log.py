"""Checks of the log itself: is each entry what was written, and is the WAL whole?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.node.recovery.checks import Check, fail, joined_names, ok, warn
from holdfast.rules import limits
from holdfast.storage.ports import Reader
from holdfast.storage.sqlite.recovery.wal_frames import look_at_wal

REPAIR = "holdfast doctor --repair (the damaged file is kept)"


def damaged_entries(reader: Reader) -> list[tuple[int, str]]:
    """The offsets of all entries that are not what was written, and what is wrong with each."""
    at, head = reader.log_bounds()
    found: list[tuple[int, str]] = []
    while at <= head:
        found += reader.log_damage(at, at + limits.CHUNK_ROWS, limits.CHUNK_ROWS)
        at += limits.CHUNK_ROWS
    return found


def check_entries(reader: Reader) -> Iterator[Check]:
    """Compares every entry with its leaf hash and its columns."""
    found = damaged_entries(reader)
    if not found:
        yield ok("entries", "every entry of the log is what was written")
        return
    offsets = joined_names([str(offset) for offset, _ in found])
    count = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    what = f"{count} of the log damaged, at offset {offsets}: {found[0][1]}"
    yield fail("entries", what, REPAIR)


def check_wal(path: Path) -> Iterator[Check]:
    """Looks for commits that SQLite will not find; nobody may have the home open."""
    end = look_at_wal(path)
    if end.commits > 1:
        what = (
            f"the WAL is damaged after {end.frames} frames: {end.commits} commits that follow are "
            "lost when the home is opened"
        )
        yield fail("wal", what, REPAIR)
    elif end.beyond:
        what = f"the WAL is torn after {end.frames} frames, in its last commit"
        fix = "nothing, if the power was cut: it was not acknowledged; else: " + REPAIR
        yield warn("wal", what, fix)
