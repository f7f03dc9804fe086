"""The one form in which bytes may arrive: the form that our own writers give them.

What a node stores it later puts into JSON lines, headers, file names, tables and hashes, as it is.
If one value had two spellings, a spelling that nobody writes could end a line, forge a field, or be
read as two different things by two readers. So an envelope from outside is accepted only if writing
it again gives the same bytes:

- msgpack as our encoder writes it. A later minor version may append fields; those are kept and not
  looked at, the known ones before them are held to the rule.
- `meta` as RFC 8785 writes it, or empty.
- JSON values compact, in UTF-8, each key once per object, text escaped no more than JSON demands.
  Numbers are spelled as our encoder or as RFC 8785 (and so `JSON.stringify`) spells them.

What was stored by earlier code is read by `on_one_line`, which no content can break.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Final

import msgspec

from holdfast.rules.errors import BadEnvelope, BadValue, HoldfastError
from holdfast.rules.fingerprint import SAFE_INT_MAX, canonical_meta, parse_meta

_json: Final = msgspec.json.Encoder()
_sorted_json: Final = msgspec.json.Encoder(order="deterministic")
_read_json: Final = msgspec.json.Decoder().decode

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
"""What msgspec raises for bytes that are no JSON (ValueError: a number of thousands of digits)."""

_PLAIN: Final = frozenset({str, bool, type(None)})

# --- msgpack -------------------------------------------------------------------------------------

_FIX_ARRAY, _FIX_ARRAY_MAX = 0x90, 15
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD


def check_packed_form(raw: bytes, again: bytes, what: str, *, newer: bool) -> None:
    """Raises unless `raw` is the array that our encoder writes as `again`. With `newer`, of a later
    minor version, fields may follow.
    """
    if raw == again:
        return
    if newer:
        count, begin = _array_head(raw)
        known, start = _array_head(again)
        smallest = count <= _FIX_ARRAY_MAX if begin == 1 else count > _FIX_ARRAY_MAX and begin == 3
        if count > known and smallest and raw.startswith(again[start:], begin):
            return
    raise BadEnvelope(
        f"{what} is not in its canonical form",
        hint="write msgpack in its shortest form, with all fields of this version and no others",
    )


def _array_head(raw: bytes) -> tuple[int, int]:
    """How many fields an array has, and where the first begins. The decoder has read it before."""
    first = raw[0]
    if first == _ARRAY_16:
        return int.from_bytes(raw[1:3], "big"), 3
    if first == _ARRAY_32:
        return int.from_bytes(raw[1:5], "big"), 5
    return first - _FIX_ARRAY, 1


# --- JSON ----------------------------------------------------------------------------------------


def check_meta(raw: bytes) -> None:
    """Raises unless `meta` of an envelope is canonical, or empty."""
    if not raw or _is_plain_meta(raw):
        return
    again = canonical_meta(parse_meta(raw))
    if again != raw:
        raise BadValue("meta is not canonical JSON", hint="write it as RFC 8785 says")


def _is_plain_meta(raw: bytes) -> bool:
    """Whether it is surely canonical: flat, ASCII, text and small whole numbers. Nearly all are."""
    if not raw.isascii() or b"\\" in raw:
        return False
    try:
        value = _read_json(raw)
    except UNREADABLE:
        return False
    if type(value) is not dict or not value:
        return False
    for part in value.values():
        kind = type(part)
        if kind not in _PLAIN and not (kind is int and -SAFE_INT_MAX <= part <= SAFE_INT_MAX):
            return False
    return _sorted_json.encode(value) == raw


def check_spelling(raw: bytes, value: Any) -> None:
    """Raises unless `raw`, which was read as `value`, is spelled as our writers spell it."""
    if _json.encode(value) == raw:
        return
    if re.fullmatch(_COMPACT, raw) is None or not _agrees(raw, value):
        raise BadValue(
            "the value is JSON, but not in the form in which values are written",
            hint="write it without blanks between the parts, each key once, and escape in text "
            "only what JSON demands",
        )


_TEXT: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
# Not compiled here: few values need them.
_COMPACT: Final = rb'(?:%b|[^"\s])+' % _TEXT
"""JSON without blanks between its parts."""
_TOKEN: Final = rb"%b|-?\d[\d.eE+-]*" % _TEXT


def _agrees(raw: bytes, value: Any) -> bool:
    """Whether text and numbers are spelled well, and nothing of what was read is missing: an
    object that names a key twice was read with one of the two.
    """
    for token in re.findall(_TOKEN, raw):
        part = _read_json(token)
        if token != _json.encode(part) and (
            not isinstance(part, float) or token != _as_rfc_8785(part)
        ):
            return False
    return re.sub(_TOKEN, b"0", raw) == re.sub(_TOKEN, b"0", _json.encode(value))


def _as_rfc_8785(number: float) -> bytes:
    from rfc8785 import dumps  # slow to import, and few values need it

    return dumps(number)


def on_one_line(raw: bytes) -> bytes:
    """JSON that was stored as text, in a form that can be put into a line of JSON: as it is if it
    is one value, without line breaks and blanks around its parts if it has some, and as
    `{"unreadable": base64}` if it is no JSON.
    """
    try:
        value = _read_json(raw)
    except UNREADABLE:
        return _json.encode({"unreadable": b64encode(raw).decode()})
    return raw if _IS_SAFE(raw) else _json.encode(value)


_IS_SAFE: Final = re.compile(rb"[^\x00-\x20](?:[^\x00-\x1f]*[^\x00-\x20])?").fullmatch
"""No control characters, and no blank at either end."""


def stored_meta(raw: bytes) -> dict[str, Any]:
    """`meta` of an envelope in the log as an object, whatever earlier code let in."""
    try:
        return parse_meta(raw)
    except HoldfastError:
        return {"unreadable": b64encode(raw).decode()}
