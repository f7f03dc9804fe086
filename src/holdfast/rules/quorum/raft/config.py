"""Who belongs to a group: the config that a group's own log carries.

A member has an id, a peer name, a key and a place: voters decide, learners only receive. Ids are
integers that a group gives out once: the config carries the next one, and an id that was removed
never comes back, so a message of a removed member can be told from one of a member that this node
has not heard of yet. Names and addresses may change; an id does not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import (
    PEER_ID_BYTES_MAX,
    QUORUM_ID_MAX,
    QUORUM_MEMBERS_MAX,
    QUORUM_VOTERS_MAX,
    REASON_CHARS_MAX,
)

MemberId = Annotated[int, Meta(ge=0, le=QUORUM_ID_MAX)]
Place = Literal["voter", "learner"]


class GroupMember(msgspec.Struct, array_like=True, frozen=True):
    """One member of a group."""

    id: MemberId
    peer: Annotated[str, Meta(max_length=PEER_ID_BYTES_MAX)]
    key: Annotated[bytes, Meta(max_length=64)]
    place: Place


class GroupConfig(msgspec.Struct, array_like=True, frozen=True):
    """All members of a group, in the order of their ids, and the id that the next one gets."""

    members: Annotated[tuple[GroupMember, ...], Meta(max_length=QUORUM_MEMBERS_MAX)] = ()
    next_id: MemberId = 0

    @property
    def voters(self) -> tuple[int, ...]:
        return tuple([member.id for member in self.members if member.place == "voter"])

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple([member.id for member in self.members])

    def member(self, id: int) -> GroupMember | None:
        for member in self.members:  # spelt out: every message asks twice
            if member.id == id:
                return member
        return None

    def is_voter(self, id: int) -> bool:
        member = self.member(id)
        return member is not None and member.place == "voter"

    def with_learner(self, peer: str, key: bytes) -> GroupConfig:
        """This config and a new learner, which gets the next id."""
        learner = GroupMember(self.next_id, peer, key, "learner")
        return GroupConfig((*self.members, learner), self.next_id + 1)

    def with_place(self, id: int, place: Place) -> GroupConfig:
        moved = (
            msgspec.structs.replace(member, place=place) if member.id == id else member
            for member in self.members
        )
        return GroupConfig(tuple(moved), self.next_id)

    def without(self, id: int) -> GroupConfig:
        left = tuple(member for member in self.members if member.id != id)
        return GroupConfig(left, self.next_id)


UNKNOWN_CONFIG: Final = GroupConfig()
"""The config of a node that joins: it has heard of nobody, so it listens to whoever speaks for the
group."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(GroupConfig)


def first_config(voters: tuple[tuple[str, bytes], ...]) -> GroupConfig:
    """The config that a group begins with: voters by peer name and key, with ids from 1 on."""
    assert 1 <= len(voters) <= QUORUM_VOTERS_MAX, "a group has one to seven voters"
    members = tuple(
        GroupMember(number, peer, key, "voter") for number, (peer, key) in enumerate(voters, 1)
    )
    return GroupConfig(members, len(voters) + 1)


def encode_config(config: GroupConfig) -> bytes:
    return _encode(config)


def decode_config(data: bytes) -> GroupConfig:
    """The config in an entry; raises BadQuorumMessage if it is none that a group can have."""
    try:
        config = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumMessage(f"a config cannot be read: {why}") from None
    return check_config(config)


def check_config(config: GroupConfig) -> GroupConfig:
    """The same config, if its ids grow, are below the next one, and one to seven vote."""
    ids = config.ids
    if any(later <= earlier for earlier, later in pairwise(ids)):
        raise BadQuorumMessage("the ids of a config do not grow")
    if ids and ids[-1] >= config.next_id:
        raise BadQuorumMessage(f"a config uses id {ids[-1]} and would give it out again")
    if not 1 <= len(config.voters) <= QUORUM_VOTERS_MAX:
        raise BadQuorumMessage(f"a config has {len(config.voters)} voters")
    return config


def majority(config: GroupConfig) -> int:
    """How many voters decide: floor(voters / 2) + 1."""
    return len(config.voters) // 2 + 1
