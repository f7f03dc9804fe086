"""The keys at rest of a store of the bus: opening them, and changing them.

Bodies that were stored before sealing was turned on, or under an older data key, are sealed anew in
chunks, each a transaction of its own: a process that is killed meanwhile goes on at the next start.
Old text stays in free pages and in the WAL until the database is compacted, which is done at the
end; what old backups hold, they hold.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from holdfast.rules.bus.sealing import (
    KEY_BYTES,
    BodySeal,
    SealLock,
    SealSecret,
    make_lock,
    open_lock,
    unwrap,
    wrap,
)
from holdfast.rules.errors import DiskFull, StoreBusy
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.storage.sqlite.store import SqliteTransaction

T = TypeVar("T")

log = logging.getLogger("holdfast")

TABLES: Final = ("bus_inbox", "bus_message")


class SealedStore(Protocol):
    """What the keys at rest belong to."""

    seal: BodySeal
    random: Callable[[int], bytes]
    now_ms: Callable[[], int]

    def write_rows(self, work: Callable[[SqliteTransaction], T]) -> Awaitable[T]: ...
    async def beside(self, call: Callable[[], T]) -> T: ...
    async def compact(self) -> None: ...


async def unlock(store: SealedStore, secret: SealSecret | None) -> None:
    """Opens the keys at rest. With a secret, a store that was in the clear is sealed from now on.
    Raises WrongKey unless the secret is that of the store.
    """
    raw, keys = await store.write_rows(lambda tx: (tx.bus_noted("lock"), tx.bus_keys()))
    if raw is None:
        if secret is None:
            return
        lock, wrapping = await store.beside(partial(make_lock, secret, store.random))
        opened = {1: store.random(KEY_BYTES)}
        await store.write_rows(lambda tx: _put(tx, store, lock, wrapping, opened))
    else:
        lock = SealLock.decode(raw)
        wrapping = await store.beside(partial(open_lock, lock, secret))
        opened = {number: unwrap(wrapping, number, wrapped) for number, wrapped in keys}
    store.seal = BodySeal(opened, store.random)
    await reseal(store)


async def change_secret(store: SealedStore, secret: SealSecret, new: SealSecret) -> None:
    """The data keys are wrapped by another secret from now on; no body is touched. Raises WrongKey
    unless `secret` is that of the store.
    """
    raw, keys = await store.write_rows(lambda tx: (tx.bus_noted("lock"), tx.bus_keys()))
    if raw is None:
        await unlock(store, new)
        return
    wrapping = await store.beside(partial(open_lock, SealLock.decode(raw), secret))
    opened = {number: unwrap(wrapping, number, wrapped) for number, wrapped in keys}
    lock, fresh = await store.beside(partial(make_lock, new, store.random))
    await store.write_rows(lambda tx: _put(tx, store, lock, fresh, opened))


async def change_data_key(store: SealedStore, secret: SealSecret) -> None:
    """All bodies are sealed by a new key; the old ones are forgotten. Raises WrongKey."""
    raw, keys = await store.write_rows(lambda tx: (tx.bus_noted("lock"), tx.bus_keys()))
    if raw is None:
        await unlock(store, secret)
        return
    lock = SealLock.decode(raw)
    wrapping = await store.beside(partial(open_lock, lock, secret))
    opened = {number: unwrap(wrapping, number, wrapped) for number, wrapped in keys}
    opened[max(opened) + 1] = store.random(KEY_BYTES)
    await store.write_rows(lambda tx: _put(tx, store, lock, wrapping, opened))
    store.seal = BodySeal(opened, store.random)
    await reseal(store)


async def open_all(store: SealedStore, secret: SealSecret) -> None:
    """Ends the sealing: all bodies stand in the clear, and the keys are forgotten. If it is cut
    short, the store is still sealed, and the next start with the secret seals the rest again.
    Raises WrongKey.
    """
    raw, keys = await store.write_rows(lambda tx: (tx.bus_noted("lock"), tx.bus_keys()))
    if raw is None:
        return
    wrapping = await store.beside(partial(open_lock, SealLock.decode(raw), secret))
    opened = {number: unwrap(wrapping, number, wrapped) for number, wrapped in keys}
    seal = BodySeal(opened, store.random)
    seal.current = 0
    await _seal_all(store, seal)
    await store.write_rows(lambda tx: _unlocked(tx, max(opened, default=0)))
    store.seal = BodySeal({}, store.random)


def _unlocked(tx: SqliteTransaction, last: int) -> None:
    tx.bus_note_drop("lock")
    tx.bus_note("traces", 0)
    tx.bus_keys_drop(below=last + 1)


async def _seal_all(store: SealedStore, seal: BodySeal) -> int:
    """Seals what is not sealed by the current key, in chunks; returns how much that was."""
    changed = 0
    for table in TABLES:
        after = 0
        while True:
            after, count = await store.write_rows(partial(_reseal, seal, table, after))
            changed += count
            if not count:
                break
    return changed


async def reseal(store: SealedStore) -> None:
    """Seals what is not sealed by the current key, then leaves no trace of what was there."""
    seal = store.seal
    changed = await _seal_all(store, seal)
    if changed or await store.write_rows(lambda tx: bool(tx.bus_noted("traces"))):
        try:
            await store.compact()
        except (StoreBusy, DiskFull) as error:
            log.warning("old text of messages is left until the next start: %s", error.message)
            return
        await store.write_rows(lambda tx: _clean(tx, seal.current))


def _put(
    tx: SqliteTransaction,
    store: SealedStore,
    lock: SealLock,
    wrapping: bytes,
    keys: dict[int, bytes],
) -> None:
    tx.bus_note("lock", lock.encode())
    for number, key in keys.items():
        tx.bus_key_put(number, wrap(wrapping, number, key, store.random), store.now_ms())


def _reseal(seal: BodySeal, table: str, after: int, tx: SqliteTransaction) -> tuple[int, int]:
    rows = tx.bus_bodies(table, seal.current, after, CHUNK_ROWS)
    if rows:
        tx.bus_note("traces", 1)
    tx.bus_bodies_put(
        table,
        [
            (number, seal.current, seal.seal(table, number, seal.open(table, number, key, body)))
            for number, key, body in rows
        ],
    )
    return (rows[-1][0] if rows else after), len(rows)


def _clean(tx: SqliteTransaction, current: int) -> None:
    tx.bus_note("traces", 0)
    tx.bus_keys_drop(below=current)
