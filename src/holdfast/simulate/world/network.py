"""The network of a simulated world: messages are late, lost, doubled and out of order.

A message is a function to be called where it arrives. `send` draws what becomes of it; each copy
has its own delay, so later messages overtake earlier ones. Partitions cut links in one direction or
both, when a message is sent and when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.simulate.world.world import World

OnFault = Callable[[str, Sequence[str]], None]
"""Is called with the fault that met a message, and the operations that the message carried."""


@dataclass(slots=True)
class LineQuality:
    """How often the network loses and doubles messages now, and how late it delivers them."""

    loss: float = 0.0
    doubling: float = 0.0
    delay_ms_max: int = 200


@dataclass(slots=True)
class Network:
    """Carries messages between every ordered pair of peers."""

    world: World
    on_fault: OnFault
    line: LineQuality = field(default_factory=LineQuality)
    cut: set[tuple[str, str]] = field(default_factory=set)
    _sent: dict[tuple[str, str], int] = field(default_factory=dict)
    _arrived: dict[tuple[str, str], int] = field(default_factory=dict)

    def send(
        self,
        source: str,
        target: str,
        what: str,
        arrive: Callable[[], None],
        *,
        about: Sequence[str] = (),
    ) -> None:
        """Sends a message: calls `arrive` once, twice or never. `about` names its operations."""
        link = (source, target)
        if link in self.cut:
            self.on_fault("partition", about)
            return
        rng = self.world.rng
        if rng.random() < self.line.loss:
            self.world.note(f"{what} from {source} to {target} is lost")
            self.on_fault("loss", about)
            return
        copies = 2 if rng.random() < self.line.doubling else 1
        if copies == 2:
            self.on_fault("duplicate", about)
        number = self._sent[link] = self._sent.get(link, 0) + 1
        for _ in range(copies):
            delay = 1 + rng.randrange(self.line.delay_ms_max)
            self.world.at(
                delay,
                lambda: self._arrive(link, number, arrive, about),
                name=f"{what} from {source} reaches {target}",
            )

    def cut_off(self, ways: Iterable[tuple[str, str]]) -> None:
        self.cut = set(ways)
        self.world.note(f"cut: {sorted(self.cut)}")

    def heal(self) -> None:
        self.cut = set()
        self.world.note("healed")

    def _arrive(
        self, link: tuple[str, str], number: int, arrive: Callable[[], None], about: Sequence[str]
    ) -> None:
        if link in self.cut:
            self.on_fault("partition", about)
            return
        if number < self._arrived.get(link, 0):
            self.on_fault("reorder", about)
        self._arrived[link] = max(number, self._arrived.get(link, 0))
        arrive()
