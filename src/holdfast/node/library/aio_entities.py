"""`mesh.entities` for coroutines: what a mesh with voters has agreed on.

Every change is one intent: all of its operations are committed, or none is. A receipt says what
became of it; a refusal is an error. Every read says how fresh it is: by default it sees everything
that was committed before it was asked, or it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.quorum_reach import Reach
from holdfast.node.log.entity_history import PastRevision, entity_history
from holdfast.node.quorum.api import ReadDemand, StrongReceipt
from holdfast.node.quorum.entity_writes import change_entities
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.bodies import encode_value
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.quorum.entities import check_type, read_fields
from holdfast.rules.quorum.intents import (
    EntityOperation,
    Guard,
    OperationKind,
)
from holdfast.rules.quorum.view import EntityRow

LINEARIZABLE = ReadDemand()
LOCAL = ReadDemand(linearizable=False)
"""Whatever this home has, as old as it may be."""


def within(staleness_ms_max: int) -> ReadDemand:
    """Nothing that was last confirmed longer ago than this."""
    return ReadDemand(linearizable=False, staleness_ms_max=staleness_ms_max)


class Guarding(Protocol):
    """A lease that must still be held when a change is committed."""

    def checked_guard(self) -> Guard: ...


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity as it was committed."""

    type: str
    id: str
    revision: int
    fields: dict[str, Any]
    origin: str
    fence: str
    """Of the commit that made this revision."""
    committed_at: int

    @classmethod
    def of(cls, row: EntityRow) -> Entity:
        return cls(
            type=row.type,
            id=row.id,
            revision=row.revision,
            fields=read_fields(row.fields),
            origin=row.origin,
            fence=str(row.fence.order),
            committed_at=row.committed_at,
        )


class EntityRead(msgspec.Struct, frozen=True):
    """One entity, and how fresh that is. None: there is no such entity, or it was deleted."""

    entity: Entity | None
    read: DegradedRead


class EntityListRead(msgspec.Struct, frozen=True):
    entities: tuple[Entity, ...]
    read: DegradedRead


class EntityHistoryRead(msgspec.Struct, frozen=True):
    revisions: tuple[PastRevision, ...]
    read: DegradedRead


def entity_operation(
    kind: OperationKind,
    type: str,
    id: str,
    fields: Mapping[str, Any] | None = None,
    *,
    remove: Iterable[str] = (),
    base: int | None = None,
    expected_epoch: int | None = None,
    lease: Guarding | Guard | None = None,
) -> EntityOperation:
    """What a change does to one entity; `base` is the revision that the writer saw, 0 if the entity
    must be new. LeaseNotHeld if the lease has ended already.

    >>> put = holdfast.entity_operation("put", "mission", "m2", {"title": "Sail"}, base=0)
    >>> ship.entities.change([put]).state
    'committed'
    """
    if not (lease is None or isinstance(lease, Guard) or hasattr(lease, "checked_guard")):
        raise BadInput("a lease is what `mesh.lease` gives")
    guard = lease if lease is None or isinstance(lease, Guard) else lease.checked_guard()
    raw = encode_value(dict(fields or {}))
    return EntityOperation(kind, type, id, base, raw, tuple(remove), expected_epoch, guard)


