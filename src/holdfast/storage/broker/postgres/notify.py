"""Tells the broker that a mesh has grown, whichever process has done it.

A process knows at once what it has accepted itself. It tells the others by a notification of
PostgreSQL, on the same connection that listens for theirs. The notification is sent after the
commit, not with it: inside a transaction it would make all processes that notify commit one after
another, each with its own flush. News that wait are sent together, only the newest seq of each
mesh.

Notifications get lost: with the connection, or with a process that ends between its commit and the
notification. So on every new connection, and every `POSTGRES_LOOK_MS`, the process reads how far
each mesh is. That also shows a mesh that has shrunk, which happens only if the whole database was
put back to an older state under a running broker: then a new epoch begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any, Final

from holdfast.rules.backoff import backoff_ms
from holdfast.storage.broker.postgres import timeline
from holdfast.storage.broker.postgres.connections import PostgresConnections, shut
from holdfast.storage.broker.postgres.driver import asyncpg
from holdfast.storage.broker.postgres.migrations import take_turn

CHANNEL: Final = "holdfast_news"
LISTENS: Final = " that listens"
"""Behind the name of this connection, for those who look at the server."""
_BREATH_S: Final = 0.01
_NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', word) FROM unnest($1::text[]) AS word"
_HOW_FAR: Final = "SELECT slug, epoch, seq FROM mesh"

log = logging.getLogger("holdfast")


class PostgresNotify:
    """The news that one process sends and hears."""

    def __init__(
        self, connections: PostgresConnections, wall_ms: Callable[[], int], *, look_ms: int
    ) -> None:
        self._connections, self._wall_ms, self._look_ms = connections, wall_ms, look_ms
        self._listeners: list[Callable[[str, int], None]] = []
        self._to_send: dict[str, int] = {}
        self._how_far: dict[str, tuple[int, int]] = {}
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self.looks = 0
        """How often the process has looked since it was opened."""

    def on_news(self, listener: Callable[[str, int], None]) -> None:
        self._listeners.append(listener)

    def open(self) -> None:
        self._stir, self._lost = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="news of PostgreSQL")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def grew(self, slug: str, seq: int) -> None:
        """This process has committed; seq 0: something else than a higher seq is new."""
        self._call(slug, seq)
        self._to_send[slug] = max(seq, self._to_send.get(slug, 0))
        self._stir.set()

    def _call(self, slug: str, seq: int) -> None:
        for listener in self._listeners:
            try:
                listener(slug, seq)
            except Exception:
                # A listener must not turn the answer to a commit into an error.
                log.exception("a listener for news of %s failed", slug)

    # --- the connection ------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            before = self.looks
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                failures = 1 if self.looks > before else failures + 1
                log.warning("the news of PostgreSQL are cut off: %s", error or type(error).__name__)
            await asyncio.sleep(backoff_ms(failures, random.random()) / 1000)

    async def _listen(self) -> None:
        """Sends and hears news until the connection is lost, which raises."""
        con = await self._connections.connect(named=LISTENS)
        self._lost = lost = asyncio.Event()

        def ended(_: Any) -> None:
            lost.set()
            self._stir.set()

        try:
            con.add_termination_listener(ended)
            # Nothing hangs on a notification; the look makes good what a power loss takes.
            await con.execute("SET synchronous_commit = off")
            await con.add_listener(CHANNEL, self._heard)
            await self._look(con, everything=True)
            while True:
                await self._send(con)
                # Under load, what comes in the meantime shares the next notification.
                await asyncio.sleep(_BREATH_S)
                stirred = await self._stirred()
                if lost.is_set():
                    raise ConnectionResetError("the connection was closed")
                if not stirred:
                    await self._look(con, everything=False)
        finally:
            await shut(con)

    async def _stirred(self) -> bool:
        """True if there is news to send before it is time to look."""
        try:
            # Not wait_for: before Python 3.12 it may lose the cancellation by which this ends.
            async with asyncio.timeout(self._look_ms / 1000):
                await self._stir.wait()
        except TimeoutError:
            return False
        return True

    def _heard(self, con: Any, sender: int, channel: str, word: str) -> None:
        if sender == con.get_server_pid():
            return  # our own, which we knew before
        slug, _, seq = word.rpartition(" ")
        if slug and seq.isdigit():
            self._call(slug, int(seq))

    async def _send(self, con: Any) -> None:
        self._stir.clear()
        words, self._to_send = self._to_send, {}
        if not words:
            return
        try:
            await con.execute(_NOTIFY, [f"{slug} {seq}" for slug, seq in words.items()])
        except BaseException:
            for slug, seq in words.items():
                self._to_send[slug] = max(seq, self._to_send.get(slug, 0))
            raise

    # --- looking -------------------------------------------------------------------------------

    async def _look(self, con: Any, *, everything: bool) -> None:
        """Tells of every mesh that has grown since the last look; of all of them on a new
        connection, since queues may have got something to take without growing.
        """
        rows = await con.fetch(_HOW_FAR)
        before, self._how_far = self._how_far, {}
        for slug, epoch, seq in rows:
            last = before.get(slug)
            if last is not None and last[0] == epoch and seq < last[1]:
                await self._gone_back(con, slug, last)
            self._how_far[slug] = (epoch, seq)
            if everything or last != (epoch, seq):
                self._call(slug, seq)
        self.looks += 1

    async def _gone_back(self, con: Any, slug: str, last: tuple[int, int]) -> None:
        epoch, seq = last
        async with con.transaction():
            await take_turn(con)
            now = await con.fetchrow("SELECT epoch, seq FROM mesh WHERE slug = $1", slug)
            if now is None or now["epoch"] != epoch or now["seq"] >= seq:
                return  # another process was first
            log.warning("mesh %s was at seq %d and is at %d: a new epoch begins", slug, seq, now[1])
            await timeline.begin(con, slug, f"the mesh went back from seq {seq}", self._wall_ms())
        self._call(slug, 0)
