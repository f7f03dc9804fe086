"""What a node asks of the rows of the peer bus: a part of `ports`. The bus itself has a port of its
own (`rules/bus/mesh_store.py`).
"""

from __future__ import annotations

from typing import Protocol


class BusReader(Protocol):
    def bus_head(self, number: int) -> bytes | None:
        """The message of the outbox row with this number, without its body; None if the row holds
        none.
        """


class BusSweeper(Protocol):
    def bus_sweep(self, now_ms: int, most: int) -> int:
        """Forgets up to `most` ids of messages that no sender can send again; returns how many."""
