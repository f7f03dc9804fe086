"""The stores that the suite of the bus runs on, and messages for them.

`eight` stands for a store of somebody else: it has the eight calls and inherits the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from holdfast.bus.base_store import BaseMeshStore, Kept
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.rules.bus.mesh_store import (
    MeshStore,
    OutboxId,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.bus.replay import is_above
from holdfast.rules.bus.sealing import SealSecret
from holdfast.rules.envelope import Priority
from holdfast.rules.errors import BadSequence
from holdfast.rules.limits import BUS_IDS_KEPT, BUS_INBOX_MAX, BUS_NONCES_KEPT
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore

ANA: Final = b"a" * 32
BEN: Final = b"b" * 32
NOW: Final = 1_700_000_000_000


class SetClock:
    """A clock that a test moves."""

    def __init__(self, at: int = NOW) -> None:
        self.at = at

    def now_ms(self) -> int:
        return self.at


class StoreMaker(Protocol):
    def __call__(
        self,
        folder: Path,
        clock: SetClock,
        *,
        nonces_kept: int = ...,
        inbox_max: int = ...,
        settled_kept: int = ...,
    ) -> Awaitable[MeshStore]: ...


class EightCallsStore(BaseMeshStore):
    """As little as a store can be."""

    def __init__(
        self, clock: SetClock, nonces_kept: int, inbox_max: int, settled_kept: int
    ) -> None:
        super().__init__(now_ms=clock.now_ms, inbox_max=inbox_max, settled_kept=settled_kept)
        self._clock, self._most = clock, nonces_kept
        self._nonces: list[bytes] = []
        self._last: dict[PeerKey, int] = {}
        self._given = 0
        self._kept: list[Kept] = []
        self._numbered = 0

    async def nonce_seen(self, nonce: bytes) -> bool:
        return nonce in self._nonces

    async def record_nonce(self, nonce: bytes) -> None:
        self._nonces = [*self._nonces, nonce][-self._most :]

    async def last_seq(self, peer: PeerKey) -> int | None:
        return self._last.get(peer)

    async def advance_seq(self, peer: PeerKey, sequence: int) -> None:
        if not is_above(self._last.get(peer), sequence):
            raise BadSequence(f"{sequence} is not above {self._last.get(peer)}")
        self._last[peer] = sequence

    async def next_out_seq(self) -> int:
        self._given += 1
        return self._given

    async def enqueue_outbox(self, item: OutboxMessage) -> OutboxId:
        for id, kept in self._kept:
            if (kept.peer, kept.message.id) == (item.peer, item.message.id):
                return id
        self._numbered += 1
        self._kept.append((self._numbered, item))
        return self._numbered

    async def due_outbox(self) -> list[Kept]:
        now = self._clock.at
        return [kept for kept in self._kept if kept[1].not_before <= now]

    async def remove_outbox(self, id: OutboxId) -> None:
        self._kept = [kept for kept in self._kept if kept[0] != id]


async def _memory(
    folder: Path,
    clock: SetClock,
    *,
    nonces_kept: int = BUS_NONCES_KEPT,
    inbox_max: int = BUS_INBOX_MAX,
    settled_kept: int = BUS_IDS_KEPT,
) -> MeshStore:
    return MemoryMeshStore(
        now_ms=clock.now_ms, nonces_kept=nonces_kept, inbox_max=inbox_max, settled_kept=settled_kept
    )


async def _eight(
    folder: Path,
    clock: SetClock,
    *,
    nonces_kept: int = BUS_NONCES_KEPT,
    inbox_max: int = BUS_INBOX_MAX,
    settled_kept: int = BUS_IDS_KEPT,
) -> MeshStore:
    return EightCallsStore(clock, nonces_kept, inbox_max, settled_kept)


async def _sqlite(
    folder: Path,
    clock: SetClock,
    *,
    nonces_kept: int = BUS_NONCES_KEPT,
    inbox_max: int = BUS_INBOX_MAX,
    settled_kept: int = BUS_IDS_KEPT,
) -> SqliteMeshStore:
    return await SqliteMeshStore.open(
        folder / "bus.db",
        now_ms=clock.now_ms,
        nonces_kept=nonces_kept,
        inbox_max=inbox_max,
        settled_kept=settled_kept,
    )


async def _sealed(
    folder: Path,
    clock: SetClock,
    *,
    nonces_kept: int = BUS_NONCES_KEPT,
    inbox_max: int = BUS_INBOX_MAX,
    settled_kept: int = BUS_IDS_KEPT,
) -> SqliteMeshStore:
    return await SqliteMeshStore.open(
        folder / "bus.db",
        secret=SealSecret.key(b"s" * 32),
        now_ms=clock.now_ms,
        nonces_kept=nonces_kept,
        inbox_max=inbox_max,
        settled_kept=settled_kept,
    )


MESH_STORES: Final[dict[str, StoreMaker]] = {
    "memory": _memory,
    "eight": _eight,
    "sqlite": _sqlite,
    "sealed": _sealed,
}
DURABLE: Final = ("sqlite", "sealed")


def id_of(number: int) -> bytes:
    """A message id, rising with its number."""
    return bytes(2) + number.to_bytes(4) + b"\x70\0\x80" + bytes(7)


def nonce_of(number: int) -> bytes:
    return number.to_bytes(24)


def bus_message(
    number: int,
    body: bytes = b"hello",
    *,
    kind: MessageKind = MessageKind.SEND,
    priority: Priority = "next",
    ttl_ms: int | None = None,
    durable: bool = True,
) -> BusMessage:
    return BusMessage(
        id=id_of(number),
        kind=kind,
        topic="news",
        body=body,
        priority=priority,
        ttl_ms=ttl_ms,
        durable=durable,
    )


def signed_arrival(
    sequence: int, message: int | None = None, nonce: int | None = None, *, keep: bool = True
) -> SignedArrival:
    """An arrival whose message and nonce have its own number, unless said otherwise."""
    number = sequence if message is None else message
    return SignedArrival(
        sequence, nonce_of(sequence if nonce is None else nonce), bus_message(number), keep
    )


def waiting_for(
    peer: str, number: int, *, expires_at: int | None = None, **given: object
) -> OutboxMessage:
    make: Callable[..., BusMessage] = bus_message
    return OutboxMessage(
        peer=peer, message=make(number, **given), created_at=NOW, expires_at=expires_at
    )
