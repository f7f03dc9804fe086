"""A node in memory has no bus on disk: its bus keeps its own memory (`bus/memory_store.py`)."""

from __future__ import annotations


class MemoryBus:
    """The answers of a store without rows of the bus."""

    def bus_head(self, number: int) -> bytes | None:
        return None

    def bus_sweep(self, now_ms: int, most: int) -> int:
        return 0
