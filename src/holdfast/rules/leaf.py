"""The leaf hash of an entry of the log, and what can be wrong with an entry.

A log keeps beside each entry the hash that RFC 6962 gives to a leaf of a tree: SHA-256 over one
zero byte and the entry's bytes. It tells a byte that a disk has flipped, it tells whether bytes
from elsewhere are the ones that were lost, and a signed tree over the log can be built on it.

What comes from a damaged file is hostile: nothing is believed here before its type is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from holdfast.rules import compiled
from holdfast.rules.bodies import decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.ids import is_id_of
from holdfast.rules.limits import LEAF_SEARCH_BYTES_MAX

LEAF_BYTES: Final = 32
_HARMED_BITS_MAX: Final = 48
"""Hashes of two different texts differ in 128 bits on average, and in so few never."""
_START: Final = sha256(b"\0")
DERIVED: Final = ("id", "mesh", "op", "entity", "origin", "lamport")
"""The columns of the log that say again what stands in the entry's bytes."""


def leaf_of(raw: bytes) -> bytes:
    return sha256(b"\0" + raw).digest()


def leaves_of(joined: bytes, ends: Sequence[int]) -> bytes:
    """The hashes of entries that lie one after another, joined; `ends` says where each ends."""
    if compiled.part is not None:
        # Here, because one write hashes one entry, and this module is on its way.
        from array import array

        return compiled.part.leaves(joined, array("q", ends).tobytes())
    start = _START.copy  # cheaper than to make a new one, as nearly all of the time is spent there
    leaves = []
    begin = 0
    for end in ends:
        leaf = start()
        leaf.update(joined[begin:end])
        leaves.append(leaf.digest())
        begin = end
    return b"".join(leaves)


def damage_of(fields: Mapping[str, Any]) -> str | None:
    """What is wrong with an entry, given its columns; None if it is what was written.

    An entry from before leaf hashes has none (None): its bytes must at least be an envelope.
    """
    raw, leaf = fields.get("raw"), fields.get("leaf")
    if not isinstance(raw, bytes):
        return "its bytes are not there"
    if leaf is not None and (not isinstance(leaf, bytes) or leaf != leaf_of(raw)):
        return "its bytes are not those that were written"
    try:
        envelope = decode_trusted(raw)
        if leaf is None:
            decode_trusted_body(envelope)
    except EntryDamaged as error:
        return error.message
    for name in DERIVED:
        found, written = fields.get(name), getattr(envelope, name)
        if type(found) is not type(written) or (found != written and name != "id"):
            return f"its {name} is not the one in its bytes"
    return None if is_id_of(fields["id"], envelope.id, raw) else "its id is not that of its bytes"


def columns_of(raw: bytes, id: object) -> dict[str, Any]:
    """The columns that say again what stands in an entry's bytes; `id` is the one that the log has,
    which is kept if these bytes may stand there under it.
    """
    envelope = decode_trusted(raw)
    columns = {name: getattr(envelope, name) for name in DERIVED}
    if isinstance(id, bytes) and is_id_of(id, envelope.id, raw):
        columns["id"] = id
    return columns


def restored(fields: Mapping[str, Any], *, search: bool = True) -> bytes | None:
    """The bytes that an entry had, where what is left of it tells them for certain; else None.

    The bytes and their hash bear witness for each other: a hash that differs in a few bits was
    itself harmed, since other bytes would have given another hash altogether; and where one byte
    was harmed, trying every other value finds the one that fits the hash (only with `search`, which
    takes up to a second).
    """
    raw, leaf = fields.get("raw"), fields.get("leaf")
    if not isinstance(raw, bytes):
        return None
    if leaf is None:
        return raw if damage_of(fields) is None else None
    if not isinstance(leaf, bytes) or len(leaf) != LEAF_BYTES:
        # Nothing is left of the hash; the columns beside bear witness instead.
        return raw if damage_of({**fields, "leaf": None}) is None else None
    if _bits_apart(leaf, leaf_of(raw)) <= _HARMED_BITS_MAX:
        return raw
    return _other_byte(raw, leaf) if search else None


def is_that_entry(fields: Mapping[str, Any], raw: bytes) -> bool:
    """Whether bytes from elsewhere are those of a damaged entry."""
    leaf = fields.get("leaf")
    if isinstance(leaf, bytes) and len(leaf) == LEAF_BYTES:
        return _bits_apart(leaf, leaf_of(raw)) <= _HARMED_BITS_MAX or raw == fields.get("raw")
    return damage_of({**fields, "raw": raw, "leaf": None}) is None


def _bits_apart(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


def _other_byte(raw: bytes, leaf: bytes) -> bytes | None:
    """The bytes with one of them changed so that they fit the hash; None if no such change does."""
    if len(raw) ** 2 * 128 > LEAF_SEARCH_BYTES_MAX:
        return None
    before = sha256(b"\0")
    for at in range(len(raw)):
        rest = raw[at + 1 :]
        for value in range(256):
            tried = before.copy()
            tried.update(bytes((value,)) + rest)
            if tried.digest() == leaf:
                return raw[:at] + bytes((value,)) + rest
        before.update(raw[at : at + 1])
    return None
