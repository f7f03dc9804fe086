"""The body of a call as a value of a type: strict JSON (`rules/strict_json.py`), or msgpack."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from holdfast.protocol.log_wire import MSGPACK
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import ASKED_BYTES_MAX, KIB
from holdfast.rules.strict_json import strict_json
from holdfast.service.http.request import Request, decode_as

T = TypeVar("T")

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
