"""What travels when a link takes a snapshot of its source, which no longer holds what comes next.

The reader asks part by part. Each answer says where the next part begins, in words that only the
source understands; the source keeps nothing between two questions.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.envelope import Positive
from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import ENVELOPE_BYTES_MAX, LINK_SNAPSHOT_PLACE_BYTES

PlaceOfPart = Annotated[bytes, Meta(max_length=LINK_SNAPSHOT_PLACE_BYTES)]


class SnapshotPartAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader asks for a part of the snapshot of one mesh, by the filter of its consumer."""

    consumer: str
    mesh: str
    epoch: int
    """In which the cursor counts."""
    cursor: int
    """Up to where the reader has the log."""
    place: PlaceOfPart = b""
    """Where the part begins: as the last one said; empty for the first."""
    partial: bool = False
    """Also where the snapshot lacks something for good: a person has decided to go on without."""


class LinkSnapshotPart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Changes that the tables of the source still show, and its log no longer holds."""

    epoch: Positive
    first: Positive
    """The snapshot stands for the log before this offset, which the source held when it began."""
    place: PlaceOfPart
    """Where the next part begins; empty if this is the last one."""
    raws: list[Annotated[bytes, Meta(max_length=ENVELOPE_BYTES_MAX)]]


_part: Final = msgspec.msgpack.Decoder(LinkSnapshotPart)
encode_part: Final = msgspec.msgpack.Encoder().encode


def decode_part(raw: bytes) -> LinkSnapshotPart:
    """Reads a part from outside."""
    try:
        return _part.decode(raw)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"the part of a snapshot cannot be read: {error}") from None
