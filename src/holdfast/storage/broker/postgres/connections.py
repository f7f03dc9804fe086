"""Connections to PostgreSQL: how many, with which settings, and what is checked before the first
use.

Every new connection is compared with the noted server (`timeline`) before it is lent, so that not
even the first envelope after a failover is counted in the old epoch. Every wait has a time limit,
on the server's side and on ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from holdfast.rules import limits
from holdfast.rules.errors import Conflict, HoldfastError, StoreClosed, StoreFailed
from holdfast.storage.broker.postgres import migrations, timeline
from holdfast.storage.broker.postgres.driver import asyncpg
from holdfast.storage.broker.postgres.errors import UNDONE, typed

T = TypeVar("T")

SETTINGS: Final = {
    "application_name": "holdfast broker",
    "search_path": migrations.SCHEMA,
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    "statement_timeout": str(limits.POSTGRES_STATEMENT_MS_MAX),
    "lock_timeout": str(limits.POSTGRES_LOCK_MS_MAX),
    # A broker that vanishes in the middle of a transaction must not keep a mesh locked.
    "idle_in_transaction_session_timeout": str(limits.POSTGRES_LOCK_MS_MAX),
    # Statements here are short; compiling them takes longer than running them.
    "jit": "off",
}

_AT_HAND_MAX: Final = 2
_OTHERS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name LIKE 'holdfast broker%' AND pid <> pg_backend_pid()"
)

log = logging.getLogger("holdfast")


class PostgresConnections:
    """A pool of connections, and transactions on it that raise our errors."""

    def __init__(self, dsn: str, most: int, wall_ms: Callable[[], int]) -> None:
        self._dsn, self._most, self._wall_ms = dsn, most, wall_ms
        self._pool: Any = None
        self._at_hand: list[Any] = []
        """Connections that the pool has lent and that are not in use: giving one back and lending
        it again costs more than a short statement."""
        self._waiting = 0
        """How many calls wait for the pool."""
        self._stands_on: str | None = None
        self.on_moved: Callable[[list[str]], None] = lambda slugs: None

    async def open(self, now_ms: int) -> list[int]:
        """Migrates, and begins a new epoch if the database has moved. Returns the numbers of the
        migrations that were applied.
        """
        try:
            con = await self.connect(statement_ms=limits.POSTGRES_MIGRATE_MS_MAX)
        except Exception as error:
            raise typed(error, changing=False) from error
        try:
            await _check_durable(con)
            async with con.transaction():
                await migrations.take_turn(con)
                applied = await migrations.migrate(con)
                await timeline.renew_identity(con, now_ms)
                self._stands_on = await timeline.noted(con)
        except Exception as error:
            raise typed(error, changing=False) from error
        finally:
            await shut(con)
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._most,
            timeout=limits.POSTGRES_CONNECT_MS_MAX / 1000,
            command_timeout=limits.POSTGRES_ANSWER_MS_MAX / 1000,
            server_settings=SETTINGS,
            init=self._greet,
            # Nothing here changes a connection's settings, and to clean it would be a round trip.
            reset=_leave_as_it_is,
        )
        return applied

    async def rollback(self, to: int) -> list[int]:
        """Takes the schema back to a version; returns the numbers that were undone."""
        assert self._pool is None, "this process has not opened it"
        try:
            con = await self.connect(statement_ms=limits.POSTGRES_MIGRATE_MS_MAX)
        except Exception as error:
            raise typed(error, changing=False) from error
        try:
            async with con.transaction():
                await migrations.take_turn(con)
                others = await con.fetchval(_OTHERS)
                if others:
                    raise Conflict(
                        f"{others} connections of brokers are open", hint="end all brokers first"
                    )
                return await migrations.rollback(con, to)
        except HoldfastError:
            raise
        except Exception as error:
            raise typed(error, changing=True) from error
        finally:
            await shut(con)

    async def connect(self, *, statement_ms: int | None = None, named: str = "") -> Any:
        """A connection outside the pool."""
        settings = dict(SETTINGS)
        settings["application_name"] += named
        answer_ms = limits.POSTGRES_ANSWER_MS_MAX
        if statement_ms is not None:
            answer_ms = statement_ms
            settings["statement_timeout"] = settings["lock_timeout"] = str(statement_ms)
        return await asyncpg.connect(
            self._dsn,
            timeout=limits.POSTGRES_CONNECT_MS_MAX / 1000,
            command_timeout=answer_ms / 1000,
            server_settings=settings,
        )

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        at_hand, self._at_hand = self._at_hand, []
        try:
            for con in at_hand:
                await self._give_back(pool, con)
            async with asyncio.timeout(limits.POSTGRES_CONNECT_MS_MAX / 1000):
                await pool.close()
        except TimeoutError:
            log.warning("PostgreSQL: connections were still in use and are cut off")
            pool.terminate()

    async def _greet(self, con: Any) -> None:
        """Runs for every new connection of the pool."""
        if await timeline.stands_on(con) == self._stands_on:
            return
        moved = await timeline.renew(con, self._wall_ms())
        self._stands_on = await timeline.noted(con)
        self.on_moved(moved)

    # --- work ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise StoreClosed("the store is closed", hint="open it again")
        pool = self._pool
        con = await self._lend(pool)
        try:
            yield con
        except BaseException:
            await self._give_back(pool, con)
            raise
        spare = len(self._at_hand) < _AT_HAND_MAX and not self._waiting
        if spare and self._pool is pool and _is_open(con):
            self._at_hand.append(con)
        else:
            await self._give_back(pool, con)

    async def _lend(self, pool: Any) -> Any:
        while self._at_hand:
            con = self._at_hand.pop()
            if _is_open(con):
                return con
            await self._give_back(pool, con)
        self._waiting += 1
        try:
            return await pool.acquire(timeout=limits.POSTGRES_CONNECT_MS_MAX / 1000)
        except Exception as error:
            raise typed(error, changing=False) from error
        finally:
            self._waiting -= 1

    async def _give_back(self, pool: Any, con: Any) -> None:
        await pool.release(con, timeout=limits.POSTGRES_CONNECT_MS_MAX / 1000)

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Runs one statement that only reads."""
        async with self._lent() as con:
            try:
                return await work(con)
            except Exception as error:
                raise typed(error, changing=False) from error

    async def read_long(self, statement: str, *values: Any) -> list[Any]:
        """Runs one statement that reads so much that it may take as long as a migration."""
        patience = limits.POSTGRES_MIGRATE_MS_MAX

        async def work(con: Any) -> list[Any]:
            async with con.transaction(readonly=True):
                await con.execute(f"SET LOCAL statement_timeout = {patience}")
                rows: list[Any] = await con.fetch(statement, *values, timeout=patience / 1000)
                return rows

        return await self.read(work)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """The rows that one reading statement gives."""
        return await self.read(lambda con: con.fetch(statement, *values))

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        """The first row that one reading statement gives; None if it gives none."""
        return await self.read(lambda con: con.fetchrow(statement, *values))

    async def fetchval(self, statement: str, *values: Any) -> Any:
        """The first value of that row."""
        return await self.read(lambda con: con.fetchval(statement, *values))

    async def change(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Runs one statement that changes; the server makes it a transaction by itself."""
        return await self._tried(work)

    async def execute(self, statement: str, *values: Any) -> str:
        """Runs one statement that changes, and returns the word of the server: `DELETE 3`."""
        return await self.change(lambda con: con.execute(statement, *values))

    async def transact(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Runs several statements as one transaction."""

        async def whole(con: Any) -> T:
            async with con.transaction():
                return await work(con)

        return await self._tried(whole)

    async def _tried(self, work: Callable[[Any], Awaitable[T]]) -> T:
        for last in (*[False] * (limits.POSTGRES_TRIES_MAX - 1), True):
            async with self._lent() as con:
                try:
                    return await work(con)
                except UNDONE as error:
                    if last:
                        raise typed(error, changing=True) from error
                except Exception as error:
                    raise typed(error, changing=True) from error
        raise AssertionError("the last try returns or raises")


def _is_open(con: Any) -> bool:
    try:
        return not con.is_closed()
    except asyncpg.InterfaceError:
        return False  # the pool itself has taken back what broke


async def _leave_as_it_is(con: Any) -> None:
    pass


async def shut(con: Any) -> None:
    """Closes a connection outside the pool; one that does not answer is cut off."""
    try:
        await con.close(timeout=limits.POSTGRES_CONNECT_MS_MAX / 1000)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        log.debug("closing a connection to PostgreSQL: %s", error)
        con.terminate()


async def _check_durable(con: Any) -> None:
    """Refuses a server that says `committed` before it is: what we accept is accepted."""
    if await con.fetchval("SHOW synchronous_commit") == "off":
        raise StoreFailed(
            "PostgreSQL answers before a commit is on the disk: synchronous_commit is off",
            hint="for the broker's role: ALTER ROLE … SET synchronous_commit = on",
        )
    if await con.fetchval("SHOW fsync") == "off":
        log.warning("PostgreSQL runs with fsync off: a power loss may damage all it holds")
