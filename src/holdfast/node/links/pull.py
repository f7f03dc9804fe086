"""One pull on demand: a link brings what its source has now, and whoever asked waits for that.

The source is asked first where its log ends: that is the goal. Then somebody pulls until the cursor
is there. In a daemon that is the unit of the link, which is woken; whoever asked is told how it
stands as long as they ask on (`node/http/links.py`). Without a daemon `pull_once` has such a unit
for as long as it takes, under a lock of the home: there is never a second one that pulls.

A daemon that starts meanwhile waits for the lock before it pulls (`node/daemon/daemon.py`), and the
one that holds it gives way to it at the next look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.links.source import LinkSource, Reach, reach_by, registration_of
from holdfast.node.links.status import LinkStatus
from holdfast.node.links.worker import LinkManager
from holdfast.node.trust.trust import Trust
from holdfast.protocol.log_wire import Confirmation, Fetch
from holdfast.rules.errors import AlreadyExists, Truncated, UnknownLink, Unreachable
from holdfast.rules.limits import LINK_PULL_WAIT_MS_MAX, SECOND_MS, SYNC_WAIT_MS
from holdfast.rules.links import asks_for_somebody, consumer_name
from holdfast.rules.rows import LinkRow
from holdfast.service.instance_lock import DaemonLock, daemon_note
from holdfast.service.problem import Problem
from holdfast.storage.files.home import HomePaths
from holdfast.transport.remote_errors import error_by_code

PULL_LOCK: Final = "pull.lock"
"""Held while links of a home are pulled by a process that is not its daemon."""


class PullTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody waits for."""

    epoch: int
    offset: int
    """Where the log of the source ended when it was asked."""
    before: LinkStatus
    """As the link stood then: an older failure says nothing of this pull."""


class PullStanding(msgspec.Struct, frozen=True):
    """How far a pull is."""

    ticket: PullTicket
    done: bool
    link: LinkStatus
    trouble: Problem | None = None
    """Why it does not get on, if somebody has to do something about that."""

    @classmethod
    def of(cls, ticket: PullTicket, link: LinkStatus) -> PullStanding:
        if link.epoch == ticket.epoch and link.cursor >= ticket.offset:
            return cls(ticket, True, link)
        error, before = link.last_error, ticket.before
        known = (before.attempts, before.last_error)
        if not link.attempts or (link.attempts, error) == known:
            return cls(ticket, False, link)
        return cls(ticket, False, link, error if asks_for_somebody(link.state) else None)

    @property
    def over(self) -> bool:
        return self.done or self.trouble is not None


class LinkPulled(msgspec.Struct, frozen=True, kw_only=True):
    """What one pull has brought."""

    name: str
    zone: str
    epoch: int
    cursor: int
    before: int
    """The cursor when it began; it counts in `epoch` unless the source has begun another."""
    new: int
    known: int
    quarantined: int
    objects_pulled: int
    objects_missing: int
    bytes: int
    by_daemon: bool


Look = Callable[[PullTicket | None], PullStanding]
"""How the pull stands, at the latest after a second; without a ticket a new pull begins."""
OnPulling = Callable[[LinkStatus, PullTicket], None]


class DaemonTakesOver(Exception):
    """A daemon serves the home now, and pulls."""


# --- whoever asks --------------------------------------------------------------------------------


def follow_pull(
    look: Look,
    *,
    by_daemon: bool,
    patience_ms: int = SYNC_WAIT_MS,
    on_pulling: OnPulling = lambda link, ticket: None,
) -> LinkPulled:
    """Waits until a pull is done. Raises what is in its way, and Unreachable if nothing has moved
    for `patience_ms`.
    """
    standing = look(None)
    moved, since = _place(standing.link), monotonic()
    while not standing.done:
        link, problem = standing.link, standing.trouble
        on_pulling(link, standing.ticket)
        if problem is not None:
            raise error_by_code(problem.code, problem.message, problem.hint)
        if (now := _place(link)) != moved:
            moved, since = now, monotonic()
        elif (monotonic() - since) * SECOND_MS > patience_ms:
            why = "" if link.last_error is None else f": {link.last_error.message}"
            raise Unreachable(
                f"link {link.name} is at offset {link.cursor} of {standing.ticket.offset}, and "
                f"nothing has come from {link.zone} for {patience_ms // SECOND_MS} s{why}",
                hint="what has come is kept; the same command goes on from there",
            )
        standing = look(standing.ticket)
    return _summary(standing.ticket.before, standing.link, by_daemon=by_daemon)


def _place(link: LinkStatus) -> tuple[int, int, int]:
    return link.epoch, link.cursor, link.bytes


