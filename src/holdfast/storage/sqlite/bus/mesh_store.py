"""The durable store of the bus, on SQLite.

Its rows lie in the database of a home, beside those of the node, and its writes share the commits
of the node's. Without a node it has a file of its own (`SqliteMeshStore.open`).

**Arrivals.** Mark, nonces, ids and inbox rows of a whole batch are one transaction, and it is
judged inside it: so nothing is remembered of a message that was not kept, and nothing is kept of
which the mark knows nothing. Whoever awaits `accept` may acknowledge: the commit is done.

**Numbers** are reserved in blocks. A block is committed, then noted outside the database
(`mark`), and only then used.

**The outbox** is the node's: a message for a peer is a row in the lane `peer:<name>`. It stays
pending while it is under way, so that nothing has to be put right after a kill.

Bodies can be sealed at rest (`rules/bus/sealing.py`). Errors are those of the store; the bus turns
them into its own.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from holdfast.rules.bus.acceptance import InboxShare, judge_arrivals, known_until
from holdfast.rules.bus.mesh_store import (
    AcceptedArrivals,
    ArrivalVerdict,
    InboxMessage,
    OutboxId,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.bus.replay import Window, is_above, leap_past
from holdfast.rules.bus.sealing import BodySeal, SealSecret
from holdfast.rules.bus.signed_envelope import INCARNATION_BYTES, SEQUENCE_MAX
from holdfast.rules.destinations import rank
from holdfast.rules.errors import BadSequence, StoreBusy
from holdfast.rules.limits import (
    BUS_BLOCK,
    BUS_IDS_KEPT,
    BUS_IDS_MAX,
    BUS_INBOX_BYTES_MAX,
    BUS_INBOX_MAX,
    BUS_NONCES_KEPT,
    BUS_SET_BACK_SKIP,
    REASON_CHARS_MAX,
)
from holdfast.rules.outbox import MESSAGE_EXPIRED, peer_lane_of, peer_of
from holdfast.rules.rows import OutboxRow
from holdfast.storage.files.durable import FILE_MODE, disk_errors
from holdfast.storage.loop_queue import LoopWrites
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.bus.clock_note import NotedClock, loop_ms, wall_ms
from holdfast.storage.sqlite.bus.mark import (
    BusMark,
    file_number,
    read_bus_mark,
    why_doubt,
    write_bus_mark,
)
from holdfast.storage.sqlite.bus.nonce_ring import NonceRing
from holdfast.storage.sqlite.bus.resealing import unlock
from holdfast.storage.sqlite.bus.rows import ArrivedRow, WaitingRow
from holdfast.storage.sqlite.recovery.wal import rewrite_wal
from holdfast.storage.sqlite.store import SqliteReader, SqliteStore, SqliteTransaction

T = TypeVar("T")
Kept = tuple[OutboxId, OutboxMessage]

OURS: Final = ""
"""Under this name stand the ids that callers of this peer gave, each with its fingerprint."""
INBOX: Final = "bus_inbox"
OUTBOX: Final = "bus_message"

log = logging.getLogger("holdfast")

_decode = msgspec.msgpack.Decoder(BusMessage).decode
_encode = msgspec.msgpack.Encoder().encode


class Writes(Protocol):
    """Runs a write, and answers after its commit."""

    def __call__(self, work: Callable[[Transaction], T], /) -> Awaitable[T]: ...


class InThread(Protocol):
    """Runs what waits for the disk beside the loop."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


class _Work(Generic[T]):
    """A write that may be run twice: what it decides, it decides anew."""

    __slots__ = ("_call",)
    repeatable = True

    def __init__(self, call: Callable[[SqliteTransaction], T]) -> None:
        self._call = call

    def __call__(self, tx: Transaction) -> T:
        assert isinstance(tx, SqliteTransaction)
        return self._call(tx)


