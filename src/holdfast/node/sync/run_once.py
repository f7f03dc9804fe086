"""Waiting until a shared mesh is settled with its broker, with a daemon or without.

A command that shares a mesh wants its changes to arrive before it says so. Where a daemon serves
the home, it only has to look on. Where none does, it does what the daemon would do, until nothing
is left to send and what the broker had when it was asked is here, or until nothing moves any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Final, NoReturn

import msgspec

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_source import standing_of
from holdfast.node.settings import OutboxSettings
from holdfast.node.sharing.join import is_joining
from holdfast.node.sharing.publish import waiting_in
from holdfast.node.sync.commits import commits_here
from holdfast.node.sync.manager import SyncManager
from holdfast.node.sync.terms import require_age, stops
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import NotAllowed, NotFound, NotShared
from holdfast.rules.limits import SECOND_MS, SYNC_WAIT_MS
from holdfast.rules.rows import MeshRow
from holdfast.service.instance_lock import daemon_note
from holdfast.service.problem import Problem
from holdfast.storage.files.home import HomePaths
from holdfast.transport.remote_errors import error_by_code

_LOOK_S: Final = 0.02
_ASK_S: Final = 0.2
_SHARE: Final = 10
"""The pause between two looks is at least this many times as long as a look."""

OnWaiting = Callable[[int], None]
"""Called with the number of changes that still wait."""


class SyncOutcome(msgspec.Struct, frozen=True):
    """How far a mesh got, when nothing is left or nothing moves."""

    waiting: int
    """Changes that the broker does not have."""
    lag: int
    """How many seqs, or commits of a quorum, the broker had at the beginning that this node has not
    read."""
    by_daemon: bool
    trouble: str = ""
    """What is in the way, if that is known."""

    @property
    def done(self) -> bool:
        return not self.waiting and not self.lag


def wait_until_synced(
    engine: NodeEngine,
    trust: Trust,
    paths: HomePaths,
    mesh: str,
    *,
    patience_ms: int = SYNC_WAIT_MS,
    on_waiting: OnWaiting = lambda waiting: None,
    outbox: OutboxSettings | None = None,
) -> SyncOutcome:
    """Works, or waits for the daemon, until a mesh is settled. Gives up when nothing has moved for
    `patience_ms`. Unreachable if the broker does not answer at all.
    """
    row = engine.require_mesh(mesh)
    if row.broker_url is None or row.broker_card is None:
        raise NotShared(f"{mesh!r} is not shared")
    chosen = outbox or OutboxSettings()
    engine.read("sync.terms", lambda tx: require_age(tx, chosen.max_age_hours))
    by_daemon = daemon_note(paths) is not None
    with closing(BrokerClient.of(trust, row.broker_url, row.broker_card)) as calls:
        progress = _Progress(engine, calls, mesh, by_daemon, patience_ms, on_waiting)
        return asyncio.run(
            _look_on(engine, row.broker_url, progress)
            if by_daemon
            else _work(engine, trust, progress, chosen)
        )


class _Progress:
    """Looks again and again what is left, until that is nothing or nothing moves."""

    def __init__(
        self,
        engine: NodeEngine,
        calls: BrokerClient,
        mesh: str,
        by_daemon: bool,
        patience_ms: int,
        on_waiting: OnWaiting,
    ) -> None:
        self._engine, self._calls, self._mesh, self._by_daemon = engine, calls, mesh, by_daemon
        self.patience_s, self._on_waiting = patience_ms / SECOND_MS, on_waiting
        self._goal = calls.standing(mesh)
        self._commits = _commits_at(calls, mesh)
        self._asked_at = 0.0
        self._seen: tuple[int, int, int, int] | None = None
        self.pause_s = _LOOK_S
        self._since = monotonic()

    def look(self, trouble: str = "") -> SyncOutcome | None:
        """The outcome; None while something moves."""
        begun = monotonic()
        row = self._engine.require_mesh(self._mesh)
        waiting = waiting_in(self._engine, self._mesh)
        self._on_waiting(waiting)
        lag = self._lag(row, waiting) or self._commits_lag()
        now = monotonic()
        # A look at a large outbox takes long, and the sync must not wait for it.
        self.pause_s = max(_LOOK_S, _SHARE * (now - begun))
        commits = commits_here(self._engine, self._mesh)
        if (seen := (waiting, row.broker_epoch, row.broker_seq, commits)) != self._seen:
            self._seen, self._since = seen, now
        found = SyncOutcome(waiting, lag, self._by_daemon)
        if found.done or now - self._since > self.patience_s:
            return msgspec.structs.replace(found, trouble="" if found.done else trouble)
        return None

    def _lag(self, row: MeshRow, waiting: int) -> int:
        """At least how many numbers lie between us and the last one that was there at the start.
        None if what lies there is our own, or for others: the cursor passes over it in its time.
        """
        goal = self._goal
        joining = self._engine.read("mesh.join", lambda tx: is_joining(tx, self._mesh))
        if joining or row.broker_epoch < goal.epoch:
            return goal.seq or 1
        lag = max(0, goal.seq - row.broker_seq)
        if lag and not waiting and monotonic() - self._asked_at > _ASK_S:
            self._asked_at = monotonic()
            following = self._calls.next_for_us(self._mesh, row.broker_seq)
            return 0 if following is None or following > goal.seq else lag
        return lag

    def _commits_lag(self) -> int:
        """How many commits the broker had at the start that are not here; none on a voter."""
        have = standing_of(self._engine, self._mesh)
        return 0 if have is None else max(0, self._commits - have)


def _commits_at(calls: BrokerClient, mesh: str) -> int:
    """How far the broker is in what the mesh's quorum has committed; 0 if it knows of no such."""
    try:
        return calls.commits(mesh).last
    except (NotAllowed, NotFound):
        return 0


async def _look_on(engine: NodeEngine, url: str, progress: _Progress) -> SyncOutcome:
    while True:
        for at, problem in engine.read("sync.terms", stops):
            if at == url:
                _raise(problem)
        if (found := progress.look()) is not None:
            return found
        await asyncio.sleep(progress.pause_s)


def _raise(problem: Problem) -> NoReturn:
    raise error_by_code(problem.code, problem.message, problem.hint)


async def _work(
    engine: NodeEngine, trust: Trust, progress: _Progress, chosen: OutboxSettings
) -> SyncOutcome:
    sync_manager = SyncManager(
        engine, trust, policies=chosen.policies, max_age_hours=chosen.max_age_hours
    )
    await sync_manager.start()
    try:
        until = monotonic() + progress.patience_s
        while True:
            if (problem := sync_manager.stopped()) is not None:
                _raise(problem)
            found = progress.look(_trouble(sync_manager))
            # Nothing to do is no proof that anything could be done.
            if found is not None and (sync_manager.has_connected or monotonic() > until):
                return found
            await asyncio.sleep(progress.pause_s)
    finally:
        await sync_manager.stop()


def _trouble(sync_manager: SyncManager) -> str:
    def messages() -> Iterator[str]:
        for broker in sync_manager.status():
            if broker.last_error is not None:
                yield broker.last_error.message
            yield from (mesh.trouble.message for mesh in broker.meshes if mesh.trouble is not None)

    return next(messages(), "")
