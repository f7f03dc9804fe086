"""Folds the order of a mesh from an etcd into this node's store, and tells who waits for that.

One task reads entries as they come, another folds all that have come meanwhile in one transaction
(`CommitRun`), so that a sync is shared by what is committed during the one before it. The index of
an entry is its revision, as the sequence of its fence is: a restart goes on behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any, Final

from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.etcd.engine import EtcdEngine
from holdfast.node.quorum.etcd.follower import OrderFollower, counted_point
from holdfast.node.quorum.ports import order_moved
from holdfast.rules.errors import BadQuorumMessage, NoVoters, QuorumSetBack
from holdfast.rules.etcd.entry import OrderedEntry, OrderPoint
from holdfast.rules.etcd.payload import decode_timed
from holdfast.rules.etcd.standing import after_set_back, check_same_order, standing_in
from holdfast.rules.limits import ETCD_LOST_MS, QUORUM_FOLD_BYTES
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Transaction, Work
from holdfast.transport.etcd_gateway import EtcdGateway

log = logging.getLogger("holdfast")

Write = Callable[[str, Work[Any]], "asyncio.Future[Any]"]
FOLD: Final = "quorum.fold"


class OrderFold:
    """How far this node is in one order. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        mesh: str,
        write: Write,
        gateway: EtcdGateway,
        etcd: EtcdEngine,
        *,
        patience_ms: int = ETCD_LOST_MS,
    ) -> None:
        """`patience_ms` is how long it tries to reach the etcd before it raises."""
        self._engine, self._mesh, self._write = engine, mesh, write
        self._gateway, self._etcd, self._patience_ms = gateway, etcd, patience_ms
        self.position = self.standing().applied
        """The revision up to which everything of the order is folded, or passed over."""
        self.on_folded: Callable[[Sequence[Committed]], None] = lambda results: None
        self.on_resumed: Callable[[], None] = lambda: None
        """Is called when this node follows the order again."""
        self._reaching: list[tuple[int, asyncio.Future[None]]] = []
        self._expected: dict[tuple[bytes, bytes], list[asyncio.Future[Committed]]] = {}
        self._coming: deque[OrderedEntry] = deque()
        self._coming_bytes = 0
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self.closed = False
        """This node has folded the end of the order: it goes on with another engine."""

    def standing(self) -> QuorumRow:
        row = self._engine.read("quorum.standing", lambda tx: tx.quorum_get(self._mesh))
        if row is None:
            raise NoVoters(f"the mesh {self._mesh!r} has no voters")
        return row

    # --- who waits -----------------------------------------------------------------------------

    async def reached(self, position: int) -> None:
        """Returns when everything up to a position is folded; NoQuorum if that is never so, because
        the order has ended before it.
        """
        if self.position >= position:
            return
        if self.closed:
            raise order_moved(self._mesh)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reaching.append((position, waiter))
        try:
            await waiter
        finally:
            self._reaching = [one for one in self._reaching if one[1] is not waiter]

    def close(self) -> None:
        """The order has ended: what stands behind its end is nobody's."""
        self.closed = True
        for position, waiter in self._reaching:
            if position > self.position and not waiter.done():
                waiter.set_exception(order_moved(self._mesh))

    def expect(self, id: bytes, raw: bytes) -> asyncio.Future[Committed]:
        """What becomes of this very envelope, if it is folded from now on."""
        waiter: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._expected.setdefault((id, raw), []).append(waiter)
        return waiter

    def forget(self, id: bytes, raw: bytes, waiter: asyncio.Future[Committed]) -> None:
        """Nobody waits for it any more."""
        waiter.cancel()
        left = [one for one in self._expected.get((id, raw), ()) if one is not waiter]
        if left:
            self._expected[id, raw] = left
        else:
            self._expected.pop((id, raw), None)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._expected.values())) + len(self._reaching)

    # --- the work ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Folds until it is cancelled or raises: what the follower raises, MustRejoin for a node
        that cannot go on with the order, or what the store raises.
        """
        self._coming.clear()
        self._coming_bytes = 0
        after = await self._resumed()
        self.position = after.position
        self.on_resumed()
        follower = OrderFollower(self._gateway, self._etcd, after, patience_ms=self._patience_ms)
        reading = asyncio.create_task(self._read(follower))
        reading.add_done_callback(lambda task: self._came.set())
        try:
            while True:
                self._came.clear()
                if self.closed:
                    return
                if self._coming:
                    await self._fold(self._take())
                elif reading.done():
                    reading.result()  # it ends by an error only
                else:
                    await self._came.wait()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _resumed(self) -> OrderPoint:
        """Where this node goes on."""
        row = self.standing()
        try:
            point = await self._point(row.applied)
            await self._check_past(row)
        except QuorumSetBack:
            end = await self._etcd.recovered_end(timeout_ms=self._patience_ms)
            moved = after_set_back(row, end.state)
            if moved is None:
                raise
            await self._write("quorum.incarnation", lambda tx: tx.quorum_put(moved))
            log.warning("the order of %s was recovered: this node goes on with it", self._mesh)
            return await self._point(moved.applied)
        state = self._etcd.known
        if state is not None:
            check_same_order(row, state)
        base = None if state is None else state.base(state.incarnation)
        if (
            base is not None
            and base.incarnation > row.incarnation
            and (point.position >= base.position)
        ):
            await self._move(base.incarnation)
        return point

    async def _check_past(self, row: QuorumRow) -> None:
        """Raises QuorumSetBack if the last entry that was folded here is not where it was: an etcd
        that was restored, and written to since, may have come further than this node by then.
        """
        if row.fence is None or row.fence.incarnation != row.incarnation or not row.applied:
            return
        (last,) = self._engine.read(
            "quorum.last", lambda tx: tx.commit_range(self._mesh, row.number, 1)
        )
        found = await self._etcd.find(last.id, timeout_ms=self._patience_ms)
        state, sequence = self._etcd.known, row.fence.sequence
        if found is None and state is not None and state.floor >= sequence:
            return  # it was forgotten, as it may be
        if found is None or found.point.position != sequence:
            raise QuorumSetBack(
                f"commit {row.number} of {self._mesh!r} is not in the etcd at {sequence}"
            )

    async def _point(self, position: int) -> OrderPoint:
        return await counted_point(
            self._gateway, self._etcd, position, timeout_ms=self._patience_ms
        )

    async def _read(self, follower: OrderFollower) -> None:
        async with aclosing(follower.pieces()) as pieces:
            async for entries in pieces:
                self._coming.extend(entries)
                self._coming_bytes += sum(len(entry.body) for entry in entries)
                self._came.set()
                while self._coming_bytes > QUORUM_FOLD_BYTES:
                    self._room.clear()
                    await self._room.wait()

    def _take(self) -> list[OrderedEntry]:
        """As many as one transaction folds; one at least."""
        taken: list[OrderedEntry] = []
        size = 0
        while self._coming and (not taken or size < QUORUM_FOLD_BYTES):
            entry = self._coming.popleft()
            size += len(entry.body)
            taken.append(entry)
        self._coming_bytes -= size
        self._room.set()
        return taken

    async def _fold(self, entries: Sequence[OrderedEntry]) -> None:
        for incarnation, group in groupby(entries, key=lambda entry: entry.incarnation):
            run = list(group)
            row = self.standing()
            if self.closed or row.engine != "etcd":
                return self.close()
            if incarnation != row.incarnation:
                await self._move(incarnation)
            await self._fold_run(run)

    async def _move(self, incarnation: int) -> None:
        """The first entry of another incarnation comes next."""
        state = (await self._etcd.end(timeout_ms=self._patience_ms)).state

        def move(tx: Transaction) -> None:
            row = tx.quorum_get(self._mesh)
            assert row is not None, "it was there a moment ago"
            tx.quorum_put(standing_in(row, state, incarnation))

        await self._write("quorum.incarnation", move)

    async def _fold_run(self, run: Sequence[OrderedEntry]) -> None:
        entries = readable(run)
        results: list[Committed] = []
        if entries:
            work = CommitRun(self._engine.ctx, self._mesh, entries)
            results = await self._write(FOLD, work)
        self.position = run[-1].point.position
        for entry, result in zip(entries, results, strict=True):
            for waiter in self._expected.get((result.raw_id or b"", entry.raw), ()):
                if not waiter.done():
                    waiter.set_result(result)
        for position, reached in self._reaching:
            if position <= self.position and not reached.done():
                reached.set_result(None)
        if any(result.ends_order for result in results):
            self.close()
        if results:
            self.on_folded(results)

    async def again(self, raw: bytes) -> Committed:
        """What an envelope comes to that is committed already: the answer that every node gives to
        one that comes again.
        """
        row = self.standing()
        fence = row.fence or FenceToken(row.incarnation, 0, self._engine.ctx.peer, 0)
        entry = CommittedEntry(raw, fence, row.committed_at, 0)
        results: list[Committed] = await self._write(
            FOLD, CommitRun(self._engine.ctx, self._mesh, [entry])
        )
        return results[0]


def readable(entries: Sequence[OrderedEntry]) -> list[CommittedEntry]:
    """The envelopes among entries, each with its fence. What no node of ours can have written is
    passed over by every node alike, and so is an id that was given up.
    """
    found: list[CommittedEntry] = []
    for entry in entries:
        position = entry.point.position
        if entry.kind != "entry":
            continue
        try:
            read = decode_timed(entry.body)
        except BadQuorumMessage as error:
            log.error("entry %d of the etcd is passed over: %s", position, error.message)
            continue
        fence = FenceToken(entry.incarnation, entry.epoch, entry.coordinator, position)
        found.append(CommittedEntry(read.envelope, fence, read.committed_at, position))
    return found
