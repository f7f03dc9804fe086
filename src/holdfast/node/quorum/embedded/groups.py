"""All groups of this node: opens their log, drives them, and lets time pass for them.

There is a group for each mesh of which this node is a voter or learns to be one. They share one
Raft log file with its syncs, one set of links, and one clock: every 100 ms each group that does not
sleep gets a tick. A loop that ran late reads what waits on its links before it lets anybody
conclude something from a silence: a stall of this process looks like the silence of all others.

How a group begins for this node, and ends:

    begin      this node founds it and is its only voter           (`holdfast quorum init`)
    offered    a leader says that this node belongs to it: the node takes part if the owner of the
               mesh gave both of them the right `vote`
    removed    its vote was taken: it takes no part any more, until it is offered anew
    retire     it was the only voter and gives up: nobody decides any more
    recover    the majority is gone for good: this node goes on alone, in a new incarnation
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import msgspec

from holdfast.bus.ports import Link
from holdfast.node.core.commit import Committed, notable
from holdfast.node.core.committed_intake import CommitTrouble, claims_of
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.embedded.alarm_log import AlarmLog
from holdfast.node.quorum.embedded.beginnings import GroupBeginnings
from holdfast.node.quorum.embedded.closed_group import ClosedGroup
from holdfast.node.quorum.embedded.group import Group, MeshTrust
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.log_disk import LogDisk, past_of
from holdfast.node.quorum.embedded.order import EmbeddedOrder
from holdfast.node.quorum.embedded.ports import GroupHooks, SnapshotPorts
from holdfast.node.quorum.embedded.state_snapshots import StateSnapshots, clear_staged
from holdfast.node.quorum.embedded.store_fold import StoreFold, Write
from holdfast.node.quorum.embedded.voter_intake import GroupSide
from holdfast.node.quorum.embedded.voter_links import VoterLinks
from holdfast.protocol.quorum_frames import GroupOffered
from holdfast.rules.errors import (
    HoldfastError,
    NotAllowed,
    NoVoters,
)
from holdfast.rules.limits import (
    QUORUM_OFFER_TICKS,
    QUORUM_STALL_TICKS,
    QUORUM_STALL_TURNS,
    QUORUM_TICK_MS,
    SECOND_MS,
)
from holdfast.rules.quorum.compaction import LOG_LIMITS
from holdfast.rules.quorum.log_rows import GroupRow, KnownGroup
from holdfast.rules.quorum.raft.admission import is_removed
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember
from holdfast.rules.quorum.raft.effects import Alarm, RoleChange
from holdfast.rules.quorum.raft.events import (
    ChangeMembers,
    DiskChanged,
    NodeStalled,
    PairFound,
    PairLost,
)
from holdfast.rules.quorum.raft.membership import caught_up, not_now, refusal
from holdfast.rules.quorum.raft.messages import DiskHealth
from holdfast.rules.quorum.raft.state import GroupTiming, restarted
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog

log = logging.getLogger("holdfast")

_TICK_S: Final = QUORUM_TICK_MS / SECOND_MS


class EmbeddedGroups:
    """Belongs to one event loop. `start` comes first, `close` last."""

    def __init__(
        self,
        engine: NodeEngine,
        home: Path,
        write: Write,
        trust: MeshTrust,
        *,
        timing: GroupTiming | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._engine, self._home, self._write, self._trust = engine, home, write, trust
        self._timing = timing or GroupTiming()
        self._draw = SystemRandom().randrange
        self.limits = LOG_LIMITS
        """How much of their logs groups keep that begin from now on."""
        self.links = VoterLinks(self, trust.keys)
        self.on_group: Callable[[str], None] = lambda mesh: None
        """Hears that this node has begun or ended to take part in the group of a mesh."""
        self._log: SqliteQuorumLog | None = None
        self._opening = asyncio.Lock()
        self.beginnings = GroupBeginnings(self, engine, write, trust, random)
        self._groups: dict[str, Group] = {}
        self._by_tag: dict[bytes, Group] = {}
        self._closed_groups: dict[bytes, ClosedGroup] = {}
        self.on_moved: Callable[[str], None] = lambda mesh: None
        """Hears that an order has ended here, to go on with another engine."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._joining: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._ticks = 0
        self._alarms = AlarmLog(lambda: int(self._loop.time() * SECOND_MS))
        self._until_tick: set[asyncio.Future[None]] = set()
        self._closed = False

    # --- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Goes on with the groups that this node belonged to."""
        rows = self._engine.read("quorum.groups", lambda tx: tx.quorum_list())
        ours = [row for row in rows if row.engine == "embedded" and row.voter is not None]
        if ours or (rows and HomePaths(self._home).quorum.exists()):
            opened = await self.open()
            store, ctx = self._engine.store, self._engine.ctx
            await asyncio.to_thread(clear_staged, store, ctx, [row.mesh for row in ours])
            for row in ours:
                self.begin(row)
            incarnations = {row.mesh: row.incarnation for row in rows}
            for group in opened.groups():
                if group.incarnation < incarnations.get(group.scope, 0):
                    self._remember(group, past_of(opened, group.scope, 0).log.config)
        self._due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for group in list(self._groups.values()):
            self.end(group)
        log_, self._log = self._log, None
        if log_ is not None:
            await asyncio.to_thread(log_.close)

    async def open(self) -> SqliteQuorumLog:
        """The Raft logs of this node, which are opened when they are needed."""
        async with self._opening:
            if self._log is None:
                rows = self._engine.read("quorum.groups", lambda tx: tx.quorum_list())
                known = [_known(row, row.voter) for row in rows if row.voter is not None]
                opened = await asyncio.to_thread(partial(SqliteQuorumLog, self._home, known=known))
                self._log = opened
        return self._log

    def begin(self, row: QuorumRow, contacts: Sequence[GroupMember] = ()) -> Group:
        """Starts to drive a group that the log has."""
        assert self._log is not None
        mesh = row.mesh
        group_row = self._log.group(mesh)
        head = self._log.head(mesh)
        intake = self._log.intake(mesh)
        # The log begins after a snapshot whose parts are here, and which the store takes in next.
        arrives = intake is not None and intake.installed and intake.snapshot.index == head.base
        barred, problem = _standing(row, group_row, head.base, arrives=arrives)
        state = restarted(
            past_of(self._log, mesh, min(row.applied, head.last)),
            me=group_row.voter,
            group=group_row.tag,
            incarnation=group_row.incarnation,
            timing=self._timing,
            next_write=head.written + 1,
            barred=barred,
        )
        fold = StoreFold(
            self._engine.ctx,
            mesh,
            self._write,
            applied=min(row.applied, state.told) if arrives else state.told,
            post=self._soon,
            on_folded=partial(self._folded, mesh),
        )
        disk = LogDisk(
            self._log,
            mesh,
            group_row.voter,
            post=self._soon_from_thread,
            on_health=partial(self._health, mesh),
            soon=self._soon,
        )
        snapshots = SnapshotPorts(disk, self._states(mesh, fold))
        driver = GroupDriver(
            *(self._engine.ctx.peer, state, disk, self.links, fold, self._hooks(mesh)),
            *(contacts, snapshots, self.limits),
        )
        order = EmbeddedOrder(mesh, driver, fold, self.links)
        order.problem = problem
        order.claims = self._claims(mesh)
        group = Group(group_row, order, disk, self._trust)
        self._groups[mesh] = self._by_tag[group_row.tag] = group
        self.on_group(mesh)
        return group

    def _hooks(self, mesh: str) -> GroupHooks:
        return GroupHooks(
            now_ms=self._engine.ctx.now_ms,
            post=self._soon,
            later=self._later,
            on_role=partial(self._role, mesh),
            on_alarm=partial(self._alarm, mesh),
        )

    def _states(self, mesh: str, fold: StoreFold) -> StateSnapshots:
        return StateSnapshots(
            self._engine.store,
            self._engine.ctx,
            mesh,
            self._home,
            post=self._soon_from_thread,
            applied=lambda: fold.applied,
            on_taken=fold.stand_at,
        )

    def _claims(self, mesh: str) -> Sequence[CommitTrouble]:
        return self._engine.read("quorum.trouble", lambda tx: claims_of(tx, mesh))

    def compared(self, mesh: str) -> None:
        """The order of a mesh was compared with that of another node."""
        order = self.order(mesh)
        if order is not None:
            order.claims = self._claims(mesh)

    def _remember(self, row: GroupRow, config: GroupConfig) -> None:
        """Its voters may still ask for it."""
        self._closed_groups[row.tag] = ClosedGroup(row, config, self.links, self._trust)

    def end(self, group: Group) -> None:
        """This node takes no part any more, or stops."""
        if self._groups.get(group.row.scope) is group:
            del self._groups[group.row.scope]
        self._by_tag.pop(group.row.tag, None)
        group.disk.end()
        group.driver.end(closed=group.order.closed)
        _wake(group.waiting)

    # --- what others ask -----------------------------------------------------------------------

    def order(self, mesh: str) -> EmbeddedOrder | None:
        """The order of a mesh of whose group this node is a member."""
        group = self._groups.get(mesh)
        return None if group is None else group.order

    @property
    def peer(self) -> str:
        return self._engine.ctx.peer

    def of_mesh(self, mesh: str) -> Group | None:
        return self._groups.get(mesh)

    def votes(self, mesh: str, key: bytes) -> bool:
        """Whether the node of a key is among the members of the group of a mesh, as we know it."""
        group = self.of_mesh(mesh)
        config = None if group is None else group.driver.state.log.config
        return config is not None and any(member.key == key for member in config.members)

    def orders(self) -> list[EmbeddedOrder]:
        return [group.order for group in self._groups.values()]

    def require(self, mesh: str) -> Group:
        group = self._groups.get(mesh)
        if group is None:
            raise NoVoters(
                f"this node is no voter of the mesh {mesh!r}",
                hint=f"see who is: holdfast quorum members {mesh}",
            )
        return group

    async def changed(self, group: Group) -> None:
        """Returns when the members, the leader or the place of a group may have changed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        group.waiting.add(waiter)
        try:
            await waiter
        finally:
            group.waiting.discard(waiter)

    async def next_tick(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._until_tick.add(waiter)
        try:
            await waiter
        finally:
            self._until_tick.discard(waiter)

    # --- VoterEvents ---------------------------------------------------------------------------

    def group(self, tag: bytes) -> GroupSide | None:
        return self._by_tag.get(tag) or self._closed_groups.get(tag)

    def linked(self, keys: Sequence[bytes], up: bool) -> None:
        for group in list(self._groups.values()):
            for member in group.driver.state.log.config.members:
                if member.key in keys and member.id != group.driver.state.me:
                    group.driver.handle(PairFound(member.id) if up else PairLost(member.id))
                    if up and group.leads:
                        self._offer(group, member)

    def offered(self, link: Link, offer: GroupOffered) -> None:
        """A leader says that this node belongs to its group."""
        mesh, keys = offer.mesh, self._trust.keys(link.peer)
        me = offer.config.member(offer.id)
        assert me is not None, "the word was checked"
        if not self._trust.is_ours(me.key):
            raise NotAllowed(f"a vote in {mesh!r} is offered to this node under another key")
        if not self._trust.may_vote(mesh, keys):
            raise NotAllowed(f"{link.name} offers a vote in {mesh!r}, where it has none to give")
        group = self._groups.get(mesh)
        if group is not None and (group.row.tag, group.row.voter) == (offer.group, offer.id):
            return
        if mesh not in self._joining and not self._closed:
            self._joining.add(mesh)
            work = self.beginnings.join(link.name, offer)
            self._spawn(work, then=partial(self._joining.discard, mesh))

    # --- time ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._loop.time()
        late = now - self._due
        for group in self._groups.values():
            group.order.late_ms = max(round(late * SECOND_MS), group.order.late_ms * 9 // 10)
        if late > QUORUM_STALL_TICKS * _TICK_S:
            log.warning("the loop of this node stood still for %d ms", round(late * SECOND_MS))
            self._after_stall(QUORUM_STALL_TURNS)
            return
        self._ticks += 1
        _wake(self._until_tick)
        for group in list(self._groups.values()):
            if not group.is_idle:
                group.driver.tick(self._draw(1 << 16))
                self._look_after(group)
        self._due = max(self._due + _TICK_S, now)
        self._timer = self._loop.call_at(self._due, self._tick)

    def _after_stall(self, turns: int) -> None:
        """Lets the links be read first: what others have said meanwhile waits there."""
        if turns:
            self._timer = self._loop.call_later(0, self._after_stall, turns - 1)
            return
        for group in list(self._groups.values()):
            group.driver.handle(NodeStalled())
        self._due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _look_after(self, group: Group) -> None:
        """What is done from time to time for a group that is awake."""
        state = group.driver.state
        standing = (state.log.config, state.role, state.leader, group.order.has_quorum)
        is_news = standing != group.standing
        if is_news:
            group.standing = standing
            _wake(group.waiting)
            group.order.on_change()
        if state.removed or is_removed(state, state.me):
            self._spawn(self._removed(group))
            return
        is_time = not self._ticks % QUORUM_OFFER_TICKS
        if is_time:
            group.disk.retry()
        if group.leads:
            self._promote(group)
            if is_time or is_news:
                self._offer_all(group)

    def _offer_all(self, group: Group) -> None:
        """Tells members that have not answered yet that they belong to the group."""
        state = group.driver.state
        for member in state.log.config.members:
            progress = state.peer(member.id)
            if progress is not None and not progress.match:
                self._offer(group, member)

    def _offer(self, group: Group, member: GroupMember) -> None:
        state = group.driver.state
        word = GroupOffered(
            group.row.scope, state.incarnation, state.group, member.id, state.log.config
        )
        self.links.tell(member.key, word)

    def _promote(self, group: Group) -> None:
        """A learner that has caught up votes from now on: nobody is a learner for good here."""
        state = group.driver.state
        for member in state.log.config.members:
            if member.place == "learner" and caught_up(state, member.id):
                change = ChangeMembers("promote", member.id)
                if not (not_now(state) or refusal(state, change)):
                    group.driver.change(change, QUORUM_OFFER_TICKS, lambda outcome: None)
                return

    async def retire(self, group: Group) -> None:
        """The only voter gives up its vote, which needs nobody's consent: nobody decides then."""
        await self._removed(group)

    async def _removed(self, group: Group) -> None:
        """The vote of this node was taken by a committed change: it goes on as a plain member."""
        if self._groups.get(group.row.scope) is not group:
            return
        self.end(group)
        mesh = group.row.scope
        if group.order.closed:
            log.warning("the order of %s has ended here: it goes on with another engine", mesh)
            self._remember(group.row, group.driver.state.log.config)
        else:
            log.warning("this node no longer votes in %s", mesh)
        assert self._log is not None
        await asyncio.to_thread(self._log.set_standing, mesh, group.row.voter, "removed")

        def note(tx: Transaction) -> None:
            row = tx.quorum_get(mesh)
            if row is not None and row.voter == group.row.voter:
                tx.quorum_put(msgspec.structs.replace(row, voter=None))

        await self._write("quorum.removed", note)
        self.on_group(mesh)
        if group.order.closed:
            self.on_moved(mesh)

    # --- what drivers tell ---------------------------------------------------------------------

    def _health(self, mesh: str, health: DiskHealth) -> None:
        group = self._groups.get(mesh)
        if group is not None:
            group.driver.handle(DiskChanged(health))

    def _role(self, mesh: str, change: RoleChange) -> None:
        group = self._groups.get(mesh)
        if group is not None:
            _wake(group.waiting)
            group.order.on_change()

    def _alarm(self, mesh: str, alarm: Alarm) -> None:
        self._alarms.tell(mesh, alarm)

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def _later(self, ms: int, call: Callable[[], None]) -> None:
        self._loop.call_later(ms / 1000, call)

    def _soon_from_thread(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _folded(self, mesh: str, results: Sequence[Committed]) -> None:
        group = self._groups.get(mesh)
        if group is None:
            return
        group.order.on_folded(results)
        if any(result.ends_order for result in notable(results)):
            group.order.closed = True
            self._spawn(self._removed(group))

    def _spawn(self, work: Any, then: Callable[[], None] | None = None) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, then))

    def _ended(self, then: Callable[[], None] | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if then is not None:
            then()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HoldfastError):
            log.error("a group of this node: %s (%s)", error.message, error.hint)
        elif error is not None:
            log.error("a group of this node met a fault of Holdfast", exc_info=error)


def _standing(row: QuorumRow, group: GroupRow, base: int, *, arrives: bool) -> tuple[bool, str]:
    """Whether a group that begins may not act, and what people should know. `arrives`: what the
    store lacks is here as a snapshot.
    """
    barred = group.standing == "must_rejoin"
    problem = group.reason if barred else ""
    if row.applied < base and not barred and not arrives:
        # The log was compacted after this store was as far: what lies between is lost here.
        barred = True
        problem = f"the store of this home is at {row.applied}, its log begins after {base}"
    if group.incarnation != row.incarnation:
        problem = "a recovery was cut short: run it again, holdfast quorum recover"
    return barred, problem


def _known(row: QuorumRow, voter: int) -> KnownGroup:
    """What the store of the home says about a group: its Raft log must show no less."""
    return KnownGroup(
        scope=row.mesh,
        incarnation=row.incarnation,
        tag=row.tag,
        voter=voter,
        applied=row.applied,
        term=row.fence.lease_epoch if row.fence is not None else 0,
    )


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for waiter in list(waiting):
        if not waiter.done():
            waiter.set_result(None)
    waiting.clear()
