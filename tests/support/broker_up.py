"""A real broker for tests, in a thread with a loop of its own.

with broker_at(folder) as up:
    up.url, up.card
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.settings import BrokerSettings

T = TypeVar("T")
PATIENCE_S = 60


@dataclass
class BrokerUp:
    """A broker that answers."""

    folder: Path
    daemon: BrokerDaemon
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return next(text for text in self.daemon.addresses if text.startswith("http"))

    @property
    def card(self) -> str:
        return self.daemon.broker.identity.card()

    def ask(self, call: Callable[[], Any]) -> Any:
        """What a coroutine of the broker's store gives, from outside its loop."""
        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)


@contextmanager
def broker_at(folder: Path, *, tls: bool = False, port: int = 0, **more: Any) -> Iterator[BrokerUp]:
    place = f"127.0.0.1:{port}"
    more |= {"listen": place} if tls else {"tcp": place}
    settings = BrokerSettings(store=folder, name="hub", sync="normal", **more)
    ready = threading.Event()
    found: list[BrokerUp] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        daemon = BrokerDaemon(settings, on_overtime=lambda: None)
        running = asyncio.create_task(daemon.run())
        waiting = asyncio.create_task(daemon.ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if daemon.ready.is_set():
            found.append(BrokerUp(folder, daemon, asyncio.get_running_loop()))
            ready.set()
        await running

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="broker")
    thread.start()
    assert ready.wait(PATIENCE_S)
    if failed:
        raise failed[0]
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(found[0].daemon.stop)
        thread.join(PATIENCE_S)
    if failed:
        raise failed[0]
