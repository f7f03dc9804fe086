"""Which entries of a log a reader is given.

A filter is stated once, here, and run in two places: by the store inside its query and by the
receiver on what arrives. Both must agree, so the receiver can tell a source that sends more than it
was asked for.

What a filter leaves out counts as read: a reader that confirms up to an offset has confirmed every
entry up to it, those that it was never given among them. Otherwise nothing could be forgotten as
long as somebody reads a part.
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
    """Data classes, as `rules.classes` names them: `facts`, `state`, `tasks` …"""
    origins: tuple[str, ...] = ()
    """Peers that wrote the envelope."""
    beyond: str = ""
    """A zone: neither what it wrote nor what came through it."""
    without_messages: bool = False
    """Leave out messages: they are for those whom they name."""

    def check(self) -> Filter:
        for name in ("meshes", "subjects", "classes", "origins"):
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
        return self

    @property
    def ops(self) -> frozenset[str] | None:
        """The ops of its data classes; None if all may pass, those of later versions too."""
        if not self.classes:
            return None
        return frozenset().union(*(CLASSES[name] for name in self.classes))

    def passes(self, mesh: str, op: str, entity: str, origin: str, via: str) -> bool:
        """The rule itself. `via` is the zone that the entry came through, or empty."""
        if self.meshes and mesh not in self.meshes:
            return False
        if self.classes and op not in (self.ops or ()):
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
"""The data classes that stand in the log, with their ops."""
MESSAGES: Final = CLASSES[DataClass.MESSAGES.value]