def _summary(before: LinkStatus, link: LinkStatus, *, by_daemon: bool) -> LinkPulled:
    def more(count: str) -> int:
        # A daemon that has begun anew meanwhile counts from zero.
        return max(0, int(getattr(link, count)) - int(getattr(before, count)))

    return LinkPulled(
        name=link.name,
        zone=link.zone,
        epoch=link.epoch,
        cursor=link.cursor,
        before=before.cursor,
        new=more("new"),
        known=more("known"),
        quarantined=more("quarantined"),
        objects_pulled=more("objects_pulled"),
        objects_missing=more("objects_missing"),
        bytes=more("bytes"),
        by_daemon=by_daemon,
    )


# --- the goal ------------------------------------------------------------------------------------


def where_it_ends(engine: NodeEngine, source: LinkSource, row: LinkRow) -> tuple[int, int]:
    """The epoch of a source's log and its last offset. Nothing is read or confirmed by that."""
    us = engine.ctx.peer
    start = (source.register(registration_of(row, us)) or 0) + 1
    while True:
        try:
            found = source.fetch(Fetch(consumer=consumer_name(us, row.name), limit=1, start=start))
        except Truncated as gone:
            start = gone.first_available
        else:
            return found.epoch, found.head


def begin_pull(engine: NodeEngine, reach: Reach, links: LinkManager, name: str) -> PullTicket:
    """Asks the source of a link where its log ends, and wakes the link. Raises UnknownLink, and
    what the source says.
    """
    before = links.of(name)
    epoch, head = _ask(engine, reach, _row(engine, name))
    links.refresh()
    return PullTicket(epoch, head, before)


def _row(engine: NodeEngine, name: str) -> LinkRow:
    row = engine.read("link.get", lambda tx: tx.link_get(name))
    if row is None:
        raise UnknownLink(f"there is no link {name!r}")
    return row


def _ask(engine: NodeEngine, reach: Reach, row: LinkRow) -> tuple[int, int]:
    with closing(reach(row)) as source:
        return where_it_ends(engine, source, row)


# --- without a daemon ----------------------------------------------------------------------------


def pull_once(
    engine: NodeEngine,
    trust: Trust,
    paths: HomePaths,
    name: str,
    *,
    patience_ms: int = SYNC_WAIT_MS,
    on_pulling: OnPulling = lambda link, ticket: None,
    reach: Reach | None = None,
) -> LinkPulled:
    """Pulls in this process until the link is where its source ended when it was asked.
    `DaemonTakesOver` is raised if a daemon serves the home: nothing that has come is lost.
    """
    reach = reach_by(trust) if reach is None else reach
    with closing(_lock(paths)):
        _give_way(paths)
        links = LinkManager(engine, trust, reach=reach, only=name)
        stirred = threading.Event()

        def look(ticket: PullTicket | None) -> PullStanding:
            if ticket is None:
                ticket = _begin_once(engine, reach, links, name)
                return PullStanding.of(ticket, ticket.before)
            until = monotonic() + LINK_PULL_WAIT_MS_MAX / SECOND_MS
            while True:
                stirred.clear()  # before the look: what happens from now on ends the wait
                standing = PullStanding.of(ticket, links.of(name))
                if standing.over or not stirred.wait(max(0.0, until - monotonic())):
                    _give_way(paths)
                    return standing

        with links.listening(stirred.set):
            try:
                done = follow_pull(
                    look, by_daemon=False, patience_ms=patience_ms, on_pulling=on_pulling
                )
            finally:
                links.stop()
        _confirm(engine, reach, name)
        return done


def _begin_once(engine: NodeEngine, reach: Reach, links: LinkManager, name: str) -> PullTicket:
    row = _row(engine, name)
    epoch, head = _ask(engine, reach, row)
    links.start()
    before = LinkStatus(
        name=name,
        zone=row.zone,
        url=row.url,
        since=engine.ctx.now_ms(),
        epoch=row.epoch,
        cursor=row.cursor,
    )
    return PullTicket(epoch, head, before)


def _lock(paths: HomePaths) -> DaemonLock:
    try:
        return DaemonLock(paths, file=PULL_LOCK)
    except AlreadyExists:
        holder = daemon_note(paths, PULL_LOCK)
        who = "another process" if holder is None else f"process {holder.pid}"
        raise AlreadyExists(
            f"links of {paths.root} are being pulled already, by {who}",
            hint="wait until it is done, then run the same command",
        ) from None


def _give_way(paths: HomePaths) -> None:
    if daemon_note(paths) is not None:
        raise DaemonTakesOver


def _confirm(engine: NodeEngine, reach: Reach, name: str) -> None:
    """Tells the source what is stored: the next connection, which else would, may be far away."""
    row = engine.read("link.get", lambda tx: tx.link_get(name))
    if row is None or not row.cursor:
        return
    consumer = consumer_name(engine.ctx.peer, name)
    with closing(reach(row)) as source:
        source.confirm(Confirmation(consumer=consumer, offset=row.cursor, epoch=row.epoch))
