"""The Arrow stream of the log, read by an outsider and compared value by value."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.rows import Columns
from holdfast.service.http.arrow_stream import COLUMNS, FORMAT, ArrowStream

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ROW = st.tuples(
    INT64,
    st.binary(min_size=16, max_size=16),
    *[TEXT] * 4,
    INT64,
    st.integers(0, 4_000_000_000_000),
    st.binary(max_size=40),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(rows: list[tuple[object, ...]]) -> Columns:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    filled: list[Any] = [*(columns or [[] for _ in COLUMNS]), 0]
    return Columns(*filled)


def encoded(*batches: Columns) -> bytes:
    stream = ArrowStream({"holdfast.epoch": "3", "holdfast.peer": "ana/é"})
    return b"".join([stream.begin(), *map(stream.batch, batches), stream.end()])


@given(st.lists(st.lists(ROW, max_size=8), max_size=4))
def test_Z3_an_outsider_reads_every_value_of_every_batch(
    batches: list[list[tuple[object, ...]]],
) -> None:
    with pa.ipc.open_stream(encoded(*map(columns_of, batches))) as reader:
        read = list(reader)
    assert [batch.num_rows for batch in read] == [len(batch) for batch in batches]
    for batch, rows in zip(read, batches, strict=True):
        batch.validate(full=True)
        lists = [column.to_pylist() for column in batch.columns]
        found = list(zip(*lists, strict=True))
        times = [EPOCH + timedelta(milliseconds=int(str(row[7]))) for row in rows]
        assert found == [(*row[:7], time, row[8]) for row, time in zip(rows, times, strict=True)]


def test_Z3_the_schema_says_what_the_columns_are_and_where_they_come_from() -> None:
    schema = pa.ipc.open_stream(encoded()).schema
    told = [
        ("offset", pa.int64()),
        ("id", pa.binary(16)),
        ("mesh", pa.string()),
        ("op", pa.string()),
        ("entity", pa.string()),
        ("origin", pa.string()),
        ("lamport", pa.int64()),
        ("recorded_at", pa.timestamp("ms", tz="UTC")),
        ("raw", pa.binary()),
    ]
    assert list(schema) == [pa.field(name, kind, nullable=False) for name, kind in told]
    assert schema.metadata == {
        b"holdfast.format": FORMAT.encode(),
        b"holdfast.epoch": b"3",
        b"holdfast.peer": "ana/é".encode(),
    }


def test_Z3_a_stream_without_rows_is_a_whole_stream() -> None:
    assert pa.ipc.open_stream(encoded()).read_all().num_rows == 0
    assert pa.ipc.open_stream(encoded(columns_of([]))).read_all().num_rows == 0


def test_Z3_texts_of_a_large_batch_keep_their_borders() -> None:
    rows: list[tuple[object, ...]] = [
        (
            n,
            n.to_bytes(16, "big"),
            "team",
            "fact.append",
            f"s/{n}" * (n % 3),
            "ö" * (n % 5),
            n,
            n,
            b"r" * (n % 7),
        )
        for n in range(8192)
    ]
    table = pa.ipc.open_stream(encoded(columns_of(rows))).read_all()
    for number, name in enumerate(COLUMNS):
        if name != "recorded_at":
            assert table.column(name).to_pylist() == [row[number] for row in rows]


def test_Z3_a_stream_that_was_cut_shows_it_by_the_missing_end() -> None:
    row = (1, b"i" * 16, "m", "o", "e", "p", 1, 1, b"raw")
    stream = ArrowStream({})
    cut = stream.begin() + stream.batch(columns_of([row]))
    whole = encoded(columns_of([row]))
    assert whole[-8:] == b"\xff\xff\xff\xff\x00\x00\x00\x00"
    assert cut[-8:] != whole[-8:]
    with pytest.raises(OSError, match="message body"):
        pa.ipc.open_stream(io.BytesIO(cut[:-16])).read_all()
