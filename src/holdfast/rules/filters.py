"""Which entries of a log a reader gets.

A filter is stated once, here, and runs in two places: in the query of the store that serves a log,
and on what the receiver gets. Both must agree, so the receiver notices a source that sends more
than it asked for.

What a filter leaves out counts as read: a reader that confirms up to an offset has confirmed every
entry up to it, also those that it never got. Otherwise a log could forget nothing while one reader
reads only a part.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.rules.bodies import OPS, family_of
from holdfast.rules.data_classes import FAMILIES, DataClass
from holdfast.rules.errors import BadInput, OverLimit
from holdfast.rules.names import check_key, check_mesh, check_peer

TERMS_MAX: Final = 64


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every field narrows; an empty one lets everything pass."""

    meshes: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    """Beginnings of the entity: a fact's subject, a key, a path."""
    classes: tuple[str, ...] = ()
    """Data classes, as `rules.data_classes` names them: `facts`, `state`, `tasks` …"""
    ops: tuple[str, ...] = ()
    """Single ops, such as `state.delete`, of these classes or of any."""
    origins: tuple[str, ...] = ()
    """Peers that wrote the envelope."""
    beyond: str = ""
    """A zone: leaves out what the zone wrote and what came through it."""
    without_messages: bool = False
    """Leaves out messages: they are only for the members that they name."""

    def check(self) -> Filter:
        for name in ("meshes", "subjects", "classes", "ops", "origins"):
            if len(getattr(self, name)) > TERMS_MAX:
                raise OverLimit(f"a filter has {TERMS_MAX} {name} at most")
        for mesh in self.meshes:
            check_mesh(mesh)
        for subject in self.subjects:
            check_key(subject, "subject prefix")
        for origin in (*self.origins, *filter(None, [self.beyond])):
            check_peer(origin)
        for name in self.classes:
            if name not in CLASSES:
                known = ", ".join(CLASSES)
                raise BadInput(f"{name!r} is not a data class", hint=f"use one of: {known}")
        for op in self.ops:
            if op not in OPS:
                raise BadInput(f"{op!r} is no op", hint="ops are named like `state.set`")
        if self.wanted_ops == frozenset():
            raise BadInput(f"no op of {', '.join(self.classes)} is among {', '.join(self.ops)}")
        return self

    @property
    def wanted_ops(self) -> frozenset[str] | None:
        """The ops that may pass; None if all may, also those of later versions."""
        if not self.classes:
            return frozenset(self.ops) if self.ops else None
        of_classes = frozenset().union(*(CLASSES[name] for name in self.classes))
        return of_classes.intersection(self.ops) if self.ops else of_classes

    def passes(self, mesh: str, op: str, entity: str, origin: str, via: str) -> bool:
        """Whether an entry passes. `via` is the zone that it came through, or empty."""
        if self.meshes and mesh not in self.meshes:
            return False
        if (self.classes or self.ops) and op not in (self.wanted_ops or ()):
            return False
        if self.subjects and not entity.startswith(self.subjects):
            return False
        if self.origins and origin not in self.origins:
            return False
        if self.without_messages and op in MESSAGES:
            return False
        return not self.beyond or self.beyond not in (origin, via)


EVERYTHING: Final = Filter()


def _ops_of(data_class: DataClass) -> frozenset[str]:
    families = {family for family, found in FAMILIES.items() if found is data_class}
    return frozenset(op for op in OPS if family_of(op) in families)


CLASSES: Final = {
    data_class.value: _ops_of(data_class) for data_class in DataClass if _ops_of(data_class)
}
"""The data classes whose changes are in the log, with their ops."""
MESSAGES: Final = CLASSES[DataClass.MESSAGES.value]
