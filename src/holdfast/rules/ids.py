"""Message ids: UUIDs of version 7, sixteen bytes inside, canonical text outside.

An id is made once, by the caller that asks for the change or by its node, and is the key of all
dedupe. Its time prefix keeps the indexes that hold it append-mostly (random ids cost 2.5 times as
much at 200,000 rows). Making one needs a clock and randomness, so callers hand them in as values;
`holdfast.service.clock` supplies real ones.
"""

from __future__ import annotations

from holdfast.rules.errors import BadId


def uuid7(unix_ms: int, randomness: bytes) -> bytes:
    """Builds an id from a wall-clock time and ten bytes of randomness."""
    assert 0 <= unix_ms < 1 << 48, "48 bits of milliseconds last until the year 10889"
    assert len(randomness) == 10, "80 bits, of which 74 are kept"
    tail = bytearray(randomness)
    tail[0] = 0x70 | (tail[0] & 0x0F)
    tail[2] = 0x80 | (tail[2] & 0x3F)
    return unix_ms.to_bytes(6, "big") + bytes(tail)


def check_id(raw: bytes) -> bytes:
    """Raises BadId unless these are sixteen bytes with the marks of a UUID of version 7."""
    if len(raw) != 16 or raw[6] >> 4 != 7 or raw[8] >> 6 != 2:
        raise BadId(f"{raw.hex()} is not a UUID of version 7")
    return raw


def parse_id(text: str) -> bytes:
    """The id of a canonical text, or of one that differs from it only by case or dashes."""
    digits = text.replace("-", "") if isinstance(text, str) else ""
    try:
        # The length is checked too, because fromhex ignores blanks.
        raw = bytes.fromhex(digits) if len(digits) == 32 else b""
    except ValueError:
        raw = b""
    if not raw:
        raise BadId(f"{text!r} is not a UUID")
    return check_id(raw)


def id_text(raw: bytes) -> str:
    """The canonical 36 characters."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_time_ms(raw: bytes) -> int:
    """When the id was made, by the clock of its maker: for people, never for order."""
    return int.from_bytes(raw[:6], "big")
