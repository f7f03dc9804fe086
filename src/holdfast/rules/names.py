"""Names that people and programs give: peer ids, meshes, keys, subjects.

Two spellings that look the same must be the same bytes on every machine, or two nodes choose
different winners. So names are NFC-normalised UTF-8, checked once where they come in. Any other
spelling is refused, not corrected: a corrected copy would no longer match the bytes that the origin
hashed and stamped.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from holdfast.rules import limits
from holdfast.rules.errors import BadInput, BadKey, BadPeerId, OverLimit

_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]*")


def check_peer(peer: str) -> str:
    """A peer id as stored, compared and sent: 1 to 128 bytes of NFC text without control
    characters.
    """
    plain = type(peer) is str and peer.isascii() and peer.isprintable()
    if plain and 0 < len(peer) <= limits.PEER_ID_BYTES_MAX and peer[0] != " " != peer[-1]:
        # Nearly all names are like this, and need no look for control characters or NFC.
        return peer
    if not isinstance(peer, str) or not peer:
        raise BadPeerId("the peer id is empty")
    _check_text(peer, "the peer id", limits.PEER_ID_BYTES_MAX, BadPeerId)
    if not unicodedata.is_normalized("NFC", peer):
        raise BadPeerId(
            f"peer id {peer!r} is not NFC-normalised",
            hint=f"write it as {unicodedata.normalize('NFC', peer)!r}",
        )
    if any(unicodedata.category(char) == "Cc" for char in peer):
        raise BadPeerId(f"peer id {peer!r} contains a control character")
    if peer != peer.strip():
        raise BadPeerId(f"peer id {peer!r} begins or ends with a space")
    return peer


def meant_peer(peer: str) -> str:
    """A name as somebody typed it, in the spelling in which names are stored: some systems write
    `é` as two characters. For looking it up: nothing is checked.
    """
    if isinstance(peer, str) and not peer.isascii():
        return unicodedata.normalize("NFC", peer)
    return peer


def named_peer(peer: str) -> str:
    """The peer id that a caller names so. What comes from other nodes is checked by `check_peer`:
    there another spelling is another name, and refused.
    """
    return check_peer(meant_peer(peer))


def scope_owner(scope: str, own: str) -> str | None:
    """The owner that a scope names, for this peer; None if it names all owners."""
    if scope == "self":
        return own
    if scope == "all":
        return None
    if scope.startswith("peer:"):
        return named_peer(scope.removeprefix("peer:"))
    raise BadInput(f"scope {scope!r} is not known", hint="use self, all or peer:<id>")


@lru_cache(maxsize=256)
def _is_slug(text: str) -> bool:
    # Cached, because a node has few meshes and checks the name with every envelope.
    return _SLUG.fullmatch(text) is not None


def check_mesh(slug: str) -> str:
    """A mesh's short name, safe in paths, addresses and topic names."""
    if not isinstance(slug, str) or not _is_slug(slug):
        raise BadInput(
            f"mesh name {slug!r} is not usable",
            hint="use lower-case letters, digits and . _ - beginning with a letter or digit",
        )
    if len(slug) > limits.MESH_SLUG_CHARS_MAX:
        raise OverLimit(f"mesh name is longer than {limits.MESH_SLUG_CHARS_MAX} characters")
    return slug


def check_key(key: str, what: str = "key", most: int = limits.KEY_BYTES_MAX) -> str:
    """A key of memory, state or vectors, a subject, a predicate: any text without NUL."""
    if type(key) is str and 0 < len(key) <= most and key.isascii() and "\0" not in key:
        return key  # nearly all of them, and this runs for every write
    if not isinstance(key, str):
        raise BadKey(f"the {what} is {type(key).__name__}, not text")
    if not key:
        raise BadKey(f"the {what} is empty")
    _check_text(key, f"the {what}", most, BadKey)
    return key


def _check_text(text: str, what: str, most: int, error: type[BadInput]) -> None:
    if "\0" in text:
        raise error(f"{what} contains a NUL character")
    # An ASCII string is one byte a character: the common case needs no encoding.
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise error(f"{what} contains half of a surrogate pair, which is not text") from None
    if size > most:
        raise OverLimit(f"{what} has {size} bytes; the most is {most}")
