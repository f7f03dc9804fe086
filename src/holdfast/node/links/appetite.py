"""How much a link asks for at a time: all that fits, and less after its line broke.

A line that always breaks after 100 kB never carries a batch of 2 MB. What arrived whole is kept, so
even then a link gets on; but the source would read, and the line carry, twenty times as much as is
kept. So each break halves what is asked for, down to one entry, and each batch that comes whole
doubles it.
"""

from __future__ import annotations

from holdfast.node.core.object_transfer import PieceSize
from holdfast.rules.limits import LINK_BATCH_ROWS
from holdfast.rules.links import rows_after_batch, rows_after_break


class Appetite:
    """Of one link, through all its connections."""

    def __init__(self) -> None:
        self.rows = LINK_BATCH_ROWS
        self.pieces = PieceSize()

    def broke(self, asked: int) -> None:
        """The line broke while so many entries were asked for."""
        self.rows = rows_after_break(min(asked, self.rows))

    def came(self) -> None:
        self.rows = rows_after_batch(self.rows)
