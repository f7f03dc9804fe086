"""One mesh on an open connection: what goes out, what comes in, side by side.

    pusher     due rows ─► Push                     woken by commits, answers, objects
    settler    Acks ─► states of rows
    taker      Entries, Moved, Behind ─► log, inbox, cursor ─► Got
    bringer    objects that rows wait for ─► broker

What waits together is stored together: answers, and pages that follow each other, share a
transaction. Whatever raises ends the connection, but for a snapshot that is no good: that is a
trouble of its mesh, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Protocol

import msgspec

from holdfast.node.core.object_transfer import ObjectGone
from holdfast.node.sync import receive
from holdfast.node.sync.session import SyncSession
from holdfast.protocol.frames import Acks, Entries, FromBroker, FromNode
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    Conflict,
    HoldfastError,
    NotAllowed,
    NotFound,
    Unreachable,
)
from holdfast.rules.limits import (
    FEED_FRAMES_MAX,
    LINK_BATCH_BYTES,
    LINK_BATCH_ROWS,
    SECOND_MS,
    SYNC_ANSWER_MS_MAX,
    SYNC_LOOK_MS,
    SYNC_WINDOW_ITEMS,
)

log = logging.getLogger("holdfast")

Send = Callable[[Sequence[FromNode]], Awaitable[None]]
Run = Callable[..., Awaitable[Any]]
"""Runs a blocking call in a thread."""


_PAGES_MAX = 16 * FEED_FRAMES_MAX
"""Frames about one mesh that are read and not stored. A broker waits for our word after a few, so
an honest one never sends as many."""


_NO_GOOD = (BadAnswer, BadInput, Conflict, NotAllowed, NotFound)
"""What is wrong with a snapshot, and not with the connection that it came by."""


class BrokerRequests(Protocol):
    """What a lane asks of the broker over HTTP; blocking."""

    def bring(self, mesh: str, objects: list[str]) -> list[str]: ...
    def fetch(self, mesh: str, objects: list[str]) -> set[str]:
        """Those that the broker does not have."""

    def take_snapshot(self, mesh: str) -> bool:
        """False if there is none."""

    def keep_snapshot(self, mesh: str) -> None: ...
    def finish_join(self, mesh: str) -> None:
        """Takes the snapshot of a mesh whose joining was cut off before it had."""


class MeshTasks:
    """The tasks of one mesh."""

    def __init__(
        self,
        sync: SyncSession,
        slug: str,
        send: Send,
        run: Run,
        call: Run,
        calls: BrokerRequests,
        active: Callable[[], None],
    ) -> None:
        """`run` is for work on the store, `call` for what waits for the broker."""
        self._sync, self._slug = sync, slug
        self._send, self._run, self._call, self._calls = send, run, call, calls
        self._active = active
        self._due = asyncio.Event()
        self._held = asyncio.Event()
        self._acks: asyncio.Queue[Any] = asyncio.Queue()
        self._pages: asyncio.Queue[Any] = asyncio.Queue()
        self._asked_at = 0.0
        self._joining = True
        self.closing = False
        """Nothing more is begun; what is under way may end."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._push_on(), self._settle_on(), self._take_on(), self._bring_on()]

    # --- from the connection -------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be due."""
        self._due.set()

    def heard(self, frame: FromBroker) -> None:
        """A frame about this mesh, but for urgent messages."""
        self._active()
        is_answer = isinstance(frame, Acks)
        queue = self._acks if is_answer else self._pages
        if queue.qsize() >= (SYNC_WINDOW_ITEMS if is_answer else _PAGES_MAX):
            raise BadAnswer("the broker sends more than was asked for")
        queue.put_nowait(frame)

    @property
    def is_quiet(self) -> bool:
        """Nothing is in flight, and nothing waits to be stored."""
        mesh = self._sync.meshes.get(self._slug)
        in_flight = mesh is not None and bool(mesh.inflight)
        return not in_flight and self._acks.empty() and self._pages.empty()

    # --- out -----------------------------------------------------------------------------------

    async def _push_on(self) -> None:
        while not self.closing:
            self._due.clear()  # before the look: whoever writes after it sets it again
            push = None
            if self._sync.has_due(self._slug):
                push = await self._run(self._sync.push, self._slug)
            if push is not None:
                if not self._is_waiting(len(push.items)):
                    self._asked_at = monotonic()
                self._active()
                await self._send([push])
                continue
            if self._sync.objects_to_bring(self._slug):
                self._held.set()
            await self._pause()

    async def _pause(self) -> None:
        """Until something may be due."""
        at = self._sync.next_at(self._slug)
        wait_ms = SYNC_LOOK_MS
        if at is not None:
            wait_ms = min(wait_ms, max(1, at - self._sync.engine.ctx.now_ms()))
        try:
            async with asyncio.timeout(wait_ms / SECOND_MS):
                await self._due.wait()
        except TimeoutError:
            late_s = monotonic() - self._asked_at
            if self._is_waiting() and late_s > SYNC_ANSWER_MS_MAX / SECOND_MS:
                raise Unreachable("the broker does not answer what it was sent") from None

    def _is_waiting(self, beyond: int = 0) -> bool:
        mesh = self._sync.meshes.get(self._slug)
        return mesh is not None and len(mesh.inflight) > beyond

    async def _settle_on(self) -> None:
        while True:
            acks: Acks = await self._acks.get()
            while not self._acks.empty():
                more: Acks = self._acks.get_nowait()
                if more.epoch != acks.epoch:
                    await self._settle(acks)
                    acks = more
                else:
                    both = [*acks.answers, *more.answers]
                    acks = msgspec.structs.replace(acks, answers=both)
            await self._settle(acks)

    async def _settle(self, acks: Acks) -> None:
        told = await self._run(self._sync.on_acks, acks)
        self._asked_at = monotonic()
        self._due.set()
        await self._send(told)

    async def _bring_on(self) -> None:
        while True:
            await self._held.wait()
            self._held.clear()
            while wanted := self._sync.objects_to_bring(self._slug):
                # One at a time, so that what needs only the first need not wait for the rest.
                done = await self._call(self._calls.bring, self._slug, wanted[:1])
                self._sync.brought(self._slug, done)
                self._active()
                self._due.set()

    # --- in ------------------------------------------------------------------------------------

    async def _keep_snapshot(self) -> None:
        mesh = self._sync.meshes.get(self._slug)
        if mesh is not None and mesh.went_back:
            mesh.went_back = False
            try:
                await self._call(self._calls.keep_snapshot, self._slug)
            except _NO_GOOD as error:
                log.warning("no snapshot of %s was made again: %s", self._slug, error.message)

    async def _finish_join(self) -> None:
        if not self._joining:
            return
        try:
            await self._call(self._calls.finish_join, self._slug)
            self._joining = False
        except _NO_GOOD as error:
            self._refuse(error)

    def _refuse(self, error: HoldfastError) -> None:
        log.warning("the snapshot of %s could not be taken: %s", self._slug, error.message)
        mesh = self._sync.meshes.get(self._slug)
        if mesh is not None:
            mesh.refuse(error, self._sync.engine.ctx.now_ms())

    async def _take_on(self) -> None:
        after: FromBroker | None = None
        await self._finish_join()
        await self._keep_snapshot()
        while True:
            frame = after or await self._pages.get()
            after = None
            if isinstance(frame, Entries):
                frame, after = self._together(frame)
                await self._take(frame)
                continue
            told = await self._run(self._sync.on_frame, frame)
            await self._send(told)
            self._due.set()
            await self._finish_join()
            await self._keep_snapshot()
            await self._take_snapshot()

    async def _take_snapshot(self) -> None:
        """What the broker no longer has in single pieces, it has as a whole; or we have to wait."""
        mesh = self._sync.meshes.get(self._slug)
        if mesh is None or mesh.snapshot is None or not mesh.snapshot.id:
            return
        try:
            took = await self._call(self._calls.take_snapshot, self._slug)
        except _NO_GOOD as error:
            return self._refuse(error)
        if took:
            await self._send(await self._run(self._sync.snapshot_taken, self._slug))

    def _together(self, first: Entries) -> tuple[Entries, FromBroker | None]:
        """Pages that wait and follow each other, as one; and the frame that ended that."""
        rows = first.rows
        size = sum(len(row.raw) for row in rows)
        while not self._pages.empty():
            more: FromBroker = self._pages.get_nowait()
            fits = (
                isinstance(more, Entries)
                and (more.epoch, more.after) == (first.epoch, first.to)
                and len(rows) < LINK_BATCH_ROWS
                and size < LINK_BATCH_BYTES
            )
            if not fits or not isinstance(more, Entries):
                return first, more
            rows = [*rows, *more.rows]
            size += sum(len(row.raw) for row in more.rows)
            first = msgspec.structs.replace(first, to=more.to, rows=rows, last=more.last)
        return first, None

    async def _take(self, entries: Entries) -> None:
        incoming = await self._run(receive.decode_page, entries)
        for piece in receive.pieces(incoming):
            told = None
            while told is None:
                told = await self._take_piece(piece)
            await self._send(told)
            self._active()

    async def _take_piece(self, piece: receive.DecodedPage) -> list[FromNode] | None:
        """None if it is to be tried again: a sweep was faster."""
        wanted = receive.objects_wanted(self._sync.engine, piece)
        absent: set[str] = set()
        if wanted:
            absent = await self._call(self._calls.fetch, self._slug, wanted)
        try:
            told: list[FromNode] = await self._run(self._sync.on_entries, piece, absent)
        except ObjectGone:
            return None
        return told
