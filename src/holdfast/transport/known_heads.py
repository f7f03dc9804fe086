"""Heads of requests that were parsed before, byte for byte.

A client that hands in one envelope after the other sends the same head every time, but for the
length of the body. The parser makes the same of the same bytes, so what it made of them is kept,
and the next request with that head is a look-up.

Nothing is decided here about where a message ends: a head is kept only after the parser took it, at
the beginning of a message, and found its body to be exactly the bytes that were read with it; and
it is looked up only where a message begins, with as many bytes behind it. Who calls, and whether he
may, is asked for every request anew; what can be worked out from the bytes of a head alone is kept
with it (`meaning`). Only heads of requests that were granted are kept, so strangers cannot fill the
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.rules.limits import HEADS_KNOWN_BYTES_MAX, HEADS_KNOWN_MAX

EMPTY_LINE: Final = b"\r\n\r\n"
Headers = Sequence[tuple[bytes, bytes]]


class RequestHead:
    """What the parser made of a head, and by which kind of listener it came."""

    __slots__ = ("headers", "kind", "meaning", "size", "url")

    def __init__(self, kind: str, url: bytes, headers: Headers, size: int) -> None:
        """`size` is that of the body."""
        self.kind, self.url, self.headers, self.size = kind, url, headers, size
        self.meaning: Any = None
        """What the call has worked out of it, for the next request with this head."""


class KnownHeads:
    """Those of one listener."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def find(self, data: bytes) -> tuple[RequestHead, int] | None:
        """The head of a request that is there whole, alone and known; and where its body begins."""
        begin = data.find(EMPTY_LINE) + len(EMPTY_LINE)
        found = self._heads.get(data[:begin])
        if found is None or len(data) - begin != found.size:
            return None
        return found, begin

    def keep(self, head: bytes, found: RequestHead) -> None:
        """Keeps a head; the one that was kept first makes room for it."""
        if len(head) > HEADS_KNOWN_BYTES_MAX:
            return
        while len(self._heads) >= HEADS_KNOWN_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[head] = found
