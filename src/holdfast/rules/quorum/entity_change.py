"""What `entity.change` does: preconditions, then all of its writes or none.

Each operation meets the committed entity in one of these ways.

- It **fits**: it has no base, or its base is the revision that stands. Base 0 fits where nothing
  stands, also where something was deleted.
- It is **covered**: its base has been replaced by a newer revision, and nothing is lost if it is
  dropped. That is so if what stands says already all that it wants to say (every field that it sets
  has that value, every field that it removes is absent, or it wants to delete and the entity is
  gone), or if its own author has since replaced the entity as a whole by a write that was made
  later: the author decided. A delete without a base is covered where the entity is gone already.
- It **clashes**: its base has been replaced, and both sides have changed something; or its base is
  ahead of everything that was ever committed here, as after a recovery that lost commits.

If one operation clashes, the intent is `conflict_requires_merge`. If all are covered, it is
`superseded`. If some are covered and others fit, it is a conflict too: to apply a part would tear
it, and to drop the part that fits would be to decide. A base is strict: a patch whose base has
moved is not applied, even if it touches other fields. Who does not care what else has changed sends
a patch without a base; it changes its own fields only.

Before all this stands authority: a lease epoch that has passed, or a user's lease that is no longer
held under the fence that the operation shows, makes the intent `rejected_fenced`. Behind it stands
the shape of the result (`entities`, `hierarchy`), which refuses the intent for good.
"""

from __future__ import annotations

from typing import Literal

from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import FenceTooOld, RevisionMoved, UnknownEntity
from holdfast.rules.quorum.entities import (
    Fields,
    base_missing,
    canonical,
    check_result,
    parent_of,
    read_fields,
)
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.hierarchy import check_hierarchy, is_unshaped
from holdfast.rules.quorum.intents import EntityChange, EntityOperation
from holdfast.rules.quorum.lease import guard_holds
from holdfast.rules.quorum.view import (
    Clash,
    EntityRevision,
    EntityRow,
    PutEntity,
    Ruling,
    View,
)
from holdfast.rules.reconcile import Outcome

Meets = Literal["fits", "covered", "clashes"]


def rule_change(
    view: View, envelope: Envelope, body: EntityChange, fence: FenceToken, committed_at: int
) -> Ruling:
    """What an intent does to its entities. Raises a typed error if it is refused for good."""
    if len(body.operations) == 1:
        plain = _plain_put(view, envelope, body.operations[0], fence, committed_at)
        if plain is not None:
            return plain
    return rule_any_change(view, envelope, body, fence, committed_at)


def _plain_put(
    view: View,
    envelope: Envelope,
    operation: EntityOperation,
    fence: FenceToken,
    committed_at: int,
) -> Ruling | None:
    """The usual write, in a tenth of the steps: one mission or setting is put, and nothing that
    needs a look at others. It says what `rule_any_change` says; None: ask that.
    """
    if (
        operation.kind != "put"
        or operation.guard is not None
        or operation.expected_epoch is not None
        or not is_unshaped(operation.type)
    ):
        return None
    type, id, base = operation.type, operation.id, operation.base
    was = view.entity(type, id)
    revision = 0 if was is None else was.revision
    if base is not None and base != revision:
        return None
    fields = read_fields(operation.fields)
    raw = canonical(fields)
    check_result(type, fields, raw)
    row = EntityRow(
        type=type,
        id=id,
        revision=revision + 1,
        fields=raw,
        origin=envelope.origin,
        lamport=envelope.lamport,
        fence=fence,
        committed_at=committed_at,
    )
    return Ruling(
        outcome=Outcome.APPLIED,
        writes=(PutEntity(row, was),),
        revisions=(EntityRevision(type, id, revision + 1),),
    )


def rule_any_change(
    view: View, envelope: Envelope, body: EntityChange, fence: FenceToken, committed_at: int
) -> Ruling:
    """What an intent does, whatever it holds."""
    fenced = _lacks_authority(view, body, fence)
    if fenced:
        return Ruling(
            outcome=Outcome.REJECTED_FENCED, reason=FenceTooOld.code, detail="; ".join(fenced)
        )
    pairs = [(one, view.entity(one.type, one.id)) for one in body.operations]
    for operation, row in pairs:
        if operation.kind != "put":
            _check_there(operation, row)
    meets = [_meet(operation, row, envelope) for operation, row in pairs]
    if "clashes" in meets or ("covered" in meets and "fits" in meets):
        return _conflict(pairs, meets)
    if "covered" in meets:
        return Ruling(outcome=Outcome.SUPERSEDED)
    writes = tuple(
        [
            PutEntity(_written(operation, row, envelope, fence, committed_at), row)
            for operation, row in pairs
        ]
    )
    check_hierarchy(view, writes)
    revisions = tuple(
        [EntityRevision(write.row.type, write.row.id, write.row.revision) for write in writes]
    )
    return Ruling(outcome=Outcome.APPLIED, writes=writes, revisions=revisions)


