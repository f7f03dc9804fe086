"""The quorums of a home that its daemon holds, for other processes of the same user: by HTTP over
the Unix socket.

Calls wait in threads, because the client of this project does. A call that is cancelled breaks its
connection, and the daemon then cancels what it did for it. Errors are those of `LocalQuorum`: they
come back by their codes.
"""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.node.quorum import documents
from holdfast.node.quorum.api import ReadDemand, ReplaySummary, StrongReceipt
from holdfast.node.quorum.ports import OrderStatus
from holdfast.rules.errors import NoDaemon, OutcomeUnknown
from holdfast.rules.ids import id_text
from holdfast.rules.limits import (
    QUORUM_CHANGE_MS,
    QUORUM_COMMIT_MS,
)
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.service.clock import SystemClock
from holdfast.transport.daemon_call import call_daemon

T = TypeVar("T")


class RemoteQuorum:
    """The verbs of `QuorumApi`, done by the daemon. Belongs to one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address

    # --- writes and reads --------------------------------------------------------------------

    async def intend(
        self,
        mesh: str,
        op: str,
        entity: str,
        body: bytes,
        *,
        id: str | None = None,
        timeout_ms: int | None = None,
    ) -> StrongReceipt:
        id = id_text(SystemClock().new_id()) if id is None else id  # known, whatever happens
        asked = documents.IntentAsked(op=op, entity=entity, body=body, id=id, timeout_ms=timeout_ms)
        wait_ms = QUORUM_COMMIT_MS if timeout_ms is None else timeout_ms
        try:
            done = await self._post(mesh, "intend", asked, documents.ReceiptDocument, wait_ms)
        except NoDaemon as error:
            if isinstance(_root(error), _NEVER_ASKED):
                raise
            raise OutcomeUnknown(
                f"the daemon went away while it wrote {op} of {entity!r}",
                hint=f"when it is back, send it again with the id {id}: it is applied once at most",
            ) from error
        return done.receipt

    async def confirm(
        self, mesh: str, demand: ReadDemand, *, timeout_ms: int | None = None
    ) -> DegradedRead:
        asked = documents.ReadConfirmAsked(
            linearizable=demand.linearizable,
            staleness_ms_max=demand.staleness_ms_max,
            timeout_ms=timeout_ms,
        )
        wait_ms = QUORUM_COMMIT_MS if timeout_ms is None else timeout_ms
        return await self._post(mesh, "confirm", asked, DegradedRead, wait_ms)

    async def lease_granted(self, mesh: str, name: str, session: bytes, *, timeout_ms: int) -> bool:
        asked = documents.LeaseWait(name=name, session=id_text(session), timeout_ms=timeout_ms)
        found = await self._post(mesh, "leases/wait", asked, documents.LeaseGranted, timeout_ms)
        return found.granted

    async def replay(self, mesh: str, *, node: str | None = None) -> ReplaySummary:
        asked = documents.ReplayAsked(node=node)
        return await self._post(mesh, "replay", asked, ReplaySummary, QUORUM_CHANGE_MS)

    # --- operators ---------------------------------------------------------------------------

    async def status(self, mesh: str) -> OrderStatus:
        return (await self.view(mesh)).order

    async def view(self, mesh: str) -> documents.QuorumView:
        """The status, with what stands around it."""
        return await self._call("GET", _path(mesh), None, documents.QuorumView)

    async def init(
        self, mesh: str, voters: tuple[str, ...], *, engine: str = "embedded"
    ) -> OrderStatus:
        asked = documents.QuorumInit(voters=voters, engine=engine)
        return await self._post(mesh, "init", asked, OrderStatus, QUORUM_CHANGE_MS)

    async def move(self, mesh: str, voters: tuple[str, ...] = (), *, engine: str) -> OrderStatus:
        asked = documents.QuorumMove(voters=voters, engine=engine)
        return await self._post(mesh, "move", asked, OrderStatus, 3 * QUORUM_CHANGE_MS)

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None = None) -> OrderStatus:
        return await self._member("POST", mesh, peer, timeout_ms)

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None = None, last: bool = False
    ) -> OrderStatus:
        return await self._member("DELETE", mesh, peer, timeout_ms, last=last)

    async def transfer(
        self, mesh: str, to: str | None, *, timeout_ms: int | None = None
    ) -> OrderStatus:
        asked = documents.QuorumTransfer(to=to, timeout_ms=timeout_ms)
        wait_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        return await self._post(mesh, "transfer", asked, OrderStatus, wait_ms)

    async def step_down(self, mesh: str) -> OrderStatus:
        return await self._post(mesh, "step-down", None, OrderStatus)

    async def forget_claim(self, mesh: str, peer: str, *, dry_run: bool = False) -> OrderStatus:
        asked = documents.QuorumForgetClaim(peer=peer, dry_run=dry_run)
        return await self._post(mesh, "forget-claim", asked, OrderStatus)

    async def pause(self, mesh: str) -> None:
        await self._post(mesh, "pause", None, documents.ReplayPause)

    async def resume(self, mesh: str) -> None:
        await self._post(mesh, "resume", None, documents.ReplayPause)

    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus:
        asked = documents.QuorumRecover(accept_loss=accept_loss)
        return await self._post(mesh, "recover", asked, OrderStatus, QUORUM_CHANGE_MS)

    # --- how it asks ---------------------------------------------------------------------------

    async def _member(
        self, method: str, mesh: str, peer: str, timeout_ms: int | None, *, last: bool = False
    ) -> OrderStatus:
        wait_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        said = [] if timeout_ms is None else [f"timeout_ms={timeout_ms}"]
        query = "&".join([*said, "last=true"] if last else said)
        path = f"{_path(mesh)}/members/{quote(peer, safe='')}{query and f'?{query}'}"
        return await self._call(method, path, None, OrderStatus, wait_ms)

    async def _post(
        self, mesh: str, verb: str, asked: msgspec.Struct | None, kind: type[T], wait_ms: int = 0
    ) -> T:
        return await self._call("POST", f"{_path(mesh)}/{verb}", asked, kind, wait_ms)

    async def _call(
        self, method: str, path: str, asked: msgspec.Struct | None, kind: type[T], wait_ms: int = 0
    ) -> T:
        """One call, on a connection of its own."""
        return await call_daemon(
            self._address, method, path, asked, kind, wait_ms=wait_ms, holds="the quorum"
        )


_NEVER_ASKED: Final = (ConnectionRefusedError, FileNotFoundError)
"""There was no connection, so nothing can have happened."""


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _path(mesh: str) -> str:
    return f"/v1/meshes/{quote(mesh, safe='')}/quorum"
