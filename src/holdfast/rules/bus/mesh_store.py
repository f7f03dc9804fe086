"""What the bus keeps durably: `MeshStore`.

The bus itself touches no disk. It asks a store for exactly four things: which nonces it has seen,
the highest number of each peer, its own next number, and what waits for absent peers. These are the
first eight calls. A store that has only those works, if it inherits the rest from `BaseMeshStore`.

Eight single calls cannot make the acceptance of a message, its mark and its place in the inbox one
transaction. `accept` does, and `reserve` takes numbers in blocks; the bus uses these two where it
matters. The inherited ones are built on the eight calls: they are right as long as nothing is
killed between two calls, and their inbox lives in memory. A durable store replaces them.

Peers are known by their key in marks, because a key is what signs, and by a name in the outbox,
because what waits for a peer must not be orphaned when it changes its key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from holdfast.rules.bus.counted_clock import CountedClock
from holdfast.rules.bus.message import BusMessage

PeerKey = bytes
"""The Ed25519 public key of a peer, 32 bytes."""
OutboxId = int


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that waits for a peer."""

    peer: str
    """The name of the peer, or the text of its key if it has no name here."""
    message: BusMessage
    attempts: int = 0
    not_before: int = 0
    """It may go at this wall-clock time."""
    created_at: int = 0
    expires_at: int | None = None
    """It is given up at this wall-clock time; None: never."""


class ArrivalVerdict(StrEnum):
    """What became of an arrival."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """Freshly signed, but its id has come before: a resend whose first acknowledgement was lost."""
    REPLAY = "replay"
    """Its number or nonce has come before. Nothing changed."""


class SignedArrival(msgspec.Struct, frozen=True, gc=False):
    """A message whose signature, id and recipient were found right."""

    sequence: int
    nonce: bytes
    message: BusMessage
    keep: bool
    """It goes to the inbox, until a handler has finished with it."""


class InboxMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that came and waits for a handler, or is with one."""

    number: int
    sender: PeerKey
    message: BusMessage
    received_at: int


class AcceptedArrivals(list[ArrivalVerdict]):
    """The verdicts on a batch, and the rows that the inbox has got of it."""

    __slots__ = ("has_room", "kept")

    def __init__(
        self, verdicts: Iterable[ArrivalVerdict], kept: list[InboxMessage], has_room: bool = True
    ) -> None:
        super().__init__(verdicts)
        self.kept = kept
        self.has_room = has_room
        """False: the sender should send no more for the inbox now (`MeshStore.has_room`)."""


