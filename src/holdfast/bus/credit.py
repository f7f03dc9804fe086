"""Credit that a receiver gives back to a sender when a message was taken."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import Stream
from holdfast.rules.bus.mesh_store import PeerKey


class Credit:
    """What one message has cost its sender. It is given back once, when nobody holds it any more:
    every reader that has no room for the message does.
    """

    __slots__ = ("_holders", "_link", "_size", "_stream")

    def __init__(self, link: Link, stream: Stream, size: int) -> None:
        self._link, self._stream, self._size = link, stream, size
        self._holders = 1

    @property
    def peer(self) -> PeerKey:
        """Over whose link the message came."""
        return self._link.peer

    def hold(self) -> None:
        self._holders += 1

    def release(self) -> None:
        assert self._holders > 0, "credit is given back once"
        self._holders -= 1
        if self._holders == 0:
            self._link.taken(self._stream, self._size)

    @staticmethod
    def release_all(credits: Iterable[Credit]) -> None:
        """As `release` for each: what came over one stream is given back at once."""
        sums: dict[tuple[Link, Stream], int] = {}
        for credit in credits:
            assert credit._holders > 0, "credit is given back once"
            credit._holders -= 1
            if credit._holders == 0:
                place = credit._link, credit._stream
                sums[place] = sums.get(place, 0) + credit._size
        for (link, stream), size in sums.items():
            link.taken(stream, size)
