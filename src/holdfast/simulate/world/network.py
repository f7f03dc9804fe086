"""The network of a simulated world: messages are late, lost, doubled and out of order.

A message is a function to be called where it arrives. `send` draws what becomes of it; each copy
has its own delay, so later messages overtake earlier ones. Partitions cut links in one direction or
both, when a message is sent and when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.simulate.world.world import World

Told = Callable[[str, Sequence[str]], None]
"""Hears which fault met a message, and what the message was about."""


@dataclass(slots=True)
class LineQuality:
    """How bad the network is now."""

    loss: float = 0.0
    doubling: float = 0.0
    delay_ms_max: int = 200


@dataclass(slots=True)
class Network:
    """Every ordered pair of peers has a link."""

    world: World
    told: Told
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
        """Sends a message; `about` names the operations that it carries, for the marks."""
        link = (source, target)
        if link in self.cut:
            self.told("partition", about)
            return
        rng = self.world.rng
        if rng.random() < self.line.loss:
            self.world.note(f"{what} from {source} to {target} is lost")
            self.told("loss", about)
            return
        copies = 2 if rng.random() < self.line.doubling else 1
        if copies == 2:
            self.told("duplicate", about)
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
            self.told("partition", about)
            return
        if number < self._arrived.get(link, 0):
            self.told("reorder", about)
        self._arrived[link] = max(number, self._arrived.get(link, 0))
        arrive()
