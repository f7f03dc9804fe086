"""What stands in an entry of the embedded engine: an envelope, and who put it into the order.

The coordinator adds its own name and the time when it takes a proposal into its log. So every
node that applies the entry, today or from a log that it gets in a year, makes the same fence and
the same commit time of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.envelope import Moment
from holdfast.rules.errors import BadInput, BadQuorumMessage
from holdfast.rules.limits import ENVELOPE_BYTES_MAX, REASON_CHARS_MAX
from holdfast.rules.names import check_peer


class CoordinatedEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The payload of an entry of data."""

    coordinator: str
    """The peer name of the leader that took the proposal."""
    committed_at: Moment
    """By the coordinator's clock, when it took the proposal: for people, never for order."""
    envelope: Annotated[bytes, Meta(max_length=ENVELOPE_BYTES_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(CoordinatedEntry)


@lru_cache(maxsize=64)
def _check_coordinator(name: str) -> None:
    # Cached, because a group has few coordinators, and each entry names one.
    check_peer(name)


def encode_coordinated(entry: CoordinatedEntry) -> bytes:
    return _encode(entry)


def coordinated(coordinator: str, committed_at: int, envelope: bytes) -> bytes:
    """An entry of these as `encode_coordinated` encodes it, without making it first."""
    return _encode((coordinator, committed_at, envelope))


def decode_coordinated(payload: bytes) -> CoordinatedEntry:
    """Reads the payload of an entry. BadQuorumMessage if no coordinator can have made it: every
    node says so of the same entry, and applies nothing of it.
    """
    try:
        entry = _decoder.decode(payload)
        _check_coordinator(entry.coordinator)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumMessage(f"an entry of the quorum cannot be read: {why}") from None
    except BadInput as error:
        raise BadQuorumMessage(f"an entry of the quorum: {error.message}") from None
    return entry