@checks_arguments()
class AsyncEntities:
    """The entities of one mesh. Belongs to one event loop."""

    def __init__(self, engine: NodeEngine, mesh: str, reach: Reach) -> None:
        self._engine, self._mesh, self._reach = engine, mesh, reach

    # --- writes ------------------------------------------------------------------------------

    async def put(
        self,
        type: str,
        id: str,
        fields: Mapping[str, Any],
        *,
        base: int | None = None,
        expected_epoch: int | None = None,
        lease: Guarding | Guard | None = None,
        intent_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> StrongReceipt:
        """Gives an entity these fields and no others. `lease` is one that must still be held when
        it is committed. The same `intent_id` twice is one write.

        >>> ship.entities.put("mission", "m3", {"title": "Sail", "legs": 3}, base=0).state
        'committed'
        """
        one = entity_operation(
            "put", type, id, fields, base=base, expected_epoch=expected_epoch, lease=lease
        )
        return await self.change((one,), intent_id=intent_id, timeout_ms=timeout_ms)

    async def patch(
        self,
        type: str,
        id: str,
        fields: Mapping[str, Any] | None = None,
        *,
        remove: Iterable[str] = (),
        base: int | None = None,
        expected_epoch: int | None = None,
        lease: Guarding | Guard | None = None,
        intent_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> StrongReceipt:
        """Changes some fields of an entity, and removes others; the rest stays.

        >>> ship.entities.put("mission", "m4", {"title": "Sail", "legs": 3})
        >>> ship.entities.patch("mission", "m4", {"title": "Row"}, remove=["legs"]).state
        'committed'
        """
        one = entity_operation(
            *("patch", type, id, fields),
            remove=remove,
            base=base,
            expected_epoch=expected_epoch,
            lease=lease,
        )
        return await self.change((one,), intent_id=intent_id, timeout_ms=timeout_ms)

    async def delete(
        self,
        type: str,
        id: str,
        *,
        base: int | None = None,
        expected_epoch: int | None = None,
        lease: Guarding | Guard | None = None,
        intent_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> StrongReceipt:
        """Removes an entity. One with children is refused.

        >>> ship.entities.put("mission", "m5", {"title": "Sail"})
        >>> ship.entities.delete("mission", "m5").state
        'committed'
        """
        one = entity_operation(
            "delete", type, id, base=base, expected_epoch=expected_epoch, lease=lease
        )
        return await self.change((one,), intent_id=intent_id, timeout_ms=timeout_ms)

    async def change(
        self,
        operations: Iterable[EntityOperation],
        *,
        intent_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> StrongReceipt:
        """Several operations (`entity_operation`) as one: all of them or none.

        >>> both = [holdfast.entity_operation("put", "mission", id, {"title": id}) for id in "ab"]
        >>> ship.entities.change(both, timeout_ms=5_000).state
        'committed'
        """
        given = tuple(operations)
        api = await self._reach()
        return await change_entities(api, self._mesh, given, id=intent_id, timeout_ms=timeout_ms)

    # --- reads -------------------------------------------------------------------------------

    async def get(self, type: str, id: str, *, demand: ReadDemand = LINEARIZABLE) -> EntityRead:
        """An entity as it stands. NotFresh or TooStale if that cannot be said as the caller
        demands.

        >>> ship.entities.get("mission", "first").entity.fields
        {'title': 'Cross the bay'}
        >>> ship.entities.get("mission", "first", demand=holdfast.ReadDemand(linearizable=False))
        """
        check_type(type)
        read = await self._confirm(demand)
        row = self._engine.read("entity.get", lambda tx: tx.entity_get(self._mesh, type, id))
        return EntityRead(None if row is None or row.deleted else Entity.of(row), read)

    async def list(
        self,
        type: str,
        *,
        after: str = "",
        limit: int = CHUNK_ROWS,
        demand: ReadDemand = LINEARIZABLE,
    ) -> EntityListRead:
        """Entities of a type by id, those behind `after`: a page of them.

        >>> "first" in [found.id for found in ship.entities.list("mission").entities]
        True
        """
        check_type(type)
        most = min(max(1, limit), CHUNK_ROWS)
        read = await self._confirm(demand)
        rows = await asyncio.to_thread(
            self._engine.read,
            "entity.list",
            lambda tx: tx.entity_list(self._mesh, type, after, most),
        )
        return EntityListRead(tuple(Entity.of(row) for row in rows), read)

    async def history(
        self, type: str, id: str, *, after: int = 0, demand: ReadDemand = LINEARIZABLE
    ) -> EntityHistoryRead:
        """The revisions of an entity above `after`, the lowest first, with their commits.

        >>> [past.revision for past in ship.entities.history("mission", "first").revisions]
        [1]
        """
        check_type(type)
        read = await self._confirm(demand)
        rows = await asyncio.to_thread(
            self._engine.read,
            "entity.history",
            lambda tx: entity_history(tx, self._mesh, type, id, after),
        )
        return EntityHistoryRead(tuple(rows), read)

    async def _confirm(self, demand: ReadDemand) -> DegradedRead:
        return await (await self._reach()).confirm(self._mesh, demand)
