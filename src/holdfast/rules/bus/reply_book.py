"""Replies that were given, for as long as somebody may ask for them again.

A request that comes a second time, because its asker has lost the link or was started again, must
not be done twice: it gets the reply that the first one got. The book is bounded by count, by bytes
and by time; the oldest reply goes first.
"""

from __future__ import annotations

from holdfast.rules.bus.message import BusMessage
from holdfast.rules.limits import BUS_REPLIES_KEPT, BUS_REPLY_BYTES_KEPT

RequestKey = tuple[str, bytes]
"""Who asked, and the id of the request: two askers may use one id."""


class ReplyBook:
    """The last replies of a peer."""

    def __init__(self, most: int = BUS_REPLIES_KEPT, bytes_max: int = BUS_REPLY_BYTES_KEPT) -> None:
        self._most, self._bytes_max = most, bytes_max
        self._kept: dict[RequestKey, tuple[BusMessage, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, request: RequestKey, reply: BusMessage, until_ms: int) -> None:
        if request in self._kept:
            self._forget(request)
        self._kept[request] = (reply, until_ms)
        self._bytes += len(reply.body)
        while len(self._kept) > self._most or (
            self._bytes > self._bytes_max and len(self._kept) > 1
        ):
            self._forget(next(iter(self._kept)))

    def find(self, request: RequestKey, now_ms: int) -> BusMessage | None:
        found = self._kept.get(request)
        if found is None:
            return None
        if found[1] <= now_ms:
            self._forget(request)
            return None
        return found[0]

    def _forget(self, request: RequestKey) -> None:
        found = self._kept.pop(request, None)
        if found is not None:
            self._bytes -= len(found[0].body)
