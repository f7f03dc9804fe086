"""How much the outbox and the inbox hold, for the status and the metrics of a daemon.

The count takes as long as there are rows, so a daemon counts a large outbox once for all who ask
within a while (`service/count_pause.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from holdfast.service.count_pause import CountPause

if TYPE_CHECKING:
    from holdfast.storage.ports import Reader


class MessageFigures(msgspec.Struct, frozen=True):
    outbox: dict[tuple[str, str], int]
    """Rows by lane and state."""
    inbox: int
    unread: int

    @classmethod
    def read(cls, tx: Reader) -> MessageFigures:
        return cls(tx.outbox_counts(), *tx.inbox_counts())


class MessageCount:
    """Counts the figures of one home, unless they were counted a short while ago."""

    def __init__(self, read: Callable[[], MessageFigures]) -> None:
        self._read = read
        self._counting = threading.Lock()
        self._pause: CountPause[MessageFigures] = CountPause(monotonic)

    def latest(self) -> MessageFigures:
        with self._counting:
            found = self._pause.begin()
            if found is not None:
                return found
            figures = self._read()
            return self._pause.counted(figures, sum(figures.outbox.values()) + figures.inbox)
