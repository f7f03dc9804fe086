"""What a store keeps of where entries of the log stand at their broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class BrokerPositionReader(Protocol):
    def broker_positions_above(
        self, mesh: str, epoch: int, seq: int, after_seq: int, limit: int
    ) -> list[tuple[int, int]]:
        """Seq and offset of the entries above a seq of an epoch and above `after_seq`, by seq."""

    def broker_positions_at(self, offset: int) -> list[tuple[str, int]]:
        """Mesh and seq of an entry at its broker, those of the newest epoch of a mesh first."""

    def broker_positions_epochs(self, mesh: str) -> list[int]:
        """The epochs of a mesh in which positions are known, the lowest first."""


class BrokerPositionWriter(BrokerPositionReader, Protocol):
    def broker_positions_add(self, mesh: str, epoch: int, rows: Sequence[tuple[int, int]]) -> None:
        """Adds seq and offset of entries; a seq that is known keeps its offset."""

    def broker_positions_sweep(self, below_offset: int, most: int) -> int:
        """Forgets the positions of entries that are gone from the log; returns how many."""

    def broker_positions_drop(self, mesh: str, most: int) -> int:
        """Forgets up to `most` positions of a mesh that has another broker; returns how many."""
