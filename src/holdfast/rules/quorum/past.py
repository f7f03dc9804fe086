"""An entity as it was: what the operations that made a revision say, one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.errors import EntryDamaged
from holdfast.rules.quorum.entities import Fields, canonical, read_fields
from holdfast.rules.quorum.intents import EntityChange, EntityOperation
from holdfast.rules.quorum.view import EntityRevision


def operation_on(change: EntityChange, type: str, id: str) -> EntityOperation:
    """What a change does to one entity."""
    for operation in change.operations:
        if (operation.type, operation.id) == (type, id):
            return operation
    raise EntryDamaged(f"an entry is on record for {type} {id!r}, and does not name it")


def recorded_operations(
    change: EntityChange, revisions: Iterable[EntityRevision]
) -> list[tuple[int, EntityOperation]]:
    """What the record of a commit says that a change has done: by revision, the operation that made
    it. A change that was not applied has made none.
    """
    return [(one.revision, operation_on(change, one.type, one.id)) for one in revisions]


def fields_of(operations: Iterable[EntityOperation]) -> bytes:
    """The fields after these operations, of which the first is no patch and all others are."""
    fields: Fields = {}
    for operation in operations:
        fields |= read_fields(operation.fields)
        for name in operation.removed:
            fields.pop(name, None)
    return canonical(fields)
