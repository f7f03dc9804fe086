"""Which numbers of which streams the entries of a transaction have.

Only meshes that are shared over the bus keep streams. Epoch and number stand in the envelope alone,
so for those meshes the first fields of each new entry are read once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import Placed, place_of
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.filters import MESSAGES
from holdfast.rules.leaf import leaf_of

if TYPE_CHECKING:
    from holdfast.storage.ports import Transaction


def placed(op: str, seq: int, offset: int, raw: bytes) -> Placed:
    """The place of an entry. A message takes a number and is not sent on: it is for few, and a
    broker or the bus itself carries it to them.
    """
    return (seq, 0, b"") if op in MESSAGES else (seq, offset, leaf_of(raw))


class PlacedInStreams:
    """The places of entries that were appended, by stream; stored together."""

    __slots__ = ("_placed",)

    def __init__(self) -> None:
        self._placed: dict[StreamName, list[Placed]] = {}

    def add(self, raw: bytes, offset: int) -> None:
        """An envelope that was rebuilt from a row counts in no stream."""
        place = place_of(raw)
        if place.epoch == UNCOUNTED:
            return
        name = StreamName(place.mesh, place.origin, place.epoch)
        self._placed.setdefault(name, []).append(placed(place.op, place.seq, offset, raw))

    def write(self, tx: Transaction) -> None:
        for name, places in self._placed.items():
            tx.stream_add(name, places)
        self._placed = {}
