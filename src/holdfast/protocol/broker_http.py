"""What a broker answers, as a node reads it."""

from __future__ import annotations

import msgspec


class Standing(msgspec.Struct, frozen=True):
    """A mesh as its broker knows it."""

    slug: str
    name: str
    server_id: str
    epoch: int
    base: int
    first: int
    seq: int
    grants: tuple[str, ...]
    epochs: tuple[tuple[int, int], ...]
    """Every epoch with its base."""

    def seq_now(self, epoch: int, seq: int) -> int:
        """Up to where somebody has everything, counted as the mesh counts now, who had everything
        up to a seq of an older epoch: what stood behind a base was forgotten, and counted anew.
        """
        return min([seq, *(base for later, base in self.epochs if later > epoch)])


class Member(msgspec.Struct, frozen=True):
    key: str
    """As 64 hex digits: what a dm goes to."""
    name: str
    grants: tuple[str, ...]
    added_at: int
    got_epoch: int = 0
    got_seq: int = 0
    seen_at: int | None = None


class MadeInvite(msgspec.Struct, frozen=True):
    """An invite, to be handed on like a key."""

    text: str
    id: str
    expires_at: int
    uses: int

    def __repr__(self) -> str:
        return f"MadeInvite(id={self.id!r})"


class InviteInfo(msgspec.Struct, frozen=True):
    """What a broker keeps of an invite."""

    id: str
    grants: tuple[str, ...]
    uses_left: int
    expires_at: int
    made_by: str
    made_at: int


class Destination(msgspec.Struct, frozen=True):
    kind: str
    ref: str
    made_at: int
    visibility_ms: int
    deliveries_max: int


class SnapshotBegun(msgspec.Struct, frozen=True):
    snapshot_id: str
    next: int
    """The number of the part that the broker lacks next."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that is ready at its broker."""

    id: str
    epoch: int
    seq: int
    parts: int
    rows: int
    digest: bytes


# --- answers that only wrap something ------------------------------------------------------------


class SnapshotAnswer(msgspec.Struct):
    snapshot_id: str
    epoch: int
    seq: int
    parts: int
    rows: int
    digest: str


class Chunk(msgspec.Struct):
    next: int


class Removed(msgspec.Struct):
    removed: bool


class Dropped(msgspec.Struct):
    dropped: bool


class Members(msgspec.Struct):
    members: list[Member]


class MadeInviteAnswer(msgspec.Struct):
    secret: str
    id: str
    uses: int
    expires_at: int


class Invites(msgspec.Struct):
    invites: list[InviteInfo]


class Destinations(msgspec.Struct):
    destinations: list[Destination]


class Subscription(msgspec.Struct):
    topic: str
    since: int


class FeedRow(msgspec.Struct):
    seq: int


class Feed(msgspec.Struct):
    to: int
    last: int
    rows: list[FeedRow]


class Subscriptions(msgspec.Struct):
    subscriptions: list[Subscription]
