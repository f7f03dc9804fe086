"""Unix sockets in a home: only its user can open them, and they replace what a dead process
left.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.rules.errors import NotOurs, StoreFailed

_MODE: Final = 0o600


def bound(path: Path, kind: int) -> socket.socket:
    """A socket bound to a path. The caller must know that no living process has one there: a socket
    that is there is removed.
    """
    _remove_left(path)
    made = socket.socket(socket.AF_UNIX, kind)
    try:
        made.setblocking(False)
        with suppress(OSError):  # where the kernel allows it, the socket never has another mode
            os.fchmod(made.fileno(), _MODE)
        made.bind(str(path))
        # Before it listens: until then nobody can connect.
        os.chmod(path, _MODE)
    except OSError as error:
        made.close()
        raise StoreFailed(f"could not make the socket {path}: {error.strerror or error}") from error
    except BaseException:
        made.close()
        raise
    return made


def notify_daemon(path: Path) -> None:
    """Sends one datagram to the daemon that reads at this path, if there is one. Never waits, never
    fails.
    """
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(b"\0", str(path))


def _remove_left(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise NotOurs(f"{path} is not a socket", hint="move it away: a socket belongs there")
    os.unlink(path)
