"""Work on a home that no other process may have open: restore, repair, going back a schema version.

There is no lock, because SQLite's locks end where files are renamed. Instead the worker looks which
processes have the home open, registers itself, and looks again right before the step that must be
alone; a process that came between finds the old database closed to it or the new one complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.rules.errors import StoreBusy
from holdfast.storage.files import presence as presences
from holdfast.storage.files.home import HomePaths
from holdfast.storage.files.presence import Presence


@contextmanager
def exclusive(paths: HomePaths, doing: str) -> Iterator[Callable[[], None]]:
    """Yields a function that raises StoreBusy if another process has the home open by now.

    A process that is killed within the block counts as an unclean end: the next opening checks the
    database.
    """
    _refuse(paths, doing, None)
    presence = Presence.at(paths)
    try:
        presence.appear()
        _refuse(paths, doing, presence)
        yield lambda: _refuse(paths, doing, presence)
    finally:
        presence.leave()


def _refuse(paths: HomePaths, doing: str, ours: Presence | None) -> None:
    there = [f"process {other.pid} ({other.command})" for other in presences.others(paths)]
    if _open_here(paths, ours):
        there.append("this very process")
    if there:
        raise StoreBusy(
            f"cannot {doing} while the home is open in {', '.join(there)}",
            hint="close it there, then retry",
        )


def _open_here(paths: HomePaths, ours: Presence | None) -> bool:
    """Whether this process has the home open as a node, besides our own registration."""
    try:
        names = set(os.listdir(paths.processes))
    except FileNotFoundError:
        return False
    ended = {holder.name for holder in presences.unclean(paths)}
    if ours is not None:
        ended.add(ours.path.name)
    return any(name.startswith(f"{os.getpid()}-") for name in names - ended)
