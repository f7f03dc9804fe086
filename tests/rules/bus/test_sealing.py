"""Bodies at rest: only the right key opens them, and only in their place."""

from __future__ import annotations

import os

import pytest

from holdfast.rules.bus.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    BodySeal,
    SealLock,
    SealSecret,
    SealSource,
    make_lock,
    open_lock,
    unwrap,
    wrap,
)
from holdfast.rules.errors import BadInput, StoreCorrupt, WrongKey

ONE = SealSecret.key(b"1" * KEY_BYTES)
TWO = SealSecret.key(b"2" * KEY_BYTES)


def test_B7_a_wrong_key_is_a_typed_error_and_a_right_one_opens() -> None:
    lock, key = make_lock(ONE, os.urandom)
    kept = SealLock.decode(lock.encode())
    assert open_lock(kept, ONE) == key
    for wrong in (TWO, None, SealSecret.passphrase("1" * KEY_BYTES)):
        with pytest.raises(WrongKey):
            open_lock(kept, wrong)


def test_B7_a_passphrase_is_stretched_with_the_cost_that_is_kept() -> None:
    word = SealSecret.passphrase("correct horse")
    lock, key = make_lock(word, os.urandom, operations=1, memory=8192)
    assert open_lock(SealLock.decode(lock.encode()), word) == key
    with pytest.raises(WrongKey):
        open_lock(lock, SealSecret.passphrase("correct house"))
    again, other = make_lock(word, os.urandom, operations=1, memory=8192)
    assert other != key, "each lock has its salt"
    assert again.proof != lock.proof


def test_B7_a_data_key_that_was_changed_is_damage_not_a_wrong_key() -> None:
    _, key = make_lock(ONE, os.urandom)
    wrapped = wrap(key, 1, b"d" * KEY_BYTES, os.urandom)
    assert unwrap(key, 1, wrapped) == b"d" * KEY_BYTES
    for harmed in (wrapped[:-1] + bytes([wrapped[-1] ^ 1]), wrapped[:10], b""):
        with pytest.raises(StoreCorrupt):
            unwrap(key, 1, harmed)
    with pytest.raises(StoreCorrupt):
        unwrap(key, 2, wrapped)


def test_B7_a_body_opens_only_in_its_own_row_and_every_bit_counts() -> None:
    seal = BodySeal({1: b"a" * KEY_BYTES, 2: b"b" * KEY_BYTES}, os.urandom)
    sealed = seal.seal("bus_inbox", 7, b"secret")
    assert seal.current == 2
    assert b"secret" not in sealed
    assert seal.open("bus_inbox", 7, 2, sealed) == b"secret"
    assert seal.seal("bus_inbox", 7, b"secret") != sealed, "a new nonce each time"
    elsewhere = [("bus_inbox", 8, 2), ("bus_message", 7, 2), ("bus_inbox", 7, 1)]
    for table, row, number in elsewhere:
        with pytest.raises(StoreCorrupt):
            seal.open(table, row, number, sealed)
    for bit in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorrupt):
            seal.open("bus_inbox", 7, 2, bytes(flipped))
    with pytest.raises(WrongKey):
        seal.open("bus_inbox", 7, 3, sealed)
    with pytest.raises(StoreCorrupt):
        seal.open("bus_inbox", 7, 2, sealed[: NONCE_BYTES - 1])


def test_B7_without_a_key_bodies_lie_in_the_clear() -> None:
    seal = BodySeal({}, os.urandom)
    assert seal.current == 0
    assert seal.open("bus_inbox", 1, 0, seal.seal("bus_inbox", 1, b"plain")) == b"plain"


def test_B7_a_secret_never_shows_itself() -> None:
    assert "correct" not in repr(SealSecret.passphrase("correct horse"))
    assert "correct" not in str(SealSecret.passphrase("correct horse"))


def test_B7_a_setting_says_where_the_key_is() -> None:
    assert SealSource.parse("key-file:/k") == ("key-file", "/k")
    assert SealSource.parse("passphrase-file:a:b") == ("passphrase-file", "a:b")
    assert SealSource.parse("keyring") == ("keyring", "")
    for wrong in ("", "keyring:x", "key-file", "key-file:", "passphrase:secret"):
        with pytest.raises(BadInput):
            SealSource.parse(wrong)
    with pytest.raises(BadInput):
        SealSecret.passphrase("short")
    with pytest.raises(BadInput):
        SealSecret.key(b"short")
