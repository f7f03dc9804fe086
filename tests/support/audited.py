"""A mesh that two homes share through a real broker, on either store, and one of them may audit it.

with audited(folder, "postgres") as there:
    there.write(0, "colour", "red"); there.sync()
    log = there.log()
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast.node.library.node import Node
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.trust.trust import Trust
from holdfast.pipeline.logs.broker import BrokerLog
from holdfast.pipeline.logs.log import open_log
from holdfast.rules.broker_rows import AUDIT, MEMBER_GRANTS
from holdfast.rules.limits import CONSUMER_KEEP_MS_MAX, DAY_MS
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home
from support.live_broker import MESH, LiveBroker, join, share
from support.postgres import name_for, server

STORES = ("sqlite", "postgres")
KEPT_MS = 30 * DAY_MS
"""What brokers keep by default; and so much longer what somebody awaits:"""
AWAITED_MS = KEPT_MS + CONSUMER_KEEP_MS_MAX


class Audited:
    """Ana owns the mesh, bob may audit it."""

    def __init__(self, folder: Path, broker: LiveBroker) -> None:
        self.broker = broker
        self.homes = [make_home(folder / name, name) for name in ("ana", "bob")]
        self.location = f"broker+{broker.url}/{MESH}"

    def begin(self) -> None:
        share(self.homes[0], self.broker)
        join(self.homes[1], self.broker, self.homes[0])
        with self.node(0) as ana:
            ana.sharing.declare(MESH, "topic", "news")
            ana.sharing.declare(MESH, "queue", "jobs")
        with self.node(1) as bob:
            bob.sharing.subscribe(MESH, "news")
        self.grant("bob", *MEMBER_GRANTS, AUDIT)

    def grant(self, name: str, *grants: str) -> None:
        with self.node(0) as ana:
            ana.sharing.grant(MESH, name, grants)

    @contextmanager
    def node(self, at: int) -> Iterator[Node]:
        with holdfast.open(self.homes[at], sync="normal") as node:
            yield node

    def send(self, kind: str, ref: str, content: bytes = b"hello") -> None:
        with self.node(0) as ana:
            to: dict[str, Any] = {kind: ref}
            ana.mesh(MESH).send(content, **to)
        self.sync(0)

    def write(self, at: int, **values: Any) -> None:
        with self.node(at) as node:
            for key, value in values.items():
                node.mesh(MESH).state.set(key, value)
        self.sync(at)

    def sync(self, *which: int) -> None:
        for at in which or (0, 1, 0):
            with self.node(at) as node:
                paths = HomePaths(node.home)
                assert wait_until_synced(node._engine, Trust(node._engine, paths), paths, MESH).done

    def sweep_later(self, later_ms: int) -> int:
        now = self.broker.daemon.broker.source.now_ms()  # type: ignore[union-attr]
        swept: int = self.broker.run(self.broker.store.sweep(now + later_ms, 1000)).messages
        return swept

    def log(self, **options: str) -> BrokerLog:
        given = {"key_file": str(self.homes[1]), "retries": "1", **options}
        log = open_log(self.location, given)
        assert isinstance(log, BrokerLog)
        return log


@contextmanager
def audited(folder: Path, store: str = "sqlite", **broker: Any) -> Iterator[Audited]:
    if store == "postgres":
        broker["dsn"] = asyncio.run(server().database(name_for(folder)))
    with LiveBroker(folder / "hub", **broker) as up:
        there = Audited(folder, up)
        there.begin()
        yield there
