"""Machines on networks of their own, without other machines: anonymous network namespaces.

    with Networks() as networks:
        lan = networks.bridge()
        ana, ben = networks.machine(), networks.machine()
        lan.plug(ana, "10.77.0.1/24")
        lan.plug(ben, "10.77.0.2/24")
        process = ana.popen([sys.executable, "…"])
        lan.cut(ben)

A namespace lives as long as its holder (`netns_holder.py`), and the holder as long as the test:
when that is killed, nothing is left, and there are no names that two tests could both use. Root
makes namespaces directly, others inside a user namespace where the machine allows it. Where it does
not, `no_networks()` says why. No command of the system is needed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

_TESTS = str(Path(__file__).parents[1])
_START = f"import sys; sys.path.insert(0, {_TESTS!r}); from support.netns_holder import main; "
HOLDER = [sys.executable, "-E", "-s", "-S", "-c", f"{_START} main(sys.argv[1:])"]
PATIENCE_S = 60


class NoNetworks(Exception):
    """This machine does not allow it; the message says why."""


class Namespace:
    """A network of its own, and a process that holds it."""

    def __init__(self, user: str, uid: int | None = None) -> None:
        """`user`: none, new, or the number of a process whose user namespace is shared."""
        self._command = HOLDER if uid is None else [*HOLDER, str(uid)]
        self._processes: list[subprocess.Popen[str]] = []
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(PATIENCE_S)
        with theirs:
            self.holder = subprocess.Popen([*self._command, "hold", user], stdin=theirs.fileno())
        try:
            self.pid = int(self._answer()["pid"])
        except BaseException:
            self.close()
            raise
        self.user = str(self.pid) if user == "new" else user

    def ask(self, verb: str, *arguments: str | int) -> None:
        """Has something done in the namespace. Raises NoNetworks if it cannot be."""
        self._channel.send(json.dumps([verb, *arguments]).encode())
        self._answer()

    def tap(self, name: str) -> int:
        """A network card in the namespace; the file that is its cable."""
        self._channel.send(json.dumps(["tap", name]).encode())
        text, fds, _, _ = socket.recv_fds(self._channel, 65536, 1)
        _check(text)
        return fds[0]

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a process in the namespace. It is killed with the namespace, or with the test."""
        enter = [*self._command, "enter", str(self.pid), self.user, *argv]
        process = subprocess.Popen(enter, text=True, **options)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            with process:
                process.wait(PATIENCE_S)
        self._channel.close()
        self.holder.wait(PATIENCE_S)

    def _answer(self) -> dict[str, Any]:
        return _check(self._channel.recv(65536))


def _check(text: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text) if text else {"error": "the holder ended"}
    if "error" in answer:
        raise NoNetworks(answer["error"])
    return answer


class Bridge:
    """A LAN: an Ethernet switch in a namespace of its own."""

    def __init__(self, namespace: Namespace, numbers: count[int]) -> None:
        self._namespace, self._numbers = namespace, numbers
        self._ports: dict[tuple[int, str], str] = {}
        self._namespace.ask("bridge", "br0")
        self._namespace.ask("up", "br0")

    def plug(self, machine: Namespace, address: str, interface: str = "eth0") -> None:
        """Gives a machine a network card with an address, and a cable to this LAN."""
        port = f"p{next(self._numbers)}"
        self._namespace.ask("veth", port, interface, machine.pid)
        self._namespace.ask("enslave", port, "br0")
        self._namespace.ask("up", port)
        machine.ask("add_address", interface, address)
        machine.ask("up", interface)
        self._ports[machine.pid, interface] = port

    def cut(self, machine: Namespace, interface: str = "eth0") -> None:
        """Pulls the cable on the side of the switch: the machine keeps its address."""
        self._namespace.ask("down", self._ports[machine.pid, interface])

    def mend(self, machine: Namespace, interface: str = "eth0") -> None:
        self._namespace.ask("up", self._ports[machine.pid, interface])


class Networks:
    """All namespaces of one test."""

    def __init__(self, uid: int | None = None) -> None:
        """`uid`: root makes them as this user, as if it were not root."""
        self._stack = ExitStack()
        self._user = "none" if os.geteuid() == 0 and uid is None else "new"
        self._uid = uid
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def machine(self) -> Namespace:
        namespace = Namespace(self._user, self._uid)
        self._stack.callback(namespace.close)
        self._user = namespace.user  # cables join only what one user namespace owns
        return namespace

    def bridge(self) -> Bridge:
        return Bridge(self.machine(), self._numbers)


@cache
def no_networks(taps: bool = False) -> str:
    """Why this machine allows no networks of one's own; empty if it does. `taps`: with network
    cards whose cables a test holds.
    """
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    try:
        with Networks() as networks:
            lan = networks.bridge()
            machine = networks.machine()
            lan.plug(machine, "10.77.0.1/24")
            if taps:
                os.close(machine.tap("tap0"))
    except (NoNetworks, OSError) as error:
        return f"no network namespaces here: {error}"
    return ""


def need_networks(*, taps: bool = False) -> None:
    """Skips a test, with the reason, where there can be no networks."""
    if reason := no_networks(taps):
        pytest.skip(reason)
