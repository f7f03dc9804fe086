"""Room for votes and terms on a disk that is full.

A voter that cannot save its vote is as good as dead, so a small ballast is kept for votes. When a
commit meets the end of the disk the ballast is released: writes that only promise something (a
term, a vote) have its room, and writes that add entries are refused until there is room for both
again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from holdfast.rules.errors import DiskFull, HoldfastError
from holdfast.rules.limits import BALLAST_ROOM_FACTOR, KIB
from holdfast.storage.files.ballast import Ballast, free_bytes

log = logging.getLogger("holdfast")


class QuorumReserve:
    """How much room the Raft logs have. Used by the thread that writes."""

    def __init__(self, path: Path, size: int) -> None:
        self._folder = path.parent
        self.ballast = Ballast(path.parent, size=size, name=path.name)
        self.full = False

    def lay(self) -> None:
        """Takes the room, and lets entries in again, where there is enough of it."""
        try:
            if free_bytes(self._folder) < BALLAST_ROOM_FACTOR * self.ballast.size:
                return
            self.ballast.lay()
        except HoldfastError as error:
            # Others used the space first. The next write that is refused looks again.
            log.warning("%s", error.message)
            return
        if self.full:
            log.info("%s: there is room for entries of the Raft logs again", self._folder)
        self.full = False

    def admit(self) -> None:
        """Raises DiskFull while entries are refused."""
        if self.full:
            self.lay()
        if self.full:
            raise self.refusal()

    def refusal(self) -> DiskFull:
        needed = BALLAST_ROOM_FACTOR * self.ballast.size // KIB
        return DiskFull(
            f"the disk is full: the Raft logs take no entries before {needed} KiB are free",
            hint="free some space: votes are still saved, and entries go on by themselves",
        )

    def met_end(self) -> bool:
        """A commit found the disk full. True if the ballast gave some room."""
        try:
            released = self.ballast.release()
        except HoldfastError as error:
            log.error("%s", error.message)
            released = False
        if not self.full:
            log.warning("%s: the disk is full; the Raft logs take no entries", self._folder)
        self.full = True
        return released
