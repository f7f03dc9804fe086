"""A broker of several real processes, whose parent runs in the test's own loop.

async with processes_up(tmp_path, 3) as up:
    await ana.register(up, "team")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.apps.cli.processes.broker import MODULE
from holdfast.broker.parent.supervisor import BrokerProcesses, process_command
from holdfast.broker.settings import BrokerSettings
from support.postgres import name_for, server


@asynccontextmanager
async def processes_up(folder: Path, processes: int, **given: Any) -> AsyncIterator[Any]:
    """Typed as nothing: who asks a `BrokerDaemon` for its addresses may ask this too."""
    dsn = await server().database(name_for(folder))
    settings = BrokerSettings(
        **{"store": folder / "broker", "tcp": "127.0.0.1:0", "name": "hub", **given},
        dsn=dsn,
        processes=processes,
    )
    ready = asyncio.Event()
    parent = BrokerProcesses(
        settings,
        process_command(MODULE),
        log_level="warning",
        log_format="text",
        on_event=lambda event, document: ready.set() if event == "ready" else None,
        on_overtime=lambda: None,
    )
    task = asyncio.ensure_future(parent.run())
    waiting = asyncio.ensure_future(ready.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            task.result()
        yield parent
    finally:
        parent.stop()
        await task
