"""Idempotency keys: the name that a caller gives to a request, so that it may ask twice.

A key is any text of 1 to 255 bytes of UTF-8 without control characters, and without a blank at
either end: `order-4711`. It becomes the message id by a rule that every client can compute:

- A UUID of version 7 or 8 is the id itself, whatever its case and with or without dashes.
- From any other text, UUIDs of other versions among them, the id is a UUID of version 8 (RFC 9562)
  made of the first 16 bytes of SHA-256 over

      "holdfast idempotency key 1" NUL mesh NUL peer NUL key

  in UTF-8, where `peer` is the node that sends. The key is taken as it is, letter by letter: it is
  not normalised, and `Order` and `order` are two keys.

So one key names one request of one node in one mesh, and two nodes that count their orders alike do
not meet.
"""

from __future__ import annotations

import unicodedata
from hashlib import sha256
from typing import Final

from holdfast.rules.errors import BadId, OverLimit
from holdfast.rules.ids import check_new_id, parse_id, uuid8
from holdfast.rules.limits import IDEMPOTENCY_KEY_BYTES_MAX
from holdfast.rules.names import check_mesh

_DOMAIN: Final = b"holdfast idempotency key 1"


def id_of_key(key: str, mesh: str, peer: str) -> bytes:
    """The message id that a key names, for a request of `peer` in `mesh`."""
    try:
        id = parse_id(key)
    except BadId:
        encoded = _checked(key)
    else:
        return check_new_id(id)
    parts = (_DOMAIN, check_mesh(mesh).encode(), peer.encode(), encoded)
    return uuid8(sha256(b"\0".join(parts)).digest())


def _checked(key: str) -> bytes:
    if not isinstance(key, str) or not key:
        raise BadId("the idempotency key is empty", hint="give some text, or none at all")
    if any(unicodedata.category(char) == "Cc" for char in key):
        raise BadId(
            f"the idempotency key {key[:IDEMPOTENCY_KEY_BYTES_MAX]!r} has a control character",
            hint="use printable text",
        )
    if key != key.strip():
        raise BadId(
            f"the idempotency key {key[:IDEMPOTENCY_KEY_BYTES_MAX]!r} begins or ends with a blank",
            hint="leave the blank out",
        )
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise BadId("the idempotency key has half of a surrogate pair", hint="use text") from None
    if len(encoded) > IDEMPOTENCY_KEY_BYTES_MAX:
        raise OverLimit(
            f"the idempotency key has {len(encoded)} bytes; the most is "
            f"{IDEMPOTENCY_KEY_BYTES_MAX}",
            hint="use a hash of it",
        )
    return encoded
