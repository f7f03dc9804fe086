"""The ids of messages that have come, as far as memory has room for them.

A sender says from time to time which of its messages may still come again (`settle`). There is room
for so many in all. A sender that floods loses ids of its own first: when there is no
room, the sender with the most ids forgets its oldest.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from holdfast.rules.limits import BUS_IDS_KEPT


class KnownIds:
    """Ids by sender, in the order in which they came."""

    def __init__(self, most: int = BUS_IDS_KEPT) -> None:
        self._most = most
        self._count = 0
        self._of: dict[str, dict[bytes, None]] = {}
        self._largest = ""
        """The sender with the most ids when it was last looked for."""

    def __len__(self) -> int:
        return self._count

    def of(self, sender: str) -> Container[bytes]:
        return self._of.get(sender, ())

    def add(self, sender: str, id: bytes) -> None:
        ids = self._of.setdefault(sender, {})
        if id in ids:
            return
        ids[id] = None
        self._count += 1
        if self._count > self._most:
            self._forget_one(sender)

    def settle(self, sender: str, waiting: Collection[bytes], kept: int) -> None:
        """The sender sends none of its messages again but those that wait: of the others only the
        newest stay known.
        """
        ids = self._of.get(sender, {})
        old = list(ids)[: max(0, len(ids) - kept)]
        for id in [id for id in old if id not in waiting]:
            del ids[id]
            self._count -= 1
        if not ids:
            self._of.pop(sender, None)

    def _forget_one(self, sender: str) -> None:
        fair = self._most // len(self._of)
        if len(self._of[sender]) <= fair:
            if len(self._of.get(self._largest, ())) <= fair:
                self._largest = max(self._of, key=lambda name: len(self._of[name]))
            sender = self._largest
        ids = self._of[sender]
        del ids[next(iter(ids))]
        self._count -= 1
        if not ids:
            del self._of[sender]
