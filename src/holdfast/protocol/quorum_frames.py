"""What voters say to each other in QUORUM frames of a link.

A frame carries one word. Most are `RaftWords`: what the machines of all groups that two nodes share
have to say to each other in one turn of the loop, so that heartbeats cost a frame for each pair of
nodes and not for each group. `GroupOffered` tells a node that a mesh has made it a member of its
group; it is said until the node takes part.

Words that nobody should wait behind come on the control stream; entries have a stream of their own,
with credit.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import (
    INCARNATION_MAX,
    QUORUM_MESSAGE_BYTES_MAX,
    QUORUM_WORDS_MAX,
    REASON_CHARS_MAX,
)
from holdfast.rules.quorum.raft.config import GroupConfig, MemberId, check_config
from holdfast.rules.quorum.raft.messages import GroupTag


class RaftWords(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Messages of machines, each as `encode_message` made it."""

    messages: Annotated[
        list[Annotated[bytes, Meta(max_length=QUORUM_MESSAGE_BYTES_MAX)]],
        Meta(min_length=1, max_length=QUORUM_WORDS_MAX),
    ]


class GroupOffered(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The recipient is a member of this group, under this id."""

    mesh: str
    incarnation: Annotated[int, Meta(ge=1, le=INCARNATION_MAX)]
    group: GroupTag
    id: MemberId
    config: GroupConfig
    """As the sender has it: whom the recipient may listen to, until the log tells it."""


VoterWord = RaftWords | GroupOffered
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[VoterWord]] = msgspec.msgpack.Decoder(VoterWord)


def encode_word(word: VoterWord) -> bytes:
    return _encode(word)


def decode_word(body: bytes) -> VoterWord:
    """The word of a frame. Raises BadQuorumMessage."""
    try:
        word = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumMessage(f"a word of a voter cannot be read: {why}") from None
    if isinstance(word, GroupOffered):
        check_config(word.config)
        if word.config.member(word.id) is None:
            raise BadQuorumMessage("a group is offered to a node that it does not name")
    return word
