"""The shape that all committed entities together have, after every intent.

- A milestone has a live mission, a slice a live milestone, a feature a live slice, and the metadata
  of a task that task: as an entity, or as a task that was created by a turn.
- So nothing is deleted while it has children. One intent may delete both, in any order.
- No task depends on itself, directly or through others. A dependency may name a task that is not
  there yet, or no longer: it is a wish about order, not a part of the task.

A parent has another type than its child, and the types stand above each other in one order. So no
change of parents can close a circle; only dependencies could, and they are followed, as far as
`DEPENDENCY_WALK_MAX` tasks.

Every check is about the state after the whole intent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.rules.errors import DependencyCycle, HasChildren, Orphaned, OverLimit
from holdfast.rules.limits import DEPENDENCY_WALK_MAX
from holdfast.rules.quorum.entities import parent_type, read_fields
from holdfast.rules.quorum.view import EntityRow, PutEntity, View

Key = tuple[str, str]

_SHAPED: Final = frozenset({"mission", "milestone", "slice", "feature", "task", "task_metadata"})
"""Types that have a parent, or children, or depend on each other."""


def check_hierarchy(view: View, writes: Sequence[PutEntity]) -> None:
    """Raises unless the shape holds after these writes, provided that it held before."""
    if all([_stands_alone(write.row) for write in writes]):
        return
    after = {(write.row.type, write.row.id): write.row for write in writes}
    gained = _gained(writes)
    for write in writes:
        row = write.row
        if row.deleted:
            _check_childless(view, row, gained)
        else:
            _check_parent(view, row, after)
            # A new circle has a new edge in it, and is found from there.
            if row.type == "task" and _dependencies(row) != _dependencies(write.was):
                _check_dependencies(view, row, after)


def _stands_alone(row: EntityRow) -> bool:
    """Whether nothing of the shape depends on a write: so it is with most of them."""
    return row.type not in _SHAPED or (row.type == "mission" and not row.deleted)


def is_unshaped(type: str) -> bool:
    """Whether a live entity of this type stands alone, and has no parent."""
    return type == "mission" or type not in _SHAPED


def _gained(writes: Sequence[PutEntity]) -> Counter[Key]:
    """How many children each parent has more after the writes, or fewer."""
    gained: Counter[Key] = Counter()
    for write in writes:
        above = parent_type(write.row.type)
        if not above:
            continue
        if write.was is not None and not write.was.deleted:
            gained[above, write.was.parent] -= 1
        if not write.row.deleted:
            gained[above, write.row.parent] += 1
    return gained


def _check_childless(view: View, row: EntityRow, gained: Counter[Key]) -> None:
    key = (row.type, row.id)
    if row.type == "task" and view.task(row.id) is not None:
        return  # its turns are still there, and its metadata with them
    count = view.children(*key) + gained[key]
    if count > 0:
        raise HasChildren(f"{row.type} {row.id!r} cannot be deleted: {count} below it name it")


def _check_parent(view: View, row: EntityRow, after: Mapping[Key, EntityRow]) -> None:
    above = parent_type(row.type)
    if not above:
        return
    parent = after.get((above, row.parent)) or view.entity(above, row.parent)
    if parent is not None and not parent.deleted:
        return
    if above == "task" and view.task(row.parent) is not None:
        return
    raise Orphaned(f"{row.type} {row.id!r} needs the {above} {row.parent!r}, which does not exist")


def _check_dependencies(view: View, row: EntityRow, after: Mapping[Key, EntityRow]) -> None:
    waiting = _dependencies(row)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name == row.id:
            raise DependencyCycle(f"task {row.id!r} would depend on itself")
        if name in seen:
            continue
        seen.add(name)
        if len(seen) > DEPENDENCY_WALK_MAX:
            raise OverLimit(
                f"task {row.id!r} depends on more than {DEPENDENCY_WALK_MAX} others in all"
            )
        found = after.get(("task", name)) or view.entity("task", name)
        if found is not None:
            waiting += _dependencies(found)


def _dependencies(row: EntityRow | None) -> list[str]:
    """A deleted task has none: it may come back with others."""
    if row is None or row.deleted:
        return []
    return list(read_fields(row.fields).get("dependencies", ()))
