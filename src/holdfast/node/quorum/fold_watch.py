"""Waiting until this node has folded the order of a mesh up to a commit.

Whatever folds (an engine, or pages of a neighbour) commits to the store, and the store rings. One
watch serves all meshes of a home; while nobody waits, a ring costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.limits import SECOND_MS
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Reader


class _Waiting(NamedTuple):
    mesh: str
    number: int
    done: asyncio.Future[None]


class FoldWatch:
    """Belongs to one event loop."""

    def __init__(self, engine: NodeEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._waiting: set[_Waiting] = set()
        self._followers: dict[str, tuple[int, Callable[[int, int], None]]] = {}
        """By mesh: the last commit that was told, and whom."""
        self._rung = False
        engine.store.on_commit(self._ring)

    def standing(self, mesh: str) -> QuorumRow | None:
        return self._engine.read("quorum.standing", lambda tx: tx.quorum_get(mesh))

    def number(self, mesh: str) -> int:
        """The last commit of a mesh that is folded here."""
        row = self.standing(mesh)
        return 0 if row is None else row.number

    async def reached(self, mesh: str, number: int, timeout_ms: float) -> bool:
        """Waits until a commit is folded here; False when time is over."""
        one = _Waiting(mesh, number, self._loop.create_future())
        self._waiting.add(one)
        try:
            # After it waits: a commit from now on wakes it.
            if self.number(mesh) >= number:
                return True
            with suppress(TimeoutError):
                await asyncio.wait_for(one.done, max(0.0, timeout_ms) / SECOND_MS)
            return one.done.done() and not one.done.cancelled()
        finally:
            self._waiting.discard(one)

    def _ring(self) -> None:
        """Something was committed; from any thread."""
        if self._rung or not (self._waiting or self._followers):
            return
        self._rung = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._rung = False  # before reading: a commit from now on rings again
        meshes = {one.mesh for one in self._waiting} | self._followers.keys()

        def read(tx: Reader) -> dict[str, int]:
            rows = ((mesh, tx.quorum_get(mesh)) for mesh in meshes)
            return {mesh: 0 if row is None else row.number for mesh, row in rows}

        numbers = self._engine.read("quorum.standing", read)
        for one in self._waiting:
            if numbers[one.mesh] >= one.number and not one.done.done():
                one.done.set_result(None)
        for mesh, (told, tell) in list(self._followers.items()):
            if numbers[mesh] > told:
                self._followers[mesh] = (numbers[mesh], tell)
                tell(told, numbers[mesh])

    def follow(self, mesh: str, tell: Callable[[int, int], None]) -> None:
        """Calls `tell` whenever commits were folded, with the last one before and the last one."""
        self._followers[mesh] = (self.number(mesh), tell)
