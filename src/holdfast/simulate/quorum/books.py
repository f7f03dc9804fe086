"""What clients asked and heard, and what every machine applied; and what must be true of it.

All the time:

* one leader a term, and one entry an index, on whatever machine;
* a command that was acknowledged stands in the order where its client was told that it stands;
* a machine applies entry after entry: none twice, and none is left out but by a snapshot;
* one config an index, and after a restart or a snapshot the one that was committed is in force;
* a command whose client was told that it is not committed is never committed;
* linearizable: what began after something was answered comes after it in the order. Writes have
  their place by index; a read sees the order up to some index, and no less than was answered before
  it began.

Since every answer names its index, this is a check in one pass, and it names the culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.node.core.commit import CommittedEntry
from holdfast.rules.quorum.raft.config import GroupConfig


@dataclass(slots=True)
class ClientCall:
    """What a client asked for, and when."""

    id: bytes
    began: int
    floor: int
    """The highest index that anybody had been answered with when it began."""
    what: str


class QuorumBooks:
    """One for a world."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        self._broken = broken
        self.leaders: dict[int, str] = {}
        self.order: dict[int, CommittedEntry] = {}
        """What stands at which index, as the first machine applied it."""
        self.first: dict[bytes, int] = {}
        """Where each command was applied."""
        self.answered = 0
        """The highest index that a client was answered with."""
        self.acknowledged: dict[bytes, int] = {}
        self.denied: dict[bytes, None] = {}
        """Commands whose clients were told that they are not committed."""
        self.reads = 0
        self.configs: dict[int, GroupConfig] = {}
        """Configs that were committed, by the index of their entry."""
        self._reached: dict[str, int] = {}
        """How far each machine has applied the order."""

    def leads(self, name: str, term: int) -> None:
        other = self.leaders.setdefault(term, name)
        if other != name:
            self._broken(f"{name} and {other} both lead term {term}")

    def goes_on(
        self, name: str, applied: int, entries: Sequence[CommittedEntry], upto: int
    ) -> None:
        """A machine that has applied so much is about to apply these, up to an index."""
        if self._reached.get(name, 0) > applied:
            self._broken(f"{name} has applied up to {self._reached[name]}, and is at {applied}")
        indexes = [entry.index for entry in entries]
        if upto <= applied or (indexes and not applied < indexes[0] <= indexes[-1] <= upto):
            self._broken(f"{name} is at {applied} and applies {indexes} up to {upto}")
        self._reached[name] = upto

    def begins_anew(self, name: str) -> None:
        """A machine joins, and gets everything once more."""
        self._reached.pop(name, None)

    def committed_config(self, name: str, index: int, config: GroupConfig) -> None:
        if self.configs.setdefault(index, config) != config:
            self._broken(f"{name} has another config at {index} than was committed there")

    def config_at(self, index: int) -> GroupConfig:
        return self.configs[max(at for at in self.configs if at <= index)]

    def applied(self, name: str, entries: Sequence[CommittedEntry], ids: Sequence[bytes]) -> None:
        """A machine has applied these, now or once more after a restart."""
        for entry, id in zip(entries, ids, strict=True):
            known = self.order.setdefault(entry.index, entry)
            if known != entry:
                self._broken(f"{name} has another entry at {entry.index} than was applied there")
            first = self.first.setdefault(id, entry.index)
            if entry.index < first:
                self._broken(f"{name} applied a command at {entry.index}, first seen at {first}")
            if id in self.denied:
                self._broken(f"a command was committed at {entry.index} after it was denied")

    def begin(self, id: bytes, tick: int, what: str) -> ClientCall:
        return ClientCall(id, tick, self.answered, what)

    def acknowledge(self, asked: ClientCall, index: int) -> None:
        """A client hears that its command stands at this index."""
        if self.first.get(asked.id) != index:
            self._broken(f"{asked.what} was answered with {index}, which is not its place")
        if index <= asked.floor:
            self._broken(
                f"{asked.what} stands at {index}, but {asked.floor} was answered before it began"
            )
        self.acknowledged[asked.id] = index
        self.answered = max(self.answered, index)

    def deny(self, asked: ClientCall) -> None:
        """A client hears that its command is not committed and never will be."""
        self.denied[asked.id] = None
        if asked.id in self.first:
            self._broken(f"{asked.what} was denied and stands at {self.first[asked.id]}")

    def read(self, asked: ClientCall, index: int, value: int, true_value: int) -> None:
        """A client reads from a machine that has applied everything up to `index`."""
        self.reads += 1
        if index < asked.floor:
            self._broken(
                f"{asked.what} saw the order up to {index}; {asked.floor} was answered before"
            )
        if value != true_value:
            self._broken(f"{asked.what} gave {value}; the order up to {index} gives {true_value}")
        self.answered = max(self.answered, index)
