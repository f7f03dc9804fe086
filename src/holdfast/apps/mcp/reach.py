"""The node that a server for agents works on, whatever becomes of its daemon.

Agents keep a server for days, and daemons come and go meanwhile. So nothing is decided for good at
the start: a home is asked through its daemon while one serves it, and is opened here while none
does. A call whose daemon has gone is made once more, on what is there now; it keeps its id, so it
is written once. A home may be open in several processes, so an open one stays open beside a daemon
for as long as a call runs on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.rules.errors import (
    BadAnswer,
    HoldfastError,
    NoDaemon,
    OutcomeUnknown,
    StoreClosed,
    Unreachable,
)
from holdfast.storage.files.home import HomePaths, socket_path

if TYPE_CHECKING:
    from holdfast.node.library.node import Node
    from holdfast.node.remote.opening import Place

T = TypeVar("T")

log = logging.getLogger("holdfast")

_GONE = (Unreachable, NoDaemon, BadAnswer)


class Reach(Protocol):
    """How calls find their node. Called in threads."""

    def run(self, work: Callable[[Node], T]) -> T:
        """What the work comes to, on the node of this moment."""

    def close(self) -> None: ...


class _Held:
    """A node that is open, and how many calls run on it."""

    def __init__(self, node: Node, *, far: bool) -> None:
        self.node, self.far = node, far
        self.users = 0
        self.dropped = False


class OwnReach:
    """The node of one user: a home on this machine, or the daemon that a context names."""

    def __init__(self, home: HomePaths | None, place: Place | None = None) -> None:
        """One of the two is given."""
        self._home, self._place = home, place
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._held: _Held | None = None
        self._closed = False

    def open_ahead(self) -> None:
        """Opens it in a thread, so that it is there when the first call comes."""

        def open_() -> None:
            with suppress(HoldfastError):  # the first call finds out, and says so
                self.run(lambda node: node.peer)

        threading.Thread(target=open_, name="holdfast-open", daemon=True).start()

    def run(self, work: Callable[[Node], T]) -> T:
        with self._lent() as held:
            try:
                return work(held.node)
            except HoldfastError as error:
                if not held.far or not _has_gone(error):
                    raise
                self._drop(held)
        # Once more: on the daemon that has come back, or on the home.
        with self._lent() as held:
            return work(held.node)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        if self._held is not None:
            self._drop(self._held)

    # --- which node --------------------------------------------------------------------------

    @contextmanager
    def _lent(self) -> Iterator[_Held]:
        with self._opening:  # one opens it, the others wait for that
            held = self._chosen()
            with self._lock:
                if self._closed:
                    raise StoreClosed("this server for agents is stopping")
                held.users += 1
        try:
            yield held
        finally:
            with self._lock:
                held.users -= 1
                ends = held.dropped and not held.users
            if ends:
                held.node.close()

    def _chosen(self) -> _Held:
        held = self._held
        if held is not None and (held.far or not self._is_served):
            return held
        found = self._found(held)
        if found is not held:
            if held is not None:
                self._drop(held)
            self._held = found
        return found

    def _found(self, held: _Held | None) -> _Held:
        """The daemon if there is one, else what is open, else the home opened."""
        if self._place is not None:
            return _connected(self._place)
        assert self._home is not None, "a reach has a home or a place"
        if self._is_served:
            try:
                return _connected(self._home.root)
            except (NoDaemon, Unreachable) as error:
                log.info("no daemon serves %s: %s", self._home.root, error.message)
        if held is not None:
            return held
        from holdfast.node.library.node import open_node

        return _Held(open_node(self._home.root), far=False)

    @property
    def _is_served(self) -> bool:
        """Whether a daemon may serve the home: one that was killed leaves its socket."""
        return self._home is not None and socket_path(self._home).exists()

    def _drop(self, held: _Held) -> None:
        with self._lock:
            if self._held is held:
                self._held = None
            if held.dropped:
                return
            held.dropped = True
            ends = not held.users
        if ends:
            held.node.close()


def _connected(where: Place | Path) -> _Held:
    # It brings the client of HTTP, and every verb as a call, which a home alone does not need.
    from holdfast.node.remote.opening import connect_at, place_of

    place = place_of(where, None) if isinstance(where, Path) else where
    return _Held(connect_at(place), far=True)


def _has_gone(error: HoldfastError) -> bool:
    """The daemon has not answered, or is about to end. Whether a write has happened may be unknown;
    with its id it may be made again.
    """
    if isinstance(error, OutcomeUnknown):
        return isinstance(error.__cause__, _GONE)
    return isinstance(error, (*_GONE, StoreClosed))
