"""What strong writes and reads need of an engine: the order of one mesh, as one node takes part.

An engine puts envelopes of a mesh into one order, and every node folds them in it
(`node/core/commit.py`). Whoever wants a write committed or a read confirmed needs to know nothing
else about it; each engine is a `MeshOrder`:

    embedded    this node votes, or follows as a learner (`node/quorum/embedded`)
    etcd        a cluster of etcd has the order (`node/quorum/etcd`)
    forwarding  this node is a member without a vote: it asks voters over the bus

Everything here belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.node.core.commit import Committed
from holdfast.rules.errors import NoQuorum
from holdfast.rules.quorum.intents import Engine

OrderPart = Literal["coordinator", "voter", "learner", "member", "removed", "must_rejoin", "failed"]
"""What this node is in an order: it coordinates, it votes, it only receives, it asks voters, or it
takes no part any more, for one of three reasons."""
MemberPlace = Literal["voter", "learner"]


class OrderMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the group that decides, as this node knows it."""

    id: int
    peer: str
    place: MemberPlace
    leads: bool = False
    linked: bool = True
    """A link to it stands, or it is this node."""
    match: int | None = None
    """Up to which index its disk has the order; only the coordinator knows."""
    heard_ms: int | None = None
    """How long ago it was heard; None: never in this life of the process, or it is this node."""
    disk: str = "fine"


class OrderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one order stands, seen from this node."""

    mesh: str
    engine: Engine
    incarnation: int
    part: OrderPart
    lease_epoch: int
    coordinator: str
    """The peer name of the coordinator; empty while none is known."""
    members: tuple[OrderMember, ...] = ()
    committed: int = 0
    """The engine's index of the last entry that is known to be committed."""
    applied: int = 0
    """And of the last that this node has folded."""
    confirmed_ms: int | None = None
    """How long ago this node last knew that it has all that was committed, by monotonic time; None:
    not in this life of the process."""
    has_quorum: bool = False
    """Whether a majority was heard of lately, as far as this node can tell."""
    waiting: int = 0
    """Proposals and reads of this node that are under way."""
    late_ms: int = 0
    """How late the event loop ran at worst, lately."""
    problem: str = ""
    """What keeps this node from taking part, in words for people."""


class MeshOrder(Protocol):
    """The order of one mesh."""

    mesh: str
    on_change: Callable[[], None]
    """Is called after the coordinator, the members or this node's part have changed, and when a
    majority is heard again: what waits may be tried now. Set it once."""
    on_folded: Callable[[Sequence[Committed]], None]
    """Is called after this node has folded entries, with what became of each, in order: those of
    other nodes too. Set it once; it must be quick."""

    async def propose(self, id: bytes, raw: bytes, *, timeout_ms: int) -> Committed:
        """Brings an envelope into the order and returns what became of it, when this node has
        folded it. The same id is committed once, however often it is proposed.

        NoQuorum: nobody has it, and nobody will unless it is proposed again. OutcomeUnknown: it may
        be committed, now or later; propose it again under the same id, or give it up, to know.
        """

    async def confirm(self, *, timeout_ms: int) -> None:
        """Returns when this node has folded everything that was committed before the call. Raises
        NoQuorum if no majority confirms that in time.
        """

    def status(self) -> OrderStatus: ...


def order_moved(mesh: str) -> NoQuorum:
    """What callers of an order hear that has ended. Nothing of theirs was decided by it."""
    return NoQuorum(
        f"the order of {mesh!r} has ended here and goes on with another engine",
        hint="ask again in a moment; see: holdfast quorum status",
    )
