"""What programs of a home can do with its quorums, whoever holds them.

The process that holds the bus of a home holds its quorums too, as a `LocalQuorum`. Every other one
has a `RemoteQuorum`, which asks the daemon by HTTP. Both have these verbs and raise the same
errors. What is committed stands in the home's own store, where every process reads it.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from holdfast.node.quorum.ports import OrderStatus
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.quorum.view import Clash, EntityRevision
from holdfast.rules.reconcile import Outcome

ReceiptState = Literal["committed", "queued"]


class StrongReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a strong write."""

    id: str
    mesh: str
    state: ReceiptState
    """`queued`: no quorum was there in time. It waits on the disk, and is tried again."""
    outcome: Outcome | None = None
    """Of a committed one."""
    number: int | None = None
    """The number of its commit."""
    fence: str = ""
    """The fence of its commit, as text that sorts."""
    reason: str = ""
    """A code: why it waits, or why it changed nothing."""
    detail: str = ""
    revisions: tuple[EntityRevision, ...] = ()
    clashes: tuple[Clash, ...] = ()


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a replay of waiting writes came to."""

    attempted: int = 0
    applied: int = 0
    failed: int = 0
    pending: int = 0
    """Those that still wait: the quorum went away again, or replay is paused."""


class ReadDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader demands: the newest, nothing older than so much, or whatever is here."""

    linearizable: bool = True
    staleness_ms_max: int | None = None


class QuorumApi(Protocol):
    """The quorums of a home."""

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
        """Makes an intent (`rules/quorum/intents.py`) and brings it into the order. Without a
        quorum in time it is queued, or refused (NoQuorum) if the minority's policy is `reject`.
        A refusal for good is raised as the error whose code is the commit's reason.
        """

    async def confirm(
        self, mesh: str, demand: ReadDemand, *, timeout_ms: int | None = None
    ) -> DegradedRead:
        """Says how fresh a read of this home's store is from now on. NotFresh or TooStale if that
        is less than what is demanded.
        """

    async def lease_granted(self, mesh: str, name: str, session: bytes, *, timeout_ms: int) -> bool:
        """Waits until this session holds the lease; False when time is over."""

    async def replay(self, mesh: str, *, node: str | None = None) -> ReplaySummary:
        """Tries the writes that wait, now."""

    # --- operators ---------------------------------------------------------------------------

    async def status(self, mesh: str) -> OrderStatus:
        """NoVoters if the mesh has no quorum."""

    async def init(
        self, mesh: str, voters: tuple[str, ...], *, engine: str = "embedded"
    ) -> OrderStatus:
        """Gives a mesh voters: this node and the peers that are named. AlreadyExists if it has
        some. `engine`: `embedded`, or the address of an etcd (`etcd://…`).
        """

    async def move(self, mesh: str, voters: tuple[str, ...] = (), *, engine: str) -> OrderStatus:
        """Ends the order of a mesh and goes on with another engine: this node and these voters, or
        an etcd (`etcd://…`). Writes that come meanwhile wait in the queue; leases stay with their
        holders, and fences grow. On the other nodes it takes part in the etcd's order.
        """

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None = None) -> OrderStatus:
        """Makes a member of the mesh a voter: it learns everything first, then it votes."""

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None = None, last: bool = False
    ) -> OrderStatus:
        """Takes the vote from a node. Conflict for the only voter, unless it is this node and
        `last`: then nobody decides any more, and this node can delete its mesh.
        """

    async def transfer(
        self, mesh: str, to: str | None, *, timeout_ms: int | None = None
    ) -> OrderStatus:
        """Lets another voter coordinate; the best one if none is named. Writes wait, none is
        refused.
        """

    async def step_down(self, mesh: str) -> OrderStatus:
        """The coordinator stops at once; another one is elected."""

    async def forget_claim(self, mesh: str, peer: str, *, dry_run: bool = False) -> OrderStatus:
        """Lets go of what a peer has shown of another order of the mesh, when it is gone for good.
        OrderContested if this group is stopped by such claims: then `recover` decides. With
        `dry_run` nothing is changed: it is refused, or would be done.
        """

    async def pause(self, mesh: str) -> None:
        """Writes that wait are not replayed until `resume`."""

    async def resume(self, mesh: str) -> None: ...
    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus:
        """After a majority is gone for good: this node alone goes on with what it has, as a new
        incarnation. What only the others had is lost; the caller has to say that it knows.
        """
