"""Bodies of messages at rest: how they are sealed, and by which keys.

A random **data key** seals the bodies (XChaCha20-Poly1305). What a body belongs to is sealed with
it: table, row, column and the number of the key. So a body that was moved to another row, or taken
from another key's time, does not open.

The data key itself lies in the database, wrapped by a key that is made of what the owner gives: of
a passphrase by Argon2id, with its salt and cost kept beside it, or of 32 random bytes from a file
or the system's keyring. A new passphrase rewraps the data key and touches no body.

A constant is sealed under the wrapping key as well, and opened first: if it does not open, the key
is a wrong one, for certain. What does not open later is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from holdfast.rules.errors import BadInput, StoreCorrupt, WrongKey
from holdfast.rules.limits import MIB

NONCE_BYTES: Final = 24
SEAL_BYTES: Final = NONCE_BYTES + 16
"""By so much a sealed body is longer."""
KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
OPERATIONS: Final = 3
MEMORY_BYTES: Final = 64 * MIB
PASSPHRASE_CHARS_MIN: Final = 8

_PROOF: Final = b"holdfast bus at rest"
_PLACES: Final = "write passphrase-file:PATH, key-file:PATH or keyring"
_CONTEXT: Final = "holdfast bus at rest 1: wrapping key"

Random = Callable[[int], bytes]


class SecretKind(StrEnum):
    PASSPHRASE = "passphrase"
    KEY = "key"
    """Random bytes, from a file or a keyring."""


class SealSecret(NamedTuple):
    """What the owner of a home gives to open it."""

    kind: SecretKind
    value: bytes

    def __repr__(self) -> str:
        return f"SealSecret({self.kind})"  # never the secret itself

    @classmethod
    def passphrase(cls, text: str) -> SealSecret:
        if len(text) < PASSPHRASE_CHARS_MIN:
            raise BadInput(f"a passphrase has at least {PASSPHRASE_CHARS_MIN} characters")
        return cls(SecretKind.PASSPHRASE, text.encode())

    @classmethod
    def key(cls, value: bytes) -> SealSecret:
        if len(value) != KEY_BYTES:
            raise BadInput(f"a key at rest has {KEY_BYTES} bytes, not {len(value)}")
        return cls(SecretKind.KEY, value)


class SealPlace(StrEnum):
    """Where the secret is kept."""

    PASSPHRASE_FILE = "passphrase-file"
    KEY_FILE = "key-file"
    KEYRING = "keyring"


class SealSource(NamedTuple):
    place: SealPlace
    path: str = ""
    """Of a file."""

    @classmethod
    def parse(cls, text: str) -> SealSource:
        """Reads the setting: `passphrase-file:PATH`, `key-file:PATH` or `keyring`."""
        word, _, path = text.partition(":")
        try:
            place = SealPlace(word)
        except ValueError:
            raise BadInput(f"{word!r} is no place of a key at rest", hint=_PLACES) from None
        if bool(path) is (place is SealPlace.KEYRING):
            raise BadInput(f"{text!r} is no place of a key at rest", hint=_PLACES)
        return cls(place, path)


class SealLock(msgspec.Struct, frozen=True, kw_only=True):
    """How the wrapping key is made from the secret, as it is kept."""

    kind: SecretKind
    salt: bytes
    operations: int = OPERATIONS
    memory: int = MEMORY_BYTES
    proof: bytes
    """The constant, sealed by the wrapping key."""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> SealLock:
        try:
            return msgspec.msgpack.decode(raw, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreCorrupt(f"the lock of the bus at rest cannot be read: {error}") from None


def make_lock(
    secret: SealSecret, random: Random, *, operations: int = OPERATIONS, memory: int = MEMORY_BYTES
) -> tuple[SealLock, bytes]:
    """A new lock for a secret, and its wrapping key."""
    salt = random(SALT_BYTES)
    key = _wrapping_key(secret, salt, operations, memory)
    proof = _seal(key, _PROOF, b"proof", random)
    lock = SealLock(kind=secret.kind, salt=salt, operations=operations, memory=memory, proof=proof)
    return lock, key


def open_lock(lock: SealLock, secret: SealSecret | None) -> bytes:
    """The wrapping key; raises WrongKey unless the secret is the one that the lock was made for."""
    if secret is None:
        raise WrongKey(f"messages at rest are sealed, and no {lock.kind} was given")
    if secret.kind is not lock.kind:
        raise WrongKey(f"messages at rest are sealed by a {lock.kind}, not by a {secret.kind}")
    key = _wrapping_key(secret, lock.salt, lock.operations, lock.memory)
    from nacl.exceptions import CryptoError  # here: its library takes long to load

    try:
        proof = _open(key, lock.proof, b"proof")
    except CryptoError:
        raise WrongKey(f"this is not the {lock.kind} that messages at rest are sealed by") from None
    assert proof == _PROOF, "nothing else was ever sealed so"
    return key


def wrap(wrapping_key: bytes, number: int, data_key: bytes, random: Random) -> bytes:
    return _seal(wrapping_key, data_key, b"data key %d" % number, random)


def unwrap(wrapping_key: bytes, number: int, wrapped: bytes) -> bytes:
    from nacl.exceptions import CryptoError

    try:
        return _open(wrapping_key, wrapped, b"data key %d" % number)
    except CryptoError:
        raise StoreCorrupt(f"data key {number} of the bus at rest is damaged") from None


class BodySeal:
    """Seals and opens bodies. Without keys it leaves them in the clear."""

    def __init__(self, keys: Mapping[int, bytes], random: Random) -> None:
        self._keys = dict(keys)
        self._random = random
        self.current = max(self._keys, default=0)
        """The number of the key that seals; 0: none does."""

    def seal(self, table: str, row: int, body: bytes) -> bytes:
        if not self.current:
            return body
        about = _about(table, row, self.current)
        return _seal(self._keys[self.current], body, about, self._random)

    def open(self, table: str, row: int, number: int, body: bytes) -> bytes:
        if number == 0:
            return body
        key = self._keys.get(number)
        if key is None:
            raise WrongKey(f"a message is sealed by data key {number}, which is not there")
        from nacl.exceptions import CryptoError

        try:
            return _open(key, body, _about(table, row, number))
        except CryptoError:
            raise StoreCorrupt(
                f"the body of row {row} of {table} is damaged, or is that of another row"
            ) from None


def _about(table: str, row: int, number: int) -> bytes:
    return f"{table}\0{row}\0body\0{number}".encode()


def _wrapping_key(secret: SealSecret, salt: bytes, operations: int, memory: int) -> bytes:
    if secret.kind is SecretKind.PASSPHRASE:
        from nacl.pwhash import argon2id

        return argon2id.kdf(KEY_BYTES, secret.value, salt, operations, memory)
    return blake3(salt + secret.value, derive_key_context=_CONTEXT).digest()


def _seal(key: bytes, plain: bytes, about: bytes, random: Random) -> bytes:
    from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt

    nonce = random(NONCE_BYTES)
    return nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(plain, about, nonce, key)


def _open(key: bytes, sealed: bytes, about: bytes) -> bytes:
    from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt
    from nacl.exceptions import CryptoError

    nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    if len(nonce) < NONCE_BYTES:
        raise CryptoError("too short")
    return crypto_aead_xchacha20poly1305_ietf_decrypt(rest, about, nonce, key)
