"""JSON from outside, provided that every parser reads the same value from it.

JSON parsers disagree on repeated keys, on NaN and on half surrogate pairs, and some guess
encodings. This module refuses what two parsers would read differently, before a node stores it for
ever.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from holdfast.protocol.log_wire import MSGPACK
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import ASKED_BYTES_MAX, KIB
from holdfast.service.http.request import Request, decode_as

T = TypeVar("T")

_KEY_CHARS_SHOWN = 80
INLINE_BYTES: Final = 16 * KIB
"""Requests up to this size are decoded in the event loop: a thread would cost more than it
saves.
"""


async def json_body(call: Request[Any], kind: type[T], bytes_max: int = ASKED_BYTES_MAX) -> T:
    """The body of a call as a value of a type, from JSON, or from msgpack by its content type."""
    raw = await call.body(bytes_max)
    packed = content_type(call) == MSGPACK
    if len(raw) > INLINE_BYTES:
        decoded: T = await call.api.run(_decode, raw, kind, packed)
        return decoded
    return _decode(raw, kind, packed)


def _decode(raw: bytes, kind: type[T], packed: bool) -> T:
    return decode_as(raw, kind, packed=True) if packed else check_shape(strict_json(raw), kind)


def content_type(call: Request[Any]) -> str:
    return call.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_shape(value: Any, kind: type[T]) -> T:
    """A decoded value as a value of a type; raises BadInput if it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"the body does not fit: {error}") from None


def strict_json(raw: bytes) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadInput("the body is not UTF-8") from None
    try:
        value = _read(text)
    except RecursionError:
        raise BadInput("the body is nested too deeply") from None
    except ValueError as error:  # also for numbers of thousands of digits
        raise BadInput(f"the body is not JSON: {error}") from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_half_pairs(value)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = sorted(key for key, _ in pairs)
    twice = next(one for one, other in pairwise(keys) if one == other)
    raise BadInput(f"the key {twice[:_KEY_CHARS_SHOWN]!r} stands twice in one object")


def _no_constant(name: str) -> NoReturn:
    raise BadInput(f"{name} is not JSON", hint="send null or a text instead")


_read: Final = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant).decode


def _refuse_half_pairs(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadInput("the body contains half of a surrogate pair, which is not text") from None
