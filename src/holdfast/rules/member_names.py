"""Which member of a mesh, or which peer, somebody means: by its name or by its key.

A key is shown as on a card: base64url without padding. People may also hand it in as the 64 hex
digits that envelopes and brokers use, as a whole card, or as the beginning of either spelling, as
long as no other member has that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.rules.errors import AmbiguousId, BadInput
from holdfast.rules.id_prefix import ambiguous, shortest_apart
from holdfast.rules.keys import KEY_BYTES, bytes_of, text_of
from holdfast.rules.names import meant_peer

_BEGINNING: Final = 4
"""Fewer characters are no beginning of a key: names are that short."""


def whole_key(text: str) -> bytes | None:
    """The key that a text spells out, in any of its spellings; None if it is none."""
    text = text.rpartition(":")[2]  # a card ends with its key
    try:
        if len(text) == 2 * KEY_BYTES and text == text.lower():
            return bytes.fromhex(text)
        return bytes_of(text, KEY_BYTES)
    except (ValueError, BadInput):
        return None


def key_text(named: str) -> str:
    """How the key is spelled here that a text may name: a key in any spelling, or a card."""
    key = whole_key(named)
    return named if key is None else text_of(key)


def meant_key(named: str, known: Iterable[tuple[str, bytes]]) -> bytes | None:
    """The key that is meant among known ones with their names; None if none is. A name goes before
    a key that begins so.
    """
    named, members = meant_peer(named), list(known)
    if by_name := {key for name, key in members if name == named}:
        if len(by_name) == 1:
            return next(iter(by_name))
        keys = sorted(map(text_of, by_name))
        raise AmbiguousId(
            f"several members are called {named!r}",
            hint=f"give the first characters of a key, as {' or '.join(shortest_apart(keys)[:2])}",
            candidates=tuple((key, named) for key in keys),
        )
    if (key := whole_key(named)) is not None:
        return key if any(key == one for _, one in members) else None
    if len(named) < _BEGINNING:
        return None
    meant = {
        key for _, key in members if text_of(key).startswith(named) or key.hex().startswith(named)
    }
    if len(meant) > 1:
        names = {text_of(key): name for name, key in members if key in meant}
        raise ambiguous(named, sorted(names), names.__getitem__)
    return next(iter(meant), None)
