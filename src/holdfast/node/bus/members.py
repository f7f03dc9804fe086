"""Meshes without a broker, between nodes: joining, and telling each other who belongs.

The owner's node lets newcomers in and renews what members were given. Every member keeps the newest
list that it has heard of and passes it on: when a link comes up, each side asks the other what is
new, and a list that was adopted is told to all who are linked. So a member that was removed is
refused by everybody who has heard of it from anybody, and loses its links at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
from nacl.signing import SigningKey

from holdfast.bus.links.link import CLOSING
from holdfast.bus.ports import Link, LinkPart, Peer
from holdfast.node.bus import take_over
from holdfast.node.bus.left_meshes import left_mesh, note_back
from holdfast.node.bus.member_peers import HeldMesh, MemberPeers
from holdfast.node.bus.meshes.backfill import switch_on
from holdfast.node.bus.owner import MemberRequest, MeshOwner
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.protocol import bus_members as wire
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.bus_members import (
    JOIN,
    LEAVE,
    NEWS,
    TOLD,
    JoinAsked,
    JoinGiven,
    LeaveAsked,
    ListTold,
    MemberPlaces,
    NewsAsked,
    NewsGiven,
    decode,
)
from holdfast.rules.bus.capability import Capability, check_capability, read_capability
from holdfast.rules.bus.links.dial_plan import places_told
from holdfast.rules.bus.meshes.member_list import (
    MemberList,
    forgotten,
    is_newer,
    joined,
    read_list,
    trusted_list,
)
from holdfast.rules.bus.meshes.membership import (
    BusMeshRow,
    is_renewal_due,
    passed_on,
    ticket,
)
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    CapabilityRefused,
    HoldfastError,
    InviteEnded,
    MemberBarred,
    NotAMember,
    NotShared,
    NotTrusted,
    PeerUnreachable,
    RequestRefused,
)
from holdfast.rules.invites import SECRET_BYTES, PeerInvite, digest
from holdfast.rules.keys import parse_card, text_of
from holdfast.rules.limits import BUS_JOIN_MS, BUS_RIGHTS_MS, SECOND_MS
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Reader, Transaction, Work
from holdfast.transport.remote_errors import error_by_code

log = logging.getLogger("holdfast.bus")
T = TypeVar("T")
_FINAL: Final = (InviteEnded, MemberBarred)
"""What an owner says to a newcomer at its door that no further try changes."""


class Answer(Protocol):
    @property
    def body(self) -> bytes: ...


class MemberBus(Protocol):
    """What is needed of a bus."""

    async def request(
        self, to: str, service: str, body: bytes, *, timeout_ms: int, wait_ms: int
    ) -> Answer: ...
    def serve(self, service: str, handler: Callable[[Any], Awaitable[bytes]]) -> object: ...
    def attach(self, part: LinkPart) -> None: ...
    async def refresh_peers(self) -> None: ...
    async def connected(
        self, peer: str, wait_ms: int, final: tuple[type[HoldfastError], ...]
    ) -> bool: ...
    async def hang_up(self, peer: str) -> None: ...


class JoinedOverBus(msgspec.Struct, frozen=True, kw_only=True):
    """What joining a mesh without a broker came to."""

    mesh: str
    owner: str
    name: str
    """This node's name in the mesh."""
    grants: tuple[str, ...]
    members: int
    resumed: bool


