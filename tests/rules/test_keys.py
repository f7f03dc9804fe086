"""Keys, cards, proofs and tokens."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadInput, BadPeerId, BadToken
from holdfast.rules.keys import (
    HelloTranscript,
    Role,
    bytes_of,
    card_of,
    check_key_bytes,
    check_proof,
    is_good,
    parse_card,
    prove,
    public_key,
    text_of,
    token_digest,
    token_text,
)
from holdfast.rules.rows import ZoneKey

ANA, BO = bytes(range(32)), bytes(range(32, 64))
SMALL_ORDER = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
)


def hello(**other: Any) -> HelloTranscript:
    said = HelloTranscript(
        "ana", public_key(ANA), b"a" * 32, "bo", public_key(BO), b"b" * 32, b"c" * 32
    )
    return msgspec.structs.replace(said, **other)


# --- cards ---------------------------------------------------------------------------------------


@given(
    st.binary(min_size=32, max_size=32), st.sampled_from(["ana", "a:b", "Zoë 2", ":", "x:ed25519:"])
)
def test_Z8_a_card_gives_back_its_name_and_key(seed: bytes, name: str) -> None:
    key = public_key(seed)
    assert parse_card(f" {card_of(name, key)}\n") == (name, key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ana",
        f"ana:{text_of(public_key(ANA))}",
        f"ana:rsa:{text_of(public_key(ANA))}",
        f"ana:ed25519:{text_of(public_key(ANA))}=",
        f"ana:ed25519:{text_of(public_key(ANA))[:-1]}",
        f"ana:ed25519:{text_of(public_key(ANA))[:-1]}é",
        "ana:ed25519:" + "A" * 44,
    ],
)
def test_Z8_what_is_no_card_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_card(text)
    assert "holdfast peer card" in caught.value.hint


def test_Z8_the_name_on_a_card_is_a_peer_id() -> None:
    with pytest.raises(BadPeerId):
        parse_card(card_of("", public_key(ANA)))


def test_Z8_a_key_has_one_spelling() -> None:
    text = text_of(b"\xff" * 32)
    assert text[-1] == "8"
    for other in "9-_":  # the same bytes to a careless decoder
        with pytest.raises(BadInput):
            bytes_of(text[:-1] + other, 32)


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_Z8_a_key_under_which_anybody_can_sign_is_refused(point: str) -> None:
    key = bytes.fromhex(point)
    with pytest.raises(BadInput):
        check_key_bytes(key)
    with pytest.raises(BadInput):
        parse_card(card_of("eve", key))


@pytest.mark.parametrize("key", [b"", b"\x02" + bytes(31), b"\xff" * 32, bytes(33)])
def test_Z8_what_is_no_point_of_the_curve_is_refused(key: bytes) -> None:
    with pytest.raises(BadInput):
        check_key_bytes(key)


def test_Z8_a_key_is_good_until_its_end() -> None:
    key = public_key(ANA)
    assert is_good(ZoneKey(key=key, added_at=1), 10**15)
    assert is_good(ZoneKey(key=key, added_at=1, expires_at=10), 9)
    assert not is_good(ZoneKey(key=key, added_at=1, expires_at=10), 10)


# --- proofs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "role"), [(ANA, "client"), (BO, "server")])
def test_Z8_a_proof_is_good_for_its_key_role_and_hello_only(seed: bytes, role: Role) -> None:
    proof = prove(seed, role, hello())
    assert check_proof(public_key(seed), role, hello(), proof)
    other: Role = "server" if role == "client" else "client"
    assert not check_proof(public_key(seed), other, hello(), proof)
    assert not check_proof(public_key(b"x" * 32), role, hello(), proof)
    for field in HelloTranscript.__struct_fields__:
        value = "eve" if field.endswith("zone") else b"e" * 32
        assert not check_proof(public_key(seed), role, hello(**{field: value}), proof), field


@given(st.integers(0, 63), st.integers(0, 7))
def test_Z8_a_proof_with_one_bit_changed_is_none(place: int, bit: int) -> None:
    proof = bytearray(prove(ANA, "client", hello()))
    proof[place] ^= 1 << bit
    assert not check_proof(public_key(ANA), "client", hello(), bytes(proof))


@pytest.mark.parametrize("proof", [b"", bytes(63), bytes(64), bytes(65)])
def test_Z8_what_is_no_signature_proves_nothing(proof: bytes) -> None:
    assert not check_proof(public_key(ANA), "client", hello(), proof)
    assert not check_proof(b"short", "client", hello(), proof)


def test_Z8_the_parts_of_a_transcript_cannot_flow_into_each_other() -> None:
    one = hello(client_zone="ab", server_zone="c")
    other = hello(client_zone="a", server_zone="bc")
    assert one.transcript() != other.transcript()


def test_Z8_the_transcript_is_what_other_programs_would_make_of_it() -> None:
    said = hello()
    assert msgspec.msgpack.decode(said.transcript()) == [
        *("ana", public_key(ANA), b"a" * 32),
        *("bo", public_key(BO), b"b" * 32),
        b"c" * 32,
    ]


# --- tokens --------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32))
def test_D10_a_token_is_kept_as_a_digest(random: bytes) -> None:
    text = token_text(random)
    assert text.startswith("hf_")
    assert len(text) == 46
    assert token_digest(text) == sha256(text.encode()).digest()


@pytest.mark.parametrize(
    "text", ["", "hf_", "hf_short", "hs_" + "A" * 43, "hf_" + "é" * 43, "hf_" + "A" * 44]
)
def test_D10_what_is_no_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadToken) as caught:
        token_digest(text)
    assert len(text) < 4 or text not in f"{caught.value.message}{caught.value.hint}"
