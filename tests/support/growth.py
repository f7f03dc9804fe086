"""How much work SQLite does for a call, and whether that grows with what the database holds.

Time says little on a busy machine. Work is counted: steps of SQLite's virtual machine, and pages
that were looked at (a `count(*)` is one step over all pages of a table). A call that should not
grow is run on a small database and on one that is `TIMES` as large; its work may then grow by
the depth of a tree, and not with the rows.

    with counted_work() as meter:
        node = open_node(...)           # connections that are opened from here on are counted
        work = meter.of(lambda: node.mesh("team").state.get("k"))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import apsw

from holdfast.rules import limits

TIMES: Final = 8
"""How much larger the large database is."""
_PAGE: Final = 20
"""A page counts as much as so many steps."""
_SLACK: Final = 200
"""A tree that got one level deeper, a page that filled up."""


class WorkMeter:
    """The work of all connections together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[apsw.Connection] = []
        self._steps = 0
        self._open: dict[int, int] = {}
        """Steps of the transaction that is open, by connection."""
        self.longest = 0
        """The most steps of one transaction that wrote. Whoever measures sets it to 0 before."""

    def watch(self, connection: apsw.Connection) -> None:
        with self._lock:
            self._connections.append(connection)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._add)

    def _add(self, event: dict[str, Any]) -> None:
        steps = event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        verb, connection = event["sql"].partition(" ")[0], id(event["connection"])
        with self._lock:
            self._steps += steps
            if event["sql"].startswith("BEGIN IMMEDIATE"):
                self._open[connection] = 0
            elif connection in self._open:
                self._open[connection] += steps
                if verb in ("COMMIT", "ROLLBACK"):
                    self.longest = max(self.longest, self._open.pop(connection))

    def total(self) -> int:
        pages = 0
        with self._lock:
            for connection in self._connections:
                try:
                    for counter in (
                        apsw.SQLITE_DBSTATUS_CACHE_HIT,
                        apsw.SQLITE_DBSTATUS_CACHE_MISS,
                    ):
                        pages += connection.status(counter)[0]
                except (apsw.ConnectionClosedError, apsw.ThreadingViolationError):
                    continue
            return self._steps + _PAGE * pages

    def longest_of(self, call: Callable[[], object]) -> int:
        """The most steps of one transaction that wrote, of those that a call makes."""
        self.longest = 0
        call()
        return self.longest

    def of(self, call: Callable[[], object]) -> int:
        """The work of a call, once what it needs for the first time is there."""
        call()
        before = self.total()
        call()
        return self.total() - before


@contextmanager
def counted_work() -> Iterator[WorkMeter]:
    """Counts the work of every connection that is opened meanwhile."""
    meter = WorkMeter()
    apsw.connection_hooks.append(meter.watch)
    try:
        # A page that is mapped is not counted when it is looked at.
        with patch.object(limits, "MMAP_BYTES", 0):
            yield meter
    finally:
        apsw.connection_hooks.remove(meter.watch)


def grown(small: Mapping[str, int], large: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The calls whose work grows with the rows: their work on the small and the large one."""
    assert set(small) == set(large)
    return {
        name: (small[name], large[name]) for name in small if large[name] > 2 * small[name] + _SLACK
    }
