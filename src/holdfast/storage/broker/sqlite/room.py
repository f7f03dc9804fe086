"""The room on a broker's disk, and the way back when there is none.

As a node does it: a broker that serves keeps a ballast. When a commit meets a full disk the ballast
is released, so that confirming, settling and sweeping have room to work in, and from then on what
adds data is refused until there is room again. Then the ballast is laid anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from holdfast.rules.errors import DiskFull, HoldfastError
from holdfast.rules.limits import BALLAST_BYTES, BALLAST_ROOM_FACTOR, MIB
from holdfast.storage.files.ballast import Ballast, free_bytes

log = logging.getLogger("holdfast")

_LOOK_S: Final = 1.0


class BrokerRoom:
    """How much room one broker has. Used by the thread that writes."""

    def __init__(
        self,
        folder: Path,
        *,
        keeps_ballast: bool = False,
        ballast_bytes: int = BALLAST_BYTES,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._folder, self._keeps, self._clock = folder, keeps_ballast, clock
        self.ballast = Ballast(folder, size=ballast_bytes)
        self._full = False
        self._looked_at = 0.0
        self.reusable: Callable[[], int] = int
        """Bytes in pages of the database that it can use again: one that forgets does not get
        smaller, it gets room inside. Set by whoever opens the database.
        """

    def look(self) -> None:
        """Lays the ballast, and takes in data again, where there is room for both."""
        self._looked_at = self._clock()
        room = free_bytes(self._folder) + self.reusable()
        if room < BALLAST_ROOM_FACTOR * self.ballast.size:
            return
        if self._full:
            log.info("%s: there is room again", self._folder)
        self._full = False
        if self._keeps:
            try:
                self.ballast.lay()
            except HoldfastError as error:
                # Others used the space first. The next look measures again.
                log.warning("%s", error.message)

    @property
    def full(self) -> bool:
        return self._full

    def admit(self) -> None:
        """Raises DiskFull while the broker refuses what adds data."""
        if self._full and self._clock() - self._looked_at >= _LOOK_S:
            self.look()
        if self._full:
            needed = BALLAST_ROOM_FACTOR * self.ballast.size // MIB
            raise DiskFull(
                f"the disk of the broker is full: it takes in nothing before {needed} MiB are free",
                hint="free some space, or: holdfast broker sweep. What it has is served",
            )

    def met_end(self) -> bool:
        """A commit found the disk full. True if the ballast gave some room."""
        self._looked_at = self._clock()
        try:
            released = self.ballast.release()
        except HoldfastError as error:
            log.error("%s", error.message)
            released = False
        if self._keeps and not self._full:
            what = "; its ballast is released" if released else ""
            log.warning("%s: the disk is full, what adds data is refused%s", self._folder, what)
        self._full = self._keeps
        return released
