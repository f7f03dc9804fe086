"""Members of meshes without a broker, as peers of the bus: who they are, and what they show.

A peer that is no trusted zone may speak with this node if it belongs to a mesh that this node
shares over the bus: the list of the mesh's owner names it, or it shows a capability that the owner
signed. A newcomer that shows an open invite to a mesh of ours is a **guest**: it may ask to join,
and nothing else; one whose invite has ended, or whose key was removed, is told so and not let in.
A peer that has changed its key shows how the old one signed the new one, and is known by both. What
a peer has shown holds for as long as its link, and no longer than it says itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.bus.ports import Peer
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.node.trust.whereabouts import note_addresses, with_addresses
from holdfast.rules.bus.capability import Capability, check_capability, read_capability
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.meshes.member_list import ListedMember, MemberList, trusted_list
from holdfast.rules.bus.meshes.membership import (
    ENDED,
    BusAddressRow,
    BusInviteRow,
    BusMeshRow,
    MemberStanding,
    asks_to_join,
    check_invited,
    invite_of_ticket,
    is_ticket,
    member_invite,
    standing_of,
)
from holdfast.rules.bus.scope import JOIN_SCOPE, LEAVE_SCOPE
from holdfast.rules.bus.succession import (
    KeySuccession,
    is_chain,
    keys_before,
    read_chain,
    shown_chain,
)
from holdfast.rules.errors import CapabilityRefused, InviteEnded, NotTrusted, ZoneNotTrusted
from holdfast.rules.keys import public_key, text_of
from holdfast.rules.limits import (
    BUS_CAPABILITIES_SHOWN_MAX,
    BUS_CLOCK_SKEW_MS,
)
from holdfast.storage.ports import Reader, Work

GUEST: Final = "guest-"
_GUEST_SCOPES: Final = (JOIN_SCOPE,)


class HeldMesh(NamedTuple):
    """A mesh that this node shares over the bus."""

    row: BusMeshRow
    members: MemberList

    def listed(self, keys: Iterable[PeerKey]) -> ListedMember | None:
        """The member that has one of these keys."""
        return next((one for one in map(self.members.of_key, keys) if one is not None), None)


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
        self._before: dict[PeerKey, tuple[PeerKey, ...]] = {}
        """The earlier keys of a peer, as it has proved."""
        self._linked: dict[str, PeerKey] = {}
        self._guests: dict[PeerKey, tuple[bytes, ...]] = {}
        """The tickets of those that were let in to ask to join."""
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

    def is_ours(self, key: PeerKey) -> bool:
        """Whether this is the key of this node, or was."""
        return key == self.our_key() or key in self._own_key.former_keys()

    def keys_of(self, mesh: str, name: str) -> tuple[PeerKey, ...]:
        """The keys that a name has, or had, in a mesh, as its owner says; of our own name also what
        we know ourselves.
        """
        held = self.held_mesh(mesh)
        found: tuple[PeerKey, ...] = ()
        if held is not None:
            listed = held.members.of_name(name)
            found += () if listed is None else (listed.key,)
            found += tuple(one.key for one in held.members.removed if one.name == name)
        return found + (self._own_key.former_keys() if name == self._own_key.name else ())

    def standing(self, key: PeerKey, mesh: str) -> MemberStanding | None:
        """What a peer may do in a mesh now; None if it does not belong. Raises NotTrusted for a
        second home under one name.
        """
        held = self.held_mesh(mesh)
        return None if held is None else self._standing(held, key)

    def _standing(self, held: HeldMesh, key: PeerKey) -> MemberStanding | None:
        now, shown = self._engine.ctx.now_ms(), self._shown.get(key, ())
        good = [one for one in shown if now < one.expires_at + BUS_CLOCK_SKEW_MS]
        return standing_of(held.members, self.our_key(), key, good, self._before.get(key, ()))

    def shown_by(self, key: PeerKey) -> tuple[Capability, ...]:
        """The good capabilities that a linked peer has shown."""
        return self._shown.get(key, ())

    def keys(self, key: PeerKey) -> tuple[PeerKey, ...]:
        """A key and those that the peer had before it, as far as it has proved them."""
        return (key, *self._before.get(key, ()))

    def owns(self, key: PeerKey, held: HeldMesh) -> bool:
        """Whether a peer is the owner of a mesh, perhaps by another key than the one known here."""
        return held.row.owner in self.keys(key)

    # --- peers ---------------------------------------------------------------------------------

    def of_key(self, key: PeerKey) -> Peer | None:
        """A peer to call, or one that was let in."""
        joining = self._joins(key)
        if joining is not None:
            return self._joins_as(joining[0])
        for held in self.held():
            listed = held.listed(self.keys(key))
            if listed is not None and key != self.our_key():
                return self._peer(listed.name, key)
            standing = self._standing(held, key) if key in self._shown else None
            if standing is not None:
                return self._peer(standing.name, key)
        if key in self._guests and self._is_welcome(key, self._guests[key]):
            return _guest(key)
        return self._leaving(key)

    def _leaving(self, key: PeerKey) -> Peer | None:
        """A peer that has left a mesh of ours and may not have heard the answer: it may ask for
        that again, and for nothing else.
        """
        for held in self._owned():
            for one in held.members.removed:
                if one.key == key and one.name and not one.barred:
                    return Peer(name=one.name, keys=(key,), scopes=(LEAVE_SCOPE,))
        return None

    def _joins(self, key: PeerKey) -> tuple[Peer, bytes] | None:
        """The owner that this node asks to be let in, and what it is shown."""
        found = (self._joining[one] for one in self.keys(key) if one in self._joining)
        return next(found, None)

    def _joins_as(self, peer: Peer) -> Peer:
        """The owner that is asked, with the key that it has got since the invite was made."""
        keys = tuple(after for key in peer.keys for after in self._after(key))
        return msgspec.structs.replace(peer, keys=(*peer.keys, *keys))

    def all(self) -> list[Peer]:
        """Everybody whom this node may call: each member once, and the owner of a mesh that it is
        about to join.
        """
        ours = self.our_key()
        found = {key: self._joins_as(peer) for key, (peer, _) in self._joining.items()}
        for held in self.held():
            for member in held.members.members:
                if member.key != ours and member.key not in found:
                    found[member.key] = self._peer(
                        member.name, member.key, *self._after(member.key)
                    )
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
        joining = self._joins(key)
        if joining is not None:
            self.met(joining[0].name, key)
            return self._joins_as(joining[0])
        try:
            self._admit_guest(key, shown)
        except BaseException:
            self._forget(key)
            raise
        if key in self._guests:
            return self._met(_guest(key))
        self._forget(key)
        leaving = self._leaving(key)
        if leaving is not None:
            return self._met(leaving)
        raise refused or ZoneNotTrusted(f"{name!r} is not trusted here by this key")

    def _admit_guest(self, key: PeerKey, shown: Sequence[bytes]) -> None:
        """Lets a newcomer in that shows an open invite. Raises InviteEnded or MemberBarred for one
        that was good once.
        """
        tickets = tuple(one for one in shown if is_ticket(one))[:BUS_CAPABILITIES_SHOWN_MAX]
        found = self._invited(key, tickets)
        if found is not None:
            held, invite = found
            check_invited(held.members, invite, key, self._engine.ctx.now_ms())
            self._guests[key] = tickets
        elif tickets:
            # Also for a secret that never was one: who has none learns of no mesh.
            raise InviteEnded(ENDED)
        elif any(
            asks_to_join(one, held.row.mesh) for held in self._owned() for one in self._shown[key]
        ):
            raise InviteEnded("the member that made the invite may not invite any more")

    def _is_welcome(self, key: PeerKey, tickets: tuple[bytes, ...]) -> bool:
        """Whether the invite of a guest is still good."""
        found = self._invited(key, tickets)
        return found is not None and found[1].is_open(self._engine.ctx.now_ms())

    def _invited(
        self, key: PeerKey, tickets: Sequence[bytes]
    ) -> tuple[HeldMesh, BusInviteRow] | None:
        """The invite that a newcomer knows, and its mesh."""
        owned = {held.row.mesh: held for held in self._owned()}

        def look(tx: Reader) -> BusInviteRow | None:
            # An invite is older than a change of our key: its ticket is then for the key before.
            for ours in (self.our_key(), *self._own_key.former_keys()) if tickets else ():
                found = invite_of_ticket(tickets, tx.bus_invite_list(None), ours, key)
                if found is not None:
                    return found
            for held in owned.values():
                found = member_invite(held.members, self._shown.get(key, ()))
                if found is not None:
                    return tx.bus_invite_get(found.digest) or found
            return None

        invite = self._engine.read("bus.invites", look)
        return None if invite is None or invite.mesh not in owned else (owned[invite.mesh], invite)

    def _owned(self) -> list[HeldMesh]:
        ours = self.our_key()
        return [held for held in self.held() if held.row.owner == ours]

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
        self.follow(key, read_chain(shown))
        refused: CapabilityRefused | None = None
        good: list[Capability] = []
        owners = [
            owner
            for held in self.held()
            for owner in (held.row.owner, *held.members.earlier_owners)
        ]
        rights = [one for one in shown if not is_ticket(one) and not is_chain(one)]
        for raw in rights[:BUS_CAPABILITIES_SHOWN_MAX]:
            try:
                # Signatures are checked only of what an owner of ours is said to have issued.
                found = read_capability(raw)
                if found.issuer in owners:
                    holder = found.holder if found.holder in self.keys(key) else key
                    good.append(check_capability(raw, holder, self._engine.ctx.now_ms()))
            except CapabilityRefused as error:
                refused = refused or error
        self._shown[key] = tuple(good)
        return refused

    def follow(self, key: PeerKey, chain: Sequence[KeySuccession]) -> bool:
        """Remembers which keys a peer had before; whether one of them is known here."""
        before = keys_before(chain, key) if chain else ()
        is_known = any(
            one in self._joining or any(held.listed([one]) for held in self.held())
            for one in before
        )
        if is_known:
            self._before[key] = before
        return is_known

    def gone(self, key: PeerKey) -> None:
        """The link to a peer has ended, and with it what the peer had shown."""
        self._forget(key)
        self.last_shown.pop(key, None)
        for name in [name for name, known in self._linked.items() if known == key]:
            del self._linked[name]

    def _forget(self, key: PeerKey) -> None:
        for about in (self._shown, self._guests, self._before):
            about.pop(key, None)

    def shown_to(self, key: PeerKey) -> list[bytes]:
        """What we show a peer: our capabilities in the meshes that it belongs to, how we came to
        our key, and that we know an invite, to the one who made it.
        """
        joining = self._joins(key)
        found = [] if joining is None else [joining[1]]
        shared = [
            held
            for held in self.held()
            if held.listed(self.keys(key)) or self._standing_or_none(held, key)
        ]
        former = self._own_key.former()
        if former and shared:
            found.append(shown_chain(former))
        found += [held.row.capability for held in shared if held.row.capability]
        self.last_shown[key] = tuple(found[:BUS_CAPABILITIES_SHOWN_MAX])
        return list(self.last_shown[key])

    def to_show(self, key: PeerKey) -> list[bytes]:
        """What a member has to see of us to believe us. The owner of a mesh goes by its list."""
        return [
            held.row.capability
            for held in self.held()
            if held.row.capability and not self.owns(key, held) and held.listed(self.keys(key))
        ]

    def _standing_or_none(self, held: HeldMesh, key: PeerKey) -> MemberStanding | None:
        try:
            return self._standing(held, key)
        except NotTrusted:
            return None

    def _after(self, key: PeerKey) -> list[PeerKey]:
        """The keys by which the peer of this one is linked now."""
        return [after for after, before in self._before.items() if key in before]

    def _peer(self, name: str, *keys: PeerKey) -> Peer:
        rows = self._engine.read("bus.peer", lambda tx: [tx.bus_address_get(key) for key in keys])
        known = (address for row in rows if row is not None for address in row.addresses)
        addresses = tuple(dict.fromkeys((*known, *self.static.get(name, ()))))
        return Peer(name=name or text_of(keys[0]), keys=keys, addresses=addresses)

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


def _guest(key: PeerKey) -> Peer:
    name = GUEST + text_of(key)[:16]
    return Peer(name=name, keys=(key,), scopes=_GUEST_SCOPES, is_passing=True)