class SqliteMeshStore:
    """What the bus keeps, in a database that may be a node's."""

    def __init__(
        self,
        store: SqliteStore,
        mark: Path,
        *,
        write: Writes,
        in_thread: InThread = asyncio.to_thread,
        now_ms: Callable[[], int] = wall_ms,
        ticks_ms: Callable[[], int] = loop_ms,
        random: Callable[[int], bytes] = os.urandom,
        nonces_kept: int = BUS_NONCES_KEPT,
        inbox_max: int = BUS_INBOX_MAX,
        inbox_bytes_max: int = BUS_INBOX_BYTES_MAX,
        settled_kept: int = BUS_IDS_KEPT,
        ids_max: int = BUS_IDS_MAX,
        file_number: Callable[[Path], int] = file_number,
    ) -> None:
        self._store, self._mark_path = store, mark
        self._file_number = file_number
        self._writes, self._in_thread = write, in_thread
        self.now_ms, self.random = now_ms, random
        self.counted = NotedClock(now_ms, ticks_ms)
        self._ring = NonceRing(nonces_kept)
        self._settled_kept, self._ids_max = settled_kept, ids_max
        self._unsettled: dict[str, int] = {}
        """Of each sender: how many ids were added since it said what is settled."""
        self._inbox = InboxShare(inbox_max, inbox_bytes_max)
        """Rows of the inbox, and of batches that are under way."""
        self._inbox_last = 0
        self._incarnation = b""
        self._mark = BusMark(reserved=1, generation=0, epoch=0, file=0)
        self._next = self._end = 1
        """The numbers that are reserved and not given yet."""
        self._reserving = asyncio.Lock()
        self._left: OutboxId = 0
        """The row of the outbox that only keeps its number from being given again."""
        self.seal = BodySeal({}, random)
        self._lock_fd: int | None = None
        """The lock of a file that this store has opened itself."""

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        secret: SealSecret | None = None,
        now_ms: Callable[[], int] = wall_ms,
        random: Callable[[int], bytes] = os.urandom,
        nonces_kept: int = BUS_NONCES_KEPT,
        inbox_max: int = BUS_INBOX_MAX,
        inbox_bytes_max: int = BUS_INBOX_BYTES_MAX,
        settled_kept: int = BUS_IDS_KEPT,
    ) -> SqliteMeshStore:
        """A store in a file of its own, for a bus without a node. `bus.mark` and a lock lie beside
        it. Raises WrongKey if its bodies are sealed and the secret is not theirs, StoreBusy if
        another bus has it open.
        """
        path = Path(path)
        lock = await asyncio.to_thread(_lock, path)
        try:
            store = await asyncio.to_thread(open_alone, path)
            mesh_store = cls(
                store,
                path.with_name(f"{path.name}.mark"),
                write=LoopWrites(store.writer),
                now_ms=now_ms,
                random=random,
                nonces_kept=nonces_kept,
                inbox_max=inbox_max,
                inbox_bytes_max=inbox_bytes_max,
                settled_kept=settled_kept,
            )
            mesh_store._lock_fd = lock
            try:
                return await mesh_store.start(secret)
            except BaseException:
                await asyncio.to_thread(store.abort)
                raise
        except BaseException:
            os.close(lock)
            raise

    async def start(self, secret: SealSecret | None = None) -> SqliteMeshStore:
        """Reads what an earlier life has left, and looks whether the database has gone back. Bodies
        are sealed from the first start with a secret on; raises WrongKey if it is not theirs.
        """
        if not self.seal.current:  # else it was unlocked before
            await unlock(self, secret)
        known = await self._in_thread(lambda: read_bus_mark(self._mark_path))
        found = await self.write_rows(lambda tx: self._begin(tx, known))
        self.counted.go_on(self._read(lambda tx: tx.bus_clock()))
        await self._in_thread(lambda: write_bus_mark(self._mark_path, found))
        self._mark = found
        self._next = self._end = found.reserved
        return self

    def _begin(self, tx: SqliteTransaction, known: BusMark | None) -> BusMark:
        epoch = tx.epoch()
        found = BusMark(
            reserved=tx.bus_noted("reserved") or 1,
            generation=tx.bus_noted("generation") or 0,
            epoch=tx.bus_noted("epoch") or 0,
            file=self._file_number(self._store.path),
        )
        doubt = why_doubt(found, known)
        if doubt is None and found.generation and found.epoch != epoch:
            doubt = "its log counts on in a new epoch"
        reserved = max(found.reserved, known.reserved if known else 1)
        incarnation = tx.bus_noted("incarnation")
        if doubt is not None or incarnation is None:
            incarnation = self.random(INCARNATION_BYTES)
            tx.bus_note("incarnation", incarnation)
        if doubt is not None:
            reserved += BUS_SET_BACK_SKIP
            self._tell(doubt)
        generation = max(found.generation, known.generation if known else 0) + 1
        for name, value in (("reserved", reserved), ("generation", generation), ("epoch", epoch)):
            tx.bus_note(name, value)
        self._ring.read(tx.connection)
        self._incarnation = incarnation
        self._inbox.fill(tx.bus_inbox_shares())
        self._inbox_last = tx.bus_inbox_last()
        return msgspec.structs.replace(found, reserved=reserved, generation=generation, epoch=epoch)

    def _tell(self, doubt: str) -> None:
        log.info(  # it costs little, and nobody has to do anything about it
            "the store of the bus may have gone back in time: %s; it skips numbers and takes a new "
            "incarnation",
            doubt,
        )

    async def incarnation(self) -> bytes:
        return self._incarnation

    async def close(self) -> None:
        """Closes a file of its own; the database of a home belongs to the home."""
        if self._lock_fd is not None:
            lock, self._lock_fd = self._lock_fd, None
            await self._in_thread(self._store.stop)
            os.close(lock)

    # --- nonces and marks --------------------------------------------------------------------

    async def nonce_seen(self, nonce: bytes) -> bool:
        def look(tx: SqliteTransaction) -> bool:
            self._ring.follow(tx.connection)
            return nonce in self._ring

        return await self.write_rows(look)

    async def record_nonce(self, nonce: bytes) -> None:
        def record(tx: SqliteTransaction) -> None:
            self._ring.follow(tx.connection)
            if nonce not in self._ring:
                self._ring.add(tx.connection, (nonce,))

        await self.write_rows(record)

    async def last_seq(self, peer: PeerKey) -> int | None:
        window = self._read(lambda tx: tx.bus_window(peer))
        return None if window is None else window.highest

    async def advance_seq(self, peer: PeerKey, sequence: int) -> None:
        def advance(tx: SqliteTransaction) -> None:
            window = tx.bus_window(peer)
            if not is_above(None if window is None else window.highest, sequence):
                raise BadSequence(f"number {sequence} is not above the last one of this peer")
            tx.bus_window_put(peer, Window.strict(sequence))

        await self.write_rows(advance)

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        room = [len(arrival.message.body) for arrival in arrivals if arrival.keep]
        counted = self.counted.now_ms()
        self._inbox.take(peer, len(room), sum(room))
        kept: list[int] = []
        try:
            accepted, kept = await self.write_rows(
                lambda tx: self._take_in(tx, peer, arrivals, window, name or peer.hex(), counted)
            )
        finally:
            self._inbox.give_back(peer, len(room) - len(kept), sum(room) - sum(kept))
        accepted.has_room = self._inbox.has_room(peer)
        return accepted

    def _take_in(
        self,
        tx: SqliteTransaction,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        window: bool,
        name: str,
        counted_ms: int,
    ) -> tuple[AcceptedArrivals, list[int]]:
        """The verdicts, and the bytes of each body that is in the inbox now."""
        now = self.now_ms()
        self._ring.follow(tx.connection)
        before = tx.bus_window(peer) or Window()
        sender = tx.bus_sender(name)
        ids = tx.bus_ids(sender, {arrival.message.id for arrival in arrivals})
        judged = judge_arrivals(before, arrivals, self._ring.known, ids, window=window)
        if judged.nonces:
            tx.bus_window_put(peer, judged.window)
            self._ring.add(tx.connection, judged.nonces)
        kept = [one.message for one in judged.new if one.keep]
        if not kept:
            return AcceptedArrivals(judged.verdicts, []), []
        tx.bus_ids_add([(sender, one.id, known_until(one, counted_ms)) for one in kept])
        self._bound_ids(tx, name, sender, len(kept))
        first = max(self._inbox_last, tx.bus_inbox_last()) + 1
        self._inbox_last = first + len(kept) - 1
        seal, key = self.seal.seal, self.seal.current
        bodies = [seal(INBOX, at, one.body) for at, one in enumerate(kept, first)]
        tx.bus_inbox_add(
            [
                (at, peer, now, key, _head(one), body)
                for at, (one, body) in enumerate(zip(kept, bodies, strict=True), first)
            ]
        )
        rows = [InboxMessage(at, peer, one, now) for at, one in enumerate(kept, first)]
        return AcceptedArrivals(judged.verdicts, rows), [len(body) for body in bodies]

    def _bound_ids(self, tx: SqliteTransaction, name: str, sender: int, new: int) -> None:
        """A sender that never says what is settled loses ids of its own, the oldest first."""
        self._unsettled[name] = self._unsettled.get(name, 0) + new
        if self._unsettled[name] > self._ids_max:
            tx.bus_ids_settle(sender, (), self._ids_max)
            self._unsettled[name] = self._ids_max - self._ids_max // 8

    async def settle_ids(self, name: str, waiting: Collection[bytes]) -> None:
        def settle(tx: SqliteTransaction) -> None:
            tx.bus_ids_settle(tx.bus_sender(name), waiting, self._settled_kept)

        await self.write_rows(settle)
        self._unsettled[name] = 0

    async def claim_id(self, id: bytes, fingerprint: bytes, until_ms: int) -> bytes:
        return await self.write_rows(lambda tx: self._claim(tx, id, fingerprint, until_ms))

    def _claim(self, tx: SqliteTransaction, id: bytes, fingerprint: bytes, until_ms: int) -> bytes:
        own = tx.bus_sender(OURS)
        known = tx.bus_claimed(own, id)
        if known is None:
            tx.bus_ids_add([(own, id + fingerprint, until_ms)])
            self._bound_ids(tx, OURS, own, 1)
        return known or fingerprint

    # --- the inbox ---------------------------------------------------------------------------

    async def pending_inbox(self, after: int, limit: int) -> list[InboxMessage]:
        rows = self._read(lambda tx: tx.bus_inbox(after, limit))
        return [
            InboxMessage(row.number, row.sender, self._message(INBOX, row), row.received_at)
            for row in rows
        ]

    async def has_room(self, peer: PeerKey) -> bool:
        return self._inbox.has_room(peer)

    async def finish_inbox(self, numbers: Collection[int]) -> None:
        if numbers:
            for sender, count, size in await self.write_rows(lambda tx: tx.bus_inbox_drop(numbers)):
                self._inbox.give_back(sender, count, size)

    # --- our own numbers ---------------------------------------------------------------------

    async def next_out_seq(self) -> int:
        return (await self.reserve(1)).start

    async def reserve(self, count: int, above: int = 0) -> range:
        async with self._reserving:
            first = leap_past(self._next, above)
            if first + count > self._end:
                first = await self._reserve_block(first, count)
            self._next = first + count
            return range(first, first + count)

    async def _reserve_block(self, first: int, count: int) -> int:
        """Reserves a block that begins at `first`, or behind what others have reserved."""

        def reserve(tx: SqliteTransaction) -> tuple[int, int]:
            reserved = tx.bus_noted("reserved") or 1
            begin = first if reserved == self._end else max(first, reserved)
            end = max(begin + count, reserved, begin + BUS_BLOCK)
            if end > SEQUENCE_MAX:
                raise BadSequence("this peer has used up its numbers", hint="take a new key")
            tx.bus_note("reserved", end)
            return begin, end

        begin, end = await self.write_rows(reserve)
        mark = msgspec.structs.replace(self._mark, reserved=end)
        await self._in_thread(lambda: write_bus_mark(self._mark_path, mark))
        self._mark, self._end = mark, end
        return begin

    # --- the outbox --------------------------------------------------------------------------

    async def enqueue_outbox(self, item: OutboxMessage) -> OutboxId:
        return await self.write_rows(lambda tx: self._enqueue(tx, item))

    def _enqueue(self, tx: SqliteTransaction, item: OutboxMessage) -> OutboxId:
        message = item.message
        row = OutboxRow(
            lane=peer_lane_of(item.peer),
            id=message.id,
            mesh="",
            rank=rank(message.priority),
            offset=0,
            attempts=item.attempts,
            not_before=item.not_before,
            created_at=item.created_at,
        )
        if tx.outbox_add((row,)):
            number = tx.connection.last_insert_rowid()
        else:
            known = tx.outbox_get(row.lane, row.id)
            assert known is not None, "it is why the row was not added"
            if known.state == "pending":
                return known.number
            number = tx.outbox_renew(known, row)
        body = self.seal.seal(OUTBOX, number, message.body)
        tx.bus_message_put(
            number, message.kind, item.expires_at, self.seal.current, _head(message), body
        )
        return number

    async def due_outbox(self) -> list[Kept]:
        now = self.counted.now_ms()
        return self._kept(self._read(lambda tx: tx.bus_due(now)))

    async def outbox_of(self, peer: str, limit: int, skip: Collection[OutboxId] = ()) -> list[Kept]:
        lane, now = peer_lane_of(peer), self.counted.now_ms()
        return self._kept(self._read(lambda tx: tx.bus_due_of(lane, now, limit, skip)))

    async def outbox_peers(self) -> list[str]:
        return [peer_of(lane) for lane in self._read(lambda tx: tx.bus_lanes())]

    async def next_outbox(self, peer: str) -> int | None:
        now = self.counted.now_ms()
        return self._read(lambda tx: tx.bus_next_at(peer_lane_of(peer), now))

    async def outbox_requests(self) -> list[Kept]:
        return self._kept(self._read(lambda tx: tx.bus_requests()))

    async def put_back(self, id: OutboxId, not_before: int) -> None:
        now = self.now_ms()
        await self.write_rows(lambda tx: tx.bus_put_back(id, not_before, now))

    async def give_up(self, id: OutboxId, code: str, error: str) -> None:
        now = self.now_ms()
        await self.write_rows(lambda tx: tx.bus_dead((id,), now, code, error[:REASON_CHARS_MAX]))

    async def remove_outbox(self, id: OutboxId) -> None:
        await self.remove_many((id,))

    async def remove_many(self, ids: Collection[OutboxId]) -> None:
        if not ids:
            return
        now, left = self.now_ms(), self._left
        await self.write_rows(lambda tx: tx.bus_remove([*ids, left], now))
        self._left = max(ids)

    async def expire_outbox(self) -> list[OutboxMessage]:
        """A message that was sent is listed as failed; a request, or what a subscriber missed, is
        gone: its caller was told, or nobody waits.
        """
        now, counted = self.now_ms(), self.counted.now_ms()
        await self.counted.note(lambda seen: self.write_rows(lambda tx: tx.bus_clock_put(seen)))

        def expire(tx: SqliteTransaction) -> list[Kept]:
            expired = self._kept(tx.bus_expired(counted))
            sent = [id for id, item in expired if item.message.kind is MessageKind.SEND]
            if sent:
                tx.bus_dead(sent, now, MESSAGE_EXPIRED, "its time ran out before the peer came")
                tx.bus_forget_bodies(sent)
            gone = [id for id, item in expired if item.message.kind is not MessageKind.SEND]
            if gone:
                tx.bus_remove(gone, now)
            return expired

        if not self._read(lambda tx: tx.bus_expired(counted)):
            return []
        return [item for _, item in await self.write_rows(expire)]

    # --- subscriptions -----------------------------------------------------------------------

    async def interests(self) -> dict[str, list[str]]:
        return self._read(lambda tx: tx.bus_interests())

    async def keep_interest(self, name: str, patterns: Sequence[str]) -> None:
        await self.write_rows(lambda tx: tx.bus_interest_put(name, patterns))

    # --- at rest (see `resealing`) ----------------------------------------------------------

    async def is_sealed(self) -> bool:
        """Whether bodies are sealed, so that a secret is needed to start."""
        return self._read(lambda tx: tx.bus_noted("lock")) is not None

    async def beside(self, call: Callable[[], T]) -> T:
        """Runs what takes long beside the loop."""
        return await self._in_thread(call)

    async def compact(self) -> None:
        await self._in_thread(self._store.compact)

    # --- inside ------------------------------------------------------------------------------

    def write_rows(self, work: Callable[[SqliteTransaction], T]) -> Awaitable[T]:
        return self._writes(_Work(work))

    def _read(self, read: Callable[[SqliteReader], T]) -> T:
        with self._store.read() as tx:
            assert isinstance(tx, SqliteReader)
            return read(tx)

    def _kept(self, rows: Sequence[WaitingRow]) -> list[Kept]:
        return [
            (
                row.number,
                OutboxMessage(
                    peer=peer_of(row.lane),
                    message=self._message(OUTBOX, row),
                    attempts=row.attempts,
                    not_before=row.not_before,
                    created_at=row.created_at,
                    expires_at=row.expires_at,
                ),
            )
            for row in rows
        ]

    def _message(self, table: str, row: WaitingRow | ArrivedRow) -> BusMessage:
        head = _decode(row.head)
        body = self.seal.open(table, row.number, row.seal, row.body)
        return msgspec.structs.replace(head, body=body) if body else head


def _head(message: BusMessage) -> bytes:
    """The message without its body, which lies in a column of its own."""
    return _encode(msgspec.structs.replace(message, body=b"") if message.body else message)


def open_alone(path: Path, vfs: str | None = None) -> SqliteStore:
    """The database of a bus without a node, which no other process has open. A log that a bad end
    left behind is written again first, as for a home: after a failed sync nobody knows what of it
    the disk has.
    """
    wal = path.with_name(f"{path.name}-wal")
    if path.exists() and wal.exists() and wal.stat().st_size:
        rewrite_wal(path, wal, vfs=vfs)
    return SqliteStore(path, vfs=vfs)


def _lock(path: Path) -> int:
    with disk_errors(f"lock {path}"):
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StoreBusy(
            f"another bus has {path} open", hint="end it first, or choose another file"
        ) from None
    return fd


def inline(store: SqliteStore) -> Writes:
    """Runs writes at once, in the loop: for simulations."""

    async def write(work: Callable[[Transaction], T], /) -> T:
        return store.write(work)

    return write
