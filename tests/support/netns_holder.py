"""Holds one network namespace for a test, and works in it. `netns.py` starts it as a process.

    hold none|new|PID          a namespace of its own; answers on its standard input
    enter PID none|PID ARGV…   runs a command in the namespace of a holder
    UID hold … | enter …       the same as another user

The last word of `hold` says whose user namespace is used: none (for root), a new one, or that of a
holder.
The standard input of a holder is a socket of the test. When the test ends, however it ends, the
socket closes, the holder ends, and the kernel removes the namespace with all that is in it.

Python 3.11 has neither `unshare` nor `setns`, so the C library is called.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from struct import pack
from typing import Any

from support import rtnetlink

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_PARENT_DEATH, _DUMPABLE = 1, 4
_TAP_SET = 0x400454CA
_TAP, _NO_INFO = 0x2, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)

VERBS: dict[str, Callable[..., None]] = {
    "bridge": rtnetlink.add_bridge,
    "veth": rtnetlink.add_veth,
    "enslave": rtnetlink.enslave,
    "up": lambda name: rtnetlink.set_up(name, True),
    "down": lambda name: rtnetlink.set_up(name, False),
    "delete": rtnetlink.delete_link,
    "add_address": rtnetlink.add_address,
    "delete_address": rtnetlink.delete_address,
}


def hold(user: str) -> None:
    channel = socket.socket(fileno=0)
    try:
        _begin(user)
    except OSError as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        return
    channel.send(json.dumps({"pid": os.getpid()}).encode())
    while request := channel.recv(65536):
        verb, *arguments = json.loads(request)
        try:
            fds = [_tap(*arguments)] if verb == "tap" else []
            if not fds:
                VERBS[verb](*arguments)
        except OSError as error:
            answer: dict[str, Any] = {"error": f"{verb}{tuple(arguments)}: {error}"}
            channel.send(json.dumps(answer).encode())
        else:
            socket.send_fds(channel, [b"{}"], fds)
            for fd in fds:
                os.close(fd)


def enter(pid: str, user: str, *argv: str) -> None:
    if user != "none":
        _join(user, "user", _NEW_USER)
    _join(pid, "net", _NEW_NET)
    _die_with_parent()
    os.execvp(argv[0], argv)


def _begin(user: str) -> None:
    if user == "new":
        uid, gid = os.getuid(), os.getgid()
        _call(_libc.unshare, _NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    elif user != "none":
        _join(user, "user", _NEW_USER)
    _die_with_parent()
    _call(_libc.unshare, _NEW_NET)
    rtnetlink.set_up("lo", True)


def _join(pid: str, kind: str, flag: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    _call(_libc.setns, namespace, flag)
    os.close(namespace)


def _die_with_parent() -> None:
    """Set after the last change of credentials, which would undo it."""
    _call(_libc.prctl, _PARENT_DEATH, signal.SIGKILL, 0, 0, 0)


def _tap(name: str) -> int:
    """A network card whose cable is a file: whoever has it reads and writes frames."""
    fd = os.open("/dev/net/tun", os.O_RDWR)
    try:
        ioctl(fd, _TAP_SET, pack("16sH22x", name.encode(), _TAP | _NO_INFO))
    except OSError:
        os.close(fd)
        raise
    return fd


def _call(function: Any, *arguments: int) -> None:
    if function(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _call(_libc.prctl, _DUMPABLE, 1, 0, 0, 0)  # so that its files below /proc are its own


def main(words: list[str]) -> None:
    if words[0].isdecimal():
        _become(int(words.pop(0)))
    verb, *rest = words
    if verb == "hold":
        hold(*rest)
    else:
        enter(*rest)
