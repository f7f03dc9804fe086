"""Which process holds the bus of a home: one at a time, because one key counts one row of numbers.

A daemon holds it for as long as it serves. Without a daemon, a program or a command holds it while
it uses it. Others ask the daemon, by its Unix socket; if the holder is no daemon they get
`AlreadyExists`, which names the process.
"""

from __future__ import annotations

from typing import Final

from holdfast.rules.errors import AlreadyExists
from holdfast.rules.limits import BUS_HOLDER_MS, SECOND_MS
from holdfast.service.instance_lock import DaemonLock, DaemonNote, daemon_note, wait_until_free
from holdfast.storage.files.home import HomePaths, socket_path

LOCK: Final = "bus.lock"
_END: Final = "end it first"


def hold_bus(paths: HomePaths, *, patience_ms: int = 0) -> DaemonLock:
    """Takes the bus of a home. A holder that goes within `patience_ms` is waited for: commands hold
    it for a moment.
    """
    if patience_ms and (paths.root / LOCK).exists():
        wait_until_free(paths, patience_ms / SECOND_MS, LOCK)
    return DaemonLock(paths, what="another process with a bus", end=_END, file=LOCK)


def bus_socket(paths: HomePaths) -> str | None:
    """The address of the daemon that holds the bus of this home; None if nobody holds it. Raises
    AlreadyExists if the holder cannot be asked.
    """
    holder = daemon_note(paths, LOCK)
    if holder is None:
        return None
    daemon, socket = daemon_note(paths), socket_path(paths)
    if daemon is None or daemon.pid != holder.pid:
        raise _held(paths, holder, "end it first, or use the bus through a daemon: holdfast up")
    if not socket.exists():
        raise _held(paths, holder, "start it with its Unix socket, without --no-socket")
    return f"unix:{socket}"


def wait_for_bus(paths: HomePaths) -> str | None:
    """As `bus_socket`, but a holder that is no daemon is given a moment to go."""
    try:
        return bus_socket(paths)
    except AlreadyExists:
        wait_until_free(paths, BUS_HOLDER_MS / SECOND_MS, LOCK)
        return bus_socket(paths)


def _held(paths: HomePaths, holder: DaemonNote, hint: str) -> AlreadyExists:
    return AlreadyExists(f"process {holder.pid} holds the bus of {paths.root}", hint=hint)
