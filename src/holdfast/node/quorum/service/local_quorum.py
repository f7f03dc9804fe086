"""The quorums of a home, in the process that holds them: `QuorumApi` on the orders of its meshes.

The host of the groups hands in where the order of a mesh is to be had, and says when one begins or
ends here. Everything belongs to the event loop of the host.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from holdfast.node.core.commit import Committed
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.api import ReadDemand, ReplaySummary, StrongReceipt
from holdfast.node.quorum.ports import MeshOrder, OrderStatus
from holdfast.node.quorum.service.adoption import TaskAdoption
from holdfast.node.quorum.service.duties import CoordinatorDuties, PeersHeard
from holdfast.node.quorum.service.lane import LoopWrite
from holdfast.node.quorum.service.operators import QuorumOperators
from holdfast.node.quorum.service.reads import (
    SnapshotRecorder,
    confirmed_read,
    degraded_state,
    unconfirmed,
)
from holdfast.node.quorum.service.strong_writes import StrongWrites
from holdfast.node.settings import QuorumSettings
from holdfast.rules.errors import (
    BadValue,
    HoldfastError,
    LeaseNotHeld,
    NoQuorum,
    NoVoters,
    OutcomeUnknown,
)
from holdfast.rules.limits import (
    BACKOFF_MS_MIN,
    QUORUM_CHANGE_MS,
    QUORUM_WAIT_MS_MAX,
    SECOND_MS,
)
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.quorum.order_move import has_not_begun
from holdfast.rules.quorum.view import LeaseRow

log = logging.getLogger("holdfast.quorum")


class _Seat:
    """A mesh with its writes and its duties."""

    def __init__(
        self,
        writes: StrongWrites,
        duties: CoordinatorDuties,
        adoption: TaskAdoption,
        before: asyncio.Task[None] | None,
    ) -> None:
        """`before` ends what was here for another order: until then the queue is that one's."""
        self.writes, self.duties, self._before = writes, duties, before
        self.adoption = adoption
        self.is_loaded = False
        """The queue was read from the disk."""
        self.news = asyncio.Event()
        """Set when the order may be able to do what it could not do before, or is left."""
        writes.order.on_change = self._changed
        writes.order.on_folded = self._folded
        self.loading = asyncio.create_task(self._load())

    async def loaded(self) -> bool:
        """Returns True when the queue was read from the disk. What failed before is tried again.
        False if this seat was left meanwhile: there is another order by now.
        """
        if self.is_loaded:
            return True  # as nearly always: every write and every read asks
        loading = self.loading
        if loading.done():
            loading = self.loading = asyncio.create_task(self._load())
        await asyncio.wait([loading])  # for all who wait: nobody of them may end it
        if loading.cancelled():
            return False
        loading.result()
        return True

    async def _load(self) -> None:
        if self._before is not None:
            await asyncio.wait([self._before])
            self._before = None
        await self.writes.replay.load()
        self.duties.load()
        self.adoption.start()
        self.is_loaded = True

    def _changed(self) -> None:
        self.news.set()
        self.adoption.wake()
        self.writes.changed()
        self.duties.wake()

    def _folded(self, results: Sequence[Committed]) -> None:
        self.writes.folded(results)
        self.duties.folded(results)

    async def close(self, *, stopping: bool) -> None:
        self.loading.cancel()
        await asyncio.gather(self.loading, return_exceptions=True)
        await self.adoption.close()
        await self.duties.close()
        await self.writes.close(stopping=stopping)


