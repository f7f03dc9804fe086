"""Where an order lies in the key space of an etcd: everything under `holdfast/SCOPE/`.

    n       the incarnation of the order, and how far epochs had come before it
    f       who coordinates; how often it was written is the epoch
    c       written by who coordinates, from time to time: it is alive, or asked to let go
    g       the floor: what was forgotten
    i/ID    one entry each, by the id that its caller gave
    l       written with every entry: its revision is that of the last one, its version their number

`i/` and `l` are neighbours, so that one watch sees both and nothing else.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.rules.errors import BadKey

_SCOPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class OrderKeys:
    """The keys of one scope."""

    def __init__(self, scope: str) -> None:
        if not _SCOPE.fullmatch(scope):
            raise BadKey(f"{scope[:64]!r} cannot name an order in an etcd")
        base = f"holdfast/{scope}/".encode()
        self.scope = scope
        self.incarnation = base + b"n"
        self.epoch = base + b"f"
        self.beat = base + b"c"
        self.floor = base + b"g"
        self.last = base + b"l"
        self.entries = base + b"i/"
        self.entries_end = base + b"i0"
        """The first key behind the entries: the character after a slash is a zero."""
        self.watched_end = base + b"l\0"

    def entry(self, id: bytes) -> bytes:
        return self.entries + id.hex().encode()

    def id_of(self, key: bytes) -> bytes | None:
        """The id of an entry's key; None for a key that no node of ours has made."""
        digits = key.removeprefix(self.entries)
        if len(digits) != 32 or not key.startswith(self.entries) or digits != digits.lower():
            return None
        try:
            return bytes.fromhex(digits.decode("ascii"))
        except ValueError:
            return None
