"""Lines between nodes and their broker: in order, whole, late, and cut at any frame.

A wire carries frames in both directions, each in its order. When it is cut, what is under way is
lost from some frame on, and each end hears of it later, or much later. When one end hangs up, what
it sent before may still arrive: so a broker gets what a node has long begun to send again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.rules.limits import SECOND_MS
from holdfast.simulate.delivery.broker_machine import HUB

if TYPE_CHECKING:
    from holdfast.simulate.delivery.broker_world import BrokerWorld
    from holdfast.simulate.delivery.node_end import NodeEnd

NOTICE_MS_MAX: Final = 90 * SECOND_MS


class Wire:
    """One connection."""

    def __init__(self, world: BrokerWorld, number: int, end: NodeEnd) -> None:
        self._world, self.number, self._end = world, number, end
        self.peer = end.peer
        self._rng = world.fork(f"wire {number}")
        self._last = {"up": 0, "down": 0}
        self.is_cut = False

    def up(self, raw: bytes) -> None:
        """To the broker."""
        if self._passes((self.peer, HUB)):
            self._send("up", lambda: self._world.broker_receives(self, raw))

    def down(self, raw: bytes) -> None:
        """To the node."""
        if self._passes((HUB, self.peer)):
            self._send("down", lambda: self._end.hear(self, raw))

    def node_hangs_up(self) -> None:
        """The broker gets to know it behind all that was sent before."""
        self._send("up", lambda: self._world.broker_loses(self))

    def broker_hangs_up(self, code: int) -> None:
        self._send("down", lambda: self._end.hung_up(self, code))

    def cut(self) -> None:
        """From now on nothing passes; both ends notice later."""
        if self.is_cut:
            return
        self.is_cut = True
        self._world.happened["cut"] += 1
        self._world.note(f"wire {self.number} of {self.peer} is cut")
        for name, act in (
            ("the broker", lambda: self._world.broker_loses(self)),
            (self.peer, lambda: self._end.hung_up(self, 1006)),
        ):
            late = self._rng.randrange(1, NOTICE_MS_MAX)
            self._world.at(late, act, name=f"{name} notices the end of wire {self.number}")

    def _passes(self, way: tuple[str, str]) -> bool:
        line = self._world.links.line
        if self.is_cut:
            return False
        if way in self._world.links.cut or self._rng.random() < line.loss:
            self.cut()
        return not self.is_cut

    def _send(self, way: str, arrive: object) -> None:
        if self.is_cut:
            return
        world = self._world
        at = world.ticks + 1 + self._rng.randrange(world.links.line.delay_ms_max)
        self._last[way] = at = max(at, self._last[way])
        world.at(at - world.ticks, self._arrive, arrive, name=f"wire {self.number} {way}")

    def _arrive(self, arrive: object) -> None:
        if not self.is_cut:
            assert callable(arrive)
            arrive()
