"""How large the frames of a feed are for each member, by how its line bore the last ones.

A frame that a line breaks under is lost as a whole. So a member whose connection ended with frames
that it had not confirmed is sent half as much next time, down to one envelope, and twice as much
again with every frame that it confirms: a line that never lasts for a full frame gets on all the
same.
"""

from __future__ import annotations

from collections import OrderedDict

from holdfast.rules.limits import FEED_BYTES, FEED_BYTES_MIN, FEED_SIZES_MAX


class FeedSizes:
    """The members whose frames are smaller than usual; what all connections of a broker share."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, int] = OrderedDict()

    def of(self, key: bytes) -> int:
        """Bytes of envelopes in one frame for a member; one envelope always fits."""
        return self._by_key.get(key, FEED_BYTES)

    def broke(self, key: bytes) -> None:
        """A connection ended with frames that were not confirmed."""
        self._by_key[key] = max(FEED_BYTES_MIN, self.of(key) // 2)
        self._by_key.move_to_end(key)
        if len(self._by_key) > FEED_SIZES_MAX:
            self._by_key.popitem(last=False)

    def arrived(self, key: bytes) -> None:
        """The member has confirmed a frame."""
        size = self._by_key.pop(key, None)
        if size is not None and 2 * size < FEED_BYTES:
            self._by_key[key] = 2 * size
