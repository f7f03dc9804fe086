"""One change of entities, as an intent: whoever asks, and whoever holds the quorum."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.node.quorum.api import QuorumApi, StrongReceipt
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import BadInput
from holdfast.rules.quorum.intents import (
    EntityChange,
    EntityOperation,
    check_operation,
    entity_name,
)


async def change_entities(
    quorum: QuorumApi,
    mesh: str,
    operations: Sequence[EntityOperation],
    *,
    id: str | None = None,
    timeout_ms: int | None = None,
) -> StrongReceipt:
    """Puts, patches and deletes entities: all of them or none. What can be refused without asking
    anybody is refused here.
    """
    if not operations:
        raise BadInput("a change of no entity changes nothing", hint="give operations")
    for operation in operations:
        check_operation(operation)
    first = operations[0]
    body = encode_body(EntityChange(tuple(operations)))
    about = entity_name(first.type, first.id)
    return await quorum.intend(mesh, "entity.change", about, body, id=id, timeout_ms=timeout_ms)
