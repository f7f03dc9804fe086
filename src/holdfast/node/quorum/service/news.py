"""Who waits in this process for something to be folded: woken by the fold, never by a clock."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class FoldNews:
    """Those who wait for changes of one mesh, each for those about one name."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = defaultdict(list)

    def tell(self, about: str) -> None:
        """Something about this name was folded."""
        for future in self._waiting.pop(about, ()):
            if not future.done():
                future.set_result(None)

    def tell_all(self) -> None:
        for about in list(self._waiting):
            self.tell(about)

    def next(self, about: str) -> asyncio.Future[None]:
        """Is done after the next fold about this name. Ask for it before looking at the store."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[about].append(future)
        return future

    def forget(self, about: str, future: asyncio.Future[None]) -> None:
        """Nobody waits for this one any more."""
        future.cancel()
        left = [other for other in self._waiting.get(about, ()) if other is not future]
        if left:
            self._waiting[about] = left
        else:
            self._waiting.pop(about, None)
