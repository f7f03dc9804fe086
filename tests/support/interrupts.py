"""An exception out of nowhere: at a chosen bytecode of ours, as a signal handler that raises would
put it there.

CPython runs signal handlers only at some bytecodes; this harness interrupts at every one, so it
asks for more than a signal can do. Only frames of the product count: for an exception within the
standard library, the call that led there is the place.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

import holdfast
from holdfast.node.library.node import Node

OURS = str(Path(holdfast.__file__).parent)
SWALLOWED = frozenset({"_Known.__init__.<locals>.<lambda>", "watch.<locals>.<lambda>"})
"""Called by Python itself when an object dies. It reports an exception there, and goes on: nothing
comes out of the call that is interrupted.
"""


class Interrupted(BaseException):
    """What the handler raised. No code of ours names it, so none can be ready for it."""


class Alarm(Exception):
    """The same as an ordinary exception: handlers of `signal.alarm` often raise one."""


class Interrupter:
    """Runs one call and raises at its n-th bytecode."""

    def __init__(self, at: int, kind: type[BaseException] = Interrupted) -> None:
        self.at, self.kind = at, kind
        self.seen = 0
        self.where = ""

    def run(self, do: Callable[[], object]) -> BaseException | None:
        """The error that came out; None if the call came to its end."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            do()
        except BaseException as error:
            return error
        finally:
            sys.settrace(before)
        return None

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or code.co_qualname in SWALLOWED:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.seen += 1
            if self.seen == self.at:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                self.strike()
        return self._traced

    def strike(self) -> None:
        raise self.kind(f"struck at {self.where}")


class Meddler(Interrupter):
    """Runs one call and lets somebody else act at its n-th bytecode."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__(at)
        self._act = act

    def strike(self) -> None:
        sys.settrace(None)  # what the other one does is no part of the call
        self._act()


def bytecodes(do: Callable[[], object]) -> int:
    """How many bytecodes of ours a call runs."""
    counter = Interrupter(-1)
    error = counter.run(do)
    assert error is None, error
    return counter.seen


class Other:
    """Another program on the same file, which a transaction that stayed open would stop."""

    def __init__(self, database: Path) -> None:
        self._connection = apsw.Connection(str(database))
        self._connection.pragma("synchronous", "off")

    def can_write(self) -> None:
        """Nobody writes, and nobody reads an old state."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("ROLLBACK")
        (busy,) = (row[0] for row in self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
        assert not busy, "a reader was left behind"

    def close(self) -> None:
        self._connection.close()


def kind_of(n: int) -> type[BaseException]:
    return Interrupted if n % 2 else Alarm


Place = tuple[str, int, int]
"""A function of ours, a bytecode of it, and which time it is reached."""


class PlaceInterrupter(Interrupter):
    """Runs one call and raises at a chosen place, wherever in the call the clock puts it: a second
    id within one millisecond is made in other steps than the first.
    """

    def __init__(self, place: Place | None, kind: type[BaseException] = Interrupted) -> None:
        super().__init__(-1, kind)
        self.places: list[Place] = []
        self._place = place
        self._times: Counter[tuple[str, int]] = Counter()

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            bytecode = frame.f_code.co_qualname, frame.f_lasti
            self._times[bytecode] += 1
            self.places.append((*bytecode, self._times[bytecode]))
            if self.places[-1] == self._place:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                self.strike()
        return self._traced


def places(do: Callable[[], object]) -> list[Place]:
    """Every place that a call passes, in order."""
    counter = PlaceInterrupter(None)
    error = counter.run(do)
    assert error is None, error
    return counter.places


def interrupted_writes(node: Node) -> Iterator[int]:
    """Interrupts one write at each of its bytecodes in turn; each is done or undone, and leaves the
    file to others.
    """
    mesh = node.mesh("team")
    mesh.state.set("k", -1)  # the first write takes steps that no later one takes
    with closing(Other(node.home / "data.db")) as other:
        for n, place in enumerate(places(lambda: mesh.state.set("k", 0)), 1):
            before = node.log.head().offset
            cut = PlaceInterrupter(place, kind_of(n))
            error = cut.run(lambda: mesh.state.set("k", n))  # noqa: B023
            other.can_write()
            done = node.log.head().offset - before
            assert done in (0, 1), cut.where
            assert (mesh.state.get("k") == n) == bool(done), cut.where
            assert error is not None or done, cut.where
            yield n
