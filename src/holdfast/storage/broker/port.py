"""What a broker's store must be able to do.

Two stores exist: SQLite in a folder, for one broker process, and PostgreSQL, for several; one suite
runs on both. Every call is one transaction: all of it is durable when it returns, or none of it has
happened. Times are milliseconds of the broker's wall clock and come in from the caller.

`accept` is the one that must be fast: it takes many envelopes of many members at once, and answers
each by itself.

A mesh that does not exist is UnknownMesh in every call that can only concern one that does; calls
that look something up answer that there is nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.rules.broker_rows import (
    AcceptResult,
    BrokerConsumer,
    BrokerMesh,
    BrokerSwept,
    DeadLetter,
    DestinationRow,
    EpochRow,
    FeedPage,
    InviteRow,
    LogPage,
    MemberRow,
    Mode,
    Orphan,
    PushedEnvelope,
    QueueCounts,
    SnapshotRow,
    TakenRow,
)


class BrokerStore(Protocol):
    """Where a broker keeps everything."""

    # --- itself --------------------------------------------------------------------------------

    async def open(self, now_ms: int) -> None:
        """Brings the schema up to date (one process at a time), and begins a new epoch in every
        mesh if this store may have gone back in time.
        """

    async def close(self) -> None: ...
    async def ping(self) -> None:
        """Raises if the store does not work."""

    def on_news(self, told: Callable[[str, int], None]) -> None:
        """Calls `told(mesh, seq)` in the event loop when a mesh has grown, by whichever process;
        seq is 0 if it is not known how far. Also for a queue that has got something to take.
        """

    # --- meshes and members --------------------------------------------------------------------

    async def mesh_register(
        self, slug: str, name: str, owner: bytes, owner_name: str, server_id: str, now_ms: int
    ) -> BrokerMesh:
        """Makes a mesh with its owner as a member with all grants. The same owner and slug again
        get the same mesh; another owner's slug is AlreadyExists.
        """

    async def mesh_get(self, slug: str) -> BrokerMesh | None: ...
    async def mesh_list(self) -> list[BrokerMesh]: ...
    async def mesh_remove(self, slug: str) -> bool:
        """The mesh and everything in it."""

    async def epochs(self, slug: str) -> list[EpochRow]:
        """From the first to the current one."""

    async def new_epoch(self, slug: str | None, reason: str, now_ms: int) -> list[BrokerMesh]:
        """Begins a new epoch in one mesh, or in all."""

    async def member_get(self, mesh: str, key: bytes) -> MemberRow | None:
        """None also for one that was removed."""

    async def member_list(self, mesh: str) -> list[MemberRow]:
        """Those that were not removed, by name."""

    async def member_put(self, mesh: str, row: MemberRow) -> None:
        """Adds or changes one. AlreadyExists if another present member has the name."""

    async def member_grant(self, mesh: str, key: bytes, grants: frozenset[str]) -> MemberRow | None:
        """Changes what a present member may do, and nothing else; None if there is none."""

    async def member_remove(self, mesh: str, key: bytes, now_ms: int) -> bool:
        """With its subscriptions, and the invites that it made."""

    async def meshes_of(self, key: bytes) -> list[str]: ...
    async def member_got(self, mesh: str, key: bytes, epoch: int, seq: int, now_ms: int) -> None:
        """Notes up to where a member has what it was sent; never backwards within an epoch."""

    async def invite_put(self, row: InviteRow) -> None: ...
    async def invite_list(self, mesh: str) -> list[InviteRow]: ...
    async def invite_drop(self, mesh: str, digest: bytes) -> bool: ...
    async def invite_use(self, digest: bytes, key: bytes, name: str, now_ms: int) -> str:
        """Makes a member of whoever brings the secret: the mesh's slug. One use is counted, in the
        same transaction; none if the key is a member already, so that whoever lost the answer may
        ask again. InviteEnded if it is over, used up or unknown, or older than the key's removal;
        AlreadyExists if another member has the name.
        """

    # --- destinations --------------------------------------------------------------------------

    async def destination_put(self, mesh: str, row: DestinationRow) -> None:
        """Declares a topic or a queue, or changes its settings."""

    async def destination_list(self, mesh: str) -> list[DestinationRow]: ...
    async def destination_drop(self, mesh: str, kind: str, ref: str) -> bool:
        """Refused (BadInput) while a queue holds messages, dead letters among them."""

    async def subscribe(self, mesh: str, key: bytes, topic: str) -> int:
        """The seq from behind which the member gets the topic. A second time changes nothing.
        UnknownDestination if the topic was not declared, NotAMember for a stranger.
        """

    async def unsubscribe(self, mesh: str, key: bytes, topic: str) -> bool: ...
    async def subscriptions(self, mesh: str, key: bytes) -> dict[str, int]: ...

    # --- messages ------------------------------------------------------------------------------

    @property
    def groups_max(self) -> int:
        """How many batches may be handed to `accept` before the first of them has returned. They
        are accepted in the order of the calls.
        """

    def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> Awaitable[list[AcceptResult]]:
        """One transaction for all of them; each gets its own answer, in the order of the batch.
        Checked in this order: mesh, member and grants, dedupe, epoch, destination. `dedupe_ms`
        None: ids are remembered for ever. The seqs of a mesh follow the order of commits: whoever
        reads up to one has everything below it. An id that comes twice in a batch is judged in
        order: a duplicate of one that was created, or by itself after one that was refused.
        """

    async def known(
        self, mesh: str, asked: Sequence[tuple[bytes, bytes]]
    ) -> list[AcceptResult | None]:
        """By id and fingerprint: DUPLICATE or REUSED for those that were accepted before."""

    async def feed(
        self, mesh: str, key: bytes, after: int, limit: int, bytes_max: int, *, own: bool
    ) -> FeedPage:
        """What a member may see behind a seq: changes, topics that it has subscribed to (from then
        on), its own dms; never queues. Without `own`, not the changes that it handed in itself. A
        page covers up to `to` whether or not there is a row at `to`; one row always fits. Truncated
        if `after` + 1 is below the mesh's `first`. NotAMember for a stranger, NotGranted without
        read.
        """

    async def express(self, mesh: str, key: bytes, after: int, limit: int) -> FeedPage:
        """Of the same, only messages of priority `now` (topics and dms); never Truncated."""

    # --- the whole log -------------------------------------------------------------------------

    async def log_page(
        self, mesh: str, after: int, upto: int, limit: int, bytes_max: int
    ) -> LogPage:
        """Everything of after < seq <= upto that is still held, whomever it is for. A page covers
        up to `to` whether or not there is a row at `to`; one row always fits. What is missing below
        `to` was swept.
        """

    async def consumer_add(
        self, mesh: str, key: bytes, name: str, after: int, known: int, now_ms: int
    ) -> BrokerConsumer:
        """Registers a reader that has all up to `after`, or finds it as it is; what it has lost up
        to `known` is forgotten, because it says that it knows. PastEnd if the mesh is not that far,
        Truncated if changes behind it are gone.
        """

    async def consumer_confirm(
        self, mesh: str, key: bytes, name: str, epoch: int, seq: int, now_ms: int
    ) -> BrokerConsumer:
        """Up to here it has everything; backwards changes nothing. UnknownConsumer, EpochChanged,
        PastEnd.
        """

    async def consumer_list(self, mesh: str) -> list[BrokerConsumer]: ...
    async def consumer_drop(self, mesh: str, key: bytes, name: str) -> bool: ...

    # --- queues --------------------------------------------------------------------------------

    async def take(
        self, mesh: str, queue: str, holder: bytes, most: int, leases: Sequence[bytes], now_ms: int
    ) -> list[TakenRow]:
        """Messages that nobody has, by priority, then age, each hidden from others until its
        visibility timeout. Those that were delivered too often go to the dead letters instead. At
        most as many as there are leases. UnknownDestination if there is no such queue.
        """

    async def settle(
        self, mesh: str, queue: str, seq: int, lease: bytes, how: str, reason: str, now_ms: int
    ) -> bool:
        """`done`: it is gone from the queue. `again`: others may take it at once. `dead`: to the
        dead letters. `extend`: hidden for another while. False if the lease is not the present one:
        it is as long as nobody else got the message, even after its time.
        """

    async def queue_counts(self, mesh: str) -> list[QueueCounts]: ...
    async def dead_letters(self, mesh: str, queue: str, limit: int) -> list[DeadLetter]: ...
    async def revive(self, mesh: str, queue: str, seq: int) -> bool:
        """A dead letter is taken up again, with no deliveries counted."""

    # --- objects and snapshots -----------------------------------------------------------------

    async def object_size(self, mesh: str, sha256: str) -> int | None:
        """Of one that is whole."""

    async def object_add(self, mesh: str, sha256: str, number: int, piece: bytes) -> int:
        """One piece of an object, in order from 0: the number of the next one that is missing. A
        piece that is there already changes nothing.
        """

    async def object_finish(self, mesh: str, sha256: str, size: int) -> None:
        """Whole now, for good: a second time changes nothing. BadValue, and nothing stays of an
        upload, if its size or hash is another.
        """

    def object_read(self, mesh: str, sha256: str) -> AsyncIterator[bytes]: ...
    async def object_asked(self, mesh: str, sha256: str) -> int | None:
        """The size of one that is whole, for somebody who may be about to name it: that nothing
        named it until now is forgotten.
        """

    async def objects_after(self, mesh: str, sha256: str, limit: int) -> list[str]:
        """Whole ones behind a name, in order."""

    async def objects_settle(
        self, mesh: str, named: Sequence[str], unnamed: Sequence[str], now_ms: int, before_ms: int
    ) -> int:
        """What the mesh names is kept. What it does not is noted as such, and removed if it was
        before `before_ms`: how many went.
        """

    async def snapshot_begin(self, mesh: str, row: SnapshotRow) -> SnapshotRow:
        """An upload of the same member for the same (epoch, seq) is gone on with: `parts` of the
        answer is the number of the next part. EpochMismatch if the mesh counts in another epoch,
        BadInput if it is not that far.
        """

    async def snapshot_add(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        """The number of the next part that is missing."""

    async def snapshot_commit(self, mesh: str, id: str, digest: bytes, now_ms: int) -> SnapshotRow:
        """From now on it is the mesh's snapshot, in place of an older one. A second time changes
        nothing. UnknownObject if there is no such upload; BadValue, and nothing stays of it, if the
        digest is another.
        """

    async def snapshot_get(self, mesh: str) -> SnapshotRow | None:
        """The newest that is ready."""

    async def snapshot_part(self, mesh: str, id: str, number: int) -> bytes | None: ...

    # --- upkeep --------------------------------------------------------------------------------

    async def sweep(self, now_ms: int, most: int) -> BrokerSwept:
        """Removes what is past its time; at most so many of each kind: call it again while it finds
        as many.

        - Messages past `keep_ms`; their dedupe rows then say that the history is gone. One that
          waits in a queue (ready or taken) stays until that is settled; a dead letter goes too.
        - Changes past `keep_ms` only up to the seq of the mesh's snapshot, from the oldest on;
          `first` of the mesh moves behind the last one that went.
        - Of both, what a consumer has not confirmed stays CONSUMER_KEEP_MS_MAX longer, if its
          member is present and may audit; what goes then is noted with the consumer as lost.
        - Dedupe rows one day past `dedupe_ms`, once their message is gone; none in permanent mode.
        - Taken messages whose time is over: others may take them (or they die).
        - Invites that are over, used up or not; uploads that nobody has gone on with for a day.
        """

    async def orphans(self, limit: int) -> list[Orphan]: ...
    async def counts(self) -> dict[str, int]:
        """How much there is, for the metrics: `meshes`, `members`, `messages`, `dedupe`, `ready`,
        `taken`, `dead`, `objects`, `snapshots`.
        """

    async def mode(self) -> tuple[Mode, int]:
        """How ids are remembered, and for how many days, as it was set; noted in the store so that
        all processes agree. `retention_scoped` and 30 days if nobody has set it.
        """

    async def set_mode(self, mode: Mode, days: int) -> None: ...
