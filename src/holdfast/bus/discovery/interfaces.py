"""The addresses of this machine, and a word when they change.

On Linux the kernel tells of every change (rtnetlink). What it tells is not read: it is a wake, and
the addresses are looked up after it. Elsewhere they are looked at from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Final

from holdfast.rules.bus.links.discovery import InterfaceAddress
from holdfast.rules.limits import BUS_INTERFACES_MS, SECOND_MS

log = logging.getLogger("holdfast")

_LINKS: Final = 1
_ADDRESSES_V4: Final = 0x10
_ADDRESSES_V6: Final = 0x100
"""Groups of rtnetlink."""
_NOTICE_BYTES: Final = 65536


def interface_addresses() -> list[InterfaceAddress]:
    """All addresses of all interfaces of this machine, in a fixed order."""
    import ifaddr  # a wrapper around a call of the C library; discovery alone needs it

    found = []
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            text = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
            plain = text.partition("%")[0]
            found.append(InterfaceAddress(adapter.index or 0, plain, ip.network_prefix))
    return sorted(found)


def watch_interfaces(changed: Callable[[], None]) -> Callable[[], None]:
    """Calls `changed` in the loop whenever addresses may be others. Returns what ends it."""
    if sys.platform == "linux":
        try:
            return _listen(changed)
        except OSError as error:
            log.info("the system does not tell of new addresses (%s): they are looked at", error)
    return _look(changed)


if sys.platform == "linux":

    def _listen(changed: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
        try:
            kernel.bind((0, _LINKS | _ADDRESSES_V4 | _ADDRESSES_V6))
        except OSError:
            kernel.close()
            raise

        def read() -> None:
            try:
                while kernel.recv(_NOTICE_BYTES):
                    pass
            except BlockingIOError:
                pass
            except OSError as error:
                log.debug("notices of new addresses were lost: %s", error)  # more than fit
            changed()

        def close() -> None:
            loop.remove_reader(kernel)
            kernel.close()

        loop.add_reader(kernel, read)
        return close


def _look(changed: Callable[[], None]) -> Callable[[], None]:
    loop = asyncio.get_running_loop()
    seen = interface_addresses()
    timer = loop.call_later(BUS_INTERFACES_MS / SECOND_MS, lambda: look())

    def look() -> None:
        nonlocal seen, timer
        now = interface_addresses()
        if now != seen:
            seen = now
            changed()
        timer = loop.call_later(BUS_INTERFACES_MS / SECOND_MS, look)

    return lambda: timer.cancel()
