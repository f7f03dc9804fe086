"""The JSON documents of a broker about what is in a mesh: envelopes, queues, the whole log.

The broker writes them (`broker/http`); nodes and the pipeline read them. Documents about the mesh
itself are in `protocol/broker_http.py`.
"""

from __future__ import annotations

import msgspec

from holdfast.protocol.error_body import ErrorDetail

# --- envelopes -----------------------------------------------------------------------------------


class EnvelopeCreated(msgspec.Struct, frozen=True):
    """It was accepted now."""

    broker_message_id: str
    client_message_id: str
    history_id: str
    """Epoch and seq in the mesh, as `epoch.seq`."""
    duplicate: bool = False


class EnvelopeDuplicate(msgspec.Struct, frozen=True):
    """It was accepted before; this tells of the first one."""

    broker_message_id: str
    client_message_id: str
    history_id: str
    history_available: bool
    first_seen_at: int
    duplicate: bool = True


class EnvelopeIdReused(msgspec.Struct, frozen=True):
    """The id was accepted before, for another request."""

    error: ErrorDetail
    client_message_id: str
    broker_fingerprint_prefix: str
    """The first 8 bytes of the broker's fingerprint, as hex digits."""
    conflict: str = "request_fingerprint_mismatch"


class FeedRowResponse(msgspec.Struct, frozen=True):
    seq: int
    kind: str
    broker_message_id: str
    envelope: bytes
    """The canonical bytes; as base64 in JSON."""


class FeedResponse(msgspec.Struct, frozen=True):
    """All that you may see of after < seq <= to."""

    epoch: int
    after: int
    to: int
    last: int
    rows: list[FeedRowResponse]


# --- queues --------------------------------------------------------------------------------------


class TakeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    most: int = 1


class TakenResponse(msgspec.Struct, frozen=True):
    """A message in your hands, until it is settled or its time is over."""

    seq: int
    lease: str
    deliveries: int
    until: int
    broker_message_id: str
    envelope: bytes
    """The canonical bytes; as base64 in JSON."""


class TakenAll(msgspec.Struct, frozen=True):
    messages: list[TakenResponse]


class SettleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: int
    lease: str
    how: str
    """`done`, `again`, `dead` or `extend`."""
    reason: str = ""


class SettleResponse(msgspec.Struct, frozen=True):
    settled: bool


class QueueInfo(msgspec.Struct, frozen=True):
    queue: str
    ready: int
    taken: int
    dead: int


class QueueList(msgspec.Struct, frozen=True):
    queues: list[QueueInfo]


class DeadMessage(msgspec.Struct, frozen=True):
    seq: int
    client_message_id: str
    deliveries: int
    reason: str
    died_at: int


class DeadLetters(msgspec.Struct, frozen=True):
    letters: list[DeadMessage]


class Revived(msgspec.Struct, frozen=True):
    revived: bool


# --- the whole log -------------------------------------------------------------------------------


class LostRange(msgspec.Struct, frozen=True):
    """What a reader had not confirmed when it went: so many between these two offsets."""

    first: int
    last: int
    rows: int


class LogResponse(msgspec.Struct, frozen=True):
    """Where the log of a mesh stands."""

    log: str
    """What it is called in a lake: the broker's name and the mesh."""
    epoch: int
    first: int
    head: int
    lost: LostRange | None = None
    """Of the reader that asks."""


class ConsumerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    consumer: str
    start: int = msgspec.field(name="from", default=1)
    """The first offset that it lacks."""
    known: int = 0
    """It knows what it has lost up to here."""


class ConsumerResponse(msgspec.Struct, frozen=True):
    name: str
    frontier: int
    """Everything up to here is confirmed."""
    lag: int
    seen_at: int
    member: str
    """Whose it is, by key."""
    lost: LostRange | None = None


class ConsumersResponse(msgspec.Struct, frozen=True):
    consumers: list[ConsumerResponse]


class ConfirmRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    consumer: str
    offset: int
    epoch: int
