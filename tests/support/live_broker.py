"""A real broker in a thread, which can be ended and begun again at the same address, and homes that
share their mesh through it.

    with LiveBroker(folder) as broker:
        share(home_of_ana, broker)
        join(home_of_bob, broker, home_of_ana)
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

import holdfast
from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.settings import BrokerSettings
from holdfast.node.broker_client.client import BrokerClient, card_shown
from holdfast.node.library.node import Node
from holdfast.node.trust.trust import Trust
from holdfast.rules.invites import parse_invite
from holdfast.service.http.parts import MakeParts, no_parts
from holdfast.storage.files.home import HomePaths

PATIENCE_S = 60
MESH = "team"


class LiveBroker:
    """On loopback, by one port for as long as the test lasts."""

    def __init__(self, folder: Path, *, tls: bool = False, **given: Any) -> None:
        self.folder = folder
        self._place = f"127.0.0.1:{_free_port()}"
        where = {"listen" if tls else "tcp": self._place}
        self._given = {"store": folder, "sync": "normal", "name": "hub", **where, **given}
        self.url = f"{'https' if tls else 'http'}://{self._place}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.daemon: BrokerDaemon | None = None
        self.parts: MakeParts = no_parts
        """What it serves besides its API, from the next start on."""

    def change(self, **given: Any) -> None:
        """Other settings, from the next start on."""
        self._given |= given

    def start(self) -> None:
        told: queue.Queue[BaseException | None] = queue.Queue()

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self.daemon = BrokerDaemon(
                BrokerSettings(**self._given),
                on_event=lambda event, document: told.put(None) if event == "ready" else None,
                on_overtime=lambda: None,
                parts=self.parts,
            )
            await self.daemon.run()

        def serve() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                told.put(error)

        self._thread = threading.Thread(target=serve, name="broker-under-test", daemon=True)
        self._thread.start()
        failed = told.get(timeout=PATIENCE_S)
        if failed is not None:
            raise failed

    def stop(self) -> None:
        if self._thread is None or self.daemon is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the broker does not end"
        self._thread = None

    def run(self, work: Any) -> Any:
        """Awaits something in the broker's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    @property
    def store(self) -> Any:
        assert self.daemon is not None
        return self.daemon.broker.store

    def copy(self, to: Path) -> None:
        """A backup of all that it has; it must not run."""
        shutil.copytree(self.folder, to)

    def restore(self, copy: Path, *names: str) -> None:
        """Puts files of a backup in the place of its own, and nothing else."""
        for name in names or ("broker.db",):
            for old in self.folder.glob(f"{name}*"):
                old.unlink()
            shutil.copy(copy / name, self.folder / name)

    def __enter__(self) -> LiveBroker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def calls_of(node: Node, broker: LiveBroker, card: str | None = None) -> BrokerClient:
    trust = Trust(node._engine, HomePaths(node.home))
    shown = card or card_shown(broker.url, (trust.name, trust.seed))
    return BrokerClient.of(trust, broker.url, shown)


def share(home: Path, broker: LiveBroker, mesh: str = MESH) -> None:
    """Registers a mesh of the home, and makes it a shared one."""
    with holdfast.open(home, sync="normal") as node:
        calls = calls_of(node, broker)
        there = calls.register(mesh, "Team")
        _become(node, calls, "shared_owner", there.server_id, there.epoch, mesh)
        calls.close()


def join(home: Path, broker: LiveBroker, owner: Path) -> None:
    with holdfast.open(owner, sync="normal") as node:
        calls = calls_of(node, broker)
        text = calls.invite(MESH).text
        calls.close()
    with holdfast.open(home, sync="normal") as node:
        calls = calls_of(node, broker)
        there = calls.join(parse_invite(text))
        _become(node, calls, "shared_guest", there.server_id, there.epoch)
        calls.close()


def _become(
    node: Node, calls: BrokerClient, kind: str, server_id: str, epoch: int, mesh: str = MESH
) -> None:
    row = msgspec.structs.replace(
        node.mesh(mesh).info(),
        kind=kind,
        broker_url=calls.url,
        broker_card=calls.card,
        server_id=server_id,
        broker_epoch=epoch,
    )
    node._engine.write("test", lambda tx: tx.mesh_change(row))
