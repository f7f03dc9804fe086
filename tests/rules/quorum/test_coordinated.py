"""The payload of an entry: what every node reads the same way, or refuses the same way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.quorum.coordinated import (
    CoordinatedEntry,
    decode_coordinated,
    encode_coordinated,
)

ENTRY = CoordinatedEntry("ana", 1_700_000_000_000, b"the bytes of an envelope")


def test_Q4_an_entry_says_who_put_it_into_the_order_and_when() -> None:
    raw = encode_coordinated(ENTRY)
    assert raw.hex() == "93a3616e61cf0000018bcfe56800c418" + ENTRY.envelope.hex()
    assert decode_coordinated(raw) == ENTRY


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        encode_coordinated(ENTRY)[:-1],
        encode_coordinated(CoordinatedEntry("", 1, b"")),
        encode_coordinated(CoordinatedEntry("a\0b", 1, b"")),
        encode_coordinated(CoordinatedEntry("ana", -1, b"")),
    ],
)
def test_R4_what_no_coordinator_wrote_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(BadQuorumMessage):
        decode_coordinated(raw)


@given(st.binary(max_size=200))
def test_R4_any_bytes_are_an_entry_or_refused(raw: bytes) -> None:
    try:
        entry = decode_coordinated(raw)
    except BadQuorumMessage:
        return
    assert decode_coordinated(encode_coordinated(entry)) == entry
