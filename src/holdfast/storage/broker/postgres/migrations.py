"""The schema: numbered scripts; all that are missing are applied in one transaction.

Several brokers may start at once. They take turns by an advisory lock, which also guards everything
else that only one process may do; the second process finds it done. PostgreSQL undoes a failed
script whole, so the schema stays at the last good version.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any, Final

from holdfast.rules.errors import BadInput, MigrationFailed, NewerSchema
from holdfast.storage.broker.postgres.driver import asyncpg
from holdfast.storage.broker.postgres.errors import typed

SCHEMA: Final = "holdfast"
LATEST: Final = 6
"""What this code works with. A test compares it with the scripts."""
LOCK: Final = 0x486F6C64_66617374
"""Of the advisory lock: `Holdfast`."""


_DOWN: Final = ".down.sql"


def load(*, down: bool = False) -> list[tuple[int, str, str]]:
    """Number, name and text of the scripts in the package, in order: those that go up, or those
    that go `down`.
    """
    folder = resources.files("holdfast.storage.broker.postgres") / "schema"
    scripts = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [
        (int(name.partition("_")[0]), name, (folder / name).read_text(encoding="utf-8"))
        for name in scripts
        if name.endswith(_DOWN) is down
    ]


async def take_turn(con: Any) -> None:
    """Waits until no other process does what only one may do; held until the transaction ends."""
    await con.execute("SELECT pg_advisory_xact_lock($1)", LOCK)


async def version(con: Any) -> int:
    """Of the schema; 0 if there is none."""
    if await con.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.meta") is None:
        return 0
    found = await con.fetchval(f"SELECT value FROM {SCHEMA}.meta WHERE name = 'schema'")
    return int(found)


async def migrate(con: Any, steps: Sequence[tuple[int, str, str]] | None = None) -> list[int]:
    """Applies what is missing, inside the caller's transaction, after `take_turn`. Returns the
    numbers applied.
    """
    known = load() if steps is None else steps
    found = await version(con)
    latest = max(number for number, _, _ in known)
    if found > latest:
        raise NewerSchema(f"the database has schema version {found}; this Holdfast knows {latest}")
    if found == 0:
        await con.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        await con.execute(
            f"CREATE TABLE IF NOT EXISTS {SCHEMA}.meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
        )
    applied = []
    for number, name, script in known:
        if number > found:
            await _apply(con, name, script)
            applied.append(number)
    if applied:
        await _note(con, applied[-1])
    return applied


async def rollback(con: Any, to: int) -> list[int]:
    """Goes back to a version, newest step first, inside the caller's transaction, after
    `take_turn`. What the steps had added is gone.
    """
    found = await version(con)
    if not 0 <= to < found:
        raise BadInput(f"cannot roll back from schema version {found} to {to}")
    if found > LATEST:
        raise NewerSchema(f"the database has schema version {found}; this Holdfast knows {LATEST}")
    undone = []
    for number, name, script in reversed(load(down=True)):
        if to < number <= found:
            await _apply(con, name, script)
            undone.append(number)
    await _note(con, to)
    return undone


async def _note(con: Any, number: int) -> None:
    await con.execute(
        f"INSERT INTO {SCHEMA}.meta VALUES ('schema', $1) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        str(number),
    )


async def _apply(con: Any, name: str, script: str) -> None:
    try:
        await con.execute(script)
    except asyncpg.PostgresError as error:
        known = typed(error, changing=False)
        if isinstance(error, asyncpg.SyntaxOrAccessError | asyncpg.DataError):
            raise MigrationFailed(f"migration {name} failed: {error}") from error
        raise known from error
