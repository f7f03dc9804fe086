"""The JSON documents of a broker about a mesh itself: standing, members, invites, destinations,
snapshots. The broker writes them (`broker/http`), a node reads them (`node/broker_client`).

What is in a mesh (envelopes, queues, the log) is in `protocol/broker_log_http.py`. Requests refuse
fields that they do not know, since such a field is likely a typing error.
"""

from __future__ import annotations

import msgspec

from holdfast.protocol.commit_page import StateObject
from holdfast.rules.limits import INVITE_HOURS
from holdfast.rules.quorum.intents import Engine

# --- meshes --------------------------------------------------------------------------------------


class Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mesh that is to live here. The caller becomes its owner."""

    slug: str
    name: str = ""
    token: str = ""
    """Where the broker asks for one."""

    def __repr__(self) -> str:
        return f"Register(slug={self.slug!r})"


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of an invite, as base64url."""

    secret: str

    def __repr__(self) -> str:
        return "Join()"


class Standing(msgspec.Struct, frozen=True):
    """Where a mesh stands at its broker."""

    slug: str
    name: str
    server_id: str
    epoch: int
    base: int
    """The last seq before this epoch."""
    first: int
    """From here on every change is still held."""
    seq: int
    """The last one."""
    grants: tuple[str, ...]
    """What the caller may do there."""
    epochs: tuple[tuple[int, int], ...]
    """Every epoch with its base."""

    def seq_now(self, epoch: int, seq: int) -> int:
        """Up to where a node that had everything up to a seq of an older epoch has everything,
        counted as the mesh counts now: what stood behind a base was forgotten, and counted anew.
        """
        return min([seq, *(base for later, base in self.epochs if later > epoch)])


class Removed(msgspec.Struct, frozen=True):
    removed: bool


# --- members and invites -------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True):
    """One member of a mesh."""

    key: str
    """64 hex digits: what a dm goes to."""
    name: str
    grants: tuple[str, ...]
    added_at: int
    got_epoch: int
    got_seq: int
    seen_at: int | None


class Members(msgspec.Struct, frozen=True):
    members: list[Member]


class Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a member may do."""

    grants: list[str]


class MakeInvite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grants: list[str] = []
    """Empty: read, write and send."""
    uses: int = 1
    expires_in_hours: int = INVITE_HOURS


class MadeInvite(msgspec.Struct, frozen=True):
    """The secret is told once: the broker keeps only its digest."""

    secret: str
    id: str
    uses: int
    expires_at: int

    def __repr__(self) -> str:
        return f"MadeInvite(id={self.id!r})"


class InviteInfo(msgspec.Struct, frozen=True):
    """What a broker keeps of an invite."""

    id: str
    """The digest of its secret."""
    grants: tuple[str, ...]
    uses_left: int
    expires_at: int
    made_by: str
    made_at: int


class Invites(msgspec.Struct, frozen=True):
    invites: list[InviteInfo]


# --- destinations --------------------------------------------------------------------------------


class Declare(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic or a queue."""

    kind: str
    ref: str
    visibility_ms: int = 30_000
    """Of a queue: how long a taken message is hidden from others."""
    deliveries_max: int = 10
    """Of a queue: after so many deliveries without an end it goes to the dead letters."""


class Destination(msgspec.Struct, frozen=True):
    kind: str
    ref: str
    made_at: int
    visibility_ms: int
    deliveries_max: int


class Destinations(msgspec.Struct, frozen=True):
    destinations: list[Destination]


class Subscription(msgspec.Struct, frozen=True):
    """You get the topic from behind this seq."""

    topic: str
    since: int


class Subscriptions(msgspec.Struct, frozen=True):
    subscriptions: list[Subscription]


class Dropped(msgspec.Struct, frozen=True):
    dropped: bool


# --- snapshots -----------------------------------------------------------------------------------


class SnapshotBegin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that holds what all envelopes up to here made."""

    epoch: int
    seq: int


class SnapshotBegun(msgspec.Struct, frozen=True):
    snapshot_id: str
    next: int
    """The number of the part that comes next, from 0."""


class Chunk(msgspec.Struct, frozen=True):
    next: int


class SnapshotCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SHA-256 over the SHA-256 digests of the parts, as hex digits."""

    digest: str


class SnapshotResponse(msgspec.Struct, frozen=True):
    snapshot_id: str
    epoch: int
    seq: int
    parts: int
    rows: int
    digest: str
    made_by: str
    began_at: int


class CommitsStanding(msgspec.Struct, frozen=True):
    """What a broker holds of the order of a mesh with voters."""

    first: int
    """The number of the first commit that it holds; an earlier one is in the state only."""
    last: int
    state: StateObject | None = None


class BroughtState(msgspec.Struct, frozen=True):
    """An object that was brought before is the committed state of the mesh."""

    sha256: str
    engine: Engine
