"""Carries out the effects of a node's conversation in a simulated world: when its calendar says so.

The machine and the loop around it are those of the daemon (`Conversation`, `Driver`). Work on the
store and calls to the broker run after a while that is drawn, now and then a long one, and the
conversation hears of their end another while later, as it does of a thread's: so frames arrive and
time passes meanwhile, effects of different kinds end in any order, and the machine's death or a cut
wire may come between any two. What has not begun when the line is gone never does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.node.core.engine import NodeEngine
from holdfast.node.sharing.join import is_joining
from holdfast.node.sync.conversation import Conversation
from holdfast.node.sync.driver import Driver, Ended
from holdfast.node.sync.effects import (
    BrokerCall,
    Close,
    Effect,
    NoteConnected,
    Send,
    StoreFrame,
    StoreWork,
    UploadSnapshot,
)
from holdfast.node.sync.http_side import BrokerRequests
from holdfast.node.sync.session import SyncSession
from holdfast.protocol.frames import SnapshotNeeded, encode_frame
from holdfast.rules.limits import SECOND_MS
from holdfast.simulate.delivery.calls import SimulatedBrokerClient
from holdfast.simulate.delivery.wires import Wire
from holdfast.simulate.world.machine import Died
from holdfast.simulate.world.world import ScheduledEvent

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld
    from holdfast.simulate.delivery.node_end import NodeEnd

LOOK_MS: Final = 900 * SECOND_MS
"""How often a node looks by itself: far less often than a daemon, so that stories stay short."""
WAITING_BYTES: Final = 1500
"""A few frames: so that it happens that nothing more is read."""
TIMER_MS_MIN: Final = 5 * SECOND_MS
"""A clock that stands still makes the same row due again and again."""
PUSH_ITEMS: Final = 3
"""Few to a frame, so that there is something to cut between."""
EFFECT_MS_MAX: Final = 30
SLOW: Final = 0.1
"""How many of the effects are slow."""
SLOW_MS_MAX: Final = 5 * SECOND_MS
SLOW_END_MS_MAX: Final = 4 * TIMER_MS_MIN
"""How long the conversation waits at most for word of an effect that has run. Longer than its
timer: time must be able to pass in between.
"""


class NodePort:
    """One connection of one node, from its first frame to its last."""

    def __init__(
        self, end: NodeEnd, world: DeliveryWorld, session: SyncSession, wire: Wire
    ) -> None:
        self._end, self._world, self.wire = end, world, wire
        self.begun_in_calm = world.is_calm
        self.session = session
        self._requests = SimulatedRequests(world, end, session.engine)
        self._rng = world.fork(f"effects of wire {wire.number}")
        self.talk = Conversation(
            session,
            lambda: world.ticks,
            self._rng.random,
            look_ms=LOOK_MS,
            push_items=PUSH_ITEMS,
            waiting_bytes=WAITING_BYTES,
        )
        self.driver = Driver(self.talk, self)
        self._planned: dict[int, ScheduledEvent] = {}
        self._timer: ScheduledEvent | None = None
        self._unread: deque[bytes] = deque()
        self._full = False

    def hear(self, raw: bytes) -> None:
        """A frame is there; it is read if the conversation has room for it."""
        self._unread.append(raw)
        self._read_on()

    def _read_on(self) -> None:
        while self._unread and not self._full and not self.driver.is_over:
            self.driver.feed(partial(self.talk.on_frame, self._unread.popleft()))

    # --- what the driver asks for --------------------------------------------------------------

    def begin(self, effect: Effect, ended: Ended) -> None:
        self._note(effect)
        match effect:
            case Send():
                for frame in effect.frames:
                    self.wire.up(encode_frame(frame))
                ended(None)
            case StoreWork() if effect.inline:
                self._run(lambda: effect.run(self.session), ended)
            case StoreWork():
                self._later(effect, lambda: effect.run(self.session), ended)
            case BrokerCall():
                self._later(effect, lambda: effect.run(self._requests), ended)
            case _:
                ended(None)

    def wake_at(self, ticks_ms: int | None) -> None:
        world = self._world
        at = None if ticks_ms is None else max(ticks_ms, world.ticks + TIMER_MS_MIN)
        if self._timer is not None:
            if at is not None and self._timer.tick <= at:
                return  # it is early, and asked again then
            self._timer.cancel()
            self._timer = None
        if at is not None:
            name = f"{self._end.peer} looks at the time"
            self._timer = world.at(at - world.ticks, self._on_time, name=name)

    def hold_back(self, full: bool) -> None:
        if full and not self._full:
            self._world.happened["held back"] += 1
        self._full = full
        if self._unread and not full:
            self._world.at(1, self._read_on, name=f"{self._end.peer} reads on")

    def close(self, close: Close) -> None:
        self.abandon()
        self._end.closed(self, close)

    def abandon(self) -> None:
        """Nothing more happens on this connection."""
        self.driver.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for event in self._planned.values():
            event.cancel()

    # --- carrying out --------------------------------------------------------------------------

    def _on_time(self) -> None:
        self._timer = None
        if self._end.has(self):
            self.driver.on_time()

    def _later(self, effect: Effect, run: Callable[[], Any], ended: Ended) -> None:
        name = f"{self._end.peer}: {type(effect).__name__}"

        def end_later(result: Any) -> None:
            act = partial(self._tell, ended, result)
            self._plan(effect, act, SLOW_END_MS_MAX, f"{name} has ended")

        self._plan(effect, partial(self._run, run, end_later), SLOW_MS_MAX, name)

    def _plan(self, effect: Effect, act: Callable[[], None], slow_ms: int, name: str) -> None:
        slow = self._rng.random() < SLOW
        wait = self._rng.randrange(1, slow_ms if slow else EFFECT_MS_MAX)

        def carry_out() -> None:
            del self._planned[id(effect)]
            act()

        self._planned[id(effect)] = self._world.at(wait, carry_out, name=name)

    def _tell(self, ended: Ended, result: Any) -> None:
        if self._end.has(self):
            ended(result)

    def _run(self, run: Callable[[], Any], ended: Ended) -> None:
        if not self._end.has(self):
            return
        try:
            result = self._world.carry_out(self._end.machine, run)
        except Died:
            self.abandon()
            self._end.died(self)
            return
        ended(result)

    def _note(self, effect: Effect) -> None:
        happened = self._world.happened
        match effect:
            case NoteConnected():
                happened["connected"] += 1
            case UploadSnapshot():
                happened["snapshot wanted"] += 1
            case StoreFrame() if isinstance(effect.frame, SnapshotNeeded):
                happened["behind"] += 1


class SimulatedRequests(BrokerRequests):
    """The daemon's own requests, over calls that get lost; the world notes what came of them."""

    def __init__(self, world: DeliveryWorld, end: NodeEnd, engine: NodeEngine) -> None:
        client = SimulatedBrokerClient(world, end.peer, end.key)
        super().__init__(engine, client, client)
        self._world, self._peer = world, end.peer

    def fetch(self, mesh: str, objects: Any) -> set[str]:
        absent = super().fetch(mesh, objects)
        self._world.happened["object absent"] += len(absent)
        return absent

    def take_snapshot(self, mesh: str) -> bool:
        took = super().take_snapshot(mesh)
        if took:
            self._world.took_snapshot(self._peer, mesh)
        return took

    def finish_join(self, mesh: str) -> None:
        joining = self._engine.read("mesh.join", lambda tx: is_joining(tx, mesh))
        super().finish_join(mesh)
        if joining:
            self._world.publication.took(self._peer)
