"""What a store keeps of peers that this node does not want to hear."""

from __future__ import annotations

from typing import Protocol

from holdfast.rules.rows import BlockedPeer


class BlockedReader(Protocol):
    def blocked_get(self, peer: str) -> BlockedPeer | None: ...
    def blocked_list(self) -> list[BlockedPeer]:
        """By name."""


class BlockedWriter(BlockedReader, Protocol):
    def blocked_put(self, row: BlockedPeer) -> None: ...
    def blocked_drop(self, peer: str) -> None: ...
    def blocked_dropped(self, peer: str, count: int) -> None:
        """Counts messages of a blocked peer; nothing if it is not blocked any more."""
