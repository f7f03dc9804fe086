"""A node at the other end of a link, played by a script: it hangs, lies and breaks off as told.

It keeps a log of raw envelopes and answers as a node does. For each call a test may put something
in the way beforehand: an error to raise, or a function that acts in place of the call. Everything
that happens wakes whoever waits in `until`, so no test sleeps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from holdfast.protocol.commit_page import StateObject
from holdfast.protocol.link_snapshot import LinkSnapshotPart, SnapshotPartAsked
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.rules.envelope import decode
from holdfast.rules.errors import (
    EpochChanged,
    HoldfastError,
    NoRoute,
    PastEnd,
    Truncated,
    UnknownConsumer,
    Unreachable,
)
from holdfast.rules.filters import Filter
from holdfast.rules.rows import LinkRow

PATIENCE_S = 60
"""How long a test waits for what must happen before it fails; nothing waits so long otherwise."""

Act = Callable[..., Any]


class FarNode:
    """The source. Any number of connections lead to it."""

    def __init__(self, name: str = "bob", epoch: int = 1) -> None:
        self.name = name
        self.epoch = epoch
        self.first = 1
        self.raws: list[bytes] = []
        self.objects: dict[str, bytes] = {}
        self.filters: dict[str, Filter] = {}
        self.frontiers: dict[str, int] = {}
        self.asked: list[tuple[str, Any]] = []
        """Every call that came in."""
        self.lines: list[FarLine] = []
        self.waiting = 0
        """Fetches that wait for news now."""
        self._script: dict[str, deque[HoldfastError | Act]] = {}
        self.moved = threading.Condition()

    @property
    def head(self) -> int:
        return self.first - 1 + len(self.raws)

    # --- what a test does ----------------------------------------------------------------------

    def reach(self, row: LinkRow) -> FarLine:
        line = FarLine(self)
        with self.moved:
            self.lines.append(line)
            self.moved.notify_all()
        return line

    def write(self, *raws: bytes) -> None:
        with self.moved:
            self.raws += raws
            self.moved.notify_all()

    def share(self, content: bytes) -> str:
        sha = sha256(content).hexdigest()
        self.objects[sha] = content
        return sha

    def truncate(self, first: int) -> None:
        with self.moved:
            del self.raws[: first - self.first]
            self.first = first

    def will(self, call: str, *acts: HoldfastError | Act) -> None:
        """The next calls of this kind go like that, one each."""
        with self.moved:
            self._script.setdefault(call, deque()).extend(acts)

    def until(self, found: Callable[[], Any]) -> Any:
        """Waits for something to be so."""
        with self.moved:
            seen = self.moved.wait_for(found, PATIENCE_S)
            assert seen, f"it did not come to that; calls: {self.asked[-8:]}"
            return seen

    def tell(self, *_: object) -> None:
        """Something happened elsewhere: whoever waits looks again."""
        with self.moved:
            self.moved.notify_all()

    def calls(self, kind: str) -> list[Any]:
        return [what for name, what in self.asked if name == kind]

    # --- what lines ask ------------------------------------------------------------------------

    def note(self, line: FarLine, call: str, what: Any) -> HoldfastError | Act | None:
        with self.moved:
            self.asked.append((call, what))
            self.moved.notify_all()
            line.check()
            script = self._script.get(call)
            return script.popleft() if script else None


class FarLine:
    """One connection, as `transport.client.Remote` is one."""

    def __init__(self, far: FarNode) -> None:
        self.far = far
        self.aborted = False
        self.closed = False

    def check(self) -> None:
        if self.aborted:
            raise Unreachable("the call was broken off")

    def hang(self) -> None:
        """Says nothing until it is aborted."""
        with self.far.moved:
            self.far.moved.wait_for(lambda: self.aborted, PATIENCE_S)
            self.check()
        raise AssertionError("nobody ended it")

    def abort(self) -> None:
        with self.far.moved:
            self.aborted = True
            self.far.moved.notify_all()

    def close(self) -> None:
        self.closed = True

    def _ask(self, call: str, what: Any, answer: Callable[[], Any]) -> Any:
        act = self.far.note(self, call, what)
        if isinstance(act, HoldfastError):
            raise act
        return answer() if act is None else act(self, what)

    # --- the calls -----------------------------------------------------------------------------

    def register(self, registration: Registration) -> None:
        self._ask("register", registration, lambda: self._register(registration))

    def fetch(self, fetch: Fetch) -> Batch:
        found = self._ask("fetch", fetch, lambda: self._fetch(fetch))
        assert isinstance(found, Batch)
        return found

    def confirm(self, confirmation: Confirmation) -> None:
        def answer() -> None:
            assert confirmation.offset is not None
            self._confirm(confirmation.consumer, confirmation.offset, confirmation.epoch)

        self._ask("confirm", confirmation, answer)

    def retire(self, consumer: str) -> None:
        def answer() -> None:
            with self.far.moved:
                if self.far.filters.pop(consumer, None) is None:
                    raise UnknownConsumer(f"there is no consumer {consumer!r}")
                self.far.frontiers.pop(consumer)
                self.far.moved.notify_all()

        self._ask("retire", consumer, answer)

    def commits_held(self) -> dict[str, int]:
        return {}

    def commits_page(self, mesh: str, first: int) -> bytes:
        raise AssertionError("nothing is committed here")

    def committed_state(self, mesh: str, have: int) -> StateObject:
        raise AssertionError("nothing is committed here")

    def snapshot_part(self, asked: SnapshotPartAsked) -> LinkSnapshotPart:
        """A test scripts what it gives; else it is of a version that knows of no snapshots."""

        def answer() -> LinkSnapshotPart:
            raise NoRoute("there is nothing here")

        part = self._ask("snapshot", asked, answer)
        assert isinstance(part, LinkSnapshotPart)
        return part

    def object_size(self, sha: str) -> int | None:
        def answer() -> int | None:
            content = self.far.objects.get(sha)
            return None if content is None else len(content)

        size: int | None = self._ask("object_size", sha, answer)
        return size

    def object(self, sha: str, start: int, size: int) -> bytes:
        piece: bytes = self._ask(
            "object", (sha, start, size), lambda: self.far.objects[sha][start : start + size]
        )
        return piece

    # --- as a node answers ---------------------------------------------------------------------

    def _register(self, registration: Registration) -> None:
        with self.far.moved:
            self.far.filters[registration.consumer] = registration.filter
            self.far.frontiers.setdefault(registration.consumer, self.far.first - 1)

    def _confirm(self, consumer: str, offset: int, epoch: int | None) -> None:
        far = self.far
        with far.moved:
            self._check_place(consumer, epoch)
            if offset > far.head:
                raise PastEnd(f"offset {offset} is past the end at {far.head}")
            far.frontiers[consumer] = max(far.frontiers[consumer], offset)
            far.moved.notify_all()

    def _check_place(self, consumer: str, epoch: int | None) -> None:
        if consumer not in self.far.filters:
            raise UnknownConsumer(f"there is no consumer {consumer!r}")
        if epoch not in (None, self.far.epoch):
            raise EpochChanged("the log counts in another epoch", epoch=self.far.epoch)

    def _fetch(self, fetch: Fetch) -> Batch:
        far = self.far
        assert fetch.start is not None, "a link keeps its own place"
        self._check_place(fetch.consumer, fetch.epoch)
        if fetch.confirm is not None:
            self._confirm(fetch.consumer, fetch.confirm, fetch.epoch)
        with far.moved:
            if fetch.start < far.first:
                raise Truncated(f"the log begins at {far.first}", first_available=far.first)
            if fetch.start > far.head + 1:
                raise PastEnd(f"offset {fetch.start} is past the end at {far.head}")
            if fetch.wait_ms and fetch.start > far.head:
                self._wait(fetch.start)
            return self.page(fetch)

    def _wait(self, start: int) -> None:
        far = self.far
        far.waiting += 1
        far.moved.notify_all()
        try:
            far.moved.wait_for(lambda: self.aborted or start <= far.head, PATIENCE_S)
        finally:
            far.waiting -= 1
        self.check()

    def page(self, fetch: Fetch) -> Batch:
        """What a fetch gets now."""
        far = self.far
        assert fetch.start is not None
        begin = fetch.start - far.first
        offsets, raws = [], []
        upto = fetch.start - 1
        for upto, raw in enumerate(far.raws[begin : begin + fetch.limit], fetch.start):
            if _passes(far.filters[fetch.consumer], raw):
                offsets.append(upto)
                raws.append(raw)
        return Batch(far.epoch, far.first, far.head, fetch.start, upto, offsets, raws)


def _passes(filter: Filter, raw: bytes) -> bool:
    try:
        envelope = decode(raw)
    except HoldfastError:
        return True  # garbage passes whoever does not look
    return filter.passes(envelope.mesh, envelope.op, envelope.entity, envelope.origin, "")
