"""The `holdfast` command, which kills itself when it passes a named point for the n-th time.

    python dying_daemon.py "store: after" 2 up --json --home HOME --listen 127.0.0.1:0

The points are laid around real functions here, in the child, so that the library has no hooks for
it. They are the steps by which facts get from one zone to another.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

from holdfast.apps.cli.main import main
from holdfast.node.links import receive
from holdfast.node.log import serve
from holdfast.storage.sqlite import log, zones

POINTS: dict[str, tuple[Any, str]] = {
    # at the source
    "register": (serve, "register"),
    "give": (serve, "serve_batch"),
    "confirm": (serve, "confirm"),
    "confirm on the way": (serve, "_confirm_first"),
    # at the receiver
    "take": (receive, "receive_batch"),
    "store": (receive, "_store"),
    "log append": (log.LogWrites, "log_append_new"),
    "cursor": (zones.ZoneWrites, "link_put"),
}


def lay(point: str, nth: int) -> None:
    name, _, side = point.partition(": ")
    owner, attribute = POINTS[name]
    real = getattr(owner, attribute)
    passed = count(1)

    def around(*args: Any, **kwargs: Any) -> Any:
        fatal = next(passed) == nth
        if fatal and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, around)


if __name__ == "__main__":
    lay(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
