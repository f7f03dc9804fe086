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

What no other process wants to hear (`interest`) a process keeps to itself, and tells it when one
says that it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final

from holdfast.rules.backoff import backoff_ms
from holdfast.storage.broker.postgres import timeline
from holdfast.storage.broker.postgres.connections import SETTINGS, PostgresConnections, shut
from holdfast.storage.broker.postgres.driver import asyncpg
from holdfast.storage.broker.postgres.interest import ASK, LEAVE, WANT, Interest, words
from holdfast.storage.broker.postgres.migrations import take_turn

CHANNEL: Final = "holdfast_news"
LISTENS: Final = " that listens"
"""Behind the name of this connection, for those who look at the server."""
_BREATH_S: Final = 0.01
_NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', word) FROM unnest($1::text[]) AS word"
_HOW_FAR: Final = "SELECT slug, epoch, seq FROM mesh"
_OTHERS: Final = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = $1 AND pid <> pg_backend_pid()"
)

log = logging.getLogger("holdfast")


class PostgresNotify:
    """The news that one process sends and hears."""

    def __init__(
        self, connections: PostgresConnections, wall_ms: Callable[[], int], *, look_ms: int
    ) -> None:
        self._connections, self._wall_ms, self._look_ms = connections, wall_ms, look_ms
        self._listeners: list[Callable[[str, int], None]] = []
        self._to_send: dict[str, int] = {}
        self._kept_back: dict[str, int] = {}
        """News that no other process wanted when they came, the newest seq of each mesh."""
        self._interest = Interest()
        self._wanted: set[str] = set()
        """Meshes of which this process wants news, unless it wants those of all."""
        self._wants_all = True
        self._said: set[str] | None = None
        """Those of which it has said so on this connection; None before it has said anything."""
        self._how_far: dict[str, tuple[int, int]] = {}
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self.looks = 0
        """How often the process has looked since it was opened."""

    def on_news(self, listener: Callable[[str, int], None]) -> None:
        self._listeners.append(listener)

    def open(self) -> None:
        self._interest.forget()
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
        if seq and not self._interest.wants(slug):
            self._kept_back[slug] = max(seq, self._kept_back.get(slug, 0))
            return
        self._to_send[slug] = max(seq, self._to_send.get(slug, 0))
        self._stir.set()

    def wants_only_some(self) -> None:
        """From now on it wants news of no mesh but those of which it says so."""
        self._wants_all, self._said = False, None
        self._stir.set()

    def wants(self, slug: str, *, on: bool) -> None:
        """Whether this process has somebody whom news of a mesh concern."""
        if on:
            self._wanted.add(slug)
        else:
            self._wanted.discard(slug)
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
        self._said, self._asked = None, False
        self._interest.forget()

        def ended(_: Any) -> None:
            lost.set()
            self._stir.set()

        try:
            con.add_termination_listener(ended)
            # Nothing hangs on a notification; the look makes good what a power loss takes.
            await con.execute("SET synchronous_commit = off")
            await con.add_listener(CHANNEL, self._heard)
            # First this, then the look: what is committed later is told, what was before is seen.
            await self._send(con)
            await self._look(con, everything=True)
            looked = monotonic()
            while True:
                await self._send(con)
                # Under load, what comes in the meantime shares the next notification.
                await asyncio.sleep(_BREATH_S)
                await self._stirred(looked + self._look_ms / 1000)
                if lost.is_set():
                    raise ConnectionResetError("the connection was closed")
                if monotonic() >= looked + self._look_ms / 1000:
                    await self._look(con, everything=False)
                    looked = monotonic()
        finally:
            await shut(con)

    async def _stirred(self, until: float) -> None:
        """Returns when there is something to send, or it is time to look."""
        with contextlib.suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it may lose the cancellation by which this ends.
            async with asyncio.timeout(max(0.0, until - monotonic())):
                await self._stir.wait()

    def _heard(self, con: Any, sender: int, channel: str, word: str) -> None:
        if sender == con.get_server_pid():
            return  # our own, which we knew before
        if word == ASK:
            self._interest.begun(sender)
            self._said = None
            self._stir.set()
            return
        if word[:1] in (WANT, LEAVE):
            meshes = word[1:].split()
            self._interest.changed(sender, meshes, on=word[0] == WANT)
            if word[0] == WANT:
                self._tell_after_all(meshes)
            return
        slug, _, seq = word.rpartition(" ")
        if slug and seq.isdigit():
            self._call(slug, int(seq))

    async def _send(self, con: Any) -> None:
        self._stir.clear()
        said = self._say_wanted()
        news, self._to_send = self._to_send, {}
        if not news and not said:
            return
        try:
            await con.execute(_NOTIFY, [*said, *(f"{slug} {seq}" for slug, seq in news.items())])
        except BaseException:
            for slug, seq in news.items():
                self._to_send[slug] = max(seq, self._to_send.get(slug, 0))
            raise

    def _say_wanted(self) -> list[str]:
        """What the others are to hear of what this process wants, and do not know yet."""
        first = [] if self._asked else [ASK]
        self._asked = True
        if self._wants_all:
            return first  # as does everybody who says nothing
        before, self._said = self._said, set(self._wanted)
        if before is None:
            return [*first, *words(WANT, sorted(self._wanted))]
        said = list(words(WANT, sorted(self._wanted - before))) if self._wanted - before else []
        return [*first, *said, *words(LEAVE, sorted(before - self._wanted))]

    def _tell_after_all(self, meshes: Iterable[str]) -> None:
        """Somebody wants the news that were kept back."""
        for slug in meshes:
            seq = self._kept_back.pop(slug, 0)
            if seq:
                self._to_send[slug] = max(seq, self._to_send.get(slug, 0))
                self._stir.set()

    # --- looking -------------------------------------------------------------------------------

    async def _look(self, con: Any, *, everything: bool) -> None:
        """Tells of every mesh that has grown since the last look; of all of them on a new
        connection, since queues may have got something to take without growing.
        """
        others = await con.fetch(_OTHERS, SETTINGS["application_name"] + LISTENS)
        if self._interest.listening({row["pid"] for row in others}):
            self._tell_after_all(list(self._kept_back))
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
