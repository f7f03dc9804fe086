"""A daemon whose mesh has a quorum that a test holds in its hand.

The daemon, its HTTP and its `LocalQuorum` are real. Below them is the order of `mesh_orders`, which
commits at once; the test takes the majority away and gives it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.quorum.ports import OrderStatus
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.node.quorum.service.local_quorum import LocalQuorum
from holdfast.node.settings import Settings
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import AlreadyExists, BadInput, UnknownPeer
from holdfast.storage.ports import Transaction
from support.committed_rows import quorum_row
from support.daemon import Plain, UpInThread, ask, make_home, running
from support.envelopes import MESH
from support.mesh_orders import SharedOrder

PATH = f"/v1/meshes/{MESH}/quorum"


@dataclass
class SwitchedOperators:
    """Voters come and go by hand; what was asked for is on record."""

    shared: SharedOrder
    own: str
    asked: list[tuple[str, object]] = field(default_factory=list)
    incarnation: int = 1

    def _status(self, *asked: object) -> OrderStatus:
        self.asked.append((str(asked[0]), asked[1] if len(asked) > 1 else None))
        return replace(self.shared.nodes[self.own].status(), incarnation=self.incarnation)

    async def init(self, mesh: str, voters: tuple[str, ...], *, engine: str) -> OrderStatus:
        raise AlreadyExists(f"the mesh {mesh!r} has voters")

    async def move(self, mesh: str, voters: tuple[str, ...], *, engine: str) -> OrderStatus:
        return self._status("move", (voters, engine))

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None) -> OrderStatus:
        if peer == "nobody":
            raise UnknownPeer("nobody of that name is known here")
        return self._status("add", (peer, timeout_ms))

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None, last: bool
    ) -> OrderStatus:
        return self._status("remove", (peer, timeout_ms, last) if last else (peer, timeout_ms))

    async def transfer(self, mesh: str, to: str | None, *, timeout_ms: int | None) -> OrderStatus:
        self.shared.elect(to or self.own)
        return self._status("transfer", to)

    async def step_down(self, mesh: str) -> OrderStatus:
        self.shared.elect(self.own)
        return self._status("step_down")

    async def forget_claim(self, mesh: str, peer: str, *, dry_run: bool = False) -> OrderStatus:
        if peer == "nobody":
            raise UnknownPeer("nobody of that name has shown another order")
        if dry_run:
            return self._status("forget_claim?", peer)
        return self._status("forget_claim", peer)

    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus:
        if not accept_loss:
            raise BadInput("what only the others had is lost")
        self.incarnation += 1
        return self._status("recover")


@dataclass
class QuorumUp:
    """A daemon of ana, whose mesh `team` has a quorum."""

    daemon: UpInThread
    shared: SharedOrder
    operators: SwitchedOperators

    @property
    def home(self) -> Path:
        return self.daemon.home

    @property
    def remote(self) -> RemoteQuorum:
        return RemoteQuorum(self.daemon.unix)

    def ask(self, method: str, path: str, body: bytes | None = None, **more: Any) -> Plain:
        return ask(more.pop("at", self.daemon.unix), method, path, body, **more)

    def lose_quorum(self) -> None:
        self.daemon.run(self.shared.lose_quorum)

    def decided_elsewhere(self, envelope: Envelope) -> None:
        """An intent of another node is committed, also while this one reaches no majority."""
        self.daemon.run(self.shared.append, encode(envelope))

    def regain(self) -> None:
        self.daemon.run(self.shared.regain)


@contextmanager
def quorum_daemon(folder: Path, settings: Settings | None = None) -> Iterator[QuorumUp]:
    home = make_home(folder / "ana")
    with running(home, settings) as up:
        api = up.daemon.api
        assert api.bus is not None
        host = api.bus

        def has_voters(tx: Transaction) -> None:
            if tx.quorum_get(MESH) is None:
                tx.quorum_put(quorum_row())

        async def begin() -> tuple[SharedOrder, SwitchedOperators, LocalQuorum]:
            await api.writer.write("test", has_voters)
            shared = SharedOrder()
            writer = LoopWriter(api.engine, api.node._opened.store.writer)
            shared.add(api.engine, writer.write)
            operators = SwitchedOperators(shared, api.node.peer)
            local = LocalQuorum(api.engine, writer.write, shared.order_of(api.node.peer), operators)
            await local.start()
            local.settings = api.settings.quorum
            host.quorum = host.api.quorum = local
            return shared, operators, local

        shared, operators, local = up.wait_for(begin())
        try:
            yield QuorumUp(up, shared, operators)
        finally:
            up.wait_for(local.close())
