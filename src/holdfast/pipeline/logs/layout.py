"""Where the fields of envelopes lie, for all envelopes of an array at once.

Envelopes that nodes write have the same fields in the same order (`rules.envelope`). Runs of fields
of which a log has few different values are one span: mesh and op, the peers, the classes, and
everything behind the body. Who needs them reads each different span once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.pipeline.logs.packed import NIL, Mask, Numbers, Packed, Spans, Walk
from holdfast.rules.envelope import PROTOCOL, Envelope
from holdfast.rules.fingerprint import FINGERPRINT_BYTES
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.limits import LAMPORT_MAX

_FIELDS: Final = len(Envelope.__struct_fields__)
_HEAD: Final = (
    b"\xdc"
    + _FIELDS.to_bytes(2)
    + bytes((0xA0 | len(PROTOCOL),))
    + PROTOCOL.encode()
    + b"\xa31.0\xc4"
    + bytes((ID_BYTES,))
)
"""The first bytes of an envelope of version 1.0: everything before its id."""
_LATER: Final = 15
"""Where in the head the minor version stands, of which 0 and 1 are known here."""
_FINGERPRINT: Final = bytes((0xC4, FINGERPRINT_BYTES))
_BASE: Final = 0x93
"""The first byte of a base: three fields."""


class EnvelopeSpans(NamedTuple):
    """The envelopes that have the usual form."""

    packed: Packed
    rows: Numbers
    """Which of the array they are; all that follows is of these, in this order."""
    later: Mask
    """Whether it is of version 1.1, and not 1.0."""
    id: Numbers
    names: Spans
    """Mesh and op."""
    entity: Spans
    peers: Spans
    """Owner, origin and epoch."""
    seq: Numbers
    lamport: Numbers
    created_at: Numbers
    classes: Spans
    """Write class and state."""
    fingerprint: Numbers
    based: Mask
    """Whether it has a base."""
    base_lamport: Numbers
    base_peer: Spans
    """The peer's name with its head; empty for an envelope without base."""
    meta: Spans
    body: Spans
    rest: Spans
    """Everything behind the body."""

    def only(self, kept: Mask) -> EnvelopeSpans:
        if kept.all():
            return self
        parts: list[Any] = list(self[1:])
        parts = [part.of(kept) if isinstance(part, Spans) else part[kept] for part in parts]
        return EnvelopeSpans(self.packed, *parts)


def lay_out(raws: pa.Array) -> EnvelopeSpans:
    """Walks through envelopes. Those of another form are not among the rows of the result."""
    packed = Packed(raws)
    if packed.last_word < 0:
        packed = Packed(raws[:0])  # there is not one envelope among so few bytes
    strings = packed.strings
    walk = Walk(packed, strings.begin)
    later = _head(walk, packed, strings.begin)
    id = walk.at
    walk.at = walk.at + ID_BYTES
    begin = walk.at
    walk.text()
    walk.text()
    names = Spans(begin, walk.at)
    entity = walk.text()
    begin = walk.at
    walk.text()
    walk.text()
    walk.count()
    peers = Spans(begin, walk.at)
    seq, lamport, created_at = walk.count(), walk.count(), walk.count()
    begin = walk.at
    walk.text()
    walk.text()
    classes = Spans(begin, walk.at)
    walk.literal(_FINGERPRINT)
    fingerprint = walk.at
    walk.at = walk.at + FINGERPRINT_BYTES
    based, base_lamport, base_peer = _base(walk)
    meta, body = walk.binary(), walk.binary()
    rest = Spans(walk.at, strings.end)
    found = EnvelopeSpans(
        packed,
        np.arange(len(strings.begin)),
        *(later, id, names, entity, peers, seq, lamport, created_at, classes, fingerprint),
        *(based, base_lamport, base_peer, meta, body, rest),
    )
    kept = walk.fits & (walk.at < strings.end)
    if raws.null_count and len(kept):
        kept &= raws.is_valid().to_numpy(zero_copy_only=False)
    return found.only(kept)


def _head(walk: Walk, packed: Packed, begin: Numbers) -> Mask:
    """Walks over everything before the id."""
    walk.literal(_HEAD[:8])
    walk.at = begin + _LATER + 1
    walk.literal(_HEAD[_LATER + 1 :])
    # Between the two: the protocol's last letters and the version, whose last digit is 0 or 1.
    middle = packed.words(begin + 8)
    walk.fits &= (middle | np.uint64(1)) == int.from_bytes(_HEAD[8 : _LATER + 1]) | 1
    return (middle & np.uint64(1)).astype(np.bool_)


def _base(walk: Walk) -> tuple[Mask, Numbers, Spans]:
    lead = walk.next_bytes()
    based = lead == _BASE
    walk.fits &= based | (lead == NIL)
    walk.at = walk.at + 1
    lamport = np.zeros(len(lead), dtype=np.int64)
    begin, end = walk.at.copy(), walk.at.copy()
    rows = np.flatnonzero(based)
    if len(rows):
        part = walk.part(rows)
        lamport[rows] = part.count()
        begin[rows] = part.at
        part.text()
        end[rows] = part.at
        _lease_epoch(part)
        walk.rejoin(rows, part)
    return based, lamport, Spans(begin, end)


def _lease_epoch(walk: Walk) -> None:
    rows = np.flatnonzero(walk.next_bytes() != NIL)
    walk.at = walk.at + 1
    if len(rows):
        part = walk.part(rows)
        part.at = part.at - 1
        part.fits &= part.count() < LAMPORT_MAX
        walk.rejoin(rows, part)
