"""The body of an op as JSON, for people: on the command line and over HTTP."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.rules.bodies import Body
from holdfast.rules.vectors import unpack

_JSON_FIELDS: Final = frozenset({"value", "object", "metadata"})


def body_fields(body: Body, json: Callable[[bytes], Any]) -> dict[str, Any]:
    """The fields of a body: JSON values as `json` reads them, hashes as hex, vectors as numbers,
    content as base64. `objects` is left out for a fact that names none.
    """
    fields: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(body).items():
        if name == "objects":
            if value:
                fields[name] = [digest.hex() for digest in value]
        elif not isinstance(value, bytes):
            if name != "created_at" or value:  # else the envelope says it
                fields[name] = value
        elif name in _JSON_FIELDS:
            fields[name] = json(value)
        elif name == "sha256":
            fields[name] = value.hex()
        elif name == "embedding":
            fields[name] = unpack(value, fields["quantization"])
        else:
            fields[name] = b64encode(value).decode()
    return fields
