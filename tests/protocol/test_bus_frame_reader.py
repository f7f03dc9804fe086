"""Frames are cut from bytes however these come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.bus_frame_reader import FrameReader
from holdfast.protocol.bus_frames import FRAME_HEAD, FrameKind, Stream, frame
from holdfast.rules.errors import BadAnswer, OverLimit

MOST = 100


@given(
    st.lists(st.binary(max_size=MOST), max_size=12),
    st.lists(st.integers(1, 60), max_size=40),
    st.integers(1, 3),
)
def test_B6_frames_come_whole_and_in_order_in_pieces_of_any_size(
    bodies: list[bytes], sizes: list[int], every: int
) -> None:
    raw = b"".join(frame(FrameKind.PARCEL, Stream.LOW, body) for body in bodies)
    reader, found = FrameReader(MOST), []
    for number, size in enumerate([*sizes, len(raw) + 1], 1):
        piece, raw = raw[:size], raw[size:]
        reader.feed(piece)
        while number % every == 0 and (one := reader.next()) is not None:
            found.append(one)
    while (one := reader.next()) is not None:
        found.append(one)
    assert found == [(FrameKind.PARCEL, Stream.LOW, body) for body in bodies]
    assert reader.held == 0


@pytest.mark.parametrize(("length", "error"), [(0, BadAnswer), (1, BadAnswer), (103, OverLimit)])
def test_B6_a_length_that_no_frame_has_is_refused_before_its_body_comes(
    length: int, error: type[Exception]
) -> None:
    reader = FrameReader(MOST)
    reader.feed(FRAME_HEAD.pack(length, 1, 0))
    with pytest.raises(error):
        reader.next()


def test_B6_a_frame_of_the_longest_length_is_read() -> None:
    reader = FrameReader(MOST)
    reader.feed(frame(FrameKind.MESH, Stream.MESH, bytes(MOST)))
    assert reader.next() == (FrameKind.MESH, Stream.MESH, bytes(MOST))


def test_B6_a_reader_holds_nothing_of_a_frame_that_was_taken() -> None:
    first, raw = b"x" * 1000, frame(FrameKind.PARCEL, Stream.NOW, b"x" * 1000)
    reader = FrameReader(len(first))
    for pieces in ([raw], [raw[:500], raw[500:]]):
        for piece in pieces:
            reader.feed(piece)
        assert reader.next() == (FrameKind.PARCEL, Stream.NOW, first)
        assert not reader._raw, "a link may be silent for days after a frame of megabytes"
        assert reader.next() is None
