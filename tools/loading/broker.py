"""The broker of a load: a real one in a process of its own, that keeps things for moments.

    python -m tools.loading.broker --store FOLDER --tcp 127.0.0.1:7421 --keep-ms 60000

Where a broker keeps messages for days it keeps them for `--keep-ms`, and ids four times as long. It
sweeps on command: the driver of the load knows when no node is so far behind that it would rightly
miss something. For each line of its input it prints one line of JSON: how it stands, and for the
word `sweep` also what it removed. The end of its input ends it well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.broker import broker as broker_module
from holdfast.broker.accept import RetentionPolicy
from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.settings import BrokerSettings
from holdfast.broker.upkeep import BrokerUpkeep
from holdfast.rules import limits
from holdfast.rules.limits import DAY_MS
from holdfast.storage.broker.sqlite import sweep as sqlite_upkeep

IDS_KEPT = 4
"""How many times as long as messages."""
NEVER_MS = 1000 * DAY_MS


def shorten(keep_ms: int, postgres: bool) -> None:
    """Makes moments of days, here in the child: no setting allows it."""
    retention = RetentionPolicy(keep_ms=keep_ms, dedupe_ms=IDS_KEPT * keep_ms)
    _replace(broker_module, "retention_of", lambda *_: retention)
    _replace(sqlite_upkeep, "BROKER_DEDUPE_GRACE_MS", 0)
    _replace(limits, "OBJECT_UNNAMED_MS", keep_ms)
    if postgres:
        from holdfast.storage.broker.postgres import sweep as postgres_upkeep

        _replace(postgres_upkeep, "BROKER_DEDUPE_GRACE_MS", 0)


def _replace(module: ModuleType, name: str, value: object) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name}: it has another name now"
    setattr(module, name, value)


async def standing(daemon: BrokerDaemon) -> dict[str, Any]:
    store = daemon.broker.store
    meshes = [msgspec.structs.asdict(mesh) for mesh in await store.standings()]
    return {"counts": await store.counts(), "meshes": meshes}


async def obey(daemon: BrokerDaemon) -> None:
    """Obeys the words on stdin until it ends."""
    loop = asyncio.get_running_loop()
    words = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    await daemon.ready.wait()
    # The nodes believe the mode that was announced: they keep things for longer than they have to.
    await daemon.broker.store.set_mode("retention_scoped", 0)
    say({"event": "ready", "pid": os.getpid()})
    while word := (await words.readline()).decode().strip():
        done = {}
        if word == "sweep":
            upkeep = BrokerUpkeep(daemon.broker)
            done = msgspec.structs.asdict(await upkeep.sweep())
            done["objects"] = (await upkeep.collect()).objects
        say({"swept": done, **await standing(daemon)})
    daemon.stop()


def say(document: dict[str, Any]) -> None:
    os.write(1, msgspec.json.encode(document) + b"\n")


async def serve(settings: BrokerSettings) -> None:
    daemon = BrokerDaemon(settings)
    obeying = asyncio.create_task(obey(daemon))
    await daemon.run()
    await obeying


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--tcp", required=True)
    parser.add_argument("--keep-ms", type=int, required=True)
    given = parser.parse_args()
    dsn = os.environ.get("HOLDFAST_BROKER_DSN")
    shorten(given.keep_ms, dsn is not None)
    settings = BrokerSettings(
        store=given.store,
        dsn=dsn,
        tcp=given.tcp,
        name="hub",
        dedupe="3",
        sweep_every_ms=NEVER_MS,
    )
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
