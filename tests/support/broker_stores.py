"""Stores of every kind, and things to put on them.

A new kind of store adds its maker to `STORES` and its vandal to `VANDALS`; the suite in
tests/contract/broker_store then runs on it too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from holdfast.rules.broker_rows import (
    MEMBER_GRANTS,
    AcceptResult,
    BrokerMesh,
    DestinationRow,
    FeedPage,
    MemberRow,
    PushedEnvelope,
)
from holdfast.rules.limits import DAY_MS
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.broker.postgres import PostgresBrokerStore
from holdfast.storage.broker.sqlite import SqliteBrokerStore, ThreadedBrokerStore
from holdfast.storage.broker.sqlite.accept import KINDS
from support.envelopes import make_id
from support.postgres import name_for, server

NOW = 1_790_000_000_000
KEEP_MS = 10 * DAY_MS
DEDUPE_MS = 30 * DAY_MS
TEAM = "team"
OWNER, ANA, BOB, EVE = (bytes([n]) * 32 for n in range(1, 5))
TOPIC, QUEUE = "news", "work"

StoreMaker = Callable[[Path], AbstractAsyncContextManager[BrokerStore]]
"""An opened store that keeps what it holds in (or by the name of) the folder: made again for the
same folder it is the same store, opened anew."""


class Vandal(Protocol):
    """Somebody who damages a store behind the store's back."""

    async def lose_message(self, store: BrokerStore, mesh: str, seq: int) -> None: ...
    async def lose_dedupe(self, store: BrokerStore, mesh: str, id: bytes) -> None: ...
    async def move_dedupe(self, store: BrokerStore, mesh: str, id: bytes, seq: int) -> None: ...
    async def lose_commit(self, store: BrokerStore, mesh: str, number: int) -> None: ...
    async def destination_of(self, store: BrokerStore, mesh: str, id: bytes) -> tuple[Any, Any]:
        """Kind and reference in a dedupe row, as the store keeps them."""


@asynccontextmanager
async def sqlite_store(folder: Path) -> AsyncIterator[BrokerStore]:
    # Not for the disk, whose syncs would be most of the time: tests/faults looks at those.
    store = SqliteBrokerStore(folder / "broker", sync="off")
    await store.open(NOW)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def threaded_store(folder: Path) -> AsyncIterator[BrokerStore]:
    store = ThreadedBrokerStore(SqliteBrokerStore(folder / "broker", sync="off"))
    await store.open(NOW)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres_store(folder: Path) -> AsyncIterator[BrokerStore]:
    store = PostgresBrokerStore(await server().database(name_for(folder)))
    await store.open(NOW)
    try:
        yield store
    finally:
        await store.close()


class SqliteVandal:
    async def lose_message(self, store: BrokerStore, mesh: str, seq: int) -> None:
        where = "place = ((SELECT number FROM mesh WHERE slug = ?) << 40) + ?"
        self._do(store, f"DELETE FROM message WHERE {where}", (mesh, seq))

    async def lose_dedupe(self, store: BrokerStore, mesh: str, id: bytes) -> None:
        where = "mesh = (SELECT number FROM mesh WHERE slug = ?) AND id = ?"
        self._do(store, f"DELETE FROM dedupe WHERE {where}", (mesh, id))

    async def move_dedupe(self, store: BrokerStore, mesh: str, id: bytes, seq: int) -> None:
        where = "mesh = (SELECT number FROM mesh WHERE slug = ?2) AND id = ?3"
        self._do(store, f"UPDATE dedupe SET seq = ?1 WHERE {where}", (seq, mesh, id))

    async def lose_commit(self, store: BrokerStore, mesh: str, number: int) -> None:
        where = "mesh = (SELECT number FROM mesh WHERE slug = ?) AND number = ?"
        self._do(store, f"DELETE FROM commit_line WHERE {where}", (mesh, number))

    async def destination_of(self, store: BrokerStore, mesh: str, id: bytes) -> tuple[Any, Any]:
        """From the message, or from what is left of it."""
        where = (
            "place = (SELECT (mesh << 40) + seq FROM dedupe "
            "WHERE mesh = (SELECT number FROM mesh WHERE slug = ?1) AND id = ?2)"
        )
        found = f"SELECT kind, ref FROM message WHERE {where} "
        found += f"UNION ALL SELECT kind, ref FROM gone WHERE {where}"
        kind, ref = self._do(store, found, (mesh, id)).get
        return None if kind is None else KINDS[kind], ref

    def _do(self, store: BrokerStore, sql: str, values: tuple[Any, ...]) -> Any:
        inner = store.inner if isinstance(store, ThreadedBrokerStore) else store
        assert isinstance(inner, SqliteBrokerStore)
        return inner.connection.execute(sql, values)


