"""The Arrow stream of the log where pyarrow is not installed: read by the package that wrote it."""

from __future__ import annotations

import nanoarrow
from nanoarrow.ipc import InputStream

from holdfast.rules.rows import Columns
from holdfast.service.http.arrow_stream import ArrowStream


def test_Z3_the_stream_can_be_read_by_those_who_have_only_what_we_install() -> None:
    stream = ArrowStream({"holdfast.epoch": "3"})
    columns = Columns(
        *([7, 8], [b"i" * 16] * 2, ["team"] * 2, ["state.set"] * 2, ["k"] * 2, ["ana", "bé"]),
        *([1, 2], [0, 86_400_000], [b"", b"raw"], 0),
    )
    sent = stream.begin() + stream.batch(columns) + stream.end()
    rows = nanoarrow.Array(InputStream.from_readable(sent)).to_pylist()
    assert [row["offset"] for row in rows] == [7, 8]
    assert [row["origin"] for row in rows] == ["ana", "bé"]
    assert [row["raw"] for row in rows] == [b"", b"raw"]