class MeshMembers:
    """A `LinkPart`: one node's side of all its meshes without a broker."""

    def __init__(
        self,
        engine: NodeEngine,
        own_key: OwnKey,
        peers: MemberPeers,
        write: Callable[[str, Work[Any]], Awaitable[Any]],
        gone: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        """`gone` gets the key of a peer whose link has ended."""
        self._engine, self._own_key, self.peers, self._write = engine, own_key, peers, write
        self._gone = gone
        self.on_change: Callable[[], None] = lambda: None
        """Called when members or their grants have changed."""
        self._owner = MeshOwner(engine, own_key, peers, write, self._changed)
        self._bus: MemberBus | None = None
        self._links: dict[bytes, Link] = {}
        self._shown_on: dict[bytes, tuple[bytes, ...]] = {}
        """What the peer of each link was shown of us when it began."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._told: dict[str, int] = {}
        """The number of the list of each mesh that all links of now have heard of from us."""

    def start(self, bus: MemberBus) -> None:
        self._bus = bus
        for service, handler in (
            (JOIN, self._owner.join_asked),
            (NEWS, self._news_asked),
            (TOLD, self._list_told),
            (LEAVE, self._owner.leave_asked),
        ):
            bus.serve(service, handler)
        bus.attach(self)
        self._spawn(self._keep_rights())

    # --- LinkPart ------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self._links[link.peer] = link
        self._shown_on[link.peer] = self.peers.last_shown.get(link.peer, ())
        self._spawn(self._meet(link))

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> bool:
        return False

    def link_down(self, link: Link) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            del self._shown_on[link.peer]
            self.peers.gone(link.peer)
            self._gone(link.peer)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def refresh(self) -> None:
        """Somebody has changed members of this home, perhaps in another process: all who are linked
        hear of it, and who does not belong any more loses its link.
        """
        await self.take_over()
        await self._running_bus().refresh_peers()
        for held in self.peers.held():
            if held.members.serial > self._told.get(held.row.mesh, 0):
                self._changed(held.members, heard_from=None)

    async def take_over(self) -> None:
        """If this node has a new key, its own meshes go on by that."""
        if self._engine.read("mesh.members", lambda tx: take_over.is_due(tx, self._own_key)):
            now = self._engine.ctx.now_ms()
            await self._write(
                "mesh.members", lambda tx: take_over.take_over(tx, self._own_key, now)
            )

    # --- joining -------------------------------------------------------------------------------

    async def join(self, invite: PeerInvite, *, wait_ms: int = BUS_JOIN_MS) -> JoinedOverBus:
        """Asks the owner of a mesh to let this node in; the mesh is one of its own then. Whatever
        stops it, joining again with the same invite goes on. `wait_ms`: how long the owner is
        looked for, and waited for.
        """
        owner_name, owner = parse_card(invite.card)
        ours = self.peers.our_key()
        if self.peers.is_ours(owner):
            raise BadInput("this invite was made by this very node", hint="hand it to another node")
        resumed = self._engine.read("mesh.join", lambda tx: _check_free(tx, invite.mesh, owner))
        self.begin_join(invite)
        try:
            await self._running_bus().refresh_peers()
            if not await self._running_bus().connected(text_of(owner), wait_ms, _FINAL):
                where = ", ".join(invite.addresses) or "the networks of this machine"
                raise PeerUnreachable(
                    f"{owner_name}, who made the invite, was not reached at {where}, or does not "
                    "know the invite",
                    hint="see that its daemon runs and listens for the bus; ask for a new invite, "
                    "with its address: `holdfast mesh invite MESH --at HOST:PORT`",
                )
            # The secret of a member's invite is a key, which nobody else has to know.
            secret = bytes(SECRET_BYTES) if invite.capability else invite.secret
            asked = JoinAsked(invite.mesh, self._own_key.name, secret)
            answer = await self.ask(text_of(owner), JOIN, wire.encode(asked), wait_ms)
        finally:
            # The link was for the join alone: it ends here, and is made anew as a member's.
            await self._hang_up(owner)
            self.peers.end_join(owner)
            await self._running_bus().refresh_peers()
        given = decode(answer, JoinGiven)
        members = read_list(given.members, invite.mesh, owner)
        capability = check_capability(given.capability, ours, self._engine.ctx.now_ms())
        listed = members.of_key(ours)
        if capability.issuer != members.owner or listed is None:
            raise CapabilityRefused("the owner has given a right that is not its own")
        await self._write("mesh.join", lambda tx: self._add(tx, given.title, members, capability))
        switch_on(self._engine, invite.mesh)
        self.on_change()  # the member's link may be up before whoever asked for this goes on
        self._link_anew()
        await self.peers.note_addresses(members.owner, invite.addresses)
        await self._running_bus().refresh_peers()
        return JoinedOverBus(
            mesh=invite.mesh,
            owner=owner_name,
            name=listed.name,
            grants=listed.grants,
            members=len(members.members),
            resumed=resumed,
        )

    def begin_join(self, invite: PeerInvite) -> None:
        """The owner may be called, and is shown that this node knows an invite."""
        name, owner = parse_card(invite.card)
        peer = Peer(name=name, keys=(owner,), addresses=invite.addresses)
        ours = self.peers.our_key()
        if invite.capability:
            shown = passed_on(invite, owner, ours, self._engine.ctx.now_ms())
        else:
            shown = ticket(digest(invite.secret), owner, ours)
        self.peers.begin_join(peer, shown)

    def _add(
        self, tx: Transaction, title: str, members: MemberList, capability: Capability
    ) -> None:
        now, mesh = self._engine.ctx.now_ms(), members.mesh
        _check_free(tx, mesh, members.owner, members.id)
        note_back(tx, mesh)
        if tx.mesh_get(mesh) is None:
            tx.mesh_add(MeshRow(slug=mesh, name=title or mesh, created_at=now, updated_at=now))
        held = tx.bus_mesh_get(mesh)
        tx.bus_mesh_put(
            BusMeshRow(
                mesh=mesh,
                owner=members.owner,
                members=members.raw,
                capability=capability.raw,
                joined_at=now if held is None else held.joined_at,
            )
        )

    async def leave(self, mesh: str) -> None:
        """Tells the owner that this node leaves; the caller then forgets the mesh. Nothing happens
        at the owner itself.
        """
        held = self.peers.held_mesh(mesh)
        if held is None:
            raise NotShared(f"{mesh!r} is not shared over the bus")
        if held.row.owner != self.peers.our_key():
            try:
                await self.ask(text_of(held.row.owner), LEAVE, wire.encode(LeaveAsked(mesh)))
            except NotAMember:
                return
            await self._hang_up(held.row.owner)  # the link of a member; others are made anew

    async def _hang_up(self, key: bytes) -> None:
        """Ends the link to a peer that only meshes know."""
        if self._engine.read("bus.peer", lambda tx: tx.zone_of_key(key)) is None:
            await self._running_bus().hang_up(text_of(key))

    async def ask(self, to: str, service: str, body: bytes, wait_ms: int = BUS_JOIN_MS) -> bytes:
        """The answer, or the error that the other side gives, as it was raised there."""
        try:
            answer = await self._running_bus().request(
                to, service, body, timeout_ms=wait_ms, wait_ms=wait_ms
            )
        except RequestRefused as error:
            code, _, message = error.message.partition(": ")
            known = error_by_code(code, message)
            known.hint = known.hint or type(known).default_hint
            raise known from None
        return answer.body

    async def request(
        self, to: str, service: str, body: bytes, *, timeout_ms: int, wait_ms: int
    ) -> Answer:
        """As the bus does it."""
        return await self._running_bus().request(
            to, service, body, timeout_ms=timeout_ms, wait_ms=wait_ms
        )

    def linked_keys(self) -> frozenset[bytes]:
        """All keys of the peers at the other ends of links."""
        return frozenset(one for key in self._links for one in self.peers.keys(key))

    def _running_bus(self) -> MemberBus:
        assert self._bus is not None, "start() comes first"
        return self._bus

    # --- what we answer ------------------------------------------------------------------------

    async def _news_asked(self, asked: MemberRequest) -> bytes:
        wanted = decode(asked.body, NewsAsked)
        held = self._of_member(wanted.mesh, asked.key)
        renewed = await self._owner.renewed(wanted.mesh, asked.key) if wanted.renew else b""
        held = self._of_member(wanted.mesh, asked.key)
        members = held.members
        # One number, two lists: the owner's store went back in time, and it has to hear of both.
        is_other = members.serial == wanted.serial and wanted.digest not in (b"", members.digest)
        newer = members.raw if members.serial > wanted.serial or is_other else b""
        return wire.encode(NewsGiven(newer, renewed, self._places(members, asked.key)))

    async def _list_told(self, asked: MemberRequest) -> bytes:
        told = decode(asked.body, ListTold)
        held = self._of_member(told.mesh, asked.key)
        await self._adopt(held, told.members, asked.key)
        await self._hear_places(told.mesh, told.places, asked.key)
        return b""

    def _of_member(self, mesh: str, key: bytes) -> HeldMesh:
        """The mesh, if the peer belongs to it. A stranger learns nothing about meshes."""
        held = self.peers.held_mesh(mesh)
        if held is None or self.peers.standing(key, mesh) is None:
            raise NotAMember(f"this key is no member of {mesh!r}")
        return held

    # --- where members are ---------------------------------------------------------------------

    async def _meet(self, link: Link) -> None:
        """Remembers where a peer says that it listens, and tells other members if that is news;
        then asks it what is new.
        """
        meshes = [held for held in self.peers.held() if held.listed(self.peers.keys(link.peer))]
        is_zone = self._engine.read("bus.peer", lambda tx: tx.zone_of_key(link.peer)) is not None
        places = places_told(link.welcome.addresses, _host(link))
        if (meshes or is_zone) and await self.peers.hear_addresses(link.peer, places):
            await self._running_bus().refresh_peers()
            for held in meshes:
                self._changed(held.members, heard_from=link.peer)
        elif len(self.peers.keys(link.peer)) > 1:
            await self._running_bus().refresh_peers()  # nobody has to be looked for by the old key
        await self._ask_news(link)

    def _places(self, members: MemberList, asker: bytes) -> list[MemberPlaces]:
        """Where this node knows members of a mesh, for one of them. Zones that are blocked here are
        left out.
        """
        others = [
            one.key for one in members.members if one.key not in (asker, self.peers.our_key())
        ]

        def look(tx: Reader) -> list[MemberPlaces]:
            found = []
            for key in others:
                zone, row = tx.zone_of_key(key), tx.bus_address_get(key)
                if row is not None and (zone is None or zone.blocked_at is None):
                    found.append(MemberPlaces(key, list(row.addresses)))
            return found

        return self._engine.read("bus.peers", look)

    async def _hear_places(self, mesh: str, told: list[MemberPlaces], teller: bytes) -> None:
        """A member tells where others are. Only members are looked for, at what is new."""
        held, link = self.peers.held_mesh(mesh), self._links.get(teller)
        if held is None or link is None:
            return
        is_news = False
        for one in told:
            if one.key != self.peers.our_key() and held.members.of_key(one.key) is not None:
                places = places_told(one.addresses, _host(link))
                if await self.peers.hear_addresses(one.key, places, last=True):
                    is_news = True
        if is_news:
            await self._running_bus().refresh_peers()

    # --- news ----------------------------------------------------------------------------------

    async def _ask_news(self, link: Link) -> None:
        """Asks a peer whose link came up what is new in the meshes that both belong to."""
        for held in self.peers.held():
            known = held.listed(self.peers.keys(link.peer))
            if known is None and not self._belongs(link.peer, held):
                continue
            renew = self.peers.owns(link.peer, held) and self._is_due(held)
            members = held.members
            asked = NewsAsked(held.row.mesh, members.serial, renew, members.digest)
            try:
                given = decode(await self.ask(link.name, NEWS, wire.encode(asked)), NewsGiven)
                if given.members:
                    await self._adopt(held, given.members, link.peer)
                if given.capability:
                    await self._renew_if_good(held.row.mesh, given.capability)
                await self._hear_places(held.row.mesh, given.places, link.peer)
            except NotAMember:
                if self.peers.owns(link.peer, held):
                    log.warning("the owner of %s has removed this node from it", held.row.mesh)
            except HoldfastError as error:
                log.info("%s tells nothing new of %s: %s", link.name, held.row.mesh, error.message)

    def _belongs(self, key: bytes, held: HeldMesh) -> bool:
        try:
            return self.peers.standing(key, held.row.mesh) is not None
        except NotTrusted:
            return False

    def _is_due(self, held: HeldMesh) -> bool:
        if not held.row.capability:
            return False
        listed = held.members.of_key(self.peers.our_key())
        capability = read_capability(held.row.capability)
        return is_renewal_due(capability, self._engine.ctx.now_ms(), held.row.owner, listed)

    async def _renew_if_good(self, mesh: str, raw: bytes) -> None:
        """By a clock that is far off nothing new is good; what else is new counts all the same."""
        try:
            await self._renew(mesh, raw)
        except CapabilityRefused as error:
            log.warning("the right in %s is not renewed: %s", mesh, error.message)

    async def _renew(self, mesh: str, raw: bytes) -> None:
        fresh = check_capability(raw, self.peers.our_key(), self._engine.ctx.now_ms())

        def work(tx: Transaction) -> None:
            row = tx.bus_mesh_get(mesh)
            if row is not None and row.owner != fresh.issuer:
                raise CapabilityRefused("the owner has given a right that is not its own")
            if row is not None:
                tx.bus_mesh_put(msgspec.structs.replace(row, capability=raw))

        await self._write("mesh.renew", work)

    async def _adopt(self, held: HeldMesh, raw: bytes, heard_from: bytes) -> None:
        """Takes a newer list, and tells others. Raises BadAnswer if the owner did not sign it."""
        offered = read_list(raw, held.row.mesh, held.row.owner)
        adopted = await self._write("mesh.members", partial(self._take_list, offered))
        if adopted is not None:
            # Who told another list than it became has to hear of that, too.
            self._changed(adopted, heard_from if adopted is offered else None)
            await self._running_bus().refresh_peers()
            self._link_anew()
        now_held = self.peers.held_mesh(offered.mesh)
        if adopted is not None and now_held is not None:
            self._renew_due([now_held])
        if now_held is not None and is_newer(offered, now_held.members):
            log.warning("%s has a list of %s that forgets some", heard_from.hex(), offered.mesh)
            link = self._links.get(heard_from)
            if link is not None and self.peers.owns(heard_from, now_held):
                self._spawn(self._tell(link, now_held.members))

    def _take_list(self, offered: MemberList, tx: Transaction) -> MemberList | None:
        """Stores the list that counts from now on; None if that is the one that was there."""
        row, now = tx.bus_mesh_get(offered.mesh), self._engine.ctx.now_ms()
        if row is None:
            return None
        members = trusted_list(row.members)
        key = SigningKey(self._own_key.seed())
        if row.owner == bytes(key.verify_key):
            # We signed it ourselves, and have forgotten that if our store went back in time.
            after = joined(key, members, offered, now) if offered.owner == row.owner else members
        elif is_newer(offered, members) and not any(forgotten(offered, members, now)):
            after = offered
        else:
            after = members
        if after is members:
            return None
        tx.bus_mesh_put(msgspec.structs.replace(row, owner=after.owner, members=after.raw))
        return after

    async def _keep_rights(self) -> None:
        """A right can become due while the link to the owner stands, and so can one that the owner
        gave by a clock that was ahead: nothing but the time tells.
        """
        while True:
            await asyncio.sleep(BUS_RIGHTS_MS / SECOND_MS)
            try:
                self._renew_due(self.peers.held())
            except HoldfastError as error:
                log.warning("no look at the rights in meshes: %s", error.message)

    def _renew_due(self, meshes: Iterable[HeldMesh]) -> None:
        """The owner may have given this node more, or have another key now."""
        due = [held for held in meshes if self._is_due(held)]
        for link in list(self._links.values()):
            if any(self.peers.owns(link.peer, held) for held in due):
                self._spawn(self._ask_news(link))

    def _link_anew(self) -> None:
        """What this node was given is shown when a link begins. One that stands, because the peer
        is trusted besides, is made anew when there is more to show on it.
        """
        for link in list(self._links.values()):
            shown = self._shown_on[link.peer]
            if any(one not in shown for one in self.peers.to_show(link.peer)):
                link.close(CLOSING, "this node comes back as a member of a mesh")

    def _changed(self, members: MemberList, heard_from: bytes | None) -> None:
        """All who are linked and belong hear of a new list. The links to others end with the next
        `refresh_peers` of the bus.
        """
        self._told[members.mesh] = members.serial
        self.on_change()
        for link in list(self._links.values()):
            keys = self.peers.keys(link.peer)
            if link.peer != heard_from and any(map(members.of_key, keys)):
                self._spawn(self._tell(link, members))

    async def _tell(self, link: Link, members: MemberList) -> None:
        told = ListTold(members.mesh, members.raw, self._places(members, link.peer))
        try:
            await self.ask(link.name, TOLD, wire.encode(told))
        except HoldfastError as error:
            # It asks by itself when its next link comes up.
            log.info("%s took no list of %s: %s", link.name, members.mesh, error.message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What fails here is tried again when the next link comes up."""
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HoldfastError):
            log.warning("members of meshes: %s", error.message)
        elif error is not None:
            log.error("a fault among the members of meshes", exc_info=error)


def _host(link: Link) -> str:
    """The host at the other end of a link."""
    return link.address.rpartition(":")[0] if link.dialled else link.address


def _check_free(tx: Reader, mesh: str, owner: bytes, id: bytes | None = None) -> bool:
    """Whether the mesh is here by an earlier join; AlreadyExists if another has its name. One that
    was left may be joined again if it has the same `id`, which the owner's list tells.
    """
    row, held = tx.mesh_get(mesh), tx.bus_mesh_get(mesh)
    if held is not None and held.owner == owner:
        return True
    left = left_mesh(tx, mesh)
    is_back = left is not None and id in (None, left)
    if held is not None or (row is not None and not is_back):
        raise AlreadyExists(
            f"this home has another mesh {mesh!r}",
            hint="join with another home (--home FOLDER), or copy the mesh under another name: "
            f"holdfast export --mesh {mesh} FILE; holdfast import --map OLD=NEW FILE",
        )
    return False