class LocalQuorum:
    """A `QuorumApi` on the orders of this process. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        write: LoopWrite,
        orders: Callable[[str], MeshOrder],
        operators: QuorumOperators,
        *,
        heard: PeersHeard = lambda mesh: {},
        monotonic_ms: Callable[[], int] = lambda: int(monotonic() * SECOND_MS),
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`orders` gives the order of a mesh, and raises NoVoters if there is none here. `heard`
        says by mesh how long ago members were heard that belong to no group.
        """
        self._engine, self._write, self._orders = engine, write, orders
        self._operators, self._heard = operators, heard
        self._monotonic_ms, self._chance = monotonic_ms, chance
        self.settings = QuorumSettings()
        """As the operator has set them; they may change at any time."""
        self._seats: dict[str, _Seat] = {}
        self._closed = False
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._recorder = SnapshotRecorder(engine, write)
        self._recording: asyncio.Task[None] | None = None

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins with every mesh of this home that has voters: their queues are loaded, and what
        waits is tried as soon as members and coordinator are known.
        """
        rows = self._engine.read("quorum.list", lambda tx: tx.quorum_list())
        for row in rows:
            with suppress(NoVoters):  # its order begins later, or in another place
                await self._seat(row.mesh)
        self._recording = asyncio.create_task(self._record_snapshots())

    def begin(self, mesh: str) -> None:
        """The order of a mesh is here now, or is another one than before."""
        order = self._orders(mesh)
        seat = self._seats.get(mesh)
        if seat is not None and seat.writes.order is order:
            return
        self.end(mesh)
        writes = StrongWrites(self._engine, self._write, order, self._chance)
        writes.usual_policy = lambda: self.settings.minority
        duties = CoordinatorDuties(
            self._engine, writes, self._heard, self._monotonic_ms, self._chance
        )
        writes.on_late = lambda: self._came_late(mesh)
        adoption = TaskAdoption(self._engine, self._write, writes)
        self._seats[mesh] = _Seat(writes, duties, adoption, self._leaving.get(mesh))

    def look(self, mesh: str) -> None:
        """The order of a mesh may be here now, or gone, or another one than before."""
        if self._closed:
            return
        try:
            self.begin(mesh)
        except NoVoters:
            self.end(mesh)

    def end(self, mesh: str) -> None:
        """The order of a mesh is no longer here."""
        seat = self._seats.pop(mesh, None)
        if seat is not None:
            seat.news.set()
            self._leaving[mesh] = asyncio.create_task(self._leave(mesh, seat))

    async def _leave(self, mesh: str, seat: _Seat) -> None:
        try:
            await seat.close(stopping=self._closed)
        finally:
            if self._leaving.get(mesh) is asyncio.current_task():
                del self._leaving[mesh]

    def _came_late(self, mesh: str) -> None:
        """A write that an order left behind stands in the queue now."""
        seat = self._seats.get(mesh)
        if seat is not None:
            seat.writes.replay.look_again()

    async def close(self) -> None:
        self._closed = True
        if self._recording is not None:
            self._recording.cancel()
            await asyncio.gather(self._recording, return_exceptions=True)
        for mesh in list(self._seats):
            self.end(mesh)
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)

    def _ready(self, mesh: str) -> _Seat | None:
        """The writes of a mesh, if they are here and its queue is loaded. NoVoters as `_seat`."""
        seat = self._seats.get(mesh)
        if seat is None or not seat.is_loaded or seat.writes.order is not self._orders(mesh):
            return None
        return seat

    async def _seat(self, mesh: str) -> _Seat:
        """The writes of a mesh, once its queue is loaded. NoVoters if it has no quorum."""
        while True:
            self.begin(mesh)
            seat = self._seats[mesh]
            if await seat.loaded():
                return seat
            if self._closed:
                raise NoQuorum(f"this node stops, and takes no more part in {mesh!r}")

    async def _writes(self, mesh: str) -> StrongWrites:
        return (self._ready(mesh) or await self._seat(mesh)).writes

    # --- writes and reads --------------------------------------------------------------------

    async def intend(
        self,
        mesh: str,
        op: str,
        entity: str,
        body: bytes,
        *,
        id: str | None = None,
        timeout_ms: int | None = None,
    ) -> StrongReceipt:
        left = within = _patience(timeout_ms, self.settings.commit_timeout_ms)
        began = monotonic()
        while True:
            seat = self._ready(mesh) or await self._seat(mesh)
            if not seat.adoption.is_done and op.startswith("task."):
                await seat.adoption.done(left)  # else a task that is here would not be known
            try:
                return await seat.writes.intend(op, entity, body, id, left)
            except (
                NoQuorum
            ):  # nobody has it: whoever decides next may be asked, also under a new id
                left = within - round((monotonic() - began) * SECOND_MS)
                if not await self._is_moving(mesh, seat, left):
                    raise

    async def confirm(
        self, mesh: str, demand: ReadDemand, *, timeout_ms: int | None = None
    ) -> DegradedRead:
        left = within = _patience(timeout_ms, self.settings.commit_timeout_ms)
        began = monotonic()
        while True:
            seat = self._ready(mesh) or await self._seat(mesh)
            try:
                return await confirmed_read(self._engine, seat.writes, demand, left)
            except NoQuorum as error:
                left = within - round((monotonic() - began) * SECOND_MS)
                if not await self._is_moving(mesh, seat, left):
                    raise unconfirmed(mesh, demand, error) from error
            except OutcomeUnknown as error:
                raise unconfirmed(mesh, demand, error) from error

    async def _is_moving(self, mesh: str, seat: _Seat, left_ms: int) -> bool:
        """Whether a call that one order could not decide may ask again: the mesh goes on with
        another order, or is about to. Waits for a sign of it, and not longer than until the next
        try is due: a member without a vote is not told when the voters are there again.
        """
        if left_ms <= 0 or self._closed:
            return False
        if self._seats.get(mesh) is not seat:
            return True
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        if row is None or not has_not_begun(row):
            return False
        seat.news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_ms, BACKOFF_MS_MIN) / SECOND_MS):
                await seat.news.wait()
        return True

    async def lease_granted(self, mesh: str, name: str, session: bytes, *, timeout_ms: int) -> bool:
        """LeaseNotHeld if the session neither holds the lease nor waits for it."""
        writes = await self._writes(mesh)
        until = monotonic() + _patience(timeout_ms, 0) / SECOND_MS
        while True:
            folded = writes.news.next(name)
            try:
                if self._is_granted(mesh, name, session):
                    return True
                async with asyncio.timeout(max(0.0, until - monotonic())):
                    await folded
            except TimeoutError:
                return self._is_granted(mesh, name, session)
            finally:
                writes.news.forget(name, folded)

    def _is_granted(self, mesh: str, name: str, session: bytes) -> bool:
        row: LeaseRow | None = self._engine.read(
            "quorum.leases", lambda tx: tx.lease_get(mesh, name)
        )
        if row is not None and row.session == session:
            return True
        if row is None or all(one.session != session for one in row.waiting):
            raise LeaseNotHeld(f"lease {name!r}: this session does not wait for it any more")
        return False

    async def replay(self, mesh: str, *, node: str | None = None) -> ReplaySummary:
        return await (await self._writes(mesh)).replay.replay(node)

    async def queue_changed(self, mesh: str) -> None:
        """Another program has added to the queue of a mesh: it is looked at again."""
        (await self._writes(mesh)).replay.look_again()

    async def pause(self, mesh: str) -> None:
        await (await self._writes(mesh)).lane.pause()

    async def resume(self, mesh: str) -> None:
        writes = await self._writes(mesh)
        await writes.lane.resume()
        writes.replay.wake()

    # --- by the names of the source ----------------------------------------------------------

    async def get_mesh_degraded_read_state(self, mesh: str) -> DegradedRead:
        """How fresh a read is that nobody confirms."""
        return degraded_state(self._engine, await self._writes(mesh))

    async def replay_pending_writes_for_node(self, target: str) -> ReplaySummary:
        """Tries what waits for one node, in all meshes."""
        found = [await self.replay(mesh, node=target) for mesh in sorted(self._seats)]
        return ReplaySummary(
            attempted=sum(one.attempted for one in found),
            applied=sum(one.applied for one in found),
            failed=sum(one.failed for one in found),
            pending=sum(one.pending for one in found),
        )

    def on_node_recovered(self, node: str, previous_status: str) -> None:
        """A node can be reached again: what waits is tried, and a coordinator looks whether the
        node counts as lost.
        """
        log.info("%s is back (it was %s)", node, previous_status)
        for seat in self._seats.values():
            seat.writes.changed()
            seat.duties.wake()

    # --- operators ---------------------------------------------------------------------------

    async def status(self, mesh: str) -> OrderStatus:
        return self._orders(mesh).status()

    async def init(
        self, mesh: str, voters: tuple[str, ...], *, engine: str = "embedded"
    ) -> OrderStatus:
        status = await self._operators.init(mesh, voters, engine=engine)
        await (await self._seat(mesh)).adoption.done(QUORUM_CHANGE_MS)
        return status

    async def move(self, mesh: str, voters: tuple[str, ...] = (), *, engine: str) -> OrderStatus:
        status = await self._operators.move(mesh, voters, engine=engine)
        self.begin(mesh)
        return status

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None = None) -> OrderStatus:
        return await self._operators.add(mesh, peer, timeout_ms=timeout_ms)

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None = None, last: bool = False
    ) -> OrderStatus:
        return await self._operators.remove(mesh, peer, timeout_ms=timeout_ms, last=last)

    async def transfer(
        self, mesh: str, to: str | None, *, timeout_ms: int | None = None
    ) -> OrderStatus:
        return await self._operators.transfer(mesh, to, timeout_ms=timeout_ms)

    async def step_down(self, mesh: str) -> OrderStatus:
        return await self._operators.step_down(mesh)

    async def forget_claim(self, mesh: str, peer: str, *, dry_run: bool = False) -> OrderStatus:
        return await self._operators.forget_claim(mesh, peer, dry_run=dry_run)

    async def recover(self, mesh: str, *, accept_loss: bool) -> OrderStatus:
        status = await self._operators.recover(mesh, accept_loss=accept_loss)
        self.begin(mesh)
        return status

    # --- snapshots ---------------------------------------------------------------------------

    async def _record_snapshots(self) -> None:
        while True:
            await asyncio.sleep(self.settings.snapshot_interval_ms / SECOND_MS)
            try:
                await self.record_snapshots()
            except HoldfastError as error:
                log.warning("what was last known was not recorded: %s", error.message)

    async def record_snapshots(self) -> int:
        """Records what this node knows now, of every mesh whose reads are fresh; how many."""
        meshes = [seat.writes for seat in self._seats.values()]
        return await self._recorder.record(meshes, self.settings.snapshot_interval_ms)


def _patience(timeout_ms: int | None, usual: int) -> int:
    if timeout_ms is None:
        return usual
    if not 0 <= timeout_ms <= QUORUM_WAIT_MS_MAX:
        raise BadValue(f"{timeout_ms} ms is no time to wait: it is 0 to {QUORUM_WAIT_MS_MAX}")
    return timeout_ms
