"""What nodes ask each other about meshes that have no broker: requests of the bus.

    holdfast.mesh.join    a newcomer, at the owner     JoinAsked  ─► JoinGiven
    holdfast.mesh.news    a member, at any member      NewsAsked  ─► NewsGiven
    holdfast.mesh.told    whoever has a newer list     ListTold   ─► nothing
    holdfast.mesh.leave   a member, at the owner       LeaveAsked ─► nothing

Bodies are msgpack arrays. The secret of an invite stands in `JoinAsked` alone, which goes to the
owner's proved key over its own link, and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from holdfast.rules.bus.scope import JOIN_SCOPE, LEAVE_SCOPE
from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import (
    BUS_ADDRESSES_MAX,
    BUS_CAPABILITY_BYTES_MAX,
    BUS_MEMBER_LIST_BYTES_MAX,
    BUS_MEMBERS_MAX,
    LAMPORT_MAX,
    MESH_SLUG_CHARS_MAX,
)

JOIN: Final = JOIN_SCOPE.removeprefix("service:")
NEWS: Final = "holdfast.mesh.news"
TOLD: Final = "holdfast.mesh.told"
LEAVE: Final = LEAVE_SCOPE.removeprefix("service:")

Slug = Annotated[str, Meta(max_length=MESH_SLUG_CHARS_MAX)]
ListBytes = Annotated[bytes, Meta(max_length=BUS_MEMBER_LIST_BYTES_MAX)]
CapabilityBytes = Annotated[bytes, Meta(max_length=BUS_CAPABILITY_BYTES_MAX)]


class MemberPlaces(msgspec.Struct, array_like=True, frozen=True):
    """Where a member may be: a hint, like all addresses. The key of the hello decides."""

    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    addresses: Annotated[
        list[Annotated[str, Meta(max_length=64)]], Meta(max_length=BUS_ADDRESSES_MAX)
    ]


Places = Annotated[list[MemberPlaces], Meta(max_length=BUS_MEMBERS_MAX)]


class JoinAsked(msgspec.Struct, array_like=True, frozen=True):
    mesh: Slug
    name: str
    secret: Annotated[bytes, Meta(min_length=32, max_length=32)]

    def __repr__(self) -> str:
        return f"JoinAsked(mesh={self.mesh!r})"  # the secret stays out of logs


class JoinGiven(msgspec.Struct, array_like=True, frozen=True):
    members: ListBytes
    capability: CapabilityBytes
    title: str
    """What the owner calls the mesh for people."""


class NewsAsked(msgspec.Struct, array_like=True, frozen=True):
    mesh: Slug
    serial: Annotated[int, Meta(ge=0, lt=LAMPORT_MAX)]
    """The number of the list that the asker has."""
    renew: bool
    """The asker needs another capability; only the owner can give it."""
    digest: Annotated[bytes, Meta(max_length=32)] = b""
    """Of its list: two lists of one number are told apart by it."""


class NewsGiven(msgspec.Struct, array_like=True, frozen=True):
    members: ListBytes
    """A newer list; empty if there is none."""
    capability: CapabilityBytes
    """Empty if the asker did not need one, or the answerer cannot give it."""
    places: Places = []
    """Where the answerer knows other members."""


class ListTold(msgspec.Struct, array_like=True, frozen=True):
    mesh: Slug
    members: ListBytes
    places: Places = []


class LeaveAsked(msgspec.Struct, array_like=True, frozen=True):
    mesh: Slug


T = TypeVar("T", JoinAsked, JoinGiven, NewsAsked, NewsGiven, ListTold, LeaveAsked)
encode: Final = msgspec.msgpack.Encoder().encode


def decode(body: bytes, kind: type[T]) -> T:
    """Raises BadAnswer; it does not repeat what could not be read, which may be a secret."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadAnswer(f"a {kind.__name__} of a peer cannot be read") from None
