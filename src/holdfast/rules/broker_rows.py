"""The values of a broker's store: what it holds of meshes, members, messages and queues.

A **mesh** at a broker counts what it accepted in `(epoch, seq)`. A seq is never given twice in an
epoch and has no gaps. When a broker may have gone back in time it begins a new epoch, which goes on
counting from `base`, the last seq that it still knows. A member that has seen a later seq of an
older epoch then knows what the broker has forgotten.

A **member** is an Ed25519 key with a name (the peer that its envelopes carry as origin) and grants.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec

from holdfast.rules.envelope import Priority

AUDIT: Final = "audit"
GRANTS: Final = ("read", "write", "send", "relay", "invite", AUDIT)
"""What a member may do, in this order: get the mesh's changes and its own messages; push changes;
push messages; push changes of other origins; make invites, declare destinations, see and remove
members; read everything that members pushed, whomever it is for."""
OWNER_GRANTS: Final = frozenset(GRANTS) - {AUDIT}
"""An owner gets all but `audit`: to read messages between others must be granted, visibly for
all.
"""
MEMBER_GRANTS: Final = frozenset({"read", "write", "send"})

Mode = Literal["permanent", "retention_scoped"]


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of the values that a broker's store takes and returns."""


class BrokerMesh(Value, frozen=True, kw_only=True):
    """A mesh as its broker knows it."""

    server_id: str
    """A UUID that is given once: a later mesh under the same name has another one."""
    slug: str
    name: str
    owner: bytes
    epoch: int
    base: int
    """The last seq before this epoch."""
    seq: int
    """The last seq that the broker has given."""
    first: int
    """From this seq on the broker holds every change; a member further back needs a snapshot.
    Messages that nobody fetched in their time are gone and do not move it."""
    created_at: int


class EpochRow(Value, frozen=True, kw_only=True):
    epoch: int
    base: int
    began_at: int
    reason: str


class MemberRow(Value, frozen=True, kw_only=True):
    key: bytes
    name: str
    grants: frozenset[str]
    added_at: int
    removed_at: int | None = None
    got_epoch: int = 0
    """With `got_seq`: up to where the member has confirmed its feed."""
    got_seq: int = 0
    seen_at: int | None = None


class InviteRow(Value, frozen=True, kw_only=True):
    """An invite as a broker keeps it: with the digest of its secret, never the secret."""

    mesh: str
    digest: bytes
    grants: frozenset[str]
    uses_left: int
    expires_at: int
    made_by: bytes
    made_at: int


class DestinationRow(Value, frozen=True, kw_only=True):
    """A topic or a queue that a member declared."""

    kind: str
    ref: str
    made_at: int
    visibility_ms: int = 30_000
    """How long a taken message is hidden from other takers of its queue."""
    deliveries_max: int = 10
    """After this many deliveries that nobody finished a message goes to the dead letters."""


class PushedEnvelope(Value, frozen=True, kw_only=True):
    """An envelope that a member pushed, read and checked (see `message.check_arriving`)."""

    mesh: str
    id: bytes
    fingerprint: bytes
    kind: str
    """`change`, `topic`, `dm` or `queue`."""
    ref: str
    origin: str
    sender: bytes
    priority: Priority
    raw: bytes
    broker_id: bytes
    """A UUIDv7 that the broker made before the transaction."""
    epoch: int = 0
    """The epoch that the sender believes the mesh is in; 0: any."""
    lamport: int = 0
    """The stamp's; the broker bounds it (`stamp_check`) and does not keep it."""


class AcceptVerdict(StrEnum):
    """What a broker did with one pushed envelope. Only CREATED has written anything."""

    CREATED = "created"
    DUPLICATE = "duplicate"
    """The id is known with the same fingerprint: the answer is about the first envelope."""
    REUSED = "idempotency_key_reused"
    """The id is known with another fingerprint: `fingerprint` of the answer has its beginning."""
    UNKNOWN_MESH = "unknown_mesh"
    NOT_A_MEMBER = "not_a_member"
    NOT_GRANTED = "not_granted"
    """The member lacks `write`, `send`, or `relay` for an origin that is not its own name."""
    EPOCH_MISMATCH = "epoch_mismatch"
    UNKNOWN_DESTINATION = "unknown_destination"


class AcceptResult(Value, frozen=True, kw_only=True):
    """The answer of a broker's store for one pushed envelope."""

    verdict: AcceptVerdict
    epoch: int = 0
    """The current epoch of the mesh, whatever the verdict."""
    message_epoch: int = 0
    """With `seq`: where the envelope stands; for a duplicate, where the first one stands."""
    seq: int = 0
    broker_id: bytes = b""
    first_seen_at: int = 0
    history_available: bool = True
    fingerprint: bytes = b""
    """For REUSED: the fingerprint that the broker has."""


class FeedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One envelope on its way to a member."""

    seq: int
    kind: str
    broker_id: bytes
    raw: bytes


class FeedPage(Value, frozen=True, kw_only=True):
    """All envelopes with after < seq <= to that a member may see, in order."""

    epoch: int
    after: int
    to: int
    rows: list[FeedRow]
    last: int
    """The last seq of the mesh when the page was read."""
    commits: int = 0
    """The number of the last commit that the broker holds of the mesh's quorum; 0: none."""


class LogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One envelope as the broker accepted it."""

    seq: int
    id: bytes
    broker_id: bytes
    raw: bytes


class LogPage(Value, frozen=True, kw_only=True):
    """All envelopes with after < seq <= to that the broker still holds, of every kind, in order."""

    epoch: int
    first: int
    """`first` of the mesh."""
    last: int
    to: int
    rows: list[LogRow]


class BrokerConsumer(Value, frozen=True, kw_only=True):
    """A named reader of a whole mesh. The broker keeps what it has not confirmed, for a while."""

    key: bytes
    """The member that it belongs to."""
    name: str
    seq: int
    """The reader has confirmed everything up to this seq."""
    added_at: int
    seen_at: int
    lost: int = 0
    """How many envelopes a sweep removed before the reader confirmed them, between `lost_first` and
    `lost_last`."""
    lost_first: int = 0
    lost_last: int = 0

    def lacks(self, start: int, stop: int) -> bool:
        """Whether a sweep may have removed envelopes with start <= seq < stop that it has not
        confirmed.
        """
        return self.lost_last > self.seq and self.lost_last >= start and self.lost_first < stop


class TakenRow(Value, frozen=True, kw_only=True):
    """A message of a queue that a taker holds."""

    queue: str
    seq: int
    lease: bytes
    """The taker proves by it that it holds the message: 16 random bytes, new with each delivery."""
    deliveries: int
    until: int
    broker_id: bytes
    raw: bytes


class DeadLetter(Value, frozen=True, kw_only=True):
    queue: str
    seq: int
    deliveries: int
    reason: str
    died_at: int
    id: bytes


class Membership(Value, frozen=True, kw_only=True):
    """One mesh that a key is a member of."""

    mesh: BrokerMesh
    member: MemberRow
    epochs: list[EpochRow]


class MeshStanding(msgspec.Struct, frozen=True):
    """Where a mesh stands, for the status and the metrics."""

    mesh: str
    epoch: int
    base: int
    first: int
    seq: int
    members: int
    lag: int
    """What the member that is furthest behind has not confirmed."""


class QueueCounts(Value, frozen=True, kw_only=True):
    queue: str
    ready: int
    taken: int
    dead: int


class SnapshotRow(Value, frozen=True, kw_only=True):
    """A state of a mesh that a member uploads, in parts, for members that join later."""

    id: str
    epoch: int
    seq: int
    """The snapshot holds what all envelopes up to this seq made."""
    parts: int
    rows: int
    ready: bool
    made_by: bytes
    began_at: int
    digest: bytes = b""
    """SHA-256 over the digests of the parts; empty until the snapshot is ready."""


class BrokerOrder(Value, frozen=True, kw_only=True):
    """What a broker holds of the order of a mesh with voters: commits from `first` to `last`, and
    perhaps an object with the whole committed state after one of them.
    """

    engine: str
    incarnation: int
    tag: bytes
    """Tells this incarnation from any other group of the same name."""
    fence: str
    """Of the last commit, as text; empty if there is none."""
    first: int
    """The number of the first commit that is held; a member that lacks an earlier one needs the
    state."""
    last: int
    state_number: int = 0
    """The last commit that is in the state; 0 if there is no state."""
    state_sha256: str = ""
    state_size: int = 0


class BrokerSwept(Value, frozen=True, kw_only=True):
    """What a broker's sweep removed."""

    dedupe: int = 0
    """Ids of envelopes."""
    messages: int = 0
    released: int = 0
    """Taken messages that went back to their queue because their time was over."""
    died: int = 0
    """Messages that became dead letters."""
    invites: int = 0
    snapshots: int = 0
    objects: int = 0
    """Contents that nothing named any more."""
    removed: int = 0
    """Rows of meshes that were removed."""
    commits: int = 0
    """Commits of quorums that a state covers."""


class Orphan(Value, frozen=True, kw_only=True):
    """A dedupe row whose message is not there, or a message without its dedupe row."""

    mesh: str
    id: bytes
    seq: int
    what: str
