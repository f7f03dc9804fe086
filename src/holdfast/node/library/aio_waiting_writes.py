"""`mesh.writes` for coroutines: strong writes that found no majority, and what became of them.

A write that waited may have failed, or met another one that was faster. Programs (an agent, or a
policy in code) see both sides here and decide, as people do with `holdfast writes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.quorum_reach import Reach
from holdfast.node.quorum import settling
from holdfast.node.quorum.api import ReplaySummary
from holdfast.node.quorum.documents import (
    OperationAsked,
    QuorumConflictDocument,
    SettleAsked,
    SettledConflict,
    Settlement,
    WriteDocument,
)
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.errors import BadInput
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import QUORUM_PAGE_ROWS
from holdfast.rules.quorum.entities import read_fields
from holdfast.rules.quorum.intents import EntityOperation
from holdfast.storage.ports import Reader


@checks_arguments()
class AsyncWaitingWrites:
    """The strong writes of this node that waited, and the conflicts of its mesh. Belongs to one
    event loop.
    """

    def __init__(self, engine: NodeEngine, mesh: str, reach: Reach) -> None:
        self._engine, self._mesh, self._reach = engine, mesh, reach

    async def list(
        self, *statuses: str, after: int = 0, limit: int = QUORUM_PAGE_ROWS
    ) -> Sequence[WriteDocument]:
        """Writes of this node with a number > after, in the order in which they came; all, or
        those with one of these statuses: `pending`, `replaying`, `applied`, `failed`.

        >>> ship.writes.list("pending", "failed")
        []
        """

        def look(tx: Reader) -> Sequence[WriteDocument]:
            return settling.write_page(tx, self._mesh, after, limit, statuses)[0]

        return await asyncio.to_thread(self._engine.read, "writes", look)

    async def get(self, id: str) -> WriteDocument:
        """One write, with every fence under which it was tried.

        >>> for write in ship.writes.list():
        ...     ship.writes.get(write.id).status
        """
        raw, read = parse_id(id), self._engine.read
        return await asyncio.to_thread(
            read, "writes", lambda tx: settling.write_of(tx, self._mesh, raw)
        )

    async def conflicts(
        self, *, after: int = 0, limit: int = QUORUM_PAGE_ROWS, settled: bool = False
    ) -> Sequence[QuorumConflictDocument]:
        """Intents that need a decision, each with both sides; with `settled` also those that had
        one.

        >>> ship.writes.conflicts(settled=True)
        []
        """

        def look(tx: Reader) -> Sequence[QuorumConflictDocument]:
            return settling.conflict_page(tx, self._mesh, after, limit, open_only=not settled)

        return await asyncio.to_thread(self._engine.read, "conflicts", look)

    async def resolve(
        self,
        which: str | int,
        take: Settlement,
        *,
        operations: Iterable[EntityOperation] = (),
        by: str = "",
        note: str = "",
    ) -> SettledConflict:
        """Ends a write that failed, by its id, or a conflict, by its number. `committed`: what
        stands is right. `intent`: what the write wanted is written again, on what stands now.
        `fields`: these operations are (`holdfast.entity_operation`). If what stands moves meanwhile
        that is refused, and nothing is lost.

        >>> for conflict in ship.writes.conflicts():
        ...     ship.writes.resolve(conflict.number, "committed", by="ana", note="theirs is newer")
        """
        asked = SettleAsked(
            take=take, operations=tuple(map(operation_asked, operations)), by=by, note=note
        ).check()
        about = (self._engine, await self._reach(), self._mesh)
        if isinstance(which, int):
            return await settling.settle_conflict(*about, which, asked)
        return await settling.settle_write(*about, parse_id(which), asked)

    async def replay(self, *, node: str | None = None) -> ReplaySummary:
        """Tries what waits now; with `node`, only writes that are for it.

        >>> ship.writes.replay().attempted
        0
        """
        return await (await self._reach()).replay(self._mesh, node=node)


def operation_asked(one: EntityOperation) -> OperationAsked:
    if one.guard is not None:
        raise BadInput("what settles a conflict is held by no lease", hint="leave the lease out")
    return OperationAsked(
        kind=one.kind,
        type=one.type,
        id=one.id,
        fields=read_fields(one.fields),
        removed=one.removed,
        base=one.base,
        expected_epoch=one.expected_epoch,
    )
