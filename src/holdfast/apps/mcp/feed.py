"""What changes, for agents that follow resources: the log, read by one thread for all of them.

The thread runs while somebody follows something. It follows the log as `watch` does, so it waits
for commits instead of looking for them, and says which places have changed, each once however often
it did: an agent that is told reads what is there now.

Conflicts and the inbox are no entries of the log. They change with entries that arrive, so they are
looked at after those; and what a call of this server does to them it says itself (`touched`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from itertools import count, islice
from typing import TYPE_CHECKING, Final

from holdfast.apps.mcp.places import ResourcePlace, place_at
from holdfast.rules.errors import EpochChanged, HoldfastError, PastEnd, TooMany, Truncated
from holdfast.rules.limits import MCP_RETRY_MS, MCP_ROWS_MAX, MCP_SUBSCRIPTIONS_MAX, SECOND_MS

if TYPE_CHECKING:
    from holdfast.node.library.node import Node
    from holdfast.node.watching.changes import LogChange

log = logging.getLogger("holdfast")

Opens = Callable[[], "AbstractContextManager[Node]"]
"""A node whose log is followed; it is called in a thread."""
Told = Callable[[str], None]
"""Gets the name of a resource that has changed, in the loop."""
_KINDS: Final = {"state": "state", "task": "tasks", "file": "files", "message": "inbox"}
"""Of each family of ops: the resources that it changes."""
_SET_BACK: Final = (EpochChanged, PastEnd, Truncated)
"""The log cannot go on from where the feed stands: it has gone back, or forgotten that."""
_MERGED: Final = frozenset({"state", "task"})
"""Families in which a merge can discard something."""


class ResourceFeed:
    """Tells followers of changes. All but `_is_followed` is called in the loop."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens
        self._numbers = count()
        self._followers: dict[int, tuple[dict[ResourcePlace, list[str]], Told]] = {}
        self._reading: _Reading | None = None

    async def follow(self, uris: Iterable[str], told: Told) -> Callable[[], None]:
        """Tells of these resources from now on, until what is returned is called."""
        places: dict[ResourcePlace, list[str]] = {}
        for uri in uris:
            places.setdefault(place_at(uri), []).append(uri)
        followed = sum(len(places) for places, _ in self._followers.values())
        if followed + len(places) > MCP_SUBSCRIPTIONS_MAX:
            raise TooMany(f"agents follow {MCP_SUBSCRIPTIONS_MAX} resources here, and no more")
        number = next(self._numbers)
        self._followers[number] = (places, told)
        try:
            if self._reading is None:
                self._reading = _Reading(self._opens, self._changed, self._is_followed)
            await self._reading.begun()
        except BaseException:
            self._leave(number)
            raise
        return lambda: self._leave(number)

    def touched(self, place: ResourcePlace) -> None:
        """A call of this server has changed what is in no log."""
        self._changed({place})

    def close(self) -> None:
        self._followers.clear()
        self._end_reading()

    def _is_followed(self, place: ResourcePlace) -> bool:
        return any(place in places for places, _ in list(self._followers.values()))

    def _leave(self, number: int) -> None:
        self._followers.pop(number, None)
        if not self._followers:
            self._end_reading()

    def _end_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.end()

    def _changed(self, changed: set[ResourcePlace] | None) -> None:
        """None: nobody knows what, so everything that is followed may have."""
        for places, told in list(self._followers.values()):
            for place in places if changed is None else places.keys() & changed:
                for uri in places[place]:
                    told(uri)


class _Reading:
    """The thread that follows the log. It goes on after a daemon that comes back."""

    def __init__(
        self,
        opens: Opens,
        changed: Callable[[set[ResourcePlace] | None], None],
        follows: Callable[[ResourcePlace], bool],
    ) -> None:
        """`follows` tells, in any thread, whether somebody follows a place."""
        self._opens, self._changed, self._follows = opens, changed, follows
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._close: Callable[[], None] = lambda: None
        self._since: str | None = None
        """Everything up to here was told."""
        self._set_back = False
        """What was told last says nothing of what the log holds now."""
        self._conflicts: dict[str, tuple[int, ...]] = {}
        threading.Thread(target=self._run, name="holdfast-feed", daemon=True).start()

    async def begun(self) -> None:
        """Returns when no change is missed any more; raises what keeps it from that."""
        await asyncio.shield(self._begun)

    def end(self) -> None:
        """Ends it soon, without waiting for that."""
        self._ended.set()
        with self._lock:
            self._close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with self._opens() as node:
                    self._read(node)
            except HoldfastError as error:
                if self._tell_begun(error):
                    return
                if isinstance(error, _SET_BACK):
                    self._since, self._set_back = None, True
                    continue
                log.info("updates of resources wait: %s", error.message)
            except Exception as error:
                log.exception("a fault of ours in the feed of resources")
                if self._tell_begun(error):
                    return
            self._ended.wait(MCP_RETRY_MS / SECOND_MS)

    def _read(self, node: Node) -> None:
        with node.log.watch(since=self._since) as watch:
            with self._lock:
                self._close = watch.close
            if self._ended.is_set():
                return
            self._since = str(watch.cursor)
            self._tell_begun(None)
            if self._set_back:
                # Not before: who is told looks at once, and what comes after that is seen here.
                self._set_back = False
                self._tell(None)
            found: set[ResourcePlace] = set()
            merged: set[str] = set()
            for change in watch:
                self._note(node, change, found, merged)
                if not watch.has_more:
                    found |= {place for mesh in merged if (place := self._discarded(node, mesh))}
                    self._tell(found)
                    self._since = str(watch.cursor)
                    found, merged = set(), set()

    def _note(
        self, node: Node, change: LogChange, found: set[ResourcePlace], merged: set[str]
    ) -> None:
        family = change.op.partition(".")[0]
        kind = _KINDS.get(family)
        if kind is None or (kind == "inbox" and change.peer == node.peer):
            return
        found.add(ResourcePlace(change.mesh, kind))
        if kind != "inbox":
            found.add(ResourcePlace(change.mesh, kind, change.key))
        if family in _MERGED:
            merged.add(change.mesh)

    def _discarded(self, node: Node, mesh: str) -> ResourcePlace | None:
        """The conflicts of a mesh, if somebody follows them and they are others than at the last
        look. The first look has nothing to compare with.
        """
        place = ResourcePlace(mesh, "conflicts")
        if not self._follows(place):
            self._conflicts.pop(mesh, None)
            return None
        now = tuple(row.number for row in islice(node.conflicts(mesh), MCP_ROWS_MAX))
        before = self._conflicts.get(mesh)
        self._conflicts[mesh] = now
        return None if now == before or not (now or before) else place

    def _tell(self, found: set[ResourcePlace] | None) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody follows any more
            self._loop.call_soon_threadsafe(self._changed, found)

    def _tell_begun(self, error: Exception | None) -> bool:
        """Whether it had not begun before."""
        if self._begun.done():
            return False

        def tell() -> None:
            if self._begun.done():
                return
            if error is None:
                self._begun.set_result(None)
            else:
                self._begun.set_exception(error)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)
        return True
