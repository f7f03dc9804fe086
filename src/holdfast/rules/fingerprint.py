"""What a caller asked for, in 32 bytes.

Two requests under one message id are the same request exactly when their fingerprints are equal;
anything else is a reused id. So the bytes that go into the hash must come out alike in every
language and version: text as UTF-8, fields joined by a NUL (which therefore no field may
contain), `meta` in the canonical JSON of RFC 8785, the body as the hex of its own SHA-256. A
fingerprint is computed once, where the request is accepted, and stored; resends carry those
bytes.

The formula has versions, and the first field that is hashed names the one that was used:

    1   kind, ref, reply_to, priority, meta, body hash                  changes; messages once
    2   kind, ref, reply_to, priority, meta, content type, body hash    messages

Which of them an envelope bears follows from the envelope's own version (see `message`). Two
versions never give the same bytes for anything.

Which kinds, destinations and priorities exist is decided elsewhere: here they are only text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import chain, pairwise
from math import isfinite
from typing import Any, Final

from holdfast.rules import compiled
from holdfast.rules.errors import BadValue
from holdfast.rules.limits import META_BYTES_MAX, META_DEPTH_MAX

FORMULAS: Final = (1, 2)
"""The versions of the formula that are read; messages are sent by the last one."""
FINGERPRINT_BYTES: Final = 32
PREFIX_BYTES: Final = 8
"""How much of another request's fingerprint a caller sees that reuses its id, and a log names."""

SAFE_INT_MAX: Final = 2**53 - 1
"""Beyond it a double, which is JSON's number elsewhere, no longer tells neighbours apart."""

_SEPARATORS: Final = 6
_SEPARATORS_2: Final = 7
_HEX_DIGITS: Final = "0123456789abcdef"


def fingerprint(
    *,
    kind: str,
    ref: str,
    body: bytes | None = None,
    body_hash: str | None = None,
    reply_to: str = "",
    priority: str = "next",
    meta: bytes = b"",
) -> bytes:
    """The 32-byte fingerprint of a request by version 1; `meta` is what canonical_meta gave.

    Hand in the `body`, or its lower-case hex SHA-256 as `body_hash` where it is known already.
    """
    if compiled.part is not None and body is not None and body_hash is None:
        made = compiled.part.fingerprint(1, kind, ref, reply_to, priority, meta, "", body)
        if made is not None:
            return made
    body_hash = _body_hash(body, body_hash)
    try:
        if meta:
            head = f"1\0{kind}\0{ref}\0{reply_to}\0{priority}\0".encode()
            joined = b"%b%b\0%b" % (head, meta, body_hash.encode())
        else:
            joined = f"1\0{kind}\0{ref}\0{reply_to}\0{priority}\0\0{body_hash}".encode()
    except UnicodeEncodeError as error:
        raise _half_a_pair() from error
    # One count over the whole instead of a search per field: this runs for every write.
    if joined.count(0) != _SEPARATORS:
        raise _with_nul(kind=kind, ref=ref, reply_to=reply_to, priority=priority)
    return sha256(joined).digest()


def fingerprint_2(
    *,
    kind: str,
    ref: str,
    body: bytes | None = None,
    body_hash: str | None = None,
    reply_to: str = "",
    priority: str = "next",
    meta: bytes = b"",
    content_type: str = "",
) -> bytes:
    """The fingerprint of a message by version 2 of the formula, which covers the type of its
    content too; otherwise as `fingerprint`.
    """
    if compiled.part is not None and body is not None and body_hash is None:
        made = compiled.part.fingerprint(2, kind, ref, reply_to, priority, meta, content_type, body)
        if made is not None:
            return made
    body_hash = _body_hash(body, body_hash)
    try:
        head = f"2\0{kind}\0{ref}\0{reply_to}\0{priority}\0".encode()
        joined = b"%b%b\0%b" % (head, meta, f"{content_type}\0{body_hash}".encode())
    except UnicodeEncodeError as error:
        raise _half_a_pair() from error
    if joined.count(0) != _SEPARATORS_2:
        raise _with_nul(
            kind=kind, ref=ref, reply_to=reply_to, priority=priority, content_type=content_type
        )
    return sha256(joined).digest()


def _body_hash(body: bytes | None, body_hash: str | None) -> str:
    if body_hash is None:
        if body is None:
            raise BadValue("a fingerprint needs the body or its hash")
        return sha256(body).hexdigest()
    if body is not None:
        raise BadValue("a fingerprint takes the body or its hash, not both")
    if len(body_hash) != 64 or body_hash.strip(_HEX_DIGITS):
        raise BadValue("a body hash is the SHA-256 of the body as 64 lower-case hex digits")
    return body_hash