class MeshStore(Protocol):
    """What the bus needs of a store. Errors of the store's own kind are turned into `BusError` by
    the bus, at one place.
    """

    # --- the four concerns -----------------------------------------------------------------------

    async def nonce_seen(self, nonce: bytes) -> bool: ...
    async def record_nonce(self, nonce: bytes) -> None:
        """Remembers a nonce; the oldest is forgotten when there are more than the store keeps."""

    async def last_seq(self, peer: PeerKey) -> int | None:
        """The highest number that was accepted from a peer."""

    async def advance_seq(self, peer: PeerKey, sequence: int) -> None:
        """Raises BadSequence unless the number is above the last one of this peer."""

    async def next_out_seq(self) -> int:
        """A number that was never given before, greater than all that were. The first is 1."""

    async def enqueue_outbox(self, item: OutboxMessage) -> OutboxId:
        """Keeps a message for a peer, behind those that wait for it already. A message whose id
        waits already for this peer is kept once. Raises PeerUnreachable if there is no room.
        """

    async def due_outbox(self) -> list[tuple[OutboxId, OutboxMessage]]:
        """What may go now, of all peers, in the order in which it was put there."""

    async def remove_outbox(self, id: OutboxId) -> None:
        """Forgets an item that has arrived or expired; nothing happens if it is gone."""

    # --- on top ------------------------------------------------------------------------------

    @property
    def counted(self) -> CountedClock:
        """By which messages in the outbox run out of time, and may go again."""

    async def incarnation(self) -> bytes:
        """16 random bytes, new whenever the store may have gone back in time."""

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        """Takes in messages of one peer, in one transaction: mark, nonce, id and inbox row of each.
        `window`: they may have overtaken each other on several carriers. `name`: by whose name the
        ids are known, so that a message comes once although its sender has changed its key
        meanwhile; without one, by the key. Raises BusInboxFull, and keeps nothing, if the inbox has
        no room for them. A store that returns `AcceptedArrivals` spares the bus reading them back.
        """

    async def reserve(self, count: int, above: int = 0) -> range:
        """Numbers for the next sends, greater than all that were ever given and than `above`.
        Durable before it returns.
        """

    async def settle_ids(self, name: str, waiting: Collection[bytes]) -> None:
        """A sender, by the name under which its ids are known, sends none of its messages again but
        those that wait: ids of others may be forgotten.
        """

    async def claim_id(self, id: bytes, fingerprint: bytes, until_ms: int) -> bytes:
        """For which request a caller of this peer has given an id, by its fingerprint: this one, if
        the id is new, and then it stays known until a counted time. Durable before it returns.
        """

    async def outbox_peers(self) -> list[str]:
        """Peers that something waits for."""

    async def outbox_of(
        self, peer: str, limit: int, skip: Collection[OutboxId] = ()
    ) -> list[tuple[OutboxId, OutboxMessage]]:
        """What may go to one peer now: by priority, and within it in the order of its arrival.
        Fewer than the limit if their bodies have BUS_LANE_BYTES.
        """

    async def put_back(self, id: OutboxId, not_before: int) -> None:
        """It was tried in vain: one attempt more, and not again before a time."""

    async def next_outbox(self, peer: str) -> int | None:
        """The earliest time at which something may go to this peer that may not go yet; None if
        nothing waits for a time.
        """

    async def give_up(self, id: OutboxId, code: str, error: str) -> None:
        """The peer will never take this one: it is not tried again. A store that can show what
        failed keeps it with its reason, others forget it.
        """

    async def outbox_requests(self) -> list[tuple[OutboxId, OutboxMessage]]:
        """Requests that have no reply yet, in the order in which they were put there, whether they
        may go now or not: a bus that was bound again finds them here.
        """

    async def remove_many(self, ids: Collection[OutboxId]) -> None: ...
    async def expire_outbox(self) -> list[OutboxMessage]:
        """Removes what has expired, and returns it."""

    async def pending_inbox(self, after: int, limit: int) -> list[InboxMessage]:
        """What waits for handlers, with a number above `after`, by number. Fewer than the limit if
        their bodies have BUS_INBOX_PAGE_BYTES.
        """

    async def has_room(self, peer: PeerKey) -> bool:
        """Whether the inbox has room for more of a peer; it says no before `accept` does."""

    async def finish_inbox(self, numbers: Collection[int]) -> None:
        """Handlers have finished with these; their ids stay known."""

    async def interests(self) -> dict[str, list[str]]:
        """Durable subscriptions: the patterns of each name that has any."""

    async def keep_interest(self, name: str, patterns: Sequence[str]) -> None:
        """The durable subscriptions of a name from now on; none: it is forgotten."""

    async def close(self) -> None: ...


class EightCalls(ABC):
    """The calls that every store has to bring itself."""

    @abstractmethod
    async def nonce_seen(self, nonce: bytes) -> bool: ...
    @abstractmethod
    async def record_nonce(self, nonce: bytes) -> None: ...
    @abstractmethod
    async def last_seq(self, peer: PeerKey) -> int | None: ...
    @abstractmethod
    async def advance_seq(self, peer: PeerKey, sequence: int) -> None: ...
    @abstractmethod
    async def next_out_seq(self) -> int: ...
    @abstractmethod
    async def enqueue_outbox(self, item: OutboxMessage) -> OutboxId: ...
    @abstractmethod
    async def due_outbox(self) -> list[tuple[OutboxId, OutboxMessage]]: ...
    @abstractmethod
    async def remove_outbox(self, id: OutboxId) -> None: ...
