"""Members of meshes without a broker, as peers of the bus: who they are, and what they show.

A peer that is no trusted zone may speak with this node if it belongs to a mesh that this node
shares over the bus: the list of the mesh's owner names it, or it shows a capability that the owner
signed. A newcomer that shows that it knows an invite of ours is a **guest**: it may ask to join,
and nothing else. What a peer has shown holds for as long as its link, and no longer than it
says itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.bus.ports import Peer
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.node.trust.whereabouts import note_addresses, with_addresses
from holdfast.protocol.bus_members import JOIN
from holdfast.rules.bus.capability import Capability, check_capability, read_capability
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.meshes.member_list import MemberList, trusted_list
from holdfast.rules.bus.meshes.membership import (
    BusAddressRow,
    BusMeshRow,
    MemberStanding,
    invite_of_ticket,
    is_ticket,
    standing_of,
)
from holdfast.rules.errors import CapabilityRefused, NotTrusted, ZoneNotTrusted
from holdfast.rules.keys import public_key, text_of
from holdfast.rules.limits import (
    BUS_CAPABILITIES_SHOWN_MAX,
    BUS_CLOCK_SKEW_MS,
)
from holdfast.storage.ports import Work

GUEST: Final = "guest-"
_GUEST_SCOPES: Final = (f"service:{JOIN}",)


class HeldMesh(NamedTuple):
    """A mesh that this node shares over the bus."""

    row: BusMeshRow
    members: MemberList


class MemberPeers:
    """The peers that only meshes know. Belongs to the event loop of the bus."""

    def __init__(
        self,
        engine: NodeEngine,
        own_key: OwnKey,
        write: Callable[[str, Work[None]], Awaitable[None]],
    ) -> None:
        self._engine, self._own_key, self._write = engine, own_key, write
        self.static: Mapping[str, tuple[str, ...]] = {}
        """Where the operator says that peers are, by name."""
        self._read_lists: dict[str, MemberList] = {}
        self._shown: dict[PeerKey, tuple[Capability, ...]] = {}
        self.last_shown: dict[PeerKey, tuple[bytes, ...]] = {}
        """What a peer was shown of us with the last hello."""
        self._linked: dict[str, PeerKey] = {}
        self._guests: dict[PeerKey, Peer] = {}
        self._joining: dict[PeerKey, tuple[Peer, bytes]] = {}

    # --- meshes --------------------------------------------------------------------------------

    def held(self) -> list[HeldMesh]:
        """All meshes that are shared over the bus, with their lists of now."""
        rows = self._engine.read("bus.meshes", lambda tx: tx.bus_mesh_list())
        return [HeldMesh(row, self._list(row)) for row in rows]

    def held_mesh(self, mesh: str) -> HeldMesh | None:
        row = self._engine.read("bus.meshes", lambda tx: tx.bus_mesh_get(mesh))
        return None if row is None else HeldMesh(row, self._list(row))

    def _list(self, row: BusMeshRow) -> MemberList:
        known = self._read_lists.get(row.mesh)
        if known is None or known.raw != row.members:
            known = self._read_lists[row.mesh] = trusted_list(row.members)
        return known

    def our_key(self) -> PeerKey:
        return public_key(self._own_key.seed())

    def standing(self, key: PeerKey, mesh: str) -> MemberStanding | None:
        """What a peer may do in a mesh now; None if it does not belong. Raises NotTrusted for a
        second home under one name.
        """
        held = self.held_mesh(mesh)
        return None if held is None else self._standing(held, key)

    def _standing(self, held: HeldMesh, key: PeerKey) -> MemberStanding | None:
        now, shown = self._engine.ctx.now_ms(), self._shown.get(key, ())
        good = [one for one in shown if now < one.expires_at + BUS_CLOCK_SKEW_MS]
        return standing_of(held.members, self.our_key(), key, good)

    # --- peers ---------------------------------------------------------------------------------

    def of_key(self, key: PeerKey) -> Peer | None:
        """A peer to call, or one that was let in."""
        if key in self._joining:
            return self._joining[key][0]
        for held in self.held():
            listed = held.members.of_key(key)
            if listed is not None and key != self.our_key():
                return self._peer(listed.name, key)
            standing = self._standing(held, key) if key in self._shown else None
            if standing is not None:
                return self._peer(standing.name, key)
        return self._guests.get(key)

    def all(self) -> list[Peer]:
        """Everybody whom this node may call: each member once, and the owner of a mesh that it is
        about to join.
        """
        ours = self.our_key()
        found = {key: peer for key, (peer, _) in self._joining.items()}
        for held in self.held():
            for member in held.members.members:
                if member.key != ours and member.key not in found:
                    found[member.key] = self._peer(member.name, member.key)
        return list(found.values())

    def admit(self, key: PeerKey, name: str, shown: Sequence[bytes]) -> Peer:
        """The peer that has proved this key and shows this. Raises NotTrusted or
        CapabilityRefused.
        """
        refused = self.look_at(key, shown)
        for held in self.held():
            standing = self._standing(held, key)
            if standing is not None:
                return self._met(self._peer(standing.name, key))
        if key in self._joining:
            return self._met(self._joining[key][0])
        # One that has ended lets it in too, to hear so.
        invites = self._engine.read("bus.invites", lambda tx: tx.bus_invite_list(None))
        invite = invite_of_ticket(shown, invites, self.our_key(), key)
        if invite is not None:
            guest = Peer(name=GUEST + text_of(key)[:16], keys=(key,), scopes=_GUEST_SCOPES)
            self._guests[key] = guest
            return self._met(guest)
        raise refused or ZoneNotTrusted(f"{name!r} is not trusted here by this key")

    def _met(self, peer: Peer) -> Peer:
        self.met(peer.name, peer.keys[0])
        return peer

    def met(self, name: str, key: PeerKey) -> None:
        """A peer was let in under this name."""
        self._linked[name] = key

    def key_of(self, name: str) -> PeerKey | None:
        """The key of a peer that was let in under this name."""
        return self._linked.get(name)

    def look_at(self, key: PeerKey, shown: Sequence[bytes]) -> CapabilityRefused | None:
        """Remembers the good ones of what a peer shows; returns what was wrong with another."""
        self._guests.pop(key, None)
        refused: CapabilityRefused | None = None
        good: list[Capability] = []
        owners = {held.row.owner for held in self.held()}
        for raw in [one for one in shown if not is_ticket(one)][:BUS_CAPABILITIES_SHOWN_MAX]:
            try:
                # Signatures are checked only of what an owner of ours is said to have issued.
                if read_capability(raw).issuer in owners:
                    good.append(check_capability(raw, key, self._engine.ctx.now_ms()))
            except CapabilityRefused as error:
                refused = refused or error
        self._shown[key] = tuple(good)
        return refused

    def gone(self, key: PeerKey) -> None:
        """The link to a peer has ended, and with it what the peer had shown."""
        self._shown.pop(key, None)
        self.last_shown.pop(key, None)
        self._guests.pop(key, None)
        for name in [name for name, known in self._linked.items() if known == key]:
            del self._linked[name]

    def shown_to(self, key: PeerKey) -> list[bytes]:
        """What we show a peer: our capabilities in the meshes that it belongs to, and that we know
        an invite, to the one who made it.
        """
        found = [
            held.row.capability
            for held in self.held()
            if held.row.capability
            and (held.members.of_key(key) is not None or self._standing_or_none(held, key))
        ]
        if key in self._joining:
            found.append(self._joining[key][1])
        self.last_shown[key] = tuple(found[:BUS_CAPABILITIES_SHOWN_MAX])
        return list(self.last_shown[key])

    def to_show(self, key: PeerKey) -> list[bytes]:
        """What a member has to see of us to believe us. The owner of a mesh goes by its list."""
        return [
            held.row.capability
            for held in self.held()
            if held.row.capability
            and held.row.owner != key
            and held.members.of_key(key) is not None
        ]

    def _standing_or_none(self, held: HeldMesh, key: PeerKey) -> MemberStanding | None:
        try:
            return self._standing(held, key)
        except NotTrusted:
            return None

    def _peer(self, name: str, key: PeerKey) -> Peer:
        row = self._engine.read("bus.peer", lambda tx: tx.bus_address_get(key))
        known = () if row is None else row.addresses
        addresses = tuple(dict.fromkeys((*known, *self.static.get(name, ()))))
        return Peer(name=name or text_of(key), keys=(key,), addresses=addresses)

    async def note_addresses(self, key: PeerKey, addresses: Sequence[str]) -> None:
        """A member was reached there, or says that it listens there."""
        now = self._engine.ctx.now_ms()
        row = self._engine.read("bus.peer", lambda tx: tx.bus_address_get(key))
        known = () if row is None else row.addresses
        if with_addresses(known, addresses) != known:
            await self._write("bus.seen", lambda tx: note_addresses(tx, key, addresses, now))

    async def hear_addresses(
        self, key: PeerKey, addresses: Sequence[str], *, last: bool = False
    ) -> bool:
        """A peer says that it, or another one, is there; True if that is new. `last`: what was
        known comes before it, and stays.
        """
        now = self._engine.ctx.now_ms()
        row = self._engine.read("bus.peer", lambda tx: tx.bus_address_get(key))
        known = () if row is None else row.addresses
        fresh = [address for address in addresses if address not in known]
        wanted = with_addresses(tuple(fresh), known) if last else with_addresses(known, fresh)
        if wanted == known:
            return False
        seen_at = now if row is None else row.seen_at
        heard = BusAddressRow(key=key, addresses=wanted, seen_at=seen_at)
        await self._write("bus.seen", lambda tx: tx.bus_address_put(heard))
        return True

    # --- joining -------------------------------------------------------------------------------

    def begin_join(self, peer: Peer, ticket: bytes) -> None:
        """The owner of a mesh may be called, to ask it to let us in."""
        self._joining[peer.keys[0]] = peer, ticket

    def end_join(self, key: PeerKey) -> None:
        self._joining.pop(key, None)
