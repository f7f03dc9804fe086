"""Capabilities of a home: rights over the bus that it gives, passes on, uses and takes back.

What is given is remembered, so that people can see it and take it back: a capability is good
wherever its issuer does not know better, and its issuer is the only one who is asked. What was
given to this node is shown to its issuer whenever the two meet.

A peer that is known by a capability alone may ask for the services and publish to the topics that
it names, and nothing else: no mesh, no other message. In the other direction the issuer may publish
to this node what the capability lets it listen to, and answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from nacl.signing import SigningKey

from holdfast.bus.ports import Peer
from holdfast.node.core.engine import NodeEngine
from holdfast.node.trust.own_key import OwnKey
from holdfast.node.trust.whereabouts import note_addresses
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.bus.capability import (
    Capability,
    ShownRights,
    capability_text,
    check_capability,
    check_genuine,
    issue,
    narrow,
    parse_capability_text,
    read_capability,
    rights_shown,
)
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.meshes.membership import BusCapabilityRow
from holdfast.rules.bus.scope import JOIN_SCOPE, relayed_topics
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    CapabilityRefused,
    OverLimit,
    UnknownKey,
    ZoneNotTrusted,
)
from holdfast.rules.id_prefix import ambiguous
from holdfast.rules.keys import parse_card, public_key, text_of
from holdfast.rules.limits import (
    BUS_CAPABILITIES_MAX,
    BUS_CAPABILITIES_SHOWN_MAX,
    BUS_CAPABILITY_MS,
    BUS_CLOCK_SKEW_MS,
    DAY_MS,
)
from holdfast.storage.ports import Transaction

_DAYS = BUS_CAPABILITY_MS // DAY_MS


class BusCapability(msgspec.Struct, frozen=True, kw_only=True):
    """A capability, for people and programs."""

    id: str
    kind: str
    """`given` by this node, `held` by it, `revoked`, or `other`."""
    issuer: str
    """Its name."""
    issuer_key: str
    holder: str
    """What its issuer calls its holder; empty if the right was passed on."""
    holder_key: str
    scopes: tuple[str, ...]
    expires_at: int
    steps: tuple[str, ...]
    """The ids of its steps, the issuer's first: to take one back takes all after it."""
    text: str
    """What is handed on. It is no secret: it is good for its holder's key alone."""


