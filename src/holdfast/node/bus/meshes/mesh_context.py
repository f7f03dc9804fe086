"""What the parts of the exchange of meshes share: this node, its streams, who may what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from holdfast.bus.options import RunInThread
from holdfast.node.bus.meshes.grants import MeshGrants
from holdfast.node.bus.meshes.own_past import OwnPast
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName, lacking
from holdfast.rules.bus.meshes.spread import Effect, Spread
from holdfast.rules.bus.meshes.streams import StreamRow
from holdfast.rules.errors import HoldfastError
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import SECOND_MS

log = logging.getLogger("holdfast")


class MeshContext:
    """Everything here is used in the loop only."""

    def __init__(
        self,
        engine: NodeEngine,
        key: bytes,
        grants: MeshGrants,
        run: RunInThread,
        jitter: Callable[[], float],
        carry_out: Callable[[Iterable[Effect]], None],
        compare: Callable[[StreamName], None],
        fill_gaps: Callable[[], None],
        filled: Callable[[str], None],
    ) -> None:
        """`compare` is called when a stream has changed, `carry_out` with what follows; `fill_gaps`
        when a peer has truncated something, `filled` when the snapshot of a mesh has ended.
        """
        self.engine, self.key, self.grants = engine, key, grants
        self.run, self.jitter, self.carry_out = run, jitter, carry_out
        self._compare, self.fill_gaps, self.filled = compare, fill_gaps, filled
        self.us = engine.ctx.peer
        self.spread = Spread(self.us)
        self.own_past = OwnPast(engine, run, self.start)
        self.rows: dict[StreamName, StreamRow] = {}
        """The streams as they were read last."""
        self.keys_of: Callable[[str, str], Collection[bytes]] = lambda mesh, name: ()
        """The keys that a name has, or had, in a mesh, as the mesh's owner says."""
        self.taken: dict[StreamName, None] = {}
        """Streams of which a page was stored since the last reading began: what that reads of them
        may be older."""
        self.zone_keys: dict[str, tuple[bytes, ...]] = {}
        """The keys of the zones that this node knows."""
        self._tasks: dict[asyncio.Future[Any], None] = {}

    def now(self) -> float:
        """Milliseconds that never run backwards."""
        return asyncio.get_running_loop().time() * SECOND_MS

    def start(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        """Runs a task until it ends or everything is stopped."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HoldfastError):
            log.warning("the exchange of meshes: %s", error.message)
        elif error is not None:
            log.error("a fault in the exchange of meshes", exc_info=error)

    async def stop(self) -> None:
        """Ends all tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def took(self, row: StreamRow, via: str) -> None:
        """A stream stands like this after a page of a neighbour was stored. Two pages of one stream
        may be stored at a time, and be told of in another order.
        """
        known = self.rows.get(row.name)
        if known is None or not lacking(row.covered, known.covered):
            self.taken[row.name] = None
            self.takes(row, via)

    def takes(self, row: StreamRow, via: str | None = None) -> None:
        """A stream stands like this now: does what follows from it."""
        name = row.name
        self.rows[name] = row
        if name.origin == self.us and name.epoch == self.engine.ctx.epoch:
            self.carry_out(self.spread.wrote(name, row.covered))
        else:
            now = self.now()
            self.carry_out(self.spread.has(name, row.covered, now, self.jitter(), via))
        self._compare(name)

    def lacks(self, name: StreamName, covered: Frontier) -> bool:
        """Whether something is covered that this node does not cover, as far as it has looked."""
        return bool(lacking(self.spread.mine.get(name, NOTHING), covered))

    def is_ours(self, name: StreamName) -> bool:
        """Whether this node itself counts a stream, now or later: nobody else knows more of it."""
        return name.origin == self.us and name.epoch >= self.engine.ctx.epoch

    def other_home(self, name: StreamName, key: bytes) -> bool:
        """Whether a key is not one of those that the origin of a stream is known by here."""
        if not key:
            return False
        if name.origin == self.us:
            return key != self.key and key not in self.keys_of(name.mesh, name.origin)
        known = self.zone_keys.get(name.origin, ())
        if not known:
            known = tuple(
                row.key
                for other, row in self.rows.items()
                if row.key and (other.mesh, other.origin) == (name.mesh, name.origin)
            )
        if not known or key in known:
            return False
        return key not in self.keys_of(name.mesh, name.origin)

    def key_of(self, name: StreamName) -> bytes:
        """The key of an origin, as far as it is known here."""
        if name.origin == self.us:
            return self.key
        row = self.rows.get(name)
        if row is not None and row.key:
            return row.key
        known = self.zone_keys.get(name.origin, ())
        return known[0] if known else b""
