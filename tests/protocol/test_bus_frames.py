"""Frames of the bus: what is told is read back, and no bytes break a reader."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.bus_frames import (
    FRAME_HEAD,
    AckFrame,
    CreditFrame,
    FrameKind,
    GoodbyeFrame,
    HelloFrame,
    InterestFrame,
    NoticeFrame,
    PingFrame,
    ProofFrame,
    RelayFrame,
    SettledFrame,
    Stream,
    Told,
    WelcomeFrame,
    frame,
    read_told,
    told,
)
from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import REASON_CHARS_MAX

SAID: dict[FrameKind, Told] = {
    FrameKind.HELLO: HelloFrame(1, bytes(32), b"n" * 32),
    FrameKind.PROOF: ProofFrame(bytes(64)),
    FrameKind.WELCOME: WelcomeFrame(
        name="ana", incarnation=bytes(16), seen=7, capabilities=[b"c"], addresses=["10.0.0.1:7430"]
    ),
    FrameKind.ACK: AckFrame(9, [(8, "over_limit", "too long")]),
    FrameKind.CREDIT: CreditFrame(Stream.NEXT, 4096),
    FrameKind.PING: PingFrame(3),
    FrameKind.PONG: PingFrame(3),
    FrameKind.GOODBYE: GoodbyeFrame("closing", "see you"),
    FrameKind.INTEREST: InterestFrame(["builds.*"], ["builds.*"], ["resize"], ["x"], ["y.>"]),
    FrameKind.RELAY: RelayFrame(1, [bytes(8)], b"parcel"),
    FrameKind.SETTLED: SettledFrame([bytes(16)]),
    FrameKind.NOTICE: NoticeFrame("peer_copied", "two at once"),
}
KINDS = sorted(SAID)

odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9)
    | st.binary(max_size=70) | st.floats(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip


def test_B6_every_frame_is_read_back_as_it_was_told() -> None:
    for kind, said in SAID.items():
        raw = frame(kind, Stream.CONTROL, told(kind, said))
        length, number, stream = FRAME_HEAD.unpack_from(raw)
        assert (length, FrameKind(number), Stream(stream)) == (len(raw) - 4, kind, Stream.CONTROL)
        assert read_told(kind, raw[FRAME_HEAD.size :]) == said
    assert {*FrameKind} - {*SAID} == {FrameKind.PARCEL, FrameKind.MESH, FrameKind.QUORUM}, (
        "they have other readers"
    )


@given(st.sampled_from(KINDS), st.binary(max_size=200) | odd.map(msgspec.msgpack.encode), st.data())
def test_R4_no_bytes_break_the_readers_of_frames(
    kind: FrameKind, raw: bytes, data: st.DataObject
) -> None:
    good = bytearray(told(kind, SAID[kind]))
    at = data.draw(st.integers(0, len(good)))
    good[at : at + 2] = raw[:2]
    for body in (raw, bytes(good)):
        try:
            read = read_told(kind, body)
        except BadAnswer as error:
            refused = error.message
        else:
            refused = ""
            assert read_told(kind, told(kind, read)) == read
        assert len(refused) < REASON_CHARS_MAX + 100


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (FrameKind.HELLO, [1, bytes(31), bytes(32)]),
        (FrameKind.HELLO, ["1", bytes(32), bytes(32)]),
        (FrameKind.PROOF, [bytes(65)]),
        (FrameKind.WELCOME, ["ana", bytes(15)]),
        (FrameKind.WELCOME, ["ana", bytes(16), -1]),
        (FrameKind.WELCOME, ["ana", bytes(16), 2**63]),
        (FrameKind.WELCOME, ["ana", bytes(16), 0, [b""] * 65]),
        (FrameKind.WELCOME, ["ana", bytes(16), 0, [], [""] * 33]),
        (FrameKind.ACK, [0, [[1, "", ""]] * 1025]),
        (FrameKind.CREDIT, [9, 1]),
        (FrameKind.CREDIT, [1, 0]),
        (FrameKind.CREDIT, [1, 2**31 + 1]),
        (FrameKind.PING, [-1]),
        (FrameKind.GOODBYE, []),
        (FrameKind.INTEREST, [["a"] * 4097]),
    ],
)
def test_R4_a_frame_beyond_its_bounds_is_refused(kind: FrameKind, fields: list[Any]) -> None:
    with pytest.raises(BadAnswer):
        read_told(kind, msgspec.msgpack.encode(fields))


def test_R4_a_frame_nested_without_end_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(BadAnswer):
            read_told(kind, b"\x91" * 100_000)
