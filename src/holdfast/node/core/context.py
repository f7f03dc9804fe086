"""What every change needs to know about the node that makes it."""

from __future__ import annotations

from holdfast.node.core.read_intents import ReadIntents
from holdfast.service.clock import Clock
from holdfast.storage.files.blobs import BlobStore


class NodeContext:
    """This node: its name, the epoch of its log, its clock, its blobs, and intents that it has
    read.
    """

    __slots__ = ("blobs", "commits_of", "epoch", "new_id", "now_ms", "peer", "read_intents")

    def __init__(self, peer: str, epoch: int, clock: Clock, blobs: BlobStore) -> None:
        self.peer = peer
        self.epoch = epoch
        self.now_ms = clock.now_ms
        self.new_id = clock.new_id
        self.blobs = blobs
        self.read_intents = ReadIntents()
        self.commits_of: set[str] = set()
        """Meshes whose order may have grown since whoever spreads commits last looked. For any
        thread: meshes are added, and taken out one by one.
        """
