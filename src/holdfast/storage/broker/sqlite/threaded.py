"""The SQLite store of a broker in threads of its own, so that no sync of the disk stops the event
loop.

The verbs are those of `SqliteBrokerStore`. Each is listed once, by the thread that runs it, and
takes its signature and its documentation from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from holdfast.rules.broker_rows import AcceptResult, Orphan, PushedEnvelope
from holdfast.rules.limits import ACCEPT_AT_ONCE_BYTES, ACCEPT_AT_ONCE_MAX
from holdfast.rules.push_columns import byte_count
from holdfast.storage.broker.sqlite.store import SqliteBrokerStore
from holdfast.storage.broker.sqlite.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate[SqliteBrokerStore, P], Coroutine[Any, Any, T]]
ThreadedVerb = Callable[Concatenate["ThreadedBrokerStore", P], Coroutine[Any, Any, T]]


def _reads(verb: Verb[P, T]) -> ThreadedVerb[P, T]:
    """The verb in the reading thread, on a connection of its own."""
    name = verb.__name__  # looked up with each call: a store may be of a class that overrides it

    @wraps(verb)
    async def call(self: ThreadedBrokerStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.inner.failed is not None or self._in_turns:
            # Nobody is shown what may be gone after the next start. On a full disk there may be one
            # connection only.
            return await self._writer.do(lambda: getattr(self.inner, name)(*args, **kwargs))
        return await self._reader.do(lambda: getattr(self._beside, name)(*args, **kwargs))

    return call


def _writes(verb: Verb[P, T]) -> ThreadedVerb[P, T]:
    """The verb in the writing thread, after all that were called before it."""
    name = verb.__name__

    @wraps(verb)
    async def call(self: ThreadedBrokerStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.do(lambda: getattr(self.inner, name)(*args, **kwargs))

    return call


class ThreadedBrokerStore:
    """A `BrokerStore`. Verbs that change something run in one thread, one after the other; verbs
    that only read run in another, so that no reader waits for a sync of the disk.

    A read that begins after a change was answered sees it. A caller that is cancelled cannot know
    whether its work has happened, will happen, or never does.
    """

    groups_max: Final = 2
    """One batch is written while the next waits for the thread, and not for the loop."""

    def __init__(self, inner: SqliteBrokerStore) -> None:
        self.inner = inner
        inner.checkpoint_beside()
        self._beside = inner.another()
        self._writer, self._reader = Worker("holdfast-store"), Worker("holdfast-store-reads")
        self._in_turns = False
        self._may_hold_up: Callable[[], bool] = lambda: False
        self._here = False
        """Whether the loop's own thread is writing."""

    async def open(self, now_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._writer.start(loop)
        self._reader.start(loop)
        try:
            await self._writer.do(lambda: self.inner.open(now_ms))
            self._in_turns = self.inner.alone
            if not self._in_turns:
                await self._reader.do(self._beside.open_beside)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """May be called twice."""
        if not self._writer.runs:
            return
        try:
            await self._reader.do(self._beside.close)
            await self._writer.do(self.inner.close)
        finally:
            self._reader.stop()
            self._writer.stop()

    def wants_only_some_news(self) -> None:
        """No other process writes here."""

    def wants_news(self, mesh: str, *, on: bool) -> None:
        """No other process writes here."""

    def on_news(self, listener: Callable[[str, int], None]) -> None:
        loop = asyncio.get_running_loop()

        def tell(mesh: str, seq: int) -> None:
            if self._here:
                listener(mesh, seq)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(listener, mesh, seq)

        self.inner.on_news(tell)

    # --- verbs that read -----------------------------------------------------------------------

    ping = _reads(SqliteBrokerStore.ping)
    schema = _reads(SqliteBrokerStore.schema)
    server_ms = _reads(SqliteBrokerStore.server_ms)
    mesh_get = _reads(SqliteBrokerStore.mesh_get)
    mesh_list = _reads(SqliteBrokerStore.mesh_list)
    epochs = _reads(SqliteBrokerStore.epochs)
    member_get = _reads(SqliteBrokerStore.member_get)
    member_list = _reads(SqliteBrokerStore.member_list)
    memberships = _reads(SqliteBrokerStore.memberships)
    standings = _reads(SqliteBrokerStore.standings)
    invite_list = _reads(SqliteBrokerStore.invite_list)
    destination_get = _reads(SqliteBrokerStore.destination_get)
    destination_list = _reads(SqliteBrokerStore.destination_list)
    subscriptions = _reads(SqliteBrokerStore.subscriptions)
    known = _reads(SqliteBrokerStore.known)
    feed = _reads(SqliteBrokerStore.feed)
    express = _reads(SqliteBrokerStore.express)
    log_page = _reads(SqliteBrokerStore.log_page)
    consumer_list = _reads(SqliteBrokerStore.consumer_list)
    queue_counts = _reads(SqliteBrokerStore.queue_counts)
    queue_meshes = _reads(SqliteBrokerStore.queue_meshes)
    dead_letters = _reads(SqliteBrokerStore.dead_letters)
    object_size = _reads(SqliteBrokerStore.object_size)
    objects_after = _reads(SqliteBrokerStore.objects_after)
    object_piece = _reads(SqliteBrokerStore.object_piece)
    snapshot_get = _reads(SqliteBrokerStore.snapshot_get)
    snapshot_part = _reads(SqliteBrokerStore.snapshot_part)
    commit_order = _reads(SqliteBrokerStore.commit_order)
    commit_lines = _reads(SqliteBrokerStore.commit_lines)
    counts = _reads(SqliteBrokerStore.counts)
    mode = _reads(SqliteBrokerStore.mode)

    # --- verbs that change something -----------------------------------------------------------

    mesh_register = _writes(SqliteBrokerStore.mesh_register)
    mesh_remove = _writes(SqliteBrokerStore.mesh_remove)
    new_epoch = _writes(SqliteBrokerStore.new_epoch)
    member_put = _writes(SqliteBrokerStore.member_put)
    member_grant = _writes(SqliteBrokerStore.member_grant)
    member_remove = _writes(SqliteBrokerStore.member_remove)
    member_got = _writes(SqliteBrokerStore.member_got)
    invite_put = _writes(SqliteBrokerStore.invite_put)
    invite_drop = _writes(SqliteBrokerStore.invite_drop)
    invite_use = _writes(SqliteBrokerStore.invite_use)
    destination_put = _writes(SqliteBrokerStore.destination_put)
    destination_drop = _writes(SqliteBrokerStore.destination_drop)
    subscribe = _writes(SqliteBrokerStore.subscribe)
    unsubscribe = _writes(SqliteBrokerStore.unsubscribe)
    consumer_add = _writes(SqliteBrokerStore.consumer_add)
    consumer_confirm = _writes(SqliteBrokerStore.consumer_confirm)
    consumer_drop = _writes(SqliteBrokerStore.consumer_drop)
    take = _writes(SqliteBrokerStore.take)
    settle = _writes(SqliteBrokerStore.settle)
    revive = _writes(SqliteBrokerStore.revive)
    object_add = _writes(SqliteBrokerStore.object_add)
    object_finish = _writes(SqliteBrokerStore.object_finish)
    object_asked = _writes(SqliteBrokerStore.object_asked)
    objects_settle = _writes(SqliteBrokerStore.objects_settle)
    snapshot_begin = _writes(SqliteBrokerStore.snapshot_begin)
    snapshot_add = _writes(SqliteBrokerStore.snapshot_add)
    snapshot_commit = _writes(SqliteBrokerStore.snapshot_commit)
    commits_add = _writes(SqliteBrokerStore.commits_add)
    commit_state = _writes(SqliteBrokerStore.commit_state)
    cut_leases = _writes(SqliteBrokerStore.cut_leases)
    sweep = _writes(SqliteBrokerStore.sweep)
    foresee_sweep = _writes(SqliteBrokerStore.foresee_sweep)
    repair_orphans = _writes(SqliteBrokerStore.repair_orphans)
    set_mode = _writes(SqliteBrokerStore.set_mode)
    claim = _writes(SqliteBrokerStore.claim)

    def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> asyncio.Future[Sequence[AcceptResult]]:
        def accept() -> Coroutine[Any, Any, Sequence[AcceptResult]]:
            return self.inner.accept(batch, now_ms, keep_ms=keep_ms, dedupe_ms=dedupe_ms)

        if self._may_hold_up() and self.inner.is_quick(len(batch)) and _is_small(batch):
            self._here = True
            try:
                accepted = self._writer.begin_here(accept)
            finally:
                self._here = False
            if accepted is not None:
                return accepted
        return self._writer.begin(accept)

    def may_hold_up_the_loop(self, when: Callable[[], bool]) -> None:
        self._may_hold_up = when

    # --- verbs with a way of their own ---------------------------------------------------------

    async def object_read(self, mesh: str, sha256: str) -> AsyncIterator[bytes]:
        number = 0
        while (piece := await self.object_piece(mesh, sha256, number)) is not None:
            yield piece
            number += 1

    async def orphans(self, limit: int) -> list[Orphan]:
        return await self._beside_all(lambda store: store.orphans(limit))

    async def inconsistencies(self) -> list[str]:
        return await self._beside_all(lambda store: store.inconsistencies())

    async def _beside_all(self, verb: Callable[[SqliteBrokerStore], Coroutine[Any, Any, T]]) -> T:
        """A verb that reads all there is gets a connection and a thread: no other read waits."""
        if self.inner.failed is not None or not self._writer.runs:
            return await self._writer.do(lambda: verb(self.inner))
        aside, thread = self.inner.another(), Worker("holdfast-store-all")
        thread.start(asyncio.get_running_loop())
        try:
            await thread.do(aside.open_beside)
            return await thread.do(lambda: verb(aside))
        finally:
            try:
                await thread.do(aside.close)
            finally:
                thread.stop()


def _is_small(batch: Sequence[PushedEnvelope]) -> bool:
    return len(batch) <= ACCEPT_AT_ONCE_MAX and byte_count(batch) <= ACCEPT_AT_ONCE_BYTES
