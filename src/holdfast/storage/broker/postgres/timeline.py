"""Notices that the database may have gone back in time, and then begins a new epoch in all meshes.

A database cannot know that it is an older state of itself, but its surroundings change when it is
made one. A server that was restored to a point in time, or took over from one that failed, writes
on a new timeline. A dump that was loaded stands in another database or on another server. So the
database keeps a note of what it stands on, and every new connection is compared with it before
anything is done on it. A process that finds a difference begins the epoch and renews the note in
one transaction, one process at a time: one move, one epoch.

A folder of PostgreSQL that was copied back by hand, as it was, looks like itself. A broker that was
running meanwhile sees that a mesh has shrunk (`notify`); after a restart it cannot be seen, and the
operator has to run `broker new-epoch`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from holdfast.rules.errors import Unreachable
from holdfast.storage.broker.postgres.migrations import SCHEMA, take_turn

_WHERE: Final = """
SELECT pg_is_in_recovery() AS standby,
    (SELECT system_identifier FROM pg_control_system()) AS server,
    CASE WHEN pg_is_in_recovery() THEN ''
         ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline,
    (SELECT oid FROM pg_database WHERE datname = current_database()) AS database
"""
_NOTED: Final = f"SELECT value FROM {SCHEMA}.meta WHERE name = 'stands_on'"
_NOTE: Final = (
    f"INSERT INTO {SCHEMA}.meta VALUES ('stands_on', $1) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_BEGIN: Final = f"""
WITH moved AS (
    UPDATE {SCHEMA}.mesh SET epoch = epoch + 1, base = seq
    WHERE ($1::text IS NULL OR slug = $1) RETURNING number, slug, epoch, base
), noted AS (
    INSERT INTO {SCHEMA}.epoch (mesh, epoch, base, began_at, reason)
    SELECT number, epoch, base, $2, $3 FROM moved
)
SELECT slug FROM moved ORDER BY slug
"""

log = logging.getLogger("holdfast")


async def stands_on(con: Any) -> str:
    """Server, timeline and database behind a connection, in one word."""
    row = await con.fetchrow(_WHERE)
    if row["standby"]:
        raise Unreachable(
            "this PostgreSQL is a standby and cannot be written",
            hint="name the primary server in the DSN",
        )
    return f"{row['server']}/{row['timeline']}/{row['database']}"


async def noted(con: Any) -> str | None:
    found: str | None = await con.fetchval(_NOTED)
    return found


async def renew_identity(con: Any, now_ms: int) -> list[str]:
    """Compares, and begins the new epoch if it must: the meshes in which it did. Inside the
    caller's transaction, after `take_turn`.
    """
    here, before = await stands_on(con), await noted(con)
    if here == before:
        return []
    await con.execute(_NOTE, here)
    if before is None:
        return []
    moved = await begin(con, None, f"the database moved from {before} to {here}", now_ms)
    if moved:
        log.warning("PostgreSQL was at %s and is at %s: a new epoch begins", before, here)
    return moved


async def begin(con: Any, slug: str | None, reason: str, now_ms: int) -> list[str]:
    """A new epoch in one mesh or in all, which goes on counting from the last seq."""
    # In one order for all, as in accept, so that nobody waits in a circle.
    await con.execute(
        f"SELECT FROM {SCHEMA}.mesh WHERE ($1::text IS NULL OR slug = $1) "
        "ORDER BY slug FOR NO KEY UPDATE",
        slug,
    )
    return [row["slug"] for row in await con.fetch(_BEGIN, slug, now_ms, reason)]


async def renew(con: Any, now_ms: int) -> list[str]:
    """`renew_identity` as a transaction of its own."""
    async with con.transaction():
        await take_turn(con)
        return await renew_identity(con, now_ms)
