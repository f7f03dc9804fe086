"""Pulls the logs of other zones, one thread per link and a second one while it is connected.

A link's thread does one thing after the other: it waits until it may try, connects
(`LinkConnection`), and when that ends asks `rules.links` what follows. It never sleeps and never
polls: a wait ends when its time is over or when somebody says that something has changed.

    Pullers.refresh()   reads the links again: new ones begin, removed ones end, changed ones begin
                        anew, and those that wait for a better time try at once. So whoever puts
                        something right (a key, a full quarantine) sees at once whether it helped.

An error is never the end of a thread. It becomes a state that people can see, with the reason.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.node.links.connection import ConnectionFailure, LinkConnection
from holdfast.node.links.source import Reach, reach_by
from holdfast.node.links.status import LinkStatus, LinkStatusTracker
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import EpochChanged, HoldfastError
from holdfast.rules.links import LinkPlan, LinkState, after_error, after_surprise
from holdfast.rules.rows import LinkRow, ZoneKey
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")

Changed = Callable[[LinkStatus], None]


class LinkWorker:
    """One link at work."""

    def __init__(
        self,
        engine: NodeEngine,
        name: str,
        reach: Reach,
        board: LinkStatusTracker,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`chance` draws lots from [0, 1): how long to wait is partly left to them."""
        self._engine = engine
        self._name = name
        self._reach = reach
        self._board = board
        self._chance = chance
        self._turn = threading.Condition()
        self._run: LinkConnection | None = None
        self._stopping = False
        self._woken = False
        self._wait_s: float | None = 0.0
        self._new_epoch: int | None = None
        self._thread = threading.Thread(
            target=self._work, name=f"holdfast-link-{name}", daemon=True
        )

    # --- from other threads ------------------------------------------------------------------

    @property
    def status(self) -> LinkStatus:
        return self._board.status

    def start(self) -> None:
        self._thread.start()

    def recount(self, quarantined: int) -> None:
        self._board.recount(quarantined)

    def look(self, *, anew: bool) -> None:
        """Something may have changed: a link that waits tries at once. With `anew` one that is
        connected begins anew, too, because the link itself is another now.
        """
        with self._turn:
            run = self._run
            if run is None or anew:
                self._woken = True
            self._turn.notify_all()
        if run is not None and anew:
            run.end()

    def stop(self) -> None:
        """Ends it, wherever it is. Does not wait for that."""
        with self._turn:
            self._stopping = True
            run = self._run
            self._turn.notify_all()
        if run is not None:
            run.end()

    def join(self, timeout_s: float | None = None) -> bool:
        """True once its threads are gone."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- in its own thread -------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stopping:
            try:
                row = self._await_turn()
                if row is None:
                    break
                self._settle(self._pull(row))
            except Exception as error:
                self._settle(ConnectionFailure(error))
        self._board.enter(LinkState.STOPPED)

    def _await_turn(self) -> LinkRow | None:
        """The link, once it may try; None when it is to end."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._stopping or self._woken, self._wait_s)
                if self._stopping:
                    return None
                # Forgotten before the link is read: whoever changes it after that wakes us again.
                self._woken = False
            row = self._engine.read("link.get", lambda tx: tx.link_get(self._name))
            if row is not None:
                self._board.show(row)
                if not row.paused:
                    return row
            self._board.enter(LinkState.STOPPED if row is None else LinkState.PAUSED)
            self._wait_s = None

    def _pull(self, row: LinkRow) -> ConnectionFailure | None:
        self._board.enter(LinkState.CONNECTING)
        run = LinkConnection(self._engine, row, self._reach, self._board, self._new_epoch)
        with self._turn:
            if self._stopping or self._woken:
                return None
            self._run = run
        try:
            return run.run()
        finally:
            with self._turn:
                self._run = None

    def _settle(self, failure: ConnectionFailure | None) -> None:
        """What follows from how a connection ended."""
        self._new_epoch = None
        if failure is None:
            self._wait_s = 0.0  # ended from outside, which has a reason
            return
        error, attempts = failure.error, self._board.status.attempts
        if isinstance(error, EpochChanged):
            self._new_epoch = error.epoch
        plan = failure.plan or self._plan(failure, attempts)
        self._wait_s = None if plan.delay_ms is None else plan.delay_ms / 1000
        self._tell(plan, error)
        if isinstance(error, HoldfastError):
            self._board.failed(plan, error.code, error.message, error.hint)
        else:
            self._board.failed(plan, "internal", f"{type(error).__name__}: {error}", _OUR_FAULT)

    def _plan(self, failure: ConnectionFailure, attempts: int) -> LinkPlan:
        if isinstance(failure.error, HoldfastError):
            return after_error(failure.error, attempts, self._chance())
        return after_surprise(attempts, self._chance())

    def _tell(self, plan: LinkPlan, error: Exception) -> None:
        """In the log, once for each new trouble and not for each try."""
        known = self._board.status
        if not isinstance(error, HoldfastError):
            log.error("link %s met a fault of Holdfast", self._name, exc_info=error)
            return
        again = known.attempts > 0 and known.last_error is not None
        if again and known.last_error is not None and known.last_error.code == error.code:
            return
        then = "it is tried again" if plan.delay_ms is not None else "it waits for you"
        log.warning(
            "link %s is %s: %s; %s (%s)", self._name, plan.state, error.message, then, error.hint
        )