@checks_arguments()
class BusCapabilities:
    """The capabilities of one home. Whoever holds its bus has to be told of changes."""

    def __init__(self, engine: NodeEngine, own_key: OwnKey) -> None:
        self._engine, self._own_key = engine, own_key

    def give(self, card: str, scopes: Iterable[str], *, days: int = _DAYS) -> BusCapability:
        """Lets the holder of a card ask for services (`service:NAME`) and publish and listen to
        topics (`topic:PATTERN`) of this node, or pass on what is published (`relay:PATTERN`).
        Raises BadInput.

        >>> node.bus.capabilities.give(card_of_bo, ["service:tests", "topic:builds.*"], days=7).text
        '...'
        """
        name, holder = parse_card(card)
        now, key, wanted = self._now(), self._key(), tuple(scopes)
        if holder == bytes(key.verify_key):
            raise BadInput("this is the card of this node itself")
        _check_no_mesh(wanted)
        made = issue(key, holder, wanted, now_ms=now, expires_at=now + days * DAY_MS, name=name)

        def work(tx: Transaction) -> None:
            zone = tx.zone_get(name)
            others = [row.key for row in tx.bus_capability_list() if row.kind == "given"]
            named = [row.name for row in tx.bus_capability_list() if row.kind == "given"]
            taken = any(n == name and k != holder for n, k in zip(named, others, strict=True))
            if taken or (zone is not None and all(known.key != holder for known in zone.keys)):
                raise AlreadyExists(
                    f"another key is called {name!r} here",
                    hint="two peers cannot have one name: ask for a card with another one",
                )
            self._put(tx, "given", name, holder, made)

        self._engine.write("bus.capability", work)
        return self._shown("given", self._own_key.name, made)

    def narrow(
        self, which: str, card: str, scopes: Iterable[str] = (), *, days: int | None = None
    ) -> BusCapability:
        """Passes on one that this node holds, by its id or text, to the holder of another card: the
        same, or less of it. Raises CapabilityRefused if it would be more or for longer.

        >>> held = bo.bus.capabilities.use(right_for_bo)
        >>> bo.bus.capabilities.narrow(held.id, card_of_cleo, ["topic:builds.linux"])
        """
        row = self._held(which)
        held, (_, holder), now = read_capability(row.capability), parse_card(card), self._now()
        check_capability(held.raw, self._our_key(), now)
        expires_at = held.expires_at if days is None else now + days * DAY_MS
        wanted = tuple(scopes) or held.scopes
        made = narrow(self._key(), held, holder, wanted, now_ms=now, expires_at=expires_at)
        return self._shown("other", row.name, made)

    def show(self, text: str) -> BusCapability:
        """What a capability says, by its text or the id of one that is known here. Raises
        CapabilityRefused if those whom it names did not sign it.

        >>> node.bus.capabilities.show(right_for_bo).holder
        'bo'
        """
        if ":" in text:
            name, found = parse_capability_text(text)
            check_genuine(found)
            return self._shown("other", name, found)
        row = self._find(text)
        return self._of_row(row)

    def use(self, text: str, *, addresses: Iterable[str] = ()) -> BusCapability:
        """Keeps a capability that this node was given; it is shown to its issuer, whom the bus
        calls at these addresses from now on. Raises CapabilityRefused if it is not good.

        >>> bo.bus.capabilities.use(right_for_bo).issuer
        'ana'
        """
        name, found = parse_capability_text(text)
        now, places = self._now(), tuple(addresses)
        check_capability(found.raw, self._our_key(), now)
        if found.issuer == self._our_key():
            raise BadInput("this node itself is the issuer")

        def work(tx: Transaction) -> None:
            zone = tx.zone_get(name)
            if zone is not None and all(known.key != found.issuer for known in zone.keys):
                raise AlreadyExists(f"another key is called {name!r} here")
            self._put(tx, "held", name, found.issuer, found)
            if places:
                note_addresses(tx, found.issuer, places, now)

        self._engine.write("bus.capability", work)
        return self._shown("held", name, found)

    def list(self) -> list[BusCapability]:
        """Those that this node gave and those that it holds, also if they have ended.

        >>> [given.scopes for given in node.bus.capabilities.list()]
        [('topic:builds.*',)...]
        """
        return [self._of_row(row) for row in self._rows() if row.capability]

    def drop(self, id: str) -> BusCapability | None:
        """Takes back one that this node gave, with all that was narrowed from it, or lets go of one
        that it holds. By the id of a step that somebody else made, that step and what follows.

        >>> given = node.bus.capabilities.give(card_of_bo, ["service:tests"])
        >>> node.bus.capabilities.drop(given.id)
        """
        rows = [row for row in self._rows() if id and row.id.hex().startswith(id)]
        if not rows and _is_id(id):
            ends_at = max((row.expires_at for row in self._rows()), default=self._now())
            gone = BusCapabilityRow(
                id=bytes.fromhex(id),
                kind="revoked",
                name="",
                key=self._our_key(),
                capability=b"",
                added_at=self._now(),
                expires_at=ends_at,
            )
            self._engine.write("bus.capability", lambda tx: tx.bus_capability_put(gone))
            return None
        row = self._find(id)

        def work(tx: Transaction) -> None:
            if row.kind == "held":
                tx.bus_capability_drop(row.id)
            else:
                tx.bus_capability_put(msgspec.structs.replace(row, kind="revoked"))

        self._engine.write("bus.capability", work)
        return self._of_row(msgspec.structs.replace(row, kind="revoked"))

    # --- helpers -------------------------------------------------------------------------------

    def _put(self, tx: Transaction, kind: str, name: str, key: bytes, made: Capability) -> None:
        now, rows = self._now(), tx.bus_capability_list()
        for old in [row for row in rows if now >= row.expires_at + BUS_CLOCK_SKEW_MS]:
            tx.bus_capability_drop(old.id)
            rows.remove(old)
        if len(rows) >= BUS_CAPABILITIES_MAX:
            raise OverLimit(
                f"this node remembers {BUS_CAPABILITIES_MAX} capabilities",
                hint="take some back: holdfast capability drop ID",
            )
        tx.bus_capability_put(
            BusCapabilityRow(
                id=made.id,
                kind=kind,
                name=name,
                key=key,
                capability=made.raw,
                added_at=now,
                expires_at=made.expires_at,
            )
        )

    def _rows(self) -> Sequence[BusCapabilityRow]:
        return self._engine.read("bus.capability", lambda tx: tx.bus_capability_list())

    def _find(self, id: str) -> BusCapabilityRow:
        found = {row.id.hex(): row for row in self._rows() if id and row.id.hex().startswith(id)}
        if not found:
            raise UnknownKey(
                f"no capability here begins with {id!r}", hint="see: holdfast capability list"
            )
        if len(found) > 1:
            raise ambiguous(id, list(found), lambda one: _words(self._of_row(found[one])))
        return next(iter(found.values()))

    def _held(self, which: str) -> BusCapabilityRow:
        if ":" in which:
            which = parse_capability_text(which)[1].id.hex()
        row = self._find(which)
        if row.kind != "held":
            raise CapabilityRefused(
                "only its holder can pass a capability on",
                hint="to give a right of this node: holdfast capability give CARD",
            )
        return row

    def _of_row(self, row: BusCapabilityRow) -> BusCapability:
        issuer = row.name if row.kind == "held" else self._own_key.name
        return self._shown(row.kind, issuer, read_capability(row.capability))

    def _shown(self, kind: str, issuer: str, found: Capability) -> BusCapability:
        return BusCapability(
            id=found.id.hex(),
            kind=kind,
            issuer=issuer,
            issuer_key=text_of(found.issuer),
            holder=found.name,
            holder_key=text_of(found.holder),
            scopes=found.scopes,
            expires_at=found.expires_at,
            steps=tuple(step.id.hex() for step in found.steps),
            text=capability_text(issuer, found),
        )

    def _now(self) -> int:
        return self._engine.ctx.now_ms()

    def _key(self) -> SigningKey:
        return SigningKey(self._own_key.seed())

    def _our_key(self) -> bytes:
        return public_key(self._own_key.seed())


