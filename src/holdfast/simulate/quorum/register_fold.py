"""What a machine makes of committed entries: its registers, which take their time, and snapshots of
them. What a snapshot makes is compared with what the order makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.ports import Folded, Given, ReadPart, Wrote
from holdfast.rules.quorum.log_rows import QuorumSnapshot
from holdfast.simulate.quorum.registers import Registers

if TYPE_CHECKING:
    from holdfast.simulate.quorum.machine import VoterMachine

FOLD_MS_MAX: Final = 20
TAKE_MS_MAX: Final = 200


class RegisterFold:
    """A `CommitFold` and a `GroupSnapshots`."""

    def __init__(self, machine: VoterMachine) -> None:
        self._machine = machine

    @property
    def applied(self) -> int:
        return self._machine.registers.applied

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        machine, world = self._machine, self._machine.world

        def apply() -> None:
            world.books.goes_on(machine.name, machine.registers.applied, entries, upto)
            folded = machine.registers.fold(entries, upto)
            world.books.applied(machine.name, entries, [one.id for one in folded])
            world.learned(entries, upto)
            done(folded)

        self._later(FOLD_MS_MAX, apply, f"fold to {upto}")

    def give(self, done: Given) -> None:
        self._later(TAKE_MS_MAX, lambda: done(self._machine.registers.image()), "give a snapshot")

    def check(self, snapshot: QuorumSnapshot, read: ReadPart, done: Wrote) -> None:
        self._later(TAKE_MS_MAX, lambda: done(None), "check a snapshot")

    def take_in(self, snapshot: QuorumSnapshot, read: ReadPart, done: Wrote) -> None:
        machine, world = self._machine, self._machine.world

        def take() -> None:
            machine.registers = Registers.of(read)
            world.happened["snapshot"] += 1
            world.note(f"{machine.name} takes in a snapshot at {snapshot.index}")
            world.compare(machine, snapshot.index)
            done(None)

        self._later(TAKE_MS_MAX, take, f"take in a snapshot at {snapshot.index}")

    def _later(self, most: int, call: Callable[[], None], what: str) -> None:
        self._machine.soon(self._machine.rng.randrange(1 + most), call, what)
