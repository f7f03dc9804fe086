"""The quorums that the daemon of a connection holds, and leases that are kept over the connection.

A lease lives in this process, which renews it: what it promises is the same as on an open home
(`node/library/aio_lease.py`). If the daemon stays away for too long, the lease ends here in time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import msgspec

from holdfast.node.library.aio_lease import AsyncLease, HeldBy
from holdfast.node.quorum.documents import LeaseDocument
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.node.remote.faces import decoded, new_id, quoted
from holdfast.node.remote.line import Line
from holdfast.rules.arguments import checked
from holdfast.rules.errors import UnknownKey
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import LEASE_TTL_MS, LINK_READ_MS_MAX
from holdfast.rules.quorum.fence import parse_order
from holdfast.transport.daemon_call import call_through

T = TypeVar("T")

_LEASE: Final = msgspec.json.Decoder(LeaseDocument)


class LineQuorum(RemoteQuorum):
    """`RemoteQuorum`, by the address and the token of a connection."""

    def __init__(self, line: Line) -> None:
        super().__init__(line.address)
        self._line = line

    async def _call(
        self, method: str, path: str, asked: msgspec.Struct | None, kind: type[T], wait_ms: int = 0
    ) -> T:
        client = self._line.own_client(LINK_READ_MS_MAX + wait_ms)
        return await call_through(client, method, path, asked, kind, holds="the quorum")


class AsyncRemoteLease(AsyncLease):
    """`AsyncLease`, asked of a daemon."""

    def __init__(self, line: Line, mesh: str, name: str, *, ttl_ms: int, wait_ms: int) -> None:
        async def reach() -> LineQuorum:
            return LineQuorum(line)

        engine: Any = None  # what it would be asked for, the daemon is asked for here
        super().__init__(engine, mesh, reach, name, ttl_ms=ttl_ms, wait_ms=wait_ms)
        self._line = line

    def _new_session(self) -> bytes:
        return parse_id(new_id())

    async def _held_by(self) -> HeldBy | None:
        path = f"/v1/meshes/{self._mesh}/quorum/leases/{quoted(self.name)}?read=local"
        try:
            answer = await asyncio.to_thread(self._line.call, "GET", path)
        except UnknownKey:
            return None
        found: LeaseDocument = decoded(answer, _LEASE)
        if not found.session or not found.fence:
            return None
        return HeldBy(parse_id(found.session), parse_order(found.fence))


@checked
def remote_lease(
    line: Line, mesh: str, name: str, ttl_ms: int = LEASE_TTL_MS, *, wait_ms: int = 0
) -> AsyncRemoteLease:
    return AsyncRemoteLease(line, mesh, name, ttl_ms=ttl_ms, wait_ms=wait_ms)
