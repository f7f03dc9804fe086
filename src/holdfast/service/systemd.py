"""Telling the service manager how this process is, by systemd's notify protocol: one datagram.

Without `NOTIFY_SOCKET` in the environment nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"


class Notifier:
    """The way to the service manager, if there is one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "")
        meant_for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        patience_usec = int(usec) if usec.isdecimal() and meant_for_us else 0
        self.watchdog_s = patience_usec / 1e6 / 2 if patience_usec else None
        """How often to tell it that we live: twice in the time after which it gives us up."""

    def tell(self, *lines: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # A name that begins with @ stands in no file system: its first byte is a zero.
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        # A manager that does not listen must not keep us from working.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
