"""What peers have of this node's own, and it no longer has itself: it was set back.

A restore counts in a new epoch, so what was written after the backup stands in an earlier one. It
comes back from peers that may relay, as everything does. From others it does not, because they
could make it up.

Numbers of the present epoch that we never wrote are another matter: an older copy of the home was
put back without a restore. What is written next gets numbers that peers know already. Nobody can
tell whether the peer lies, so this is said aloud, and what is counted stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from holdfast.bus.options import RunInThread
from holdfast.node.bus.meshes.mesh_serve import note_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName, lacking
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import BUS_EPOCHS_MAX
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")


class _Lost(NamedTuple):
    numbers: int
    last: int
    """The last number that we have ourselves."""


class OwnPast:
    """Looks into what peers tell of our own streams."""

    def __init__(
        self, engine: NodeEngine, run: RunInThread, start: Callable[[Awaitable[Any]], Any]
    ) -> None:
        self._engine, self._run, self._start = engine, run, start
        self._told: dict[str, dict[StreamName, None]] = {}
        """By peer, the streams that were spoken of: it is said once of each, and of no more than a
        name can have."""

    def heard(self, peer: str, name: StreamName, covered: Frontier, relays: bool) -> None:
        """A peer has numbers of our own that we seem to lack."""
        told = self._told.setdefault(peer, {})
        if name not in told and len(told) < BUS_EPOCHS_MAX:
            told[name] = None
            self._start(self._look(peer, name, covered, relays))

    async def _look(self, peer: str, name: StreamName, covered: Frontier, relays: bool) -> None:
        # In the store: what is known here may be older than what a peer got another way.
        lost = await self._run(partial(_lost, self._engine, name, covered))
        if not lost.numbers:
            return
        if name.epoch < self._engine.ctx.epoch:
            log.warning(
                "%s: %s has %d numbers of this node's own, of epoch %d, from before it was "
                "restored; %s",
                *(name.mesh, peer, lost.numbers, name.epoch),
                "they are taken back" if relays else "it may not relay, so they are not taken",
            )
            return
        trouble = (
            f"{peer} has {lost.numbers} numbers of epoch {name.epoch} that this node has not "
            f"written, which has got to {lost.last}: an older copy of this home was put back, or "
            f"{peer} makes them up"
        )
        log.warning("%s: %s", name.mesh, trouble)
        if relays:
            # Beside what we count now, also if it is about a later epoch: nobody else begins one.
            now = name._replace(epoch=self._engine.ctx.epoch)
            await self._run(partial(note_trouble, self._engine, now, trouble))


def _lost(engine: NodeEngine, name: StreamName, covered: Frontier) -> _Lost:
    def read(tx: Reader) -> _Lost:
        row = tx.stream_get(name)
        mine = NOTHING if row is None else row.covered
        numbers = sum(end - start for start, end in lacking(mine, covered))
        return _Lost(numbers, mine.last)

    return engine.read("bus.own", read)
