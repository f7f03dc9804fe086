"""The bus that this process holds, with the verbs that programs of the home use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from time import perf_counter

import msgspec

from holdfast.bus.bus import Bus
from holdfast.bus.ports import DiscoveryStatus
from holdfast.bus.received import (
    BusReply,
    PublishReceipt,
    ReceivedRequest,
    SendReceipt,
)
from holdfast.bus.status import PeerStatus
from holdfast.bus.subscription import BusSubscription
from holdfast.node.bus.api import Handler
from holdfast.node.bus.directory import TrustDirectory
from holdfast.node.bus.documents import BusReplyGiven
from holdfast.node.bus.member_peers import GUEST
from holdfast.node.bus.members import JoinedOverBus, MeshMembers
from holdfast.node.bus.standing import BusStanding, MeshExchangeView, PeerStanding
from holdfast.node.quorum.api import QuorumApi
from holdfast.rules.errors import HandlerRefused
from holdfast.rules.ids import parse_id
from holdfast.rules.invites import parse_peer_invite
from holdfast.rules.limits import SECOND_MS


class LocalBus:
    """A `BusApi` on a bus of this process."""

    def __init__(
        self,
        bus: Bus,
        directory: TrustDirectory,
        members: MeshMembers,
        discovered: Callable[[], DiscoveryStatus | None],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """`discovered` says how the search for peers stands; None: nobody is looked for."""
        self.bus, self._directory, self.members = bus, directory, members
        self._discovered, self._close = discovered, close
        self.quorum: QuorumApi | None = None
        """The quorums of this process; None if it takes part in none."""
        self.meshes_changed: Callable[[], Awaitable[None]] = _nobody
        """Tells what exchanges meshes that there are others now."""
        self.look_again: Callable[[], Awaitable[None]] = _nobody
        """Looks again at everything that may have changed in the home, also at this node's key."""
        self.exchanged: Callable[[], MeshExchangeView] = MeshExchangeView
        """Says how the exchange of meshes stands."""

    async def send(
        self,
        to: str,
        body: bytes | str,
        *,
        topic: str,
        content_type: str,
        priority: str,
        ttl_ms: int | None,
        id: str | None,
        wait_ms: int,
    ) -> SendReceipt:
        return await self.bus.send(
            to,
            body,
            topic=topic,
            content_type=content_type,
            priority=priority,
            ttl_ms=ttl_ms,
            id=None if id is None else parse_id(id),
            wait_ms=wait_ms,
        )

    async def settle(self) -> None:
        """Returns when what programs have finished with is on the disk."""
        await self.bus.settle()

    async def publish(
        self, topic: str, body: bytes | str, *, content_type: str, priority: str, id: str | None
    ) -> PublishReceipt:
        return await self.bus.publish(
            topic,
            body,
            content_type=content_type,
            priority=priority,
            id=None if id is None else parse_id(id),
        )

    async def request(
        self,
        to: str | None,
        service: str,
        body: bytes | str,
        *,
        content_type: str,
        timeout_ms: int,
        id: str | None,
    ) -> BusReply:
        return await self.bus.request(
            to,
            service,
            body,
            content_type=content_type,
            timeout_ms=timeout_ms,
            id=None if id is None else parse_id(id),
        )

    def subscribe(
        self, pattern: str, *, buffer: int, durable: bool, manual: bool
    ) -> BusSubscription:
        return self.bus.subscribe(pattern, buffer=buffer, durable=durable, manual=manual)

    async def serve(self, service: str, handler: Handler, *, most: int) -> ServedHere:
        self.bus.serve(service, handler, most=most)
        return ServedHere(self.bus, service)

    async def ping(self, peer: str) -> float:
        # The clock of a loop may count whole milliseconds. So the first one finds the link, and the
        # second is timed by a better clock.
        await self.bus.ping(peer)
        begun = perf_counter()
        await self.bus.ping(peer)
        return round((perf_counter() - begun) * SECOND_MS, 3)

    async def join(self, invite: str, *, wait_ms: int) -> JoinedOverBus:
        joined = await self.members.join(parse_peer_invite(invite), wait_ms=wait_ms)
        await self.meshes_changed()
        return joined

    async def leave(self, mesh: str) -> None:
        await self.members.leave(mesh)
        await self.meshes_changed()

    async def refresh(self) -> None:
        await self.look_again()

    async def standing(self) -> BusStanding:
        found, heard = self.bus.status(), self._discovered()
        linked = {peer.name: peer for peer in found.peers}
        waiting = await asyncio.to_thread(self._directory.waiting)
        now = self._directory.now_ms()
        peers = [
            _standing(row, linked.pop(row.peer, None), waiting.get(row.peer, 0), now)
            for row in self._directory.standings()
        ]
        known = [row.peer for row in peers]
        members = [peer.name for peer in self.members.peers.all() if peer.name not in known]
        for name in sorted({*linked, *members}):
            peer = linked.get(name)
            row, is_up = self._known_otherwise(name), peer and peer.state == "connected"
            is_kept = row.trust == "member" or (row.trust != "guest" and name in waiting)
            if not is_up and not is_kept:
                continue  # what let it in was for that link alone
            peers.append(_standing(row, peer, waiting.get(name, 0), now))
        peers = [
            msgspec.structs.replace(row, error=found.problems.get(row.peer))
            if row.link == "down" and row.trust != "blocked"
            else row
            for row in peers
        ]
        return BusStanding(
            name=found.name,
            card=self.bus.card,
            pid=os.getpid(),
            listening=found.addresses,
            discovery="off" if heard is None else heard.problem or heard.state,
            waiting=sum(waiting.values()),
            peers=peers,
            topics=found.topics,
            services=found.services,
            counts=found.counts,
            warnings=found.warnings,
            meshes=self.exchanged(),
        )

    async def close(self) -> None:
        await self._close()

    def _known_otherwise(self, name: str) -> PeerStanding:
        """A peer that is no zone, without its link."""
        key = self.members.peers.key_of(name)
        members = [peer.name for peer in self.members.peers.all()]
        trust = "guest" if name.startswith(GUEST) else "capability"
        return PeerStanding(
            peer=name,
            trust="member" if name in members else trust,
            seen_at=None if key is None else self._directory.seen_at(key),
        )


