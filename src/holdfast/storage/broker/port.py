"""What a broker's store must be able to do.

Two stores exist: SQLite in a folder, for one broker process, and PostgreSQL, for several; one suite
runs on both. Every call is one transaction: all of it is durable when it returns, or none of it has
happened. Times are milliseconds of the broker's wall clock and come in from the caller.

`accept` is the call that must be fast: it takes many envelopes of many members at once, and answers
each by itself.

A call that changes a mesh raises UnknownMesh if there is none of that name; a call that looks
something up answers that there is nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.protocol.commit_page import CheckedPage, CommitLine
from holdfast.protocol.quorum_snapshot import SnapshotHeader
from holdfast.rules.broker_rows import (
    AcceptResult,
    BrokerConsumer,
    BrokerMesh,
    BrokerOrder,
    BrokerSwept,
    DeadLetter,
    DestinationRow,
    EpochRow,
    FeedPage,
    InviteRow,
    LogPage,
    MemberRow,
    Membership,
    MeshStanding,
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

    async def schema(self) -> int:
        """The version of the schema."""

    async def close(self) -> None: ...
    async def ping(self) -> None:
        """Raises if the store does not work."""

    def wants_only_some_news(self) -> None:
        """From now on news of what other processes write may come late, unless `wants_news`."""

    def wants_news(self, mesh: str, *, on: bool) -> None:
        """Whether anybody at this process is to hear at once what others write into a mesh."""

    def on_news(self, listener: Callable[[str, int], None]) -> None:
        """Calls `listener(mesh, seq)` in the event loop when a mesh has grown, in whichever
        process; seq is 0 if it is not known how far, and for a queue that has something to take.
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
        """Removes the mesh and everything in it. False if there is none."""

    async def epochs(self, slug: str) -> list[EpochRow]:
        """All epochs of a mesh, from the first to the current one."""

    async def new_epoch(self, slug: str | None, reason: str, now_ms: int) -> list[BrokerMesh]:
        """Begins a new epoch in one mesh, or in all."""

    async def member_get(self, mesh: str, key: bytes) -> MemberRow | None:
        """A member by its key; None also for one that was removed."""

    async def member_list(self, mesh: str) -> list[MemberRow]:
        """The members that were not removed, by name."""

    async def member_put(self, mesh: str, row: MemberRow) -> None:
        """Adds or changes a member. AlreadyExists if another present member has the name."""

    async def member_grant(self, mesh: str, key: bytes, grants: frozenset[str]) -> MemberRow | None:
        """Changes the grants of a present member, and nothing else; None if there is none."""

    async def member_remove(self, mesh: str, key: bytes, now_ms: int) -> bool:
        """Removes a member with its subscriptions and the invites that it made."""

    async def memberships(self, key: bytes) -> list[Membership]:
        """The meshes that the key is a member of, by slug."""

    async def member_got(self, mesh: str, key: bytes, epoch: int, seq: int, now_ms: int) -> None:
        """Notes up to which seq a member has what it was sent; never backwards within an epoch."""

    async def invite_put(self, row: InviteRow) -> None: ...
    async def invite_list(self, mesh: str) -> list[InviteRow]: ...
    async def invite_drop(self, mesh: str, digest: bytes) -> bool: ...
    async def invite_use(self, digest: bytes, key: bytes, name: str, now_ms: int) -> str:
        """Makes a key a member by an invite, and returns the mesh's slug. One use is counted, in
        the same transaction; none if the key is a member already, so that a node that lost the
        answer may ask again. InviteEnded if it is over, used up or unknown, or older than the key's
        removal; AlreadyExists if another member has the name.
        """

    # --- destinations --------------------------------------------------------------------------

    async def destination_put(self, mesh: str, row: DestinationRow) -> None:
        """Declares a topic or a queue, or changes its settings."""

    async def destination_get(self, mesh: str, kind: str, ref: str) -> DestinationRow | None: ...
    async def destination_list(self, mesh: str) -> list[DestinationRow]: ...
    async def destination_drop(self, mesh: str, kind: str, ref: str) -> bool:
        """Refused (BadInput) while a queue holds messages, dead letters among them."""

    async def subscribe(self, mesh: str, key: bytes, topic: str) -> int:
        """Returns the seq after which the member gets the topic. A second time changes nothing.
        UnknownDestination if the topic was not declared, NotAMember for another key.
        """

    async def unsubscribe(self, mesh: str, key: bytes, topic: str) -> bool: ...
    async def subscriptions(self, mesh: str, key: bytes) -> dict[str, int]: ...

    # --- messages ------------------------------------------------------------------------------

    @property
    def groups_max(self) -> int:
        """How many batches may be handed to `accept` before the first of them has returned. They
        are accepted in the order of the calls.
        """

    def may_hold_up_the_loop(self, when: Callable[[], bool]) -> None:
        """While `when` says so, a store whose disk is quick may accept a small batch in the thread
        of its event loop, before `accept` returns.
        """

    def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> Awaitable[Sequence[AcceptResult]]:
        """One transaction for all of them; each gets its own answer, in the order of the batch.
        Checked in this order: mesh, member and grants, dedupe, epoch, destination. `dedupe_ms`
        None: ids are remembered for ever. The seqs of a mesh follow the order of commits: a member
        that has read up to one has everything below it. An id that comes twice in a batch is judged
        in order: a duplicate of one that was created, or by itself after one that was refused.
        """

    async def known(
        self, mesh: str, ids: Sequence[tuple[bytes, bytes]]
    ) -> list[AcceptResult | None]:
        """By id and fingerprint: DUPLICATE or REUSED for envelopes that were accepted before, None
        for others.
        """

    async def feed(
        self, mesh: str, key: bytes, after: int, limit: int, bytes_max: int, *, own: bool
    ) -> FeedPage:
        """What a member may see behind a seq: changes, topics that it has subscribed to (from then
        on), its own dms; never queues. Without `own`, not the changes that it handed in itself. A
        page covers up to `to` whether or not there is a row at `to`; one row always fits. Truncated
        if `after` + 1 is below the mesh's `first`. NotAMember for another key, NotGranted without
        read.
        """

    async def express(self, mesh: str, key: bytes, after: int, limit: int) -> FeedPage:
        """Of what `feed` gives, only messages of priority `now` (topics and dms); never
        Truncated.
        """

    # --- the whole log -------------------------------------------------------------------------

    async def log_page(
        self, mesh: str, after: int, upto: int, limit: int, bytes_max: int
    ) -> LogPage:
        """Everything of after < seq <= upto that is still held, for every member. A page covers
        up to `to` whether or not there is a row at `to`; one row always fits. What is missing below
        `to` was swept.
        """

    async def consumer_add(
        self, mesh: str, key: bytes, name: str, after: int, known: int, now_ms: int
    ) -> BrokerConsumer:
        """Registers a reader that has all up to `after`, or returns it if it is there. What it has
        lost up to `known` is forgotten, because the reader knows of it. PastEnd if the mesh is not
        that far, Truncated if changes behind it are gone.
        """

    async def consumer_confirm(
        self, mesh: str, key: bytes, name: str, epoch: int, seq: int, now_ms: int
    ) -> BrokerConsumer:
        """Notes that a reader has everything up to a seq; backwards changes nothing.
        UnknownConsumer, EpochChanged, PastEnd.
        """

    async def consumer_list(self, mesh: str) -> list[BrokerConsumer]: ...
    async def consumer_drop(self, mesh: str, key: bytes, name: str) -> bool: ...

    # --- queues --------------------------------------------------------------------------------

    async def take(
        self, mesh: str, queue: str, holder: bytes, most: int, leases: Sequence[bytes], now_ms: int
    ) -> list[TakenRow]:
        """Messages that no other member has, by priority, then age, each hidden from others until
        its visibility timeout. Those that were delivered too often go to the dead letters instead.
        At most as many as there are leases. UnknownDestination if there is no such queue.
        """

    async def settle(
        self, mesh: str, queue: str, seq: int, lease: bytes, how: str, reason: str, now_ms: int
    ) -> bool:
        """`done`: it is gone from the queue. `again`: others may take it at once. `dead`: to the
        dead letters. `extend`: hidden for one more visibility timeout. False if the lease is not
        the present one; it stays so until another member gets the message, even after its time.
        """

    async def queue_counts(self, mesh: str) -> list[QueueCounts]: ...
    async def queue_meshes(self) -> list[str]:
        """The meshes that have a queue, by slug."""

    async def dead_letters(self, mesh: str, queue: str, limit: int) -> list[DeadLetter]: ...
    async def revive(self, mesh: str, queue: str, seq: int) -> bool:
        """Puts a dead letter back into its queue, with no deliveries counted."""

    # --- objects and snapshots -----------------------------------------------------------------

    async def object_size(self, mesh: str, sha256: str) -> int | None:
        """The size of an object that is whole; None for others."""

    async def object_add(self, mesh: str, sha256: str, number: int, piece: bytes) -> int:
        """Adds a piece of an object, in order from 0, and returns the number of the next piece that
        is missing. A piece that is there already changes nothing.
        """

    async def object_finish(self, mesh: str, sha256: str, size: int) -> None:
        """Marks an object as whole; a second time changes nothing. BadValue, and nothing stays of
        the upload, if its size or hash is another.
        """

    def object_read(self, mesh: str, sha256: str) -> AsyncIterator[bytes]: ...
    async def object_asked(self, mesh: str, sha256: str) -> int | None:
        """The size of an object that is whole, for a member that may be about to name it: the note
        that nothing names it is taken away.
        """

    async def objects_after(self, mesh: str, sha256: str, limit: int) -> list[str]:
        """Names of whole objects after a name, in order."""

    async def objects_settle(
        self, mesh: str, named: Sequence[str], unnamed: Sequence[str], now_ms: int, before_ms: int
    ) -> int:
        """Keeps the objects that the mesh names. Those that it does not name are noted, and removed
        if they were noted before `before_ms`; returns how many.
        """

    async def snapshot_begin(self, mesh: str, row: SnapshotRow) -> SnapshotRow:
        """Begins an upload, or goes on with one of the same member for the same (epoch, seq):
        `parts` of the answer is the number of the next part. EpochMismatch if the mesh counts in
        another epoch, BadInput if it is not that far.
        """

    async def snapshot_add(self, mesh: str, id: str, number: int, rows: int, part: bytes) -> int:
        """Adds a part, and returns the number of the next one that is missing."""

    async def snapshot_commit(self, mesh: str, id: str, digest: bytes, now_ms: int) -> SnapshotRow:
        """Makes an upload the mesh's snapshot, in place of an older one. A second time changes
        nothing. UnknownObject if there is no such upload; BadValue, and nothing stays of it, if the
        digest is another.
        """

    async def snapshot_get(self, mesh: str) -> SnapshotRow | None:
        """The newest snapshot that is ready."""

    async def snapshot_part(self, mesh: str, id: str, number: int) -> bytes | None: ...

    # --- what quorums have committed -----------------------------------------------------------

    async def commit_order(self, mesh: str) -> BrokerOrder | None:
        """How much is held of the mesh's order; None if nobody has brought any of it."""

    async def commits_add(
        self, mesh: str, page: CheckedPage, expires_at: int
    ) -> BrokerOrder | None:
        """Adds what is new of a page, each number once; returns how the order stands then.
        CommitForked if a number is another entry here, PastEnd if the page leaves a gap.
        """

    async def commit_lines(
        self, mesh: str, first: int, limit: int, bytes_max: int
    ) -> list[CommitLine]:
        """Commits from a number on; the one that makes them so large is the last."""

    async def commit_state(
        self, mesh: str, header: SnapshotHeader, engine: str, sha256: str, size: int
    ) -> BrokerOrder | None:
        """Notes that an object is the committed state, as its header says. It takes the place of an
        earlier one; a later one stays. CommitForked if it is of another order.
        """

    # --- upkeep --------------------------------------------------------------------------------

    async def server_ms(self) -> int | None:
        """What the wall clock of the store's server shows; None if the store has no server."""

    async def cut_leases(self, now_ms: int) -> int:
        """Ends leases at the latest when one ends that is taken now: those of a clock that was
        ahead would go on until then. Returns how many it cut.
        """

    async def sweep(self, now_ms: int, most: int, uncounted_ms: int = 0) -> BrokerSwept:
        """Removes what is past its time, at most `most` rows of each kind: call it again while it
        finds as many. `uncounted_ms` of the clock do not count towards the age of anything; leases
        and invites go by the clock itself.

        - Messages past `keep_ms`; their dedupe rows then say that the history is gone. One that
          waits in a queue (ready or taken) stays until that is settled; a dead letter goes too.
        - Changes past `keep_ms` only up to the seq of the mesh's snapshot, from the oldest on, and
          with them what stands before one that goes; `first` of the mesh moves behind the last.
        - Of both, what a consumer has not confirmed stays CONSUMER_KEEP_MS_MAX longer, if its
          member is present and may audit; what goes then is noted with the consumer as lost.
        - Dedupe rows one day past `dedupe_ms`, once their message is gone; none in permanent mode.
        - Taken messages whose time is over: others may take them (or they die).
        - Commits past their time that the state covers, from the first on.
        - Invites that are over, used up or not; uploads to which nothing was added for a day.
        """

    async def foresee_sweep(self, now_ms: int, most: int, uncounted_ms: int = 0) -> BrokerSwept:
        """What one such sweep would remove. Nothing changes."""

    async def orphans(self, limit: int) -> list[Orphan]:
        """Dedupe rows without their message, and messages without their dedupe row."""

    async def repair_orphans(self, limit: int) -> list[Orphan]:
        """Mends at most `limit` orphans, and returns those that it has mended. A message without
        its dedupe row gets one again, made from the message. A dedupe row without its message goes:
        whoever sends that envelope again brings it back. Of two messages under one id, the one that
        the dedupe row names is right, and the other one stays an orphan.
        """

    async def inconsistencies(self) -> list[str]:
        """What is wrong with the tables, each as a sentence with an example. It reads all there
        is.
        """

    async def standings(self) -> list[MeshStanding]:
        """Where all meshes stand, by slug. It takes as long as there are members."""

    async def counts(self) -> dict[str, int]:
        """How much there is, for the metrics: `meshes`, `members`, `messages`, `dedupe`, `ready`,
        `taken`, `dead`, `objects`, `snapshots`.
        """

    async def mode(self) -> tuple[Mode, int]:
        """How ids are remembered, and for how many days; noted in the store so that all processes
        agree. `retention_scoped` and 30 days if it was never set.
        """

    async def set_mode(self, mode: Mode, days: int) -> None: ...

    async def claim(self, key: bytes, *, replace: bool = False) -> bytes:
        """Notes the key of the broker whose store this is, if none is noted yet or it is to be
        replaced. Returns the key that is noted then.
        """