class PostgresVandal:
    async def lose_message(self, store: BrokerStore, mesh: str, seq: int) -> None:
        await self._do(store, "DELETE FROM message WHERE {mesh} AND seq = $2", mesh, seq)

    async def lose_dedupe(self, store: BrokerStore, mesh: str, id: bytes) -> None:
        await self._do(store, "DELETE FROM dedupe WHERE {mesh} AND id = $2", mesh, id)

    async def move_dedupe(self, store: BrokerStore, mesh: str, id: bytes, seq: int) -> None:
        sql = "UPDATE dedupe SET seq = $3 WHERE {mesh} AND id = $2"
        await self._do(store, sql, mesh, id, seq)

    async def lose_commit(self, store: BrokerStore, mesh: str, number: int) -> None:
        sql = "DELETE FROM commit_line WHERE {mesh} AND number = $2"
        await self._do(store, sql, mesh, number)

    async def destination_of(self, store: BrokerStore, mesh: str, id: bytes) -> tuple[Any, Any]:
        assert isinstance(store, PostgresBrokerStore)
        row = await store._connections.fetchrow(
            "SELECT kind, ref FROM dedupe WHERE id = $2 "
            "AND mesh = (SELECT number FROM mesh WHERE slug = $1)",
            *(mesh, id),
        )
        return row["kind"], row["ref"]

    async def _do(self, store: BrokerStore, sql: str, *values: str | int | bytes) -> None:
        assert isinstance(store, PostgresBrokerStore)
        where = sql.format(mesh="mesh = (SELECT number FROM mesh WHERE slug = $1)")
        await store._connections.execute(where, *values)


STORES: dict[str, StoreMaker] = {
    "sqlite": sqlite_store,
    "threaded": threaded_store,
    "postgres": postgres_store,
}
VANDALS: dict[str, Vandal] = {
    "sqlite": SqliteVandal(),
    "threaded": SqliteVandal(),
    "postgres": PostgresVandal(),
}


async def with_team(store: BrokerStore) -> BrokerMesh:
    """A mesh with an owner and two members, a topic and a queue."""
    mesh = await store.mesh_register(TEAM, "The team", OWNER, "olga", "server-1", NOW)
    await store.member_put(TEAM, member(ANA, "ana"))
    await store.member_put(TEAM, member(BOB, "bob"))
    await store.destination_put(TEAM, DestinationRow(kind="topic", ref=TOPIC, made_at=NOW))
    await store.destination_put(TEAM, DestinationRow(kind="queue", ref=QUEUE, made_at=NOW))
    return mesh


def member(key: bytes, name: str, *grants: str, added_at: int = NOW) -> MemberRow:
    chosen = frozenset(grants) or MEMBER_GRANTS
    return MemberRow(key=key, name=name, grants=chosen, added_at=added_at)


def arriving(number: int, kind: str = "change", ref: str = "", **fields: Any) -> PushedEnvelope:
    """An envelope of ana's; its id, content and fingerprint are told by the number."""
    raw = b"envelope %d" % number
    row: dict[str, Any] = {
        "mesh": TEAM,
        "id": make_id(number),
        "fingerprint": sha256(raw).digest(),
        "kind": kind,
        "ref": ref,
        "origin": "ana",
        "sender": ANA,
        "priority": "next",
        "raw": raw,
        "broker_id": make_id(number, NOW),
    }
    return PushedEnvelope(**{**row, **fields})


def topic(number: int, **fields: Any) -> PushedEnvelope:
    return arriving(number, "topic", TOPIC, **fields)


def dm(number: int, to: bytes = BOB, **fields: Any) -> PushedEnvelope:
    return arriving(number, "dm", to.hex(), **fields)


def queued(number: int, **fields: Any) -> PushedEnvelope:
    return arriving(number, "queue", QUEUE, **fields)


async def accept(
    store: BrokerStore, *batch: PushedEnvelope, now_ms: int = NOW, dedupe_ms: int | None = DEDUPE_MS
) -> list[AcceptResult]:
    return list(await store.accept(batch, now_ms, keep_ms=KEEP_MS, dedupe_ms=dedupe_ms))


async def feed(
    store: BrokerStore, key: bytes = BOB, after: int = 0, *, mesh: str = TEAM, own: bool = False
) -> FeedPage:
    return await store.feed(mesh, key, after, 1000, 1_000_000, own=own)


def seqs(page: FeedPage) -> list[int]:
    return [row.seq for row in page.rows]


def verdicts(answers: Sequence[AcceptResult]) -> list[str]:
    return [answer.verdict.value for answer in answers]
