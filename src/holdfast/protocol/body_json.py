"""What an op carries, as JSON says it: for people, in the command line and over HTTP."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.rules.bodies import Body

_JSON_FIELDS: Final = frozenset({"value", "object", "metadata"})


def body_fields(body: Body, json: Callable[[bytes], Any]) -> dict[str, Any]:
    """JSON as `json` makes it, hashes as hex, vectors as numbers, content as base64. The objects of
    a fact that names none are left out.
    """
    said: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(body).items():
        if name == "objects":
            if value:
                said[name] = [digest.hex() for digest in value]
        elif not isinstance(value, bytes):
            said[name] = value
        elif name in _JSON_FIELDS:
            said[name] = json(value)
        elif name == "sha256":
            said[name] = value.hex()
        elif name == "embedding":
            said[name] = numbers(value)
        else:
            said[name] = b64encode(value).decode()
    return said


def numbers(packed: bytes) -> list[float]:
    """A packed vector as its numbers."""
    values = array("f", packed)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
