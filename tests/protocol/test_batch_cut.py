"""The beginning of a batch, cut off at any byte: what is whole of it is known, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.log_wire import Batch, batch_cut, decode_batch, encode_batch
from holdfast.rules.errors import BadAnswer, Unreachable

GONE = Unreachable("the line broke")


def batch(sizes: list[int], first: int = 7) -> Batch:
    offsets = [first + 3 * at for at in range(len(sizes))]
    raws = [bytes([at % 251]) * size for at, size in enumerate(sizes)]
    end = offsets[-1] if offsets else first
    return Batch(2, 1, end + 70_000, first, end + 5, offsets, raws)


@given(st.lists(st.sampled_from([0, 1, 31, 255, 256, 3000, 70_000]), max_size=40), st.data())
def test_Z7_of_a_batch_that_was_cut_the_whole_entries_are_kept(
    sizes: list[int], data: st.DataObject
) -> None:
    whole = batch(sizes)
    raw = encode_batch(whole)
    cut = batch_cut(GONE, raw[: data.draw(st.integers(0, len(raw)))])
    assert cut.error is GONE
    kept = 0
    if cut.batch is not None:
        kept = len(cut.batch.raws)
        assert cut.batch.raws == whole.raws[:kept]
        assert cut.batch.offsets == whole.offsets[:kept]
        assert cut.batch.upto == whole.offsets[kept - 1], "what comes behind was not seen"
        assert cut.batch.start == whole.start
        assert decode_batch(encode_batch(cut.batch)) == cut.batch
    if cut.entry is not None:
        assert cut.entry == (whole.offsets[kept], sizes[kept])


def test_Z7_every_byte_of_a_batch_counts() -> None:
    whole = batch([10] * 20)
    raw = encode_batch(whole)
    kept = []
    for at in range(len(raw) + 1):
        part = batch_cut(GONE, raw[:at]).batch
        kept.append(0 if part is None else len(part.raws))
    assert kept == sorted(kept)
    assert kept[-1] == 20


@given(st.binary(max_size=300))
def test_Z7_what_is_no_batch_is_none(raw: bytes) -> None:
    try:
        cut = batch_cut(GONE, raw)
    except BadAnswer:
        return  # it has entries, and they do not hang together
    assert cut.batch is None or decode_batch(encode_batch(cut.batch)) == cut.batch


def test_Z7_entries_out_of_order_are_refused_also_when_they_are_cut() -> None:
    lie = Batch(1, 1, 9, 1, 9, [5, 4, 6], [b"a", b"b", b"c"])
    with pytest.raises(BadAnswer):
        batch_cut(GONE, encode_batch(lie)[:-1])
