"""Finds out whether two nodes have different content under one number of a stream.

Both cover the same numbers, and their digests differ. That may be harmless: one of them got a part
by a snapshot or has truncated it. So the blocks are compared, then the entries of those that
differ; only a number under which both have an entry, and not the same one, is a finding. The peer
with the lower key asks. What was found to be harmless is not compared again while the digests
differ by as much: an entry that is new to both adds the same to both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from holdfast.node.bus.meshes import mesh_serve
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.protocol.bus_mesh import BlocksAsked, BlocksTold, LeavesAsked, LeavesTold, MeshWord
from holdfast.rules.backoff import Allowance
from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import digest_difference
from holdfast.rules.errors import BadAnswer, HoldfastError
from holdfast.rules.frontier import Frontier
from holdfast.rules.limits import (
    BUS_COMPARE_BLOCK,
    BUS_COMPARE_BLOCKS,
    BUS_COMPARISONS_MAX,
    BUS_COMPARISONS_MS,
)


class StreamComparison:
    """The comparisons of one link, one at a time."""

    def __init__(
        self,
        context: MeshContext,
        peer: str,
        ask: Callable[[MeshWord], None],
        refuse: Callable[[HoldfastError], None],
    ) -> None:
        self._context, self._peer, self._ask, self._refuse = context, peer, ask, refuse
        self._compared: dict[StreamName, int] = {}
        """By how much the digests differed when they were compared last."""
        self._left: dict[StreamName, Allowance] = {}
        """How often each may be compared."""
        self._due: dict[StreamName, tuple[int, int]] = {}
        """The other side's number of the stream, and up to where one of both has truncated."""
        self._answer: asyncio.Future[BlocksTold | LeavesTold] | None = None
        self._running = False

    def look(
        self, name: StreamName, number: int, covered: Frontier, digest: bytes, floor: int
    ) -> None:
        """The other side told what it has of a stream: compares if that is called for."""
        mine = self._context.rows.get(name)
        if mine is None or mine.covered != covered or mine.digest == digest or mine.trouble:
            return
        difference = digest_difference(mine.digest, digest)
        if self._compared.get(name) == difference:
            return
        fresh = Allowance(BUS_COMPARISONS_MAX, BUS_COMPARISONS_MS)
        left = self._left.get(name, fresh).spend(int(self._context.now()))
        if left is None:
            return  # it tells another digest each time; a later word about the stream is looked at
        self._left[name] = left
        self._compared[name] = difference
        self._due[name] = (number, max(floor, mine.floor))
        if not self._running:
            self._running = True
            self._context.start(self._run())

    def answered(self, answer: BlocksTold | LeavesTold) -> None:
        if self._answer is None or self._answer.done():
            raise BadAnswer("a peer sent digests that were not asked for")
        self._answer.set_result(answer)

    async def _run(self) -> None:
        try:
            while self._due:
                name, (number, floor) = next(iter(self._due.items()))
                del self._due[name]
                await self._compare(name, number, floor)
        except HoldfastError as error:
            self._refuse(error)
        finally:
            self._running = False

    async def _compare(self, name: StreamName, number: int, floor: int) -> None:
        """Goes from one block of ours that has entries to the next: an origin may cover far more
        numbers than there are entries.
        """
        engine, run = self._context.engine, self._context.run
        after = floor // BUS_COMPARE_BLOCK
        while (first := await run(partial(mesh_serve.next_block, engine, name, after))) is not None:
            after = first + BUS_COMPARE_BLOCKS
            told = await self._asked(BlocksAsked(number, first))
            if not isinstance(told, BlocksTold) or told.first != first:
                raise BadAnswer("a peer answered another question about blocks")
            theirs = {block: (entries, digest) for block, entries, digest in told.blocks}
            ours = await run(partial(mesh_serve.own_blocks, engine, name, first))
            for one in ours:
                found = theirs.get(one.block)
                differs = found is not None and found != (one.entries, one.digest)
                if differs and await self._compare_block(name, number, one.block):
                    return

    async def _compare_block(self, name: StreamName, number: int, block: int) -> bool:
        """Returns whether a number has two contents; that is noted."""
        told = await self._asked(LeavesAsked(number, block))
        if not isinstance(told, LeavesTold) or told.block != block:
            raise BadAnswer("a peer answered another question about entries")
        theirs = dict(told.leaves)
        engine = self._context.engine
        ours = await self._context.run(partial(mesh_serve.own_leaves, engine, name, block))
        different = [seq for seq, leaf in ours if theirs.get(seq, leaf) != leaf]
        if different:
            trouble = (
                f"number {different[0]} is another entry at {self._peer} than here"
                f" ({len(different)} of its block): two homes wrote under one name and key"
            )
            await self._context.run(partial(mesh_serve.note_trouble, engine, name, trouble))
        return bool(different)

    async def _asked(self, question: MeshWord) -> BlocksTold | LeavesTold:
        self._answer = asyncio.get_running_loop().create_future()
        self._ask(question)
        try:
            return await self._answer
        finally:
            self._answer = None
