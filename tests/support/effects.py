"""A conversation with its broker whose effects end when a test says so.

line = HeldLine(ana)            a node (`support.sync_wire.Laptop`) that shares a mesh
line.open()                     hello and welcome, and what every connection begins with
line.finish(StorePage)          the first such effect that is under way comes to its end
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.node.sync.conversation import Conversation
from holdfast.node.sync.driver import Driver, Ended
from holdfast.node.sync.effects import (
    BrokerCall,
    Close,
    Effect,
    FinishJoin,
    Greet,
    KeepMembers,
    OpenMeshes,
    ReadMembers,
    Send,
    StoreWork,
)
from holdfast.node.sync.http_side import BrokerRequests
from holdfast.protocol.frames import FromBroker, FromNode, Hello, encode_frame
from holdfast.rules.rows import KnownMember
from support.sync_wire import Laptop

E = TypeVar("E", bound=Effect)


class NoRequests(BrokerRequests):
    """A broker that has no objects and no snapshots."""

    def __init__(self) -> None:
        """There is nothing to connect to."""

    def members(self, mesh: str) -> list[KnownMember]:
        return []

    def finish_join(self, mesh: str) -> None: ...


class HeldLine:
    """The port of one conversation: effects wait until a test ends them."""

    def __init__(
        self, laptop: Laptop, requests: BrokerRequests | None = None, **given: Any
    ) -> None:
        self.laptop, self._requests = laptop, requests or NoRequests()
        self.ticks = 0
        self.talk = Conversation(laptop.sync, lambda: self.ticks, lambda: 0.0, **given)
        self.driver = Driver(self.talk, self)
        self.under_way: list[tuple[Effect, Ended]] = []
        self.sent: list[FromNode] = []
        self.closed: Close | None = None
        self.wakes_at: int | None = None
        self.held_back = False

    # --- the port ------------------------------------------------------------------------------

    def begin(self, effect: Effect, ended: Ended) -> None:
        if isinstance(effect, Send):
            self.sent.extend(effect.frames)
            ended(None)
        elif isinstance(effect, StoreWork) and effect.inline:
            ended(effect.run(self.laptop.sync))
        elif isinstance(effect, StoreWork | BrokerCall):
            self.under_way.append((effect, ended))
        else:
            ended(None)

    def wake_at(self, ticks_ms: int | None) -> None:
        self.wakes_at = ticks_ms

    def hold_back(self, full: bool) -> None:
        self.held_back = full

    def close(self, close: Close) -> None:
        self.closed = close

    # --- what a test does ----------------------------------------------------------------------

    @property
    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect, _ in self.under_way]

    def hear(self, *frames: FromBroker) -> None:
        for frame in frames:
            raw = encode_frame(frame)
            self.driver.feed(lambda raw=raw: self.talk.on_frame(raw))  # type: ignore[misc]

    def finish(self, kind: type[E], error: Exception | None = None) -> E:
        """Lets the first effect of a kind end: well, or with an error."""
        at, (effect, ended) = next(
            (at, pair) for at, pair in enumerate(self.under_way) if isinstance(pair[0], kind)
        )
        del self.under_way[at]
        result: Any = error
        if error is None and isinstance(effect, StoreWork):
            result = effect.run(self.laptop.sync)
        elif error is None and isinstance(effect, BrokerCall):
            result = effect.run(self._requests)
        ended(result)
        assert isinstance(effect, kind)
        return effect

    def work(self, kind: type[E]) -> Callable[[], None]:
        """Runs the store work of the first effect of a kind, as a thread does, and returns what
        tells the conversation of its end: until then the store is ahead of the conversation.
        """
        at, (effect, ended) = next(
            (at, pair) for at, pair in enumerate(self.under_way) if isinstance(pair[0], kind)
        )
        del self.under_way[at]
        assert isinstance(effect, StoreWork)
        result = effect.run(self.laptop.sync)
        return lambda: ended(result)

    def after(self, ms: int) -> None:
        """Time passes."""
        self.ticks += ms
        self.driver.on_time()

    def open(self) -> None:
        talk = self.laptop.broker.talk()
        self.hear(talk.opening())
        self.finish(Greet)
        (hello,) = self.sent
        assert isinstance(hello, Hello)
        self.hear(*talk.on_frame(hello))
        self.finish(OpenMeshes)
        for kind in (FinishJoin, ReadMembers, KeepMembers):
            self.finish(kind)
        self.sent.clear()
