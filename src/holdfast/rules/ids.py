"""Message ids: UUIDs of version 7 or 8, sixteen bytes inside, canonical text outside.

An id is made once, by the caller that asks for the change or by its node, and is the key of all
dedupe. Nodes make version 7: its time prefix keeps the indexes that hold it append-mostly (random
ids cost 2.5 times as much at 200,000 rows). Making one needs a clock and randomness, so callers
hand them in as values; `holdfast.service.clock` supplies real ones. Version 8 (RFC 9562) is for ids
that are computed from something, as from an idempotency key (see `idempotency`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from holdfast.rules.errors import BadId
from holdfast.rules.limits import SOURCE_TIME_MS_MAX

_VERSIONS: Final = (7, 8)
ID_BYTES: Final = 16
TOO_LATE: Final = SOURCE_TIME_MS_MAX.to_bytes(6)
"""The first six bytes of the first id of version 7 whose time no table can hold."""


def uuid7(unix_ms: int, randomness: bytes) -> bytes:
    """Builds an id from a wall-clock time and ten bytes of randomness."""
    assert 0 <= unix_ms < 1 << 48, "48 bits of milliseconds last until the year 10889"
    assert len(randomness) == 10, "80 bits, of which 74 are kept"
    tail = bytearray(randomness)
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return unix_ms.to_bytes(6, "big") + bytes(tail)


def uuid8(digest: bytes) -> bytes:
    """An id from the first sixteen bytes of a hash: 122 bits of them are kept."""
    head = bytearray(digest[:16])
    assert len(head) == 16, "a hash has that many"
    head[6] = 0x80 | (head[6] & 0x0F)
    head[8] = 0x80 | (head[8] & 0x3F)
    return bytes(head)


def check_id(raw: bytes) -> bytes:
    """Raises BadId unless these are sixteen bytes with the marks of a UUID of version 7 or 8."""
    if len(raw) != 16 or raw[6] >> 4 not in _VERSIONS or raw[8] >> 6 != 2:
        raise BadId(f"{raw.hex()} is not a UUID of version 7 or 8")
    return raw


def check_new_id(raw: bytes) -> bytes:
    """Raises BadId for an id of a new change whose time is after the year 9999: calendars and
    tables end there, and no clock is so far.
    """
    if raw[6] >> 4 == 7 and raw[:6] >= TOO_LATE:
        raise BadId(f"the id {id_text(raw)} was made after the year 9999")
    return raw


def parse_id(text: str) -> bytes:
    """The id of a canonical text, or of one that differs from it only by case or dashes."""
    return check_id(_parsed(text))


def parse_new_id(text: str) -> bytes:
    """The id of a text, for a change that is made now."""
    return check_new_id(parse_id(text))


def _parsed(text: str) -> bytes:
    digits = text.replace("-", "") if isinstance(text, str) else ""
    try:
        # The length is checked too, because fromhex ignores blanks.
        raw = bytes.fromhex(digits) if len(digits) == 32 else b""
    except ValueError:
        raw = b""
    if not raw:
        raise BadId(f"{text!r} is not a UUID")
    return raw


def id_text(raw: bytes) -> str:
    """The canonical 36 characters."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def aside_id(raw: bytes) -> bytes:
    """The id under which a node keeps an envelope of its own that has given its id back (see
    `outbox.gives_id_back`). It is computed from the envelope's bytes, and no UUID: its version and
    variant are ones that no UUID has, so that it meets no id.
    """
    head = bytearray(sha256(raw).digest()[:16])
    head[6] = 0xF0 | (head[6] & 0x0F)
    head[8] = 0xC0 | (head[8] & 0x3F)
    return bytes(head)


def is_aside(id: bytes) -> bool:
    return len(id) == 16 and id[6] >> 4 == 0xF and id[8] >> 6 == 3


def is_id_of(id: bytes, own: bytes, raw: bytes) -> bool:
    """Whether a log may hold an envelope under an id: its `own`, or the one that was computed from
    its bytes when it was set aside.
    """
    return id == own or (is_aside(id) and id == aside_id(raw))


def parse_row_id(text: str) -> bytes:
    """The id of a row of the outbox: as `parse_id`, or that of an envelope that was set aside."""
    raw = _parsed(text)
    return raw if is_aside(raw) else check_id(raw)


def id_time_ms(raw: bytes) -> int:
    """When the id was made, by the clock of its maker: for people, never for order. 0 for an id of
    version 8, which was computed and tells no time.
    """
    return int.from_bytes(raw[:6], "big") if raw[6] >> 4 == 7 else 0
