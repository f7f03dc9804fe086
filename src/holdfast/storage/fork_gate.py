"""What a fork copies, and what the child must not do with it.

A forked child has a copy of everything: descriptors, SQLite's table of locks, Python's locks. But
locks on files belong to the process that took them, threads exist only in the parent, and a mutex
that another thread held stays locked in the child for ever. A child that used, closed or opened
again what its parent has open would believe in locks that it does not have, and destroy what others
write. So:

- **Before** the fork, everything that uses a database comes to a stop, for a second at most: then
  no mutex of SQLite is held while memory is copied.
- **In the child**, everything that was inherited refuses every call with `ProcessForked`. Its
  connections are never closed, not even when the child ends: they are leaked on purpose.
- The child may open other databases. It may not open one that its parent had open, because SQLite
  would find the parent's locks in its table and take no real ones. If a thread did not come to a
  stop in time, the child may open none, because it could wait for ever.

Everything that uses a database registers here with `watch`. A program that starts another by
`exec`, as `subprocess` does, is not concerned: nothing is inherited then. What else was considered:
docs/decisions/0031.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import monotonic
from weakref import ref

from holdfast.rules.errors import ProcessForked
from holdfast.rules.limits import FORK_WAIT_MS_MAX
from holdfast.storage.owned_lock import owned_lock

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from typing import Final, Protocol

    class Inheritable(Protocol):
        """Something that a forked child must not use."""

        def still(self, until: float) -> bool:
            """Brings its work to a stop. False if that took longer than until this time of the
            monotonic clock.
            """

        def go_on(self) -> None:
            """In the parent, after `still`, whatever that returned."""

        def disown(self) -> Iterable[object]:
            """In the child, after `still`: refuses every call from now on, and takes no lock that
            another thread may have held. Returns what must never be freed.
            """


FileId = tuple[int, int]
"""Device and inode: what SQLite knows a file by."""


_watched: Final[dict[int, ref[Inheritable]]] = {}
_stopped: Final[list[Inheritable]] = []
"""What the fork under way has asked to stop."""
_one_fork: Final = owned_lock()
_inherited: Final[set[FileId]] = set()
"""The databases that a parent of this process had open when it was forked."""
_unsafe: Final[list[str]] = []
"""Why this process may use no database at all; empty if it may."""


def watch(thing: Inheritable) -> None:
    key = id(thing)
    _watched[key] = ref(thing, lambda gone: _watched.pop(key, None))


def refusal() -> ProcessForked:
    """The error for a call of something that the parent had opened."""
    return ProcessForked("it was opened by the parent of this process, before the fork")


def inherit(files: Iterable[FileId]) -> None:
    """In the child: these databases are not to be opened here."""
    _inherited.update(files)


def check_may_open(path: str) -> None:
    """Raises `ProcessForked` if this process is a child that must not open the database."""
    if _unsafe:
        raise ProcessForked(_unsafe[0])
    if _inherited and file_id(path) in _inherited:
        raise ProcessForked(f"the parent of this process had {path} open when it forked it")


def file_id(path: str) -> FileId | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _before() -> None:
    _one_fork.acquire()
    until = monotonic() + FORK_WAIT_MS_MAX / 1000
    if _watched:
        _import_ctypes()
    slow = False
    # Those that came last first: a store stops before the connections that it uses.
    for found in reversed(list(_watched.values())):
        thing = found()
        if thing is not None:
            _stopped.append(thing)
            slow = not thing.still(until) or slow
    if slow:
        _unsafe.append(
            "a thread of the parent was in the middle of a database call when it forked this "
            "process, so no database can be used here"
        )


def _in_parent() -> None:
    for thing in _stopped:
        thing.go_on()
    _stopped.clear()
    _unsafe.clear()
    _one_fork.release()


def _in_child() -> None:
    stopped = list(_stopped)
    _stopped.clear()
    _watched.clear()
    errors = [error for error in map(_disown, stopped) if error is not None]
    _one_fork.release()
    if errors:
        raise errors[0]


def _disown(thing: Inheritable) -> Exception | None:
    """An error of one thing must not leave the locks of all others held: the child would wait for
    ever.
    """
    try:
        for kept in thing.disown():
            _leak(kept)
    except Exception as error:
        return error
    return None


def _import_ctypes() -> None:
    """Ahead of the fork, where an import can wait for one in another thread."""
    import ctypes  # noqa: F401


def _leak(kept: object) -> None:
    """Counts a reference that nobody gives back, so that the object outlives the interpreter."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