_OUR_FAULT = "this is a fault of Holdfast: please report it, with what the daemon's log says"


class _Asked(NamedTuple):
    """All that makes a link begin anew when it changes."""

    url: str
    zone: str
    filter: object
    paused: bool
    added_at: int
    keys: tuple[ZoneKey, ...]
    """The keys that the zone is known by here: when they change, it has to prove itself again."""
    blocked: bool


class _Found(NamedTuple):
    row: LinkRow
    asked: _Asked
    quarantined: int


class LinkManager:
    """All links of one node. Safe to use from any thread."""

    def __init__(
        self,
        engine: NodeEngine,
        trust: Trust,
        *,
        on_change: Changed | None = None,
        reach: Reach | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`on_change` is told of every new state of a link, in the thread that brought it about: it
        must be quick.
        """
        self._engine = engine
        self._reach = reach_by(trust) if reach is None else reach
        self._on_change = on_change
        self._chance = chance
        self._lock = threading.Lock()
        self._link_manager: dict[str, tuple[LinkWorker, _Asked]] = {}
        self._leaving: list[LinkWorker] = []
        self._open = False

    def start(self) -> None:
        """Begins with every link that is stored."""
        with self._lock:
            self._open = True
        self.refresh()

    def refresh(self) -> None:
        """Reads the links again and does as they say."""
        with self._lock:
            if not self._open:
                return
            found = {each.row.name: each for each in self._engine.read("link.list", _read)}
            for name in self._link_manager.keys() - found.keys():
                link_worker, _ = self._link_manager.pop(name)
                link_worker.stop()
                self._leaving.append(link_worker)
            self._leaving = [
                link_worker for link_worker in self._leaving if not link_worker.join(0)
            ]
            for each in found.values():
                self._look(each)

    def stop(self, timeout_s: float | None = None) -> bool:
        """Ends all of them. False if one of them did not end in time; it harms nothing."""
        until = None if timeout_s is None else monotonic() + timeout_s
        with self._lock:
            self._open = False
            link_manager = [
                link_worker for link_worker, _ in self._link_manager.values()
            ] + self._leaving
            for link_worker in link_manager:
                link_worker.stop()
        left = [
            link_worker
            for link_worker in link_manager
            if not link_worker.join(None if until is None else max(0.0, until - monotonic()))
        ]
        return not left

    def status(self) -> list[LinkStatus]:
        """Every link as it stands, by name."""
        with self._lock:
            link_manager = [
                link_worker for _, (link_worker, _) in sorted(self._link_manager.items())
            ]
        return [link_worker.status for link_worker in link_manager]

    def _look(self, found: _Found) -> None:
        name = found.row.name
        known = self._link_manager.get(name)
        if known is not None:
            link_worker, asked = known
            link_worker.recount(found.quarantined)
            link_worker.look(anew=asked != found.asked)
        else:
            board = LinkStatusTracker(
                found.row, found.quarantined, self._engine.ctx.now_ms, self._changed
            )
            link_worker = LinkWorker(self._engine, name, self._reach, board, self._chance)
            link_worker.start()
        self._link_manager[name] = (link_worker, found.asked)

    def _changed(self, status: LinkStatus) -> None:
        if self._on_change is not None:
            self._on_change(status)


def _read(tx: Reader) -> list[_Found]:
    zones = {zone.name: zone for zone in tx.zone_list()}
    found = []
    for row in tx.link_list():
        zone = zones.get(row.zone)
        keys = () if zone is None else zone.keys
        blocked = zone is None or zone.blocked_at is not None
        asked = _Asked(row.url, row.zone, row.filter, row.paused, row.added_at, keys, blocked)
        found.append(_Found(row, asked, tx.quarantine_count(row.name)))
    return found
