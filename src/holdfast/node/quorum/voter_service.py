"""The voter's side of forwarding: members without a vote propose here, or ask how far it all is.

The link has proved the key of whoever asks; the list of the mesh's members says what that key may
do: `write` to propose, `read` to confirm. A member proposes what it wrote itself; one that may
relay, also what others wrote. What is no intent of this mesh is refused before it costs a round.

Errors travel by their code, as those of every handler of the bus do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.ports import MeshOrder
from holdfast.protocol import forward_requests as wire
from holdfast.protocol.forward_requests import (
    CONFIRM,
    PROPOSE,
    ConfirmAsked,
    ConfirmGiven,
    MemberTold,
    ProposeAsked,
    ProposeGiven,
)
from holdfast.rules.bus.meshes.membership import MemberStanding
from holdfast.rules.envelope import Envelope
from holdfast.rules.envelope import decode as decode_envelope
from holdfast.rules.errors import (
    BadEnvelope,
    ForgedOrigin,
    NotAMember,
    NotGranted,
    NoVoters,
    TooMany,
)
from holdfast.rules.limits import (
    FORWARDED_ALL_MAX,
    FORWARDED_BYTES_MAX,
    FORWARDED_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.quorum.intents import MOVE, decode_intent
from holdfast.storage.ports import Reader


class VoterRequest(Protocol):
    """A request that came over a proved link."""

    @property
    def key(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...


class ServingBus(Protocol):
    def serve(
        self, service: str, handler: Callable[[Any], Awaitable[bytes]], *, most: int
    ) -> object: ...


class VoterService:
    """Answers for all meshes of a node in whose order it takes part. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        order_of: Callable[[str], MeshOrder | None],
        standing: Callable[[bytes, str], MemberStanding | None],
    ) -> None:
        """`order_of` gives the order of a mesh that this node takes part in, and never one that
        forwards: else two members could ask each other for ever. `standing` says what a key may do
        in a mesh.
        """
        self._engine, self._order_of, self._standing = engine, order_of, standing
        self._proposals, self._confirmations = Counter[bytes](), Counter[bytes]()
        """By key of a member: how many are worked on."""
        self._bytes: Counter[bytes] = Counter()

    def start(self, bus: ServingBus) -> None:
        bus.serve(PROPOSE, self.propose_asked, most=FORWARDED_ALL_MAX)
        bus.serve(CONFIRM, self.confirm_asked, most=FORWARDED_ALL_MAX)

    async def propose_asked(self, asked: VoterRequest) -> bytes:
        wanted = wire.decode(asked.body, ProposeAsked)
        order, member = self._may(asked.key, wanted.mesh, "write")
        _check_intent(wanted, member)
        with self._room(self._proposals, asked.key, len(wanted.raw)):
            made = await order.propose(wanted.id, wanted.raw, timeout_ms=wanted.timeout_ms)
        upto = made.number
        if upto is None:
            upto = self._engine.read("quorum.commit", lambda tx: _folded_by(tx, wanted))
        given = ProposeGiven(
            upto,
            made.number,
            made.outcome,
            made.reason,
            made.detail[:REASON_CHARS_MAX],
            made.revisions,
            made.clashes,
        )
        return wire.encode(given)

    async def confirm_asked(self, asked: VoterRequest) -> bytes:
        wanted = wire.decode(asked.body, ConfirmAsked)
        order, _ = self._may(asked.key, wanted.mesh, "read")
        with self._room(self._confirmations, asked.key, 0):
            await order.confirm(timeout_ms=wanted.timeout_ms)
        row = self._engine.read("quorum.standing", lambda tx: tx.quorum_get(wanted.mesh))
        status = order.status()
        members = tuple(
            MemberTold(one.id, one.peer, one.place == "voter", one.leads) for one in status.members
        )
        number = 0 if row is None else row.number
        return wire.encode(ConfirmGiven(number, status.lease_epoch, status.coordinator, members))

    def _may(self, key: bytes, mesh: str, right: str) -> tuple[MeshOrder, MemberStanding]:
        """A stranger learns nothing, not even whether there is such a mesh."""
        standing = self._standing(key, mesh)
        if standing is None:
            raise NotAMember(f"this key is no member of {mesh!r}")
        if right not in standing.grants:
            raise NotGranted(f"{standing.name} may not {right} in {mesh!r}")
        order = self._order_of(mesh)
        if order is None:
            raise NoVoters(f"this node takes no part in an order of {mesh!r}")
        return order, standing

    @contextmanager
    def _room(self, under_way: Counter[bytes], key: bytes, size: int) -> Iterator[None]:
        """Each member has its own: whoever asks without end is refused, and nobody else is."""
        if under_way[key] >= FORWARDED_MAX:
            raise TooMany(f"{FORWARDED_MAX} requests of this member are under way")
        if self._bytes[key] + size > FORWARDED_BYTES_MAX:
            raise TooMany(f"{FORWARDED_BYTES_MAX} bytes of this member are under way")
        under_way[key] += 1
        self._bytes[key] += size
        try:
            yield
        finally:
            for counts, amount in ((under_way, 1), (self._bytes, size)):
                counts[key] -= amount
                if not counts[key]:
                    del counts[key]


def _check_intent(wanted: ProposeAsked, member: MemberStanding) -> Envelope:
    envelope = decode_envelope(wanted.raw)
    if envelope.mesh != wanted.mesh or envelope.id != wanted.id:
        raise BadEnvelope("the envelope is of another mesh or id than its proposal")
    decode_intent(envelope)
    if envelope.op == MOVE and "vote" not in member.grants:
        raise NotGranted(f"{member.name} may not vote, and so not move the order of {wanted.mesh}")
    if envelope.origin != member.name and "relay" not in member.grants:
        raise ForgedOrigin(f"{member.name} may not propose what {envelope.origin} wrote")
    return envelope


def _folded_by(tx: Reader, wanted: ProposeAsked) -> int:
    """The commit by which the fate of an intent was decided before: its own, or one up to which
    whoever gave it up was folded.
    """
    commit = tx.commit_of(wanted.mesh, wanted.id)
    if commit is not None:
        return commit.number
    row = tx.quorum_get(wanted.mesh)
    return 0 if row is None else row.number
