"""Sharing meshes through a broker, for coroutines: the same verbs, each in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast.node.broker_client.client import NewInvite
from holdfast.node.broker_client.queues import TakenMessage
from holdfast.node.sharing.join import JoinedMesh
from holdfast.node.sharing.leave import Left
from holdfast.node.sharing.publish import Published
from holdfast.node.sharing.sharing import Sharing
from holdfast.node.snapshots.mesh_snapshot import Progress, no_progress
from holdfast.protocol.broker_http import Destination, InviteInfo, Member
from holdfast.protocol.broker_log_http import DeadMessage, QueueInfo
from holdfast.rules.limits import INVITE_HOURS
from holdfast.rules.rows import MeshRow


class AsyncSharing:
    """What one node shares, and with whom."""

    def __init__(self, sync: Sharing) -> None:
        self._sync = sync

    async def publish(
        self,
        mesh: str,
        *,
        broker: str | None = None,
        card: str | None = None,
        name: str | None = None,
        token: str | None = None,
        progress: Progress = no_progress,
        wait: Callable[[], int] | None = None,
    ) -> Published:
        return await asyncio.to_thread(
            self._sync.publish,
            mesh,
            broker=broker,
            card=card,
            name=name,
            token=token,
            progress=progress,
            wait=wait,
        )

    async def join(self, invite: str, *, progress: Progress = no_progress) -> JoinedMesh:
        return await asyncio.to_thread(self._sync.join, invite, progress=progress)

    async def leave(self, mesh: str, *, remove: bool = False, forget: bool = False) -> Left:
        return await asyncio.to_thread(self._sync.leave, mesh, remove=remove, forget=forget)

    async def move(self, mesh: str, url: str) -> MeshRow:
        return await asyncio.to_thread(self._sync.move, mesh, url)

    async def invite(
        self,
        mesh: str,
        *,
        uses: int = 1,
        hours: int = INVITE_HOURS,
        grants: Iterable[str] = (),
        at: str | None = None,
    ) -> NewInvite:
        return await asyncio.to_thread(
            self._sync.invite, mesh, uses=uses, hours=hours, grants=grants, at=at
        )

    async def invites(self, mesh: str) -> list[InviteInfo]:
        return await asyncio.to_thread(self._sync.invites, mesh)

    async def drop_invite(self, mesh: str, id: str) -> bool:
        return await asyncio.to_thread(self._sync.drop_invite, mesh, id)

    async def members(self, mesh: str) -> list[Member]:
        return await asyncio.to_thread(self._sync.members, mesh)

    async def grant(self, mesh: str, member: str, grants: Iterable[str]) -> Member:
        return await asyncio.to_thread(self._sync.grant, mesh, member, grants)

    async def remove_member(self, mesh: str, member: str) -> bool:
        return await asyncio.to_thread(self._sync.remove_member, mesh, member)

    async def declare(
        self,
        mesh: str,
        kind: str,
        ref: str,
        *,
        visibility_ms: int | None = None,
        deliveries_max: int | None = None,
    ) -> Destination:
        return await asyncio.to_thread(
            self._sync.declare,
            mesh,
            kind,
            ref,
            visibility_ms=visibility_ms,
            deliveries_max=deliveries_max,
        )

    async def destinations(self, mesh: str) -> list[Destination]:
        return await asyncio.to_thread(self._sync.destinations, mesh)

    async def drop_destination(self, mesh: str, kind: str, ref: str) -> bool:
        return await asyncio.to_thread(self._sync.drop_destination, mesh, kind, ref)

    async def subscribe(self, mesh: str, topic: str) -> int:
        return await asyncio.to_thread(self._sync.subscribe, mesh, topic)

    async def unsubscribe(self, mesh: str, topic: str) -> bool:
        return await asyncio.to_thread(self._sync.unsubscribe, mesh, topic)

    async def subscriptions(self, mesh: str) -> dict[str, int]:
        return await asyncio.to_thread(self._sync.subscriptions, mesh)

    async def queues(self, mesh: str) -> list[QueueInfo]:
        return await asyncio.to_thread(self._sync.queues, mesh)

    async def take(self, mesh: str, queue: str, most: int = 1) -> list[TakenMessage]:
        return await asyncio.to_thread(self._sync.take, mesh, queue, most)

    async def settle(
        self, mesh: str, queue: str, handle: str, how: str = "done", reason: str = ""
    ) -> bool:
        return await asyncio.to_thread(self._sync.settle, mesh, queue, handle, how, reason)

    async def dead_letters(self, mesh: str, queue: str, limit: int = 100) -> list[DeadMessage]:
        return await asyncio.to_thread(self._sync.dead_letters, mesh, queue, limit)

    async def revive(self, mesh: str, queue: str, seq: int) -> bool:
        return await asyncio.to_thread(self._sync.revive, mesh, queue, seq)