def _lacks_authority(view: View, body: EntityChange, fence: FenceToken) -> list[str]:
    found = []
    for operation in body.operations:
        expected, guard = operation.expected_epoch, operation.guard
        if expected is not None and expected != fence.lease_epoch:
            found.append(f"it expects lease epoch {expected}, and {fence.lease_epoch} commits it")
        if guard is not None and not guard_holds(view.lease(guard.lease), guard):
            found.append(f"lease {guard.lease!r} is not held under the fence {guard.order}")
    return found


def _check_there(operation: EntityOperation, row: EntityRow | None) -> None:
    """Raises UnknownEntity where the operation needs an entity, and says nothing of one that it
    has seen: with a base that is no longer there it is a conflict, not a slip.
    """
    assert operation.kind != "put", "a put needs nothing"
    if row is None:
        gone = operation.base is None
    elif not row.deleted:
        gone = False
    else:
        gone = operation.kind == "patch" and operation.base in (None, row.revision)
    if gone:
        raise UnknownEntity(f"there is no {operation.type} {operation.id!r}")


def _meet(operation: EntityOperation, row: EntityRow | None, envelope: Envelope) -> Meets:
    revision = 0 if row is None else row.revision
    live = row is not None and not row.deleted
    if operation.base is None or operation.base == revision:
        return "covered" if operation.kind == "delete" and not live else "fits"
    if operation.base == 0 and not live:
        return "fits"
    if row is None or operation.base > revision:
        return "clashes"
    if _says_already(operation, row) or _author_went_on(row, envelope):
        return "covered"
    return "clashes"


def _says_already(operation: EntityOperation, row: EntityRow) -> bool:
    if operation.kind == "delete" or row.deleted:
        return operation.kind == "delete" and row.deleted
    return not _differing(operation, row)


def _author_went_on(row: EntityRow, envelope: Envelope) -> bool:
    return row.whole and row.origin == envelope.origin and row.lamport > envelope.lamport


def _differing(operation: EntityOperation, row: EntityRow) -> tuple[str, ...]:
    """Fields in which the entity is not as the operation wants it."""
    stands = read_fields(row.fields)
    wants = read_fields(operation.fields)
    other = [
        name
        for name, value in wants.items()
        if name not in stands or canonical(stands[name]) != canonical(value)
    ]
    other += [name for name in operation.removed if name in stands]
    return tuple(sorted(other))


def _conflict(pairs: list[tuple[EntityOperation, EntityRow | None]], meets: list[Meets]) -> Ruling:
    clashes = []
    for (operation, row), met in zip(pairs, meets, strict=True):
        if met == "fits" or operation.base is None:
            continue
        revision = 0 if row is None else row.revision
        differing: tuple[str, ...] = ()
        if row is not None and operation.kind != "delete":
            differing = _differing(operation, row)
        ahead = operation.base > revision
        clashes.append(
            Clash(
                operation.type,
                operation.id,
                operation.base,
                revision,
                "covered" if met == "covered" else "ahead" if ahead else "moved",
                differing,
            )
        )
    named = ", ".join(f"{one.type} {one.id!r} is at {one.revision}" for one in clashes)
    return Ruling(
        outcome=Outcome.CONFLICT_REQUIRES_MERGE,
        reason=RevisionMoved.code,
        detail=f"it was made for other revisions: {named}",
        clashes=tuple(clashes),
    )


def _written(
    operation: EntityOperation,
    row: EntityRow | None,
    envelope: Envelope,
    fence: FenceToken,
    committed_at: int,
) -> EntityRow:
    fields = _fields_after(operation, row)
    raw = canonical(fields)
    if operation.kind != "delete":
        check_result(operation.type, fields, raw)
        _check_transition(operation, row, fields)
    return EntityRow(
        type=operation.type,
        id=operation.id,
        revision=1 if row is None else row.revision + 1,
        fields=raw,
        parent=""
        if operation.kind == "delete"
        else parent_of(operation.type, operation.id, fields),
        deleted=operation.kind == "delete",
        whole=operation.kind != "patch",
        origin=envelope.origin,
        lamport=envelope.lamport,
        fence=fence,
        committed_at=committed_at,
    )


def _fields_after(operation: EntityOperation, row: EntityRow | None) -> Fields:
    if operation.kind == "delete":
        return {}
    given = read_fields(operation.fields)
    if operation.kind == "put":
        return given
    assert row is not None, "a patch meets an entity"
    fields = {**read_fields(row.fields), **given}
    for name in operation.removed:
        fields.pop(name, None)
    return fields


def _check_transition(operation: EntityOperation, row: EntityRow | None, fields: Fields) -> None:
    """A task moves to another column only if the mover says where it saw it."""
    if operation.type != "task" or operation.base is not None or row is None or row.deleted:
        return
    if read_fields(row.fields).get("column") != fields.get("column"):
        raise base_missing("the column of a task")
