"""What members of a mesh ask its voters, as requests of the bus.

    holdfast.quorum.operate    a voter, at the coordinator    OperateAsked ─► nothing

Bodies are MessagePack arrays. An error comes back with its code.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import MESH_SLUG_CHARS_MAX, PEER_ID_BYTES_MAX, REASON_CHARS_MAX

OPERATE: Final = "holdfast.quorum.operate"
OperatorVerb = Literal["add", "remove", "transfer", "step_down"]


class OperateAsked(msgspec.Struct, array_like=True, frozen=True):
    """An operator of another voter wants something of the coordinator."""

    mesh: Annotated[str, Meta(max_length=MESH_SLUG_CHARS_MAX)]
    verb: OperatorVerb
    peer: Annotated[str, Meta(max_length=PEER_ID_BYTES_MAX)]
    """Empty: whoever is best, of a transfer."""
    timeout_ms: Annotated[int, Meta(ge=0, le=1 << 31)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(OperateAsked)


def encode_operate(asked: OperateAsked) -> bytes:
    return _encode(asked)


def decode_operate(body: bytes) -> OperateAsked:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumMessage(f"what an operator asks cannot be read: {why}") from None