async def _nobody() -> None: ...


class ServedHere:
    """A service of a bus of this process."""

    def __init__(self, bus: Bus, service: str) -> None:
        self._bus, self._service = bus, service

    async def close(self) -> None:
        self._bus.stop_serving(self._service)


def answered_by(
    ask: Callable[[ReceivedRequest], Awaitable[BusReplyGiven]],
) -> Handler:
    """A handler that another program stands behind: what it refuses, the asker gets by its code."""

    async def answer(request: ReceivedRequest) -> bytes:
        given = await ask(request)
        if given.code:
            raise HandlerRefused(given.message, code=given.code)
        return given.content

    return answer


def _standing(
    row: PeerStanding, peer: PeerStatus | None, waiting: int, now_ms: int
) -> PeerStanding:
    fields = {name: getattr(row, name) for name in ("peer", "trust", "address", "seen_at")}
    if peer is None:
        return PeerStanding(**fields, waiting=waiting)
    is_up = peer.state == "connected"
    if is_up:
        fields["seen_at"] = now_ms
    return PeerStanding(
        **{**fields, "address": peer.address or row.address},
        link="up" if is_up else "down",
        rtt_ms=peer.rtt_ms,
        waiting=waiting,
        sent=peer.sent,
        acked=peer.acked,
        received=peer.received,
        again=peer.again,
        refused=sum(peer.refused.values()),
        refused_by=peer.refused,
        topics=peer.topics,
        durable=peer.durable,
        services=peer.services,
    )
