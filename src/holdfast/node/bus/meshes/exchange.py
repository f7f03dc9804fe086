"""The store over the bus: peers that share a mesh converge with no broker.

    commit ─► ring ─► streams read again ─► Spread ─► pushes, words, requests ─► MeshLink
    page of a peer ─► objects ─► receive step, with what the page covers ─► Spread

The rules of spreading are `rules/bus/meshes/spread.py`, the words `protocol/bus_mesh.py`, one link
is `mesh_link.py`, the receiver's side `mesh_receive.py`, the source's `mesh_serve.py`. Which meshes
are shared is a column of the mesh (`backfill.py`), and with whom is for `grants.py` to say.

Everything here runs in the loop; what blocks runs in threads, by a port, so that a simulation can
run the same code at once. Nothing polls: a commit rings, a frame wakes, and one timer stands for
the next thing that is due.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from itertools import count

from holdfast.bus.options import RunInThread
from holdfast.bus.ports import Link
from holdfast.node.bus.meshes import backfill, mesh_serve
from holdfast.node.bus.meshes.commit_follow import CommitFollow, believed_of
from holdfast.node.bus.meshes.gap_filling import GapFilling
from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer, TrustGrants
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.bus.meshes.mesh_link import MeshLink
from holdfast.node.bus.meshes.order_compare import voting_of
from holdfast.node.bus.standing import MeshExchangeView, MeshPeerView, StreamView
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.spread import AskEntries, Effect, PushEntries, TellStreams
from holdfast.rules.bus.meshes.streams import StreamRow
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import (
    BUS_PEER_HOLD_MS,
    COMMIT_TELL_MS,
    COMMIT_TELL_VOTERS_MS,
    SECOND_MS,
)
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")


class MeshExchange:
    """The meshes of one node on its bus; a `LinkPart` of it."""

    def __init__(
        self,
        engine: NodeEngine,
        key: bytes,
        *,
        grants: MeshGrants | None = None,
        run: RunInThread = asyncio.to_thread,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`key` is the one of this node's bus."""
        self._context = MeshContext(
            *(engine, key, grants or TrustGrants(), run, jitter, self._carry_out, self._compare),
            fill_gaps=lambda: self._gaps.soon(),
            filled=lambda mesh: self._gaps.ended(mesh),
        )
        self._links: dict[str, MeshLink] = {}
        self._gaps = GapFilling(self._context, self._links)
        self._commits = CommitFollow(self._context, self._links)
        self._commits.hurry = self._hurry
        self._labels = count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = self._commits_rung = False
        self._looking = asyncio.Lock()
        self._telling: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._holding: asyncio.TimerHandle | None = None
        self._closed = False

    def know_keys(self, keys_of: Callable[[str, str], Collection[bytes]]) -> None:
        """`keys_of` says which keys a name has, or had, in a mesh: the owner of the mesh knows when
        a member has another one.
        """
        self._context.keys_of = keys_of

    def know_orders(
        self, has_own_order: Callable[[QuorumRow], bool], compared: Callable[[str], None]
    ) -> None:
        """`has_own_order` says whether an engine of this node brings what the quorum of a mesh has
        committed. Of all others it is asked of peers. Without it, voters have one. `compared` hears
        of meshes whose order was compared with that of another voter.
        """
        self._commits.has_own_order = has_own_order
        self._commits.compare.on_compared = compared

    def know_voters(self, votes: Callable[[str, bytes], bool]) -> None:
        """`votes` says whether the node of a key votes in a mesh. Without it nobody does."""
        self._commits.votes = votes

    async def start(self) -> None:
        """Reads what there is, and goes on with what was not counted yet."""
        self._loop = asyncio.get_running_loop()
        engine = self._context.engine
        engine.store.on_commit(self.ring, unstreamed=self._ring_commits)
        await self.refresh()

    async def share(self, mesh: str) -> None:
        """Shares a mesh over the bus, with the peers that may read it. Returns when what is in the
        log is counted; after a crash `start` goes on with that.
        """
        engine, run = self._context.engine, self._context.run
        await run(partial(backfill.switch_on, engine, mesh))
        await self.refresh()

    async def unshare(self, mesh: str) -> None:
        """Ends the sharing of a mesh over the bus; what is here stays."""
        await self._context.run(partial(backfill.switch_off, self._context.engine, mesh))
        await self.refresh()

    async def refresh(self) -> None:
        """Meshes, zones or grants may have changed: looks at everything again."""
        context = self._context
        context.zone_keys = await context.run(partial(_zone_keys, context.engine))
        for mesh in await context.run(partial(_joined, context.engine)):
            await context.run(partial(backfill.switch_on, context.engine, mesh))
        await self._count()
        await context.run(partial(backfill.settle_epoch, context.engine))
        await self._look()
        for link in list(self._links.values()):
            await self._introduce(link)

    def refresh_soon(self) -> None:
        """The same, by itself: members or their grants have changed."""
        if not self._closed and self._loop is not None:
            self._context.start(self.refresh())

    def orders_changed(self) -> None:
        """An engine brings the commits of a mesh from now on, or no longer does."""
        if not self._closed and self._loop is not None:
            self._context.start(self._commits.look())

    async def close(self) -> None:
        """Ends everything that is under way."""
        self._closed = True
        for link in self._links.values():
            link.end()
        self._links.clear()
        self._gaps.close()
        self._commits.close()
        for alarm in (self._alarm, self._holding, self._telling):
            if alarm is not None:
                alarm.cancel()
        await self._context.stop()

    def status(self) -> MeshExchangeView:
        context = self._context
        return MeshExchangeView(
            peers=[
                MeshPeerView(
                    peer=link.peer,
                    meshes=link.shared,
                    problem=link.problem,
                    entries_sent=link.figures.entries_sent,
                    entries_new=link.figures.entries_new,
                    entries_known=link.figures.entries_known,
                    entries_refused=link.figures.entries_refused,
                )
                for link in self._links.values()
            ],
            streams=[self._view(row) for row in context.rows.values()],
        )

    def _view(self, row: StreamRow) -> StreamView:
        lacks = self._context.spread.lacks(row.name)
        return StreamView(
            mesh=row.mesh,
            origin=row.origin,
            epoch=row.epoch,
            entries=row.entries,
            upto=row.covered.last,
            missing=sum(end - start for start, end in lacks),
            trouble=row.trouble,
        )

    # --- links -------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        if self._closed:
            return
        label = f"{link.name}#{next(self._labels)}"
        mesh_link = self._links[label] = MeshLink(self._context, self._commits, link, label)
        self._context.start(self._meet(mesh_link))

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> bool:
        if kind is not FrameKind.MESH:
            return False
        mesh_link = self._of(link)
        if mesh_link is None:
            return False
        mesh_link.frame(stream, body)
        self._hold_soon()
        return True

    def link_down(self, link: Link) -> None:
        mesh_link = self._of(link)
        if mesh_link is not None:
            del self._links[mesh_link.label]
            mesh_link.end()
            context = self._context
            self._carry_out(context.spread.link_down(mesh_link.label, context.now()))
            self._commits.gone(mesh_link)

    def _of(self, link: Link) -> MeshLink | None:
        return next((one for one in self._links.values() if one.link is link), None)

    async def _meet(self, link: MeshLink) -> None:
        """The streams are read before a new peer hears of them: the link that a page came over may
        have gone down between storing it and noting it, and it would be asked for again.
        """
        await self._look()
        await self._introduce(link)

    async def _introduce(self, link: MeshLink) -> None:
        """Tells a peer which meshes are shared with it, if that is news."""
        context = self._context
        who = (context.engine, context.grants, link.who)
        ours = await context.run(partial(mesh_serve.shared_with, *who))
        writes, relays = await context.run(partial(_brings, *who, ours))
        believed = await context.run(partial(believed_of, *who, ours))
        voting = await context.run(partial(voting_of, *who, ours))
        told = (link.ours, link.writes, link.relays, link.commits.believed)
        if (ours, writes, relays, believed) != told or not link.introduced:
            link.writes, link.relays, link.commits.believed = writes, relays, believed
            link.introduce(ours)
            link.relink()
            self._hold_soon()
        self._commits.voting(link, voting)

    # --- the log grows -----------------------------------------------------------------------

    def ring(self) -> None:
        """The log may have grown; from any thread."""
        if self._rung or self._closed or self._loop is None:
            return
        self._rung = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._rang)

    def _rang(self) -> None:
        self._rung = False  # before reading: a commit from now on rings again
        if not self._closed:
            self._context.start(self._look())

    def _ring_commits(self) -> None:
        """A quorum has committed something, and no stream has grown; from any thread."""
        if self._commits_rung or self._closed or self._loop is None:
            return
        self._commits_rung = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._commits_rang)

    def _commits_rang(self) -> None:
        """Looks at once, but a busy quorum is not looked at for each of its commits: those of the
        next moment are told together.
        """
        if self._telling is None and not self._closed:
            self._commits_rung = False
            loop = asyncio.get_running_loop()
            pause_ms = COMMIT_TELL_MS if self._commits.has_followers else COMMIT_TELL_VOTERS_MS
            self._telling = loop.call_later(pause_ms / SECOND_MS, self._tell_again)
            self._context.start(self._look_at_commits())

    def _tell_again(self) -> None:
        self._telling = None
        if self._commits_rung:
            self._commits_rang()

    def _hurry(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._tell_again()

    async def _look_at_commits(self) -> None:
        async with self._looking:
            try:
                await self._commits.look_at_grown()
            except HoldfastError as error:
                log.warning("commits cannot be read: %s", error.message)

    async def _look(self) -> None:
        """Reads the streams, and does what follows from what is new. What a page brought meanwhile
        is newer than what is read here, and rings by itself.
        """
        context = self._context
        async with self._looking:
            context.taken.clear()
            try:
                rows = await context.run(partial(mesh_serve.streams_of, context.engine))
                await self._commits.look()
            except HoldfastError as error:
                log.warning("streams cannot be read: %s", error.message)
                return
            there = {row.name for row in rows}
            for name in [name for name in context.rows if name not in there]:
                if name not in context.taken:
                    del context.rows[name]
                    context.spread.mine.pop(name, None)
            for row in rows:
                if context.rows.get(row.name) != row and row.name not in context.taken:
                    context.takes(row)

    async def _count(self) -> None:
        context = self._context
        engine = context.engine
        for mesh in await context.run(partial(_uncounted, engine)):
            while await context.run(partial(backfill.count_next, engine, mesh)):
                pass

    # --- effects -----------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            link = self._links.get(effect.link)
            if link is None or link.refused:
                continue
            try:
                match effect:
                    case TellStreams():
                        link.tell(effect.streams)
                    case AskEntries():
                        link.ask(effect.stream, effect.ranges)
                    case PushEntries():
                        link.push(effect.stream, effect.ranges)
            except HoldfastError as error:
                link.refuse(error)  # for itself: the others get what is theirs
        self._set_alarm()

    def _compare(self, name: StreamName) -> None:
        for link in self._links.values():
            link.compare(name)

    def _set_alarm(self) -> None:
        due = self._context.spread.next_at()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due is not None and not self._closed:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_at(due / SECOND_MS, self._tick, due)

    def _tick(self, due: float) -> None:
        """Seconds and milliseconds do not round alike: an alarm for a time may come a hair before
        it, and what was due then is due now.
        """
        self._alarm = None
        self._carry_out(self._context.spread.tick(max(due, self._context.now())))

    def _hold_soon(self) -> None:
        """A while after a peer was heard of, its place in the log is moved, and it is told what
        came from it is stored.
        """
        if self._holding is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._holding = loop.call_later(BUS_PEER_HOLD_MS / SECOND_MS, self._hold)

    def _hold(self) -> None:
        self._holding = None
        self._context.start(self._hold_all())

    async def _hold_all(self) -> None:
        context = self._context
        for link in list(self._links.values()):
            if not link.shared:
                continue
            link.confirm()
            has = dict(link.confirmed)
            held = {mesh: at for mesh, at in link.commits.theirs.items() if mesh in link.shared}
            work = partial(mesh_serve.hold_for, context.engine, link.who, link.shared, has, held)
            try:
                await context.run(work)
            except HoldfastError as error:
                log.warning("the place of %s in the log is not moved: %s", link.peer, error.message)


def _zone_keys(engine: NodeEngine) -> dict[str, tuple[bytes, ...]]:
    zones = engine.read("zone.list", lambda tx: tx.zone_list())
    return {zone.name: tuple(key.key for key in zone.keys) for zone in zones}


def _joined(engine: NodeEngine) -> list[str]:
    """Meshes without a broker that this node owns or has joined, and that are not switched on."""

    def read(tx: Reader) -> list[str]:
        on_bus = [row.slug for row in tx.mesh_list() if row.on_bus]
        return [row.mesh for row in tx.bus_mesh_list() if row.mesh not in on_bus]

    return engine.read("bus.meshes", read)


def _uncounted(engine: NodeEngine) -> list[str]:
    return engine.read("bus.meshes", backfill.uncounted_meshes)


def _brings(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, meshes: list[str]
) -> tuple[list[str], list[str]]:
    """The meshes of which a peer may bring what it wrote, and of which what others wrote."""

    def read(tx: Reader) -> tuple[list[str], list[str]]:
        writes = [mesh for mesh in meshes if grants.may_write(tx, peer, mesh)]
        return writes, [mesh for mesh in meshes if grants.may_relay(tx, peer, mesh)]

    return engine.read("bus.meshes", read)
