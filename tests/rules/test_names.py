"""Names are NFC text within limits, the same bytes on every machine, or they are refused."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import names
from holdfast.rules.errors import BadInput, BadKey, BadPeerId, OverLimit, Refused
from holdfast.rules.limits import KEY_BYTES_MAX, MESH_SLUG_CHARS_MAX, PEER_ID_BYTES_MAX

NFC = "caf\u00e9"
NFD = "cafe\u0301"


@pytest.mark.parametrize(
    "peer",
    [
        *(
            "a",
            "ana",
            "Ana Müller",
            "ana@host:7",
            "名前",
            "👩\u200d💻",
            NFC,
            "a\u200bb",
            "'; --",
            "\\",
        ),
        *("x" * PEER_ID_BYTES_MAX, "é" * (PEER_ID_BYTES_MAX // 2), "\U0010fffd"),
    ],
)
def test_S5_a_peer_id_is_kept_as_it_is(peer: str) -> None:
    assert names.check_peer(peer) == peer


@pytest.mark.parametrize(
    "peer",
    [
        "",
        " ",
        " ana",
        "ana ",
        "a\0b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "\ud800",
        NFD,
        "A\u030a",
        "\u00a0x",
    ],
)
def test_S5_a_peer_id_that_is_not_plain_nfc_text_is_refused(peer: str) -> None:
    with pytest.raises(BadPeerId):
        names.check_peer(peer)


def test_S5_a_peer_id_in_another_form_is_refused_with_the_right_one_in_the_hint() -> None:
    with pytest.raises(BadPeerId) as refused:
        names.check_peer(NFD)
    assert repr(NFC) in refused.value.hint


@pytest.mark.parametrize("peer", ["x" * 129, "é" * 65, "\U0001f600" * 33])
def test_S5_a_peer_id_is_counted_in_bytes(peer: str) -> None:
    with pytest.raises(OverLimit):
        names.check_peer(peer)


@pytest.mark.parametrize("peer", [None, 7, b"ana"])
def test_S5_a_peer_id_is_text(peer: object) -> None:
    with pytest.raises(BadPeerId):
        names.check_peer(peer)  # type: ignore[arg-type]


@given(st.text(max_size=20))
def test_S5_what_passes_as_a_peer_id_is_its_own_normal_form(text: str) -> None:
    try:
        peer = names.check_peer(text)
    except Refused:
        return
    assert peer == unicodedata.normalize("NFC", peer)
    assert 1 <= len(peer.encode()) <= PEER_ID_BYTES_MAX


@pytest.mark.parametrize("slug", ["a", "0", "team", "team-1.x_y", "x" * MESH_SLUG_CHARS_MAX])
def test_S6_a_mesh_name_is_safe_everywhere(slug: str) -> None:
    assert names.check_mesh(slug) == slug


@pytest.mark.parametrize(
    "slug",
    [
        *("", "A", "Team", "-a", ".a", "_a", "a b", "a/b", "a\\b", "é", "a\n", "a\0", "..", "a:b"),
        *("x" * (MESH_SLUG_CHARS_MAX + 1), None, 7),
    ],
)
def test_S6_any_other_mesh_name_is_refused(slug: object) -> None:
    with pytest.raises(BadInput):
        names.check_mesh(slug)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["a", " ", "a b", "a/b:c", "é", NFD, "\n", "x" * KEY_BYTES_MAX])
def test_S6_a_key_is_any_text(key: str) -> None:
    assert names.check_key(key) == key


@pytest.mark.parametrize("key", ["", "\0", "a\0", "\ud800", "a\udfff", None, 7, b"k", ["k"]])
def test_S6_a_key_without_text_is_refused(key: object) -> None:
    with pytest.raises(BadKey):
        names.check_key(key)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["x" * (KEY_BYTES_MAX + 1), "é" * (KEY_BYTES_MAX // 2 + 1)])
def test_S6_a_key_is_counted_in_bytes(key: str) -> None:
    with pytest.raises(OverLimit):
        names.check_key(key)


def test_S6_the_refusal_says_what_was_wrong() -> None:
    with pytest.raises(BadKey, match="the subject is empty"):
        names.check_key("", "subject")
    with pytest.raises(OverLimit, match="the subject has 3 bytes; the most is 2"):
        names.check_key("abc", "subject", 2)
