"""The values of a broker's desk: what it holds of meshes, members, messages and queues.

A **mesh** at a broker counts what it accepted in `(epoch, seq)`. A seq is never given twice in an
epoch and has no gaps. When a broker may have gone back in time it begins a new epoch, which goes on
counting from `base`, the last seq that it still knows: whoever has seen a later one of an older
epoch knows what the broker has forgotten.

A **member** is an Ed25519 key with a name (the peer that its envelopes bear as origin) and grants.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec

from holdfast.rules.envelope import Priority

AUDIT: Final = "audit"
GRANTS: Final = ("read", "write", "send", "relay", "invite", AUDIT)
"""Get the mesh's changes and one's messages; hand in changes; hand in messages; hand in changes of
other origins; make invites, declare destinations, see and remove members; read all that was handed
in, whomever it is for."""
OWNER_GRANTS: Final = frozenset(GRANTS) - {AUDIT}
"""Nobody reads what others write to each other unless the owner has said so, for all to see."""
MEMBER_GRANTS: Final = frozenset({"read", "write", "send"})

Mode = Literal["permanent", "retention_scoped"]


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value of a desk."""


class BrokerMesh(Value, frozen=True, kw_only=True):
    """A mesh as its broker knows it."""

    server_id: str
    """A UUID, given once: another mesh under the same name, later, is another mesh."""
    slug: str
    name: str
    owner: bytes
    epoch: int
    base: int
    """The last seq before this epoch."""
    seq: int
    """The last seq."""
    first: int
    """From here on every change is still held; a member that stands further back needs a snapshot.
    Messages that were not fetched in their time are gone, and move this no further."""
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
    """Up to where it has confirmed what it got."""
    got_seq: int = 0
    seen_at: int | None = None


class InviteRow(Value, frozen=True, kw_only=True):
    """What is kept of an invite: the digest of its secret, never the secret."""

    mesh: str
    digest: bytes
    grants: frozenset[str]
    uses_left: int
    expires_at: int
    made_by: bytes
    made_at: int


class DestinationRow(Value, frozen=True, kw_only=True):
    """A topic or a queue that was declared."""

    kind: str
    ref: str
    made_at: int
    visibility_ms: int = 30_000
    """How long a taken message is hidden from others of its queue."""
    deliveries_max: int = 10
    """After so many deliveries without an end a message goes to the dead letters."""


class PushedEnvelope(Value, frozen=True, kw_only=True):
    """An envelope that a member hands in, read and checked; see `delivery.check_arriving`."""

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
    """A UUIDv7 that was minted before the transaction."""
    epoch: int = 0
    """The epoch that the sender believes in; 0: any."""


class AcceptVerdict(StrEnum):
    """What became of one envelope. Only CREATED has written anything."""

    CREATED = "created"
    DUPLICATE = "duplicate"
    """Known with the same fingerprint: the answer tells of the first one."""
    REUSED = "idempotency_key_reused"
    """Known with another fingerprint, which `fingerprint` of the answer begins with."""
    UNKNOWN_MESH = "unknown_mesh"
    NOT_A_MEMBER = "not_a_member"
    NOT_GRANTED = "not_granted"
    """Lacks write, send, or relay for another origin than its own name."""
    EPOCH_MISMATCH = "epoch_mismatch"
    UNKNOWN_DESTINATION = "unknown_destination"


class AcceptResult(Value, frozen=True, kw_only=True):
    """The answer for one arriving envelope."""

    verdict: AcceptVerdict
    epoch: int = 0
    """The current epoch of the mesh, whatever the verdict."""
    message_epoch: int = 0
    """Epoch and seq of the message itself: of the first one for a duplicate."""
    seq: int = 0
    broker_id: bytes = b""
    first_seen_at: int = 0
    history_available: bool = True
    fingerprint: bytes = b""
    """The broker's, for REUSED."""


class FeedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One envelope on its way to a member."""

    seq: int
    kind: str
    broker_id: bytes
    raw: bytes


class FeedPage(Value, frozen=True, kw_only=True):
    """All that a member may see of after < seq <= to, in order."""

    epoch: int
    after: int
    to: int
    rows: list[FeedRow]
    last: int
    """The last seq of the mesh when the page was read."""


class LogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One envelope as it was accepted."""

    seq: int
    id: bytes
    broker_id: bytes
    raw: bytes


class LogPage(Value, frozen=True, kw_only=True):
    """All that is still held of after < seq <= to, of every kind, in order."""

    epoch: int
    first: int
    """As of the mesh."""
    last: int
    to: int
    rows: list[LogRow]


class BrokerConsumer(Value, frozen=True, kw_only=True):
    """A named reader of a whole mesh: what it has not confirmed is kept for it, for a while."""

    key: bytes
    """The member that it belongs to."""
    name: str
    seq: int
    """Everything up to here is confirmed."""
    added_at: int
    seen_at: int
    lost: int = 0
    """Envelopes that went before it confirmed them, between these two seqs."""
    lost_first: int = 0
    lost_last: int = 0

    def lacks(self, start: int, stop: int) -> bool:
        """May it have lost any of start <= seq < stop? What it has confirmed it has."""
        return self.lost_last > self.seq and self.lost_last >= start and self.lost_first < stop


class TakenRow(Value, frozen=True, kw_only=True):
    """A message of a queue in the hands of one who took it."""

    queue: str
    seq: int
    lease: bytes
    """Proves whose it is when it is settled: 16 random bytes, new with each delivery."""
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


class QueueCounts(Value, frozen=True, kw_only=True):
    queue: str
    ready: int
    taken: int
    dead: int


class SnapshotRow(Value, frozen=True, kw_only=True):
    """A state of a mesh that a member uploads, in parts, for those who come later."""

    id: str
    epoch: int
    seq: int
    """Holds what all envelopes up to here made."""
    parts: int
    rows: int
    ready: bool
    made_by: bytes
    began_at: int
    digest: bytes = b""
    """SHA-256 over the digests of the parts, when it is ready."""


class BrokerSwept(Value, frozen=True, kw_only=True):
    """What a sweep did."""

    dedupe: int = 0
    messages: int = 0
    released: int = 0
    """Taken messages whose time was over."""
    died: int = 0
    invites: int = 0
    snapshots: int = 0
    objects: int = 0
    """Contents that nothing named any more."""


class Orphan(Value, frozen=True, kw_only=True):
    """A dedupe row that claims a message which is not there, or a message without its row."""

    mesh: str
    id: bytes
    seq: int
    what: str
