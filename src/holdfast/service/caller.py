"""Who makes a call: this machine itself, another zone, or the bearer of a token.

The server works out once who makes a call. From then on the `Caller` decides what may be read and
under which names. It is made anew for each call, so a grant that is taken back is gone with the
next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.rules.data_classes import DataClass
from holdfast.rules.errors import NotGranted
from holdfast.rules.filters import Filter

ALL_MESHES: Final = "*"


class Caller(msgspec.Struct, frozen=True):
    """One party that makes calls: `local`, `zone` or `token`; at a broker, `key`."""

    kind: str
    name: str = ""
    reads: frozenset[str] | None = None
    """Meshes that it may read; None for all."""
    key: bytes = b""
    """The key that it has proved to have, at a broker, where anybody with a key may say hello."""

    @property
    def is_local(self) -> bool:
        return self.kind == "local"

    def may_all_of(self, other: Caller) -> bool:
        """Whether this caller, seen at another time, may do at least what `other` might."""
        if (self.kind, self.name) != (other.kind, other.name):
            return False
        return self.reads is None or (other.reads is not None and other.reads <= self.reads)

    def check_consumer(self, name: str) -> None:
        """A caller from outside reads only by consumers that bear its name."""
        if self.is_local:
            return
        own, _, rest = name.partition(f"{self.kind}:{self.name}/")
        # A slash in the rest of a token's would make it that of the token `a/b` as well as of `a`.
        # A zone's consumer knows its zone, so there it does no harm.
        if own or not rest or (self.kind == "token" and "/" in rest):
            raise NotGranted(
                f"{self.kind} {self.name!r} may not use the consumer {name!r}",
                hint=f"name it {self.kind}:{self.name}/ANYTHING",
            )

    def narrow(self, filter: Filter) -> Filter:
        """The filter, within the meshes that this caller may read. Another zone is given no
        messages unless it asks for them by name: a person who lets it read a mesh means the state.
        """
        if self.kind == "zone" and DataClass.MESSAGES.value not in filter.classes:
            filter = msgspec.structs.replace(filter, without_messages=True)
        if self.reads is None:
            return filter
        # A filter cannot mean `no mesh`: an empty list of meshes lets everything pass.
        refused = sorted(set(filter.meshes) - self.reads)
        if refused or not self.reads:
            what = ", ".join(repr(mesh) for mesh in refused) or "any mesh"
            raise NotGranted(f"{self.kind} {self.name!r} may not read {what}")
        if filter.meshes:
            return filter
        return msgspec.structs.replace(filter, meshes=tuple(sorted(self.reads)))


LOCAL: Final = Caller("local")


def granted(reads: Iterable[str]) -> frozenset[str] | None:
    """Stored grants as a caller bears them."""
    meshes = frozenset(reads)
    return None if ALL_MESHES in meshes else meshes
