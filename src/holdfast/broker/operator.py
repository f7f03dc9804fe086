"""What an operator does with a broker: through the running one, or in its store if none runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, Final

import msgspec

from holdfast.broker.daemon import open_store
from holdfast.broker.doctor import examine, failed
from holdfast.broker.identity import KEY, Identity
from holdfast.broker.settings import BrokerSettings
from holdfast.broker.upkeep import check_orphans, foresee, repair_orphans, sweep_asked
from holdfast.protocol.log_wire import JSON
from holdfast.rules import compiled
from holdfast.rules.broker_rows import Orphan
from holdfast.rules.errors import (
    BadInput,
    Broken,
    MigrationFailed,
    NewerSchema,
    NoHome,
    UnknownMesh,
)
from holdfast.rules.ids import id_text
from holdfast.service.clock import SystemClock
from holdfast.service.instance_lock import DaemonLock, daemon_note
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.files.home import HomePaths, socket_path
from holdfast.transport.http_client import Client

Document = dict[str, Any]
_PATIENCE_MS: Final = 600_000
"""How long a command waits: a sweep of a large store takes its time."""
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class Operator:
    """The commands of an operator on the folder of a broker."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._paths = HomePaths(settings.store)
        if not (settings.store / KEY).exists():
            raise NoHome(
                f"there is no broker in {settings.store}",
                hint="make one with: holdfast broker serve --store FOLDER",
            )

    def status(self) -> Document:
        return self._ask("GET", "/v1/status") or self._do(self._status)

    def sweep(self) -> Document:
        return self._ask("POST", "/v1/sweep") or self._do(_sweep)

    def foresee_sweep(self) -> Document:
        """What `sweep` would remove; nothing changes."""
        return self._ask("GET", "/v1/sweep") or self._do(_foresee)

    def orphans(self) -> list[Document]:
        answer = self._ask("POST", "/v1/orphans") or self._do(_orphans)
        rows: list[Document] = answer["orphans"]
        return rows

    def repair_orphans(self) -> list[Document]:
        """Mends orphans; returns those that were mended."""
        answer = self._ask("POST", "/v1/orphans/repair") or self._do(_repair)
        rows: list[Document] = answer["orphans"]
        return rows

    def doctor(self) -> list[Document]:
        """Looks the broker over; see `doctor`."""
        try:
            answer = self._ask("GET", "/v1/doctor") or self._do(self._examine)
        except (Broken, NewerSchema, MigrationFailed) as error:
            answer = {"checks": msgspec.to_builtins(failed(error))}
        rows: list[Document] = answer["checks"]
        return rows

    def rollback_schema(self, to: int) -> Document:
        """Takes the schema back to a version. Refused while a broker runs here, and below the first
        version, which is the oldest that holds anything.
        """
        if to < 1:
            raise BadInput(f"{to} is no version of the schema", hint="1 is the oldest")
        lock = DaemonLock(self._paths, what="a broker", end="end it first")
        try:
            if self._settings.dsn is not None:
                from holdfast.storage.broker.postgres import PostgresBrokerStore

                undone = asyncio.run(PostgresBrokerStore(self._settings.dsn).rollback_schema(to))
                return {"schema": to, "undone": undone, "kept": None}
            from holdfast.storage.broker.sqlite import SqliteBrokerStore

            store = SqliteBrokerStore(self._settings.store, sync=self._settings.sync)
            work = store.rollback_schema(to, SystemClock().now_ms())
            undone, kept = asyncio.run(work)
            return {"schema": to, "undone": undone, "kept": str(kept)}
        finally:
            lock.close()

    def new_epoch(self, mesh: str | None, reason: str) -> list[Document]:
        request = {"mesh": mesh, "reason": reason}

        async def work(store: BrokerStore) -> Document:
            if mesh is not None and await store.mesh_get(mesh) is None:
                raise UnknownMesh(f"this broker has no mesh {mesh!r}", hint="see: broker status")
            made = await store.new_epoch(mesh, reason, SystemClock().now_ms())
            return {
                "epochs": [{"mesh": row.slug, "epoch": row.epoch, "base": row.base} for row in made]
            }

        answer = self._ask("POST", "/v1/new-epoch", request) or self._do(work)
        rows: list[Document] = answer["epochs"]
        return rows

    # --- the two ways ------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None) -> Document | None:
        """The answer of the broker that runs here; None if none does."""
        if daemon_note(self._paths) is None:
            return None
        raw = None if body is None else msgspec.json.encode(body)
        where = f"unix:{socket_path(self._paths)}"
        with closing(Client(where, read_ms=_PATIENCE_MS)) as client:
            answer = client.call(
                method,
                path,
                body=raw,
                headers={"Content-Type": JSON},
                bytes_max=_ANSWER_BYTES_MAX,
            )
            document: Document = msgspec.json.decode(answer.body)
            return document

    def _do(self, work: Callable[[BrokerStore], Awaitable[Document]]) -> Document:
        async def done() -> Document:
            async with self._store() as store:
                return await work(store)

        return asyncio.run(done())

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[BrokerStore]:
        # While we hold the lock no broker starts here; others of the same PostgreSQL may run.
        lock = DaemonLock(self._paths, what="a broker", end="end it first")
        try:
            store = open_store(self._settings)
            await store.open(SystemClock().now_ms())
            try:
                yield store
            finally:
                await store.close()
        finally:
            lock.close()

    async def _examine(self, store: BrokerStore) -> Document:
        clock = SystemClock().now_ms(), time.monotonic_ns() // 1_000_000
        checks = await examine(store, self._settings.store, *clock)
        return {"checks": msgspec.to_builtins(checks)}

    async def _status(self, store: BrokerStore) -> Document:
        identity = Identity(self._settings.store)
        mode, days = await store.mode()
        positions = await store.standings()
        return {
            "name": identity.name,
            "card": identity.card(),
            "pid": None,
            "store": "sqlite" if self._settings.dsn is None else "postgresql",
            "reader": compiled.reader(),
            "listening": [],
            "dedupe_mode": mode,
            "dedupe_days": days,
            "connections": 0,
            "counts": await store.counts(),
            "meshes": [msgspec.to_builtins(mesh) for mesh in positions],
        }


async def _sweep(store: BrokerStore) -> Document:
    swept: Document = msgspec.to_builtins(await sweep_asked(store, SystemClock().now_ms()))
    return swept


async def _foresee(store: BrokerStore) -> Document:
    swept, at_least = await foresee(store, SystemClock().now_ms())
    return {"swept": msgspec.to_builtins(swept), "at_least": at_least}


async def _orphans(store: BrokerStore) -> Document:
    return _told(await check_orphans(store))


async def _repair(store: BrokerStore) -> Document:
    return _told(await repair_orphans(store))


def _told(orphans: list[Orphan]) -> Document:
    return {
        "orphans": [
            {"mesh": row.mesh, "id": id_text(row.id), "seq": row.seq, "what": row.what}
            for row in orphans
        ]
    }
