"""What every change needs to know about the node that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.node.core.read_intents import ReadIntents
    from holdfast.service.clock import Clock
    from holdfast.storage.files.blobs import BlobStore


class NodeContext:
    """This node: its name, the epoch of its log, its clock, its blobs, and intents that it has
    read.
    """

    __slots__ = ("_read_intents", "blobs", "commits_of", "epoch", "new_id", "now_ms", "peer")

    def __init__(self, peer: str, epoch: int, clock: Clock, blobs: BlobStore) -> None:
        self.peer = peer
        self.epoch = epoch
        self.now_ms = clock.now_ms
        self.new_id = clock.new_id
        self.blobs = blobs
        self._read_intents: ReadIntents | None = None
        self.commits_of: set[str] = set()
        """Meshes whose order may have grown since whoever spreads commits last looked. For any
        thread: meshes are added, and taken out one by one.
        """

    @property
    def read_intents(self) -> ReadIntents:
        """Made by the first that asks. Two threads may make two: what one of them keeps is read
        again, and nothing else is lost.
        """
        if self._read_intents is None:
            # Here, because only a mesh with voters has intents.
            from holdfast.node.core.read_intents import ReadIntents

            self._read_intents = ReadIntents()
        return self._read_intents
