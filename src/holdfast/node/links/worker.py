"""Pulls the logs of other zones: one unit of the supervisor for each link that is stored.

Each attempt of a link reads its row, connects (`LinkConnection`) and pulls until something breaks.
What follows is for `rules.links` to say; the supervisor waits that long and tries again. A link
that is paused rests until it is woken.

    LinkManager.refresh()   reads the links again: new ones begin, removed ones end, changed ones
                            begin anew, and those that wait for a better time try at once. So a
                            person who puts something right (a key, a full quarantine) sees at once
                            whether it helped.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.node.links.appetite import Appetite
from holdfast.node.links.connection import LinkConnection
from holdfast.node.links.source import Reach, reach_by
from holdfast.node.links.status import LinkStatus, LinkStatusTracker
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import EpochChanged, Truncated, UnknownLink
from holdfast.rules.links import LinkPlan, LinkState, after_error
from holdfast.rules.rows import LinkRow, ZoneKey
from holdfast.service.supervisor import Supervisor, ThreadUnit
from holdfast.storage.ports import Reader

Changed = Callable[[LinkStatus], None]


class LinkWork:
    """What the supervisor runs for one link."""

    def __init__(
        self,
        engine: NodeEngine,
        name: str,
        reach: Reach,
        tracker: LinkStatusTracker,
        though_paused: bool = False,
    ) -> None:
        self.engine, self.name, self.reach, self.tracker = engine, name, reach, tracker
        self.though_paused = though_paused
        self._new_epoch: int | None = None
        self._snapshot = False
        """The source no longer holds what comes next."""
        self.appetite = Appetite()
        """How much is asked for at a time; it outlasts a connection."""

    def attempt(self) -> LinkAttempt:
        return LinkAttempt(self)

    def plan(self, error: Exception, attempts: int, jitter: float) -> LinkPlan:
        self._new_epoch = error.epoch if isinstance(error, EpochChanged) else None
        self._snapshot = isinstance(error, Truncated)
        self.tracker.unless_heard()
        return after_error(error, attempts, jitter)

    def connection(self, row: LinkRow) -> LinkConnection:
        new_epoch, self._new_epoch = self._new_epoch, None
        snapshot, self._snapshot = self._snapshot, False
        return LinkConnection(
            self.engine,
            row,
            self.reach,
            self.tracker,
            new_epoch,
            self.appetite,
            snapshot=snapshot,
        )


class LinkAttempt:
    """One connection of a link, as the link is stored when it begins."""

    def __init__(self, work: LinkWork) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._over = False
        self._connection: LinkConnection | None = None

    def run(self) -> LinkState | None:
        work = self._work
        row = work.engine.read("link.get", lambda tx: tx.link_get(work.name))
        if row is None:
            return LinkState.STOPPED
        work.tracker.show(row)
        if row.paused and not work.though_paused:
            return LinkState.PAUSED
        work.tracker.enter(LinkState.CONNECTING)
        connection = work.connection(row)
        with self._lock:
            self._connection = connection
            if self._over:
                return None
        connection.run()
        return None

    def end(self) -> None:
        with self._lock:
            self._over = True
            connection = self._connection
        if connection is not None:
            connection.end()


class _Purpose(NamedTuple):
    """All that makes a link begin anew when it changes."""

    url: str
    zone: str
    filter: object
    paused: bool
    added_at: int
    keys: tuple[ZoneKey, ...]
    """The keys that the zone is known by here: when they change, it has to prove itself again."""
    blocked: bool


class _Stored(NamedTuple):
    row: LinkRow
    purpose: _Purpose
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
        only: str | None = None,
    ) -> None:
        """`on_change` gets every new state of a link, in the thread that brought it about: it must
        be quick. `chance` draws lots from [0, 1) for the length of waits. `only`: one link, because
        somebody wants it now, whether it is paused or not.
        """
        self._engine = engine
        self._only = only
        self._listeners: list[Callable[[], None]] = []
        self._reach = reach_by(trust) if reach is None else reach
        self._on_change = on_change
        self._chance = chance
        self._lock = threading.Lock()
        self._stored: dict[str, _Stored] = {}
        self._trackers: dict[str, LinkStatusTracker] = {}
        self._supervisor: Supervisor[str, ThreadUnit[LinkState]] = Supervisor(self._begin)
        self._leaving: list[ThreadUnit[LinkState]] = []
        self._open = self._ended = False
        self._begun = threading.Event()

    def start(self) -> None:
        """Begins with every link that is stored; not any more after `stop`."""
        with self._lock:
            self._open = not self._ended
        self.refresh()
        self._begun.set()

    def wait_until_started(self, timeout_s: float) -> bool:
        """False if it has not started by then: another process of this home still pulls."""
        return self._begun.wait(timeout_s)

    def refresh(self) -> None:
        """Reads the links again and does as they say."""
        with self._lock:
            if not self._open:
                return
            stored = self._stored = {
                link.row.name: link
                for link in self._engine.read("link.list", _read)
                if self._only in (None, link.row.name)
            }
            for name in stored.keys() & self._trackers.keys():
                self._trackers[name].recount(stored[name].quarantined)
            units = self._supervisor.refresh({name: link.purpose for name, link in stored.items()})
            self._leaving = [unit for unit in self._leaving + units.gone if not unit.join(0)]
            self._trackers = {name: self._trackers[name] for name in stored}
            for unit in units.changed:
                unit.restart()
            for unit in units.same:
                unit.wake()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Ends all links. False if one of them did not end in time; it harms nothing."""
        until = None if timeout_s is None else monotonic() + timeout_s
        with self._lock:
            self._open, self._ended = False, True
            self._leaving += self._supervisor.stop()
            units = list(self._leaving)
        joined = [
            unit.join(None if until is None else max(0.0, until - monotonic())) for unit in units
        ]
        return all(joined)

    def status(self) -> list[LinkStatus]:
        """Every link as it stands, by name."""
        with self._lock:
            trackers = sorted(self._trackers.items())
        return [tracker.status for _, tracker in trackers]

    def of(self, name: str) -> LinkStatus:
        """One link as it stands. Raises UnknownLink."""
        with self._lock:
            tracker = self._trackers.get(name)
        if tracker is None:
            raise UnknownLink(f"there is no link {name!r}")
        return tracker.status

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Calls `listener` after everything that happens to a link, in the thread that brought it
        about, for as long as the block lasts.
        """
        with self._lock:
            self._listeners = [*self._listeners, listener]
        try:
            yield
        finally:
            with self._lock:
                self._listeners = [one for one in self._listeners if one is not listener]

    def _begin(self, name: str) -> ThreadUnit[LinkState]:
        link = self._stored[name]
        now_ms = self._engine.ctx.now_ms
        tracker = LinkStatusTracker(
            link.row, link.quarantined, now_ms, self._changed, self._stepped
        )
        self._trackers[name] = tracker
        work = LinkWork(self._engine, name, self._reach, tracker, self._only is not None)
        return ThreadUnit(tracker, work, self._chance)

    def _stepped(self) -> None:
        for listener in self._listeners:
            listener()

    def _changed(self, status: LinkStatus) -> None:
        if self._on_change is not None:
            self._on_change(status)


def _read(tx: Reader) -> list[_Stored]:
    zones = {zone.name: zone for zone in tx.zone_list()}
    links = []
    for row in tx.link_list():
        zone = zones.get(row.zone)
        keys = () if zone is None else zone.keys
        blocked = zone is None or zone.blocked_at is not None
        purpose = _Purpose(row.url, row.zone, row.filter, row.paused, row.added_at, keys, blocked)
        links.append(_Stored(row, purpose, tx.quarantine_count(row.name)))
    return links