def _half_a_pair() -> BadValue:
    return BadValue("a fingerprinted field contains half of a surrogate pair")


def _with_nul(**fields: str) -> BadValue:
    guilty = next((name for name, text in fields.items() if "\0" in text), "meta")
    return BadValue(f"the field {guilty} contains a NUL, which separates the fields")


def canonical_meta(meta: Mapping[str, Any] | None) -> bytes:
    """`meta` as RFC 8785 canonical JSON; no meta and empty meta are both the empty string."""
    if not meta:
        return b""
    if not isinstance(meta, Mapping):
        raise BadValue(f"meta is {type(meta).__name__}, not an object of names and values")
    plain = dict(meta)
    _check_json(plain)
    from rfc8785 import dumps  # here, because most writes have no meta and never need it

    raw = dumps(plain)
    if len(raw) > META_BYTES_MAX:
        raise _too_large()
    return raw


def parse_meta(raw: bytes | str) -> dict[str, Any]:
    """The object that `raw` spells, provided that everyone reads the same object from it.

    Takes back whatever canonical_meta gives. Refuses what JSON readers disagree on: repeated
    keys, NaN and infinities, half surrogate pairs, numbers that a double cannot hold as they are
    written.
    """
    if not raw:
        return {}
    if isinstance(raw, str):
        raw = raw.encode(errors="surrogatepass")
    if len(raw) > META_BYTES_MAX:
        raise _too_large()
    import json

    try:
        value = json.loads(
            raw.decode(),  # because json would also guess at UTF-16 and UTF-32
            object_pairs_hook=_object_of_distinct_keys,
            parse_int=_exact_int,
            parse_float=_finite_float,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError as error:
        raise BadValue("meta is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise BadValue(f"meta is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(value, dict):
        raise BadValue("meta is JSON but not an object")
    _check_json(value)
    return value


def _check_json(root: dict[Any, Any]) -> None:
    """Refuse what has no canonical form, with a reason.

    A loop with a budget instead of a recursion: a value may contain itself, or contain one list
    so often that no machine could write it out. Every value takes a byte at least and every
    character too.
    """
    waiting: list[tuple[Any, int]] = [(root, 1)]
    budget = META_BYTES_MAX
    while waiting:
        value, depth = waiting.pop()
        budget -= 1
        if isinstance(value, str):
            budget -= len(value)
            _check_text(value)
        elif isinstance(value, dict | list | tuple):
            if depth > META_DEPTH_MAX:
                raise _too_deep()
            waiting.extend((part, depth + 1) for part in _parts(value))
        else:
            _check_scalar(value)
        if budget < 0 or len(waiting) > META_BYTES_MAX:
            raise _too_large()


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterable[Any]:
    if not isinstance(value, dict):
        return value
    for key in value:
        if not isinstance(key, str):
            raise BadValue(f"meta has the key {key!r}; keys are strings")
    return chain(value, value.values())


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValue("meta contains half of a surrogate pair") from error


def _check_scalar(value: object) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if not -SAFE_INT_MAX <= value <= SAFE_INT_MAX:
            raise _inexact("an integer beyond ±(2^53 - 1)")
    elif isinstance(value, float):
        if not isfinite(value):
            raise BadValue(f"meta contains {value!r}, which JSON cannot say")
    else:
        raise BadValue(f"meta contains a {type(value).__name__}, which JSON cannot say")


def _object_of_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = sorted(key for key, _ in pairs)
    twice = next(one for one, other in pairwise(keys) if one == other)
    raise BadValue(f"meta has the key {twice!r} twice in one object")


def _exact_int(text: str) -> int | float:
    if len(text) <= 17 and -SAFE_INT_MAX <= (number := int(text)) <= SAFE_INT_MAX:
        return number
    # RFC 8785 writes a double like 2.0**60 without point or exponent. Such a number is a double
    # if and only if it would be written in the same way again; any other long integer would
    # change silently.
    wide = _finite_float(text)
    from rfc8785 import dumps

    if dumps(wide).decode() != text:
        raise _inexact("an integer that a double cannot hold as it is written")
    return wide


def _finite_float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise _inexact("a number beyond the range of a double")
    return number


def _no_constant(name: str) -> float:
    raise BadValue(f"meta contains {name}, which JSON cannot say")


def _inexact(what: str) -> BadValue:
    return BadValue(f"meta contains {what}", hint="send such a number as a string")


def _too_large() -> BadValue:
    return BadValue(f"meta is larger than {META_BYTES_MAX} bytes", hint="put it into the body")


def _too_deep() -> BadValue:
    return BadValue(f"meta is nested deeper than {META_DEPTH_MAX} levels")
