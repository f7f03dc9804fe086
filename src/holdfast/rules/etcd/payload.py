"""The body of an entry: an envelope, and when it was put into the order.

Coordinator, epoch and incarnation stand beside the body, because the transaction compares them; so
every node makes the same fence and the same commit time of an entry, today or in a year.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.envelope import Moment
from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import ENVELOPE_BYTES_MAX, REASON_CHARS_MAX


class TimedEnvelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the body of an entry holds."""

    committed_at: Moment
    """By the clock of the node that appended it: for people, never for order."""
    envelope: Annotated[bytes, Meta(max_length=ENVELOPE_BYTES_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(TimedEnvelope)


def encode_timed(body: TimedEnvelope) -> bytes:
    return _encode(body)


def decode_timed(body: bytes) -> TimedEnvelope:
    """BadQuorumMessage if no node of ours can have written it: every node says so of the same
    entry, and folds nothing of it.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumMessage(f"an entry of the etcd cannot be read: {why}") from None
