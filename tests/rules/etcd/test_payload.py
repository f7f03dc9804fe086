"""The body of an entry."""

from __future__ import annotations

import pytest

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.etcd.payload import TimedEnvelope, decode_timed, encode_timed
from holdfast.rules.limits import ENVELOPE_BYTES_MAX, ETCD_ENTRY_BYTES_MAX, INTENT_BYTES_MAX, KIB


def test_Q2_a_body_is_read_as_it_was_written() -> None:
    body = TimedEnvelope(1_700_000_000_000, b"envelope")
    assert decode_timed(encode_timed(body)) == body


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x92\x01\xa1x", b"\x92\xff\xc4\x00"])
def test_Q2_what_no_node_can_have_written_is_refused(body: bytes) -> None:
    with pytest.raises(BadQuorumMessage):
        decode_timed(body)


def test_Q2_the_largest_intent_fits_into_an_entry() -> None:
    assert INTENT_BYTES_MAX + 32 * KIB < ETCD_ENTRY_BYTES_MAX
    too_long = encode_timed(TimedEnvelope(1, bytes(ENVELOPE_BYTES_MAX + 1)))
    with pytest.raises(BadQuorumMessage):
        decode_timed(too_long)
