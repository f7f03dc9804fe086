"""The ids of rows: the same row of the same write has the same id, however often it is written.

An id is a UUID of version 7. Its random part is the hash of what identifies the row: the node that
is written to, the mesh, the owner, the write, the batch, and the row's key. The node is among them
because the same rows may be written to two nodes, which are two writes: two envelopes must not
share an id.

Its time cannot be the clock's, or a repeat would have another id. It is the first of these that is
given: the row's column `time`, the option `time`, the time in the write's id if that is a UUID of
version 7, the first date (as 2026-11-15) in the write's id, the first day of 2026. It need not be
right: it only keeps inserts into indexes in order and decides in which day's files of the lake an
envelope lies. Each later batch of a stream gets a time one millisecond later.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec

from holdfast.rules.errors import BadId, BadInput, BadValue
from holdfast.rules.ids import id_text, id_time_ms, parse_id, uuid7
from holdfast.rules.limits import SECOND_MS, SOURCE_TIME_MS_MAX

UNDATED_MS: Final = 1_767_225_600_000
"""The first day of 2026, for writes without a time."""
_TIME_MAX_MS: Final = SOURCE_TIME_MS_MAX - 1
_DATE: Final = re.compile(r"(?<!\d)(\d{4}-\d{2}-\d{2})(?!\d)")


class Write(msgspec.Struct, frozen=True):
    """One batch of one write: what all of its ids have in common."""

    name: str
    """The `writeId` of a batch write, the id of a streaming query."""
    batch: int
    at_ms: int


def write_of(name: str, batch: int, time: str | None) -> Write:
    return Write(name, batch, min(base_ms(name, time) + batch, _TIME_MAX_MS))


def base_ms(name: str, time: str | None) -> int:
    """The time of a write, by its option `time` or its name."""
    if time is not None:
        return time_ms(time)
    try:
        if made_at := id_time_ms(parse_id(name)):
            return made_at
    except BadId:
        pass
    for text in _DATE.findall(name):
        try:
            return max(0, instant_ms(datetime.fromisoformat(text)))
        except ValueError:  # it looked like a date
            continue
    return UNDATED_MS


def time_ms(text: str) -> int:
    """A time from an option: ISO 8601, or milliseconds since 1970."""
    try:
        found = int(text) if text.isdecimal() else instant_ms(datetime.fromisoformat(text))
    except ValueError:
        raise BadInput(
            f"the option time is {text!r}: write it as 2026-11-15T10:00:00Z or in milliseconds"
        ) from None
    return check_ms(found)


def instant_ms(at: datetime) -> int:
    """A time without a zone is taken as UTC."""
    known = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(known.timestamp() * SECOND_MS)


def check_ms(ms: int) -> int:
    if not 0 <= ms <= _TIME_MAX_MS:
        raise BadValue(f"the time {ms} ms is outside of what an id may say (1970 to 9999)")
    return ms


def row_id(write: Write, peer: str, mesh: str, owner: str, key: bytes, at_ms: int | None) -> str:
    """The id of the row with this key."""
    identity = ("holdfast sink", peer, mesh, owner, write.name, write.batch, key)
    digest = sha256(msgspec.msgpack.encode(identity)).digest()
    return id_text(uuid7(write.at_ms if at_ms is None else at_ms, digest[:10]))
