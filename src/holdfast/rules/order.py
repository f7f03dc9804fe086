"""The one order: `(lamport, peer bytes)`, then the message id.

Every "which of the two wins" in Holdfast compares versions by this order, in Python here, in SQL by
row values (SQLite compares TEXT bytewise in its default collation), and in Spark by the same three
columns.

A stamp is given by its origin and never changed by a receiver. Two different changes with the same
stamp exist only if a home was copied and both copies went on; the message id then breaks the tie,
so that even such nodes end in the same state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.rules.envelope import Envelope

ORDER_COLUMNS = ("lamport", "peer", "id")
"""The columns of the order, most significant first, under the same names in every table and in the
lake.
"""


class Stamp(NamedTuple):
    """When a change happened, in the only time that all nodes agree on."""

    lamport: int
    peer: str

    def __str__(self) -> str:
        return f"{self.lamport}@{self.peer}"


class Version(NamedTuple):
    """A stamp with the id that makes it unique."""

    lamport: int
    peer: str
    id: bytes

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.lamport, self.peer)


def version_of(envelope: Envelope) -> Version:
    """The version that an envelope is of what it is about."""
    return Version(envelope.lamport, envelope.origin, envelope.id)


def order_key(version: Version) -> tuple[int, bytes, bytes]:
    """Sorts versions as everyone else does: text by its UTF-8 bytes, not by locale."""
    return (version.lamport, version.peer.encode(), version.id)


def is_newer(a: Version, b: Version) -> bool:
    """Does `a` win over `b` where the last writer wins?"""
    if a.lamport != b.lamport:
        return a.lamport > b.lamport
    return order_key(a) > order_key(b)