class CapabilityPeers:
    """The peers that only capabilities know: issuers of those that this node holds, and holders of
    those that it gave, while they are linked. Belongs to the event loop of the bus.
    """

    def __init__(self, engine: NodeEngine, own_key: OwnKey) -> None:
        self._engine, self._own_key = engine, own_key
        self._shown: dict[PeerKey, tuple[bytes, ...]] = {}
        self._known_showed: dict[PeerKey, tuple[bytes, ...]] = {}
        """What those have shown that are known otherwise too: perhaps that they may relay."""

    def of_key(self, key: PeerKey) -> Peer | None:
        issuer = next((peer for peer in self.all() if key in peer.keys), None)
        if issuer is not None or key not in self._shown:
            return issuer
        try:
            rights = self._rights(key, self._shown[key])
        except CapabilityRefused:
            return None  # it was taken back, or has ended
        return None if rights is None else _holder(key, rights)

    def find(self, name: str) -> Peer | None:
        """Whoever is linked, or may be called, under this name or key."""
        found = [*self.all(), *(self.of_key(key) for key in list(self._shown))]
        keys = (name, name.rpartition(":")[2])
        for peer in found:
            if peer is not None and (peer.name == name or text_of(peer.keys[0]) in keys):
                return peer
        return None

    def all(self) -> list[Peer]:
        """Issuers of what this node holds."""
        now, found = self._engine.ctx.now_ms(), dict[PeerKey, Peer]()
        for row in self._rows("held"):
            if now < row.expires_at + BUS_CLOCK_SKEW_MS:
                before = found.get(row.key)
                topics = _topics(read_capability(row.capability).scopes)
                known = () if before is None else before.scopes or ()
                found[row.key] = Peer(
                    name=row.name,
                    keys=(row.key,),
                    addresses=self._addresses(row.key),
                    scopes=tuple(dict.fromkeys((*known, *topics))),
                )
        return list(found.values())

    def admit(self, key: PeerKey, name: str, shown: Sequence[bytes]) -> Peer:
        """The peer that has proved this key and shows this. Raises NotTrusted or
        CapabilityRefused.
        """
        issuer = next((peer for peer in self.all() if key in peer.keys), None)
        if issuer is not None:
            return issuer
        looked_at = tuple(shown[:BUS_CAPABILITIES_SHOWN_MAX])
        rights = self._rights(key, looked_at)
        if rights is None:
            raise ZoneNotTrusted(f"{name!r} is not trusted here by this key")
        self._shown[key] = looked_at
        return _holder(key, rights)

    def gone(self, key: PeerKey) -> None:
        """The link to a peer has ended, and with it what the peer had shown."""
        self._shown.pop(key, None)
        self._known_showed.pop(key, None)

    def look_at(self, key: PeerKey, shown: Sequence[bytes]) -> None:
        """What a peer shows that is known otherwise; `with_relays` knows it from now on."""
        self._known_showed[key] = tuple(shown[:BUS_CAPABILITIES_SHOWN_MAX])

    def with_relays(self, key: PeerKey, peer: Peer) -> Peer:
        """A peer that is known otherwise, and what it may relay by what it has shown."""
        if key not in self._known_showed:
            return peer
        try:
            rights = self._rights(key, self._known_showed[key])
        except CapabilityRefused:
            return peer  # it was taken back, or has ended
        if rights is None:
            return peer
        relays = relayed_topics(rights.scopes)
        return msgspec.structs.replace(peer, relays=relays, relays_until=rights.ends_at)

    def shown_to(self, key: PeerKey) -> list[bytes]:
        return [row.capability for row in self._rows("held") if row.key == key]

    def _rights(self, key: PeerKey, shown: Sequence[bytes]) -> ShownRights | None:
        revoked = {row.id: None for row in self._rows("revoked")}
        ours, now = public_key(self._own_key.seed()), self._engine.ctx.now_ms()
        rights = rights_shown(shown, ours, key, now, revoked)
        # Who belongs to a mesh, or may ask to, is not said by capabilities alone.
        scopes = () if rights is None else tuple(one for one in rights.scopes if one != JOIN_SCOPE)
        return rights._replace(scopes=scopes) if rights is not None and scopes else None

    def _rows(self, kind: str) -> list[BusCapabilityRow]:
        rows = self._engine.read("bus.capability", lambda tx: tx.bus_capability_list())
        return [row for row in rows if row.kind == kind]

    def _addresses(self, key: PeerKey) -> tuple[str, ...]:
        row = self._engine.read("bus.peer", lambda tx: tx.bus_address_get(key))
        return () if row is None else row.addresses


def _holder(key: PeerKey, rights: ShownRights) -> Peer:
    return Peer(
        name=rights.name or text_of(key),
        keys=(key,),
        scopes=rights.scopes,
        ends_at=rights.ends_at,
        relays=relayed_topics(rights.scopes),
        relays_until=rights.ends_at,
    )


def _topics(scopes: Iterable[str]) -> list[str]:
    """What the issuer may publish to the holder: what it lets it listen to, or relay."""
    topics = [scope for scope in scopes if scope.startswith("topic:")]
    return topics + [f"topic:{pattern}" for pattern in relayed_topics(scopes)]


def _words(found: BusCapability) -> str:
    return f"{found.kind}  from {found.issuer} for {found.holder}: {', '.join(found.scopes)}"


def _is_id(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)


def _check_no_mesh(scopes: Iterable[str]) -> None:
    if any(scope.startswith("mesh:") for scope in scopes):
        raise BadInput(
            "rights in a mesh belong to its members",
            hint="let it in: holdfast mesh invite MESH",
        )
