"""One key follows another: what a node signs when it changes its key.

The old key signs the new one once, before it goes. Whoever knows the old key can then see that the
new one is the same node, without a person in between. Several changes make a chain.

    [before, after, signature]      signed: "holdfast bus succession 1" 00 || before || after

A statement says nothing but two keys, and is shown only to peers that know one of them. It is worth
what the old key was worth: a thief of that key can sign one too. So each peer believes the first
that it hears of, and what a mesh's list says by then counts more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.bus.capability import Key
from holdfast.rules.limits import BUS_SUCCESSIONS_MAX

_WORDS: Final = b"holdfast bus succession 1\0"
_SHOWN: Final = b"holdfast bus succession shown 1\0"
_SOUGHT: Final = b"holdfast bus sought 1\0"


class KeySuccession(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The owner of a key says which one is its key from then on."""

    before: Key
    after: Key
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


Chain = Annotated[tuple[KeySuccession, ...], Meta(max_length=BUS_SUCCESSIONS_MAX)]

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Chain).decode


def succeed(seed: bytes, after: bytes) -> KeySuccession:
    """The statement of the node that has this seed, and will have that key."""
    from nacl.signing import SigningKey  # here: its library takes long to load

    key = SigningKey(seed)
    before = bytes(key.verify_key)
    return KeySuccession(before, after, key.sign(_WORDS + before + after).signature)


def with_step(chain: Sequence[KeySuccession], step: KeySuccession) -> tuple[KeySuccession, ...]:
    """The chain with one step more; the oldest is forgotten if there are too many."""
    kept = [one for one in chain if one.after != step.after]
    return (*kept, step)[-BUS_SUCCESSIONS_MAX:]


def keys_before(chain: Sequence[KeySuccession], key: bytes) -> tuple[bytes, ...]:
    """The earlier keys of the node that has this key now, the newest first, as far as the chain
    proves them: every signature on the way is checked.
    """
    if not chain:
        return ()
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    found: list[bytes] = []
    for step in reversed(chain):
        if step.after != (found[-1] if found else key) or step.before in (key, *found):
            break
        try:
            VerifyKey(step.before).verify(_WORDS + step.before + step.after, step.signature)
        except BadSignatureError:
            break
        found.append(step.before)
    return tuple(found)


# --- shown to a peer -------------------------------------------------------------------------


def shown_chain(chain: Sequence[KeySuccession]) -> bytes:
    """The chain as it is shown among the capabilities of a welcome, or in a hello."""
    return _SHOWN + _encode(tuple(chain))


def is_chain(shown: bytes) -> bool:
    return shown.startswith(_SHOWN)


def read_chain(shown: Iterable[bytes]) -> tuple[KeySuccession, ...]:
    """The first chain among what a peer shows; empty if there is none that can be read. Nothing is
    believed yet.
    """
    for one in shown:
        if is_chain(one):
            try:
                return _decode(one.removeprefix(_SHOWN))
            except (msgspec.DecodeError, RecursionError):
                return ()
    return ()


def sought(key: bytes, nonce: bytes) -> bytes:
    """How a dialler says which key it looks for: only who knows the key learns anything by it."""
    return sha256(_SOUGHT + nonce + key).digest()
