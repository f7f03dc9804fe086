"""What a broker does by itself: sweeps, the orphan check, removing unnamed objects, asking for
snapshots.

Operators can also run each as a command. Work is done in small chunks, between which other tasks
run: nobody waits long for a sweep. A sweep goes by the wall clock, so the broker skips it while it
does not believe the clock (`rules.clock_check`); an operator's command always sweeps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from holdfast.broker.accept import RetentionPolicy
from holdfast.broker.broker import Broker
from holdfast.broker.clock_note import read_clock_note, write_clock_note
from holdfast.broker.counters import BrokerCounts
from holdfast.broker.object_gc import collect_all
from holdfast.broker.server_clock import ServerClock
from holdfast.rules import limits
from holdfast.rules.broker_rows import BrokerSwept, Orphan
from holdfast.rules.clock_check import note_after, observe, start
from holdfast.rules.errors import HoldfastError
from holdfast.rules.ids import id_time_ms
from holdfast.rules.nightly import is_due, night_of
from holdfast.rules.quorum.commit_record import decode_stored_record
from holdfast.service.clock import utc_offset_ms
from holdfast.storage.broker.port import BrokerStore

log = logging.getLogger("holdfast")

_TICK_S: Final = 1.0


async def sweep_all(
    store: BrokerStore,
    now_ms: int,
    counts: BrokerCounts | None = None,
    *,
    uncounted_ms: int = 0,
) -> BrokerSwept:
    """Sweeps until nothing is left to sweep."""
    total = BrokerSwept()
    await store.cut_leases(now_ms)
    while True:
        done = await store.sweep(now_ms, limits.SWEEP_ROWS, uncounted_ms)
        total = BrokerSwept(
            **{name: getattr(total, name) + getattr(done, name) for name in _FIELDS}
        )
        if counts is not None:
            counts.sweep(done)
        most = max(getattr(done, name) for name in _FIELDS)
        if most < limits.SWEEP_ROWS and not done.removed:
            break
        await asyncio.sleep(0)
    if counts is not None:
        counts.sweeps += 1
    return total


_FIELDS: Final = BrokerSwept.__struct_fields__


async def collect(
    store: BrokerStore, now_ms: int, counts: BrokerCounts | None = None
) -> BrokerSwept:
    """Removes contents that nothing names any more."""
    done = BrokerSwept(objects=await collect_all(store, now_ms))
    if counts is not None:
        counts.sweep(done)
    return done


async def sweep_asked(
    store: BrokerStore, now_ms: int, counts: BrokerCounts | None = None
) -> BrokerSwept:
    """The sweep of an operator: everything, whether or not the clock is believed."""
    done = await sweep_all(store, now_ms, counts)
    collected = await collect(store, now_ms, counts)
    return msgspec.structs.replace(done, objects=collected.objects)


async def foresee(store: BrokerStore, now_ms: int) -> tuple[BrokerSwept, tuple[str, ...]]:
    """What `sweep_asked` would remove, and of which kinds it is that many or more: only one chunk
    is looked at. Contents that nothing names are not looked for.
    """
    swept = await store.foresee_sweep(now_ms, limits.SWEEP_ROWS)
    return swept, tuple(one for one in _FIELDS if getattr(swept, one) >= limits.SWEEP_ROWS)


async def check_orphans(store: BrokerStore, counts: BrokerCounts | None = None) -> list[Orphan]:
    """Finds dedupe rows without their message, and messages without their row. There should be
    none.
    """
    orphans = await store.orphans(limits.ORPHANS_SHOWN_MAX)
    if counts is not None:
        counts.orphan_checks += 1
        counts.orphans.clear()
        for row in orphans:
            counts.orphans[row.mesh] += 1
    for row in orphans:
        log.error(
            "orphan in mesh %r: %s (id %s, seq %d)", row.mesh, row.what, row.id.hex(), row.seq
        )
    return orphans


async def repair_orphans(store: BrokerStore) -> list[Orphan]:
    """Mends orphans until there is nothing left that can be mended; returns those it mended."""
    mended: dict[tuple[str, bytes, int], Orphan] = {}
    while found := await store.repair_orphans(limits.ORPHANS_SHOWN_MAX):
        some = {(row.mesh, row.id, row.seq): row for row in found}
        if some.keys() <= mended.keys():
            break  # it is found again and again: `orphans` lists it
        mended |= some
        for row in found:
            log.warning(
                "mended in mesh %r: %s (id %s, seq %d)", row.mesh, row.what, row.id.hex(), row.seq
            )
    return list(mended.values())


def kept_at_most(retention: RetentionPolicy) -> int:
    """For how long a broker keeps anything at most."""
    messages = retention.keep_ms + limits.CONSUMER_KEEP_MS_MAX
    ids = (retention.dedupe_ms or 0) + limits.BROKER_DEDUPE_GRACE_MS
    return max(messages, ids)


class BrokerUpkeep:
    """The task of a broker that does all this when it is due. Of several processes with one parent
    the first sweeps and looks for orphans; each asks its own connections for snapshots.
    """

    def __init__(self, broker: Broker, offset_ms: Callable[[int], int] = utc_offset_ms) -> None:
        self._broker, self._offset_ms = broker, offset_ms
        now = broker.source.now_ms()
        self._night = night_of(now, offset_ms(now))
        """The night in which the nightly work was done last. The orphan check of the start counts
        for the night in which it was."""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await self._guarded("look at the clock", self.look_at_clock)
        async with asyncio.TaskGroup() as tasks:
            # Beside the rest: what reads everything takes its time, and no connection waits for it.
            tasks.create_task(self._watch_nights())
            await self._tick()

    async def _watch_nights(self) -> None:
        if not self._broker.leads:
            return
        await self._guarded("orphan check", self.orphans)
        while True:
            await asyncio.sleep(_TICK_S)
            await self.nightly()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._broker.settings
        sweep_at = loop.time() + settings.sweep_every_ms / limits.SECOND_MS
        while True:
            await asyncio.sleep(_TICK_S)
            for connection in list(self._broker.connections):
                try:
                    connection.tick()
                except Exception:
                    log.exception("a fault of ours at the tick of a connection")
            if self.has_leapt():
                await self._guarded("look at the clock", self.look_at_clock)
            if loop.time() >= sweep_at:
                await self._guarded("sweep", self.sweep)
                sweep_at = loop.time() + settings.sweep_every_ms / limits.SECOND_MS

    async def _guarded(self, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await work()
        except HoldfastError as error:
            log.warning("the %s did not end: %s; it is tried again", what, error.message)
        except Exception:
            # The other work of this task goes on.
            log.exception("a fault of ours in the %s; it is tried again", what)

    async def nightly(self) -> bool:
        """What is done once a night, if it is due; returns whether it was."""
        now = self._broker.source.now_ms()
        offset = self._offset_ms(now)
        if not is_due(self._night, now, offset):
            return False
        self._night = night_of(now, offset)
        await self._guarded("orphan check", self.orphans)
        await self._guarded("look through the objects", self.collect)
        return True

    def has_leapt(self) -> bool:
        """Whether the wall clock was set since the last look."""
        looked = self._broker.clock_looked
        if looked is None:
            return False
        wall_ms, ticks_ms = self._broker.source.now_ms(), self._broker.ticks_ms()
        return abs((wall_ms - looked[0]) - (ticks_ms - looked[1])) > limits.CLOCK_STEP_MS

    async def look_at_clock(self) -> bool:
        """Whether the broker believes its wall clock now; notes the answer for the next start."""
        broker = self._broker
        if isinstance(broker.source, ServerClock):
            broker.source.set(await broker.store.server_ms())
        wall, ticks = broker.source.now_ms(), broker.ticks_ms()
        # Its own, if it has one: a full disk may not have taken the last.
        note = broker.clock_note or await broker.run(read_clock_note, broker.settings.store)
        clock_check = broker.clock_check
        clock_check = (
            start(wall_ms=wall, ticks_ms=ticks, note=note)
            if clock_check is None
            else observe(clock_check, wall_ms=wall, ticks_ms=ticks)
        )
        ran = 0 if broker.clock_looked is None else ticks - broker.clock_looked[1]
        kept = kept_at_most(broker.retention)
        noted = note_after(
            clock_check, note, wall_ms=wall, ticks_ms=ticks, ran_ms=ran, kept_ms=kept
        )
        broker.clock_check, broker.clock_looked = clock_check, (wall, ticks)
        broker.clock_note = noted
        broker.uncounted_ms = noted.uncounted_ms
        if broker.leads:
            await broker.run(write_clock_note, broker.settings.store, noted)
        cut = await broker.store.cut_leases(wall)
        if cut:
            log.warning("the clock was ahead: %d leases that were taken then end in time", cut)
        return clock_check.is_believed

    async def sweep(self) -> BrokerSwept:
        """Sweeps what is due, if the clock is believed; then asks members for snapshots."""
        broker = self._broker
        if not await self.look_at_clock():
            broker.counts.put_off += 1
            log.warning(
                "the clock has leapt, or this broker was down for long: nothing is swept before it "
                "has been steady for a day; if it is right: holdfast broker sweep"
            )
            return BrokerSwept()
        now, uncounted = broker.source.now_ms(), broker.uncounted_ms
        done = BrokerSwept()
        if broker.leads:
            done = await sweep_all(broker.store, now, broker.counts, uncounted_ms=uncounted)
        await self._want_snapshots()
        return done

    async def collect(self) -> BrokerSwept:
        """Removes contents that nothing names, if the clock is believed. This reads all that the
        broker holds, so it is done once a night.
        """
        broker = self._broker
        if not await self.look_at_clock():
            return BrokerSwept()
        now = broker.source.now_ms() - broker.uncounted_ms
        return await collect(broker.store, now, broker.counts)

    async def orphans(self) -> list[Orphan]:
        return await check_orphans(self._broker.store, self._broker.counts)

    async def _want_snapshots(self) -> None:
        """Asks a member for a snapshot of each mesh with changes or commits that are old enough to
        go: they stay until a snapshot covers them.
        """
        broker = self._broker
        followed = {mesh for connection in broker.connections for mesh in connection.follows}
        for slug in sorted(followed):
            for connection in list(broker.connections):
                if slug not in connection.follows:
                    continue
                member = await broker.store.member_get(slug, connection.key)
                if member is None or not {"read", "relay"} <= member.grants:
                    continue
                if await self._has_old_changes(slug, connection.key) or await self._has_old_commits(
                    slug
                ):
                    connection.want_snapshot(slug)
                break

    async def _has_old_changes(self, slug: str, key: bytes) -> bool:
        """Whether the first change behind the newest snapshot is past its time."""
        broker = self._broker
        mesh = await broker.store.mesh_get(slug)
        if mesh is None:
            return False
        snapshot = await broker.store.snapshot_get(slug)
        after = mesh.first - 1 if snapshot is None else max(mesh.first - 1, snapshot.seq)
        page = await broker.store.feed(slug, key, min(after, mesh.seq), 1, 1, own=True)
        changes = [row for row in page.rows if row.kind == "change"]
        if not changes:
            return False
        age = broker.source.now_ms() - id_time_ms(changes[0].broker_id)
        return age > broker.retention.keep_ms

    async def _has_old_commits(self, slug: str) -> bool:
        """Whether the first commit behind the committed state is past its time."""
        broker = self._broker
        order = await broker.store.commit_order(slug)
        if order is None:
            return False
        for line in await broker.store.commit_lines(slug, order.state_number + 1, 1, 1):
            age = broker.source.now_ms() - decode_stored_record(line.record).committed_at
            return age > broker.retention.keep_ms
        return False
