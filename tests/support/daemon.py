"""Real daemons for tests: in a thread with a loop of its own, or as a process.

    with running(home) as up:                       # in a thread: quick to start, easy to look into
        http(up.unix).get("/v1/log")
    with process(home, "--listen", "127.0.0.1:0") as up:
        up.kill()

Both give addresses that `holdfast.transport.http_client.Client` takes. `in_thread` daemons are also
good for looking inside: `up.daemon.api` is the context that the handlers see.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import holdfast
from holdfast.node.daemon.daemon import Daemon
from holdfast.node.daemon.reload import from_nowhere
from holdfast.node.settings import Settings
from holdfast.service.clock import Clock
from holdfast.service.http.parts import MakeParts, no_parts

T = TypeVar("T")
PATIENCE_S = 60


def make_home(folder: Path, peer: str = "ana", *meshes: str) -> Path:
    """A home with one mesh, `team`, unless others are named."""
    with holdfast.open(folder, peer=peer, create=True, sync="normal") as node:
        for mesh in meshes or ("team",):
            node.create_mesh(mesh)
    return folder


@dataclass
class Up:
    """A daemon that answers."""

    home: Path
    addresses: list[str]
    card: str

    @property
    def unix(self) -> str:
        return self._address("unix:")

    @property
    def tcp(self) -> str:
        return self._address("http://")

    @property
    def tls(self) -> str:
        return self._address("https://")

    def _address(self, scheme: str) -> str:
        return next(address for address in self.addresses if address.startswith(scheme))


@dataclass
class UpInThread(Up):
    """A daemon in a thread of this process."""

    daemon: Daemon
    loop: asyncio.AbstractEventLoop
    overtime: threading.Event
    """Set when its ending took longer than it may."""
    _thread: threading.Thread
    _failed: list[BaseException] = field(default_factory=list)

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Calls a function in the daemon's loop and waits for what it returns."""

        async def call() -> T:
            return work(*args)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine gives in the daemon's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def stop(self) -> None:
        """Asks it to end and waits until it has."""
        self.ask_to_stop()
        self.join()

    def ask_to_stop(self) -> None:
        if self._thread.is_alive():
            try:
                self.loop.call_soon_threadsafe(self.daemon.stop)
            except RuntimeError:  # its loop has closed meanwhile
                return

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the daemon does not end"
        if self._failed:
            raise self._failed[0]


@contextmanager
def running(
    home: Path,
    settings: Settings | None = None,
    *,
    sync: str = "normal",
    load: Callable[[], Settings] = from_nowhere,
    moved: bool = False,
    clock: Clock | None = None,
    parts: MakeParts = no_parts,
) -> Iterator[UpInThread]:
    """A daemon in a thread, until the block ends."""
    told: queue.Queue[UpInThread | BaseException] = queue.Queue()
    failed: list[BaseException] = []

    async def main() -> None:
        overtime = threading.Event()

        def tell(event: str, document: dict[str, Any]) -> None:
            if event == "ready":
                told.put(
                    UpInThread(
                        home=home,
                        addresses=document["listening"],
                        card=document["card"],
                        daemon=daemon,
                        loop=asyncio.get_running_loop(),
                        overtime=overtime,
                        _thread=threading.current_thread(),
                        _failed=failed,
                    )
                )

        daemon = Daemon(
            home,
            settings or Settings(),
            on_event=tell,
            on_overtime=overtime.set,
            sync=sync,
            load=load,
            moved=moved,
            clock=clock,
            parts=parts,
        )
        await daemon.run()

    def serve() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
            told.put(error)

    threading.Thread(target=serve, name="daemon-under-test", daemon=True).start()
    up = told.get(timeout=PATIENCE_S)
    if isinstance(up, BaseException):
        raise up
    try:
        yield up
    finally:
        up.stop()


@dataclass
class UpAsProcess(Up):
    """A daemon in a process of its own."""

    process: subprocess.Popen[bytes]
    pid: int

    def kill(self) -> None:
        """As the power would."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Ends it well and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def start(home: Path, *flags: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts `holdfast up --json` and does not wait for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "up", "--json", "--home", str(home), *flags],
        env={**os.environ, "HOLDFAST_STORE_SYNC": "normal", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextmanager
def process(home: Path, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[UpAsProcess]:
    """A daemon as a process, until the block ends; it is ready when the block begins."""
    with start(home, *flags, env=env) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        line = started.stdout.readline()
        if not line:
            started.wait(PATIENCE_S)
            raise AssertionError(f"it did not start: {started.stderr.read().decode()}")
        said = json.loads(line)
        assert said["event"] == "ready", said
        # Nobody reads on: a pipe that fills up would stop it.
        for stream in (started.stdout, started.stderr):
            threading.Thread(target=stream.read, daemon=True).start()
        try:
            yield UpAsProcess(home, said["listening"], said["card"], started, said["pid"])
        finally:
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
                try:
                    started.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    started.kill()
                    raise


# --- a plain client, for what the real one is too polite to send ----------------------------------


class UnixConnection(http.client.HTTPConnection):
    """The standard library's client, over a Unix socket."""

    def __init__(self, path: str, timeout: float = PATIENCE_S) -> None:
        super().__init__("holdfast", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Plain:
    """An answer, as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error, in the one shape that errors have."""
        assert self.headers["content-type"] == "application/json", self
        code: str = self.json["error"]["code"]
        return code


def connect(address: str) -> http.client.HTTPConnection:
    """A connection without a token, over TLS without any check."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        return UnixConnection(rest)
    host, _, port = rest.removeprefix("//").rpartition(":")
    host = host.strip("[]")
    if scheme == "http":
        return http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    from holdfast.transport.tls import client_context

    return http.client.HTTPSConnection(
        host, int(port), timeout=PATIENCE_S, context=client_context()
    )


def ask(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Plain:
    """One request on a connection of its own."""
    connection = connect(address)
    try:
        with_token = {} if token is None else {"authorization": f"Bearer {token}"}
        connection.request(method, path, body, {**with_token, **(headers or {})})
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Plain(answer.status, found, answer.read())
    finally:
        connection.close()
