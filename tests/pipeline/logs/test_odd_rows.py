"""An entry whose columns are odd costs itself: the rest of the log is read, from everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from holdfast.node.exchange.export import export
from holdfast.node.library.node import open_node
from holdfast.pipeline.logs.arrow import LOG
from holdfast.pipeline.logs.http import NodeLog
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.rules.errors import BadAnswer, EntryDamaged, HoldfastError, StoreCorrupt
from holdfast.rules.filters import Filter
from holdfast.rules.ids import id_text
from holdfast.rules.limits import SOURCE_TIME_MS_MAX
from holdfast.storage.sqlite.connection import connect
from support import envelopes
from support.daemon import running
from support.envelopes import make_id
from support.keeping import make_home, team

ROWS = 14
_ANOTHER = "bad_envelope: the log says another {} than the envelope"
_NO_TIME = "bad_stamp: the log says no time at which it was recorded"
EDITS = {
    2: ("entity = CAST(x'6bff' AS TEXT)", _ANOTHER.format("entity")),
    4: (f"recorded_at = {2**62}", _NO_TIME),
    5: (f"recorded_at = {SOURCE_TIME_MS_MAX}", _NO_TIME),
    7: ("entity = 'a' || char(0) || 'b'", _ANOTHER.format("entity")),
    8: ("id = x'0102'", _ANOTHER.format("id")),
    10: ("id = randomblob(16)", _ANOTHER.format("id")),
    11: ("mesh = CAST(x'ff' AS TEXT), origin = ''", _ANOTHER.format("mesh, origin")),
    13: ("lamport = -1", _ANOTHER.format("lamport")),
}
"""By offset: what happened to the row, and the problem that the lake is told of."""
TOLD = {offset: problem for offset, (_, problem) in EDITS.items()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with make_home(tmp_path / "home") as node:
        for number in range(ROWS):
            team(node).state.set(f"key-{number}", number)
    return tmp_path / "home"


def edit(home: Path, offset: int, what: str) -> None:
    connection = connect(home / "data.db")
    connection.execute(f"UPDATE log SET {what} WHERE offset = ?", (offset,))
    connection.close()


def raws(home: Path) -> list[Any]:
    connection = connect(home / "data.db", read_only=True)
    found = [raw for (raw,) in connection.execute("SELECT raw FROM log ORDER BY offset")]
    connection.close()
    return found


def unpacked(location: str, **options: Any) -> list[dict[str, Any]]:
    log = open_log(location, {"retries": "0"})
    place = log.place()
    rows: list[dict[str, Any]] = []
    for batch in log.batches(place.epoch, place.first, place.head + 1, **options):
        batch.validate(full=True)
        assert batch.schema == LOG
        found = decode_header(batch)
        found.validate(full=True)
        rows += found.to_pylist()
    log.close()
    return rows


def check(home: Path, rows: list[dict[str, Any]], told: dict[int, str]) -> None:
    assert [row["offset"] for row in rows] == list(range(1, ROWS + 1))
    assert [row["raw"] for row in rows] == raws(home), "the bytes are kept"
    assert {row["offset"]: row["problem"] for row in rows if row["problem"]} == told


def test_P2_odd_rows_of_a_home_go_to_quarantine_with_their_reasons(home: Path) -> None:
    for offset, (what, _) in EDITS.items():
        edit(home, offset, what)
    check(home, unpacked(str(home)), TOLD)
    check(home, unpacked(str(home), filter=Filter(classes=("state",))), TOLD)


@pytest.mark.parametrize("offset", EDITS)
def test_P2_one_odd_row_costs_no_other(home: Path, offset: int) -> None:
    edit(home, offset, EDITS[offset][0])
    check(home, unpacked(str(home)), {offset: TOLD[offset]})


def test_P2_odd_rows_of_a_node_go_to_quarantine_over_http_too(home: Path) -> None:
    for offset, (what, _) in EDITS.items():
        edit(home, offset, what)
    with running(home) as up:
        check(home, unpacked(up.unix), TOLD)


def test_P2_odd_lines_of_an_export_go_to_quarantine(home: Path, tmp_path: Path) -> None:
    with open_node(home) as node, (tmp_path / "good.jsonl").open("wb") as out:
        export(node, out)
    lines = (tmp_path / "good.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "odd.jsonl").write_bytes(b"".join(edited_lines(lines)))
    check(
        home,
        unpacked(str(tmp_path / "odd.jsonl")),
        {
            2: _NO_TIME,
            3: _NO_TIME,
            5: _ANOTHER.format("entity"),
            6: _ANOTHER.format("id"),
            8: _ANOTHER.format("lamport"),
        },
    )


def edited_lines(lines: list[bytes]) -> Iterator[bytes]:
    """The lines of an export with odd values, and the hash of these lines at their end."""
    odd: dict[int, dict[str, Any]] = {2: {"recorded_at": 2**62}, 3: {"recorded_at": 10**30}}
    says = {5: {"entity": "a\0b"}, 6: {"id": "no id"}, 8: {"lamport": 2**70}}
    hashing = sha256()
    for line in lines[:-1]:
        row = msgspec.json.decode(line)
        if row.get("kind") == "log":
            row |= odd.get(row["offset"], {})
            row["says"] |= says.get(row["offset"], {})
        spelled = msgspec.json.encode(row) + b"\n"
        hashing.update(spelled)
        yield spelled
    yield (
        msgspec.json.encode(msgspec.json.decode(lines[-1]) | {"sha256": hashing.hexdigest()})
        + b"\n"
    )


def test_P11_a_log_that_cannot_be_read_on_names_the_offset(home: Path) -> None:
    edit(home, 3, "raw = x'00'")
    with pytest.raises(EntryDamaged, match="offset 3 is damaged"):
        unpacked(str(home))
    connection = connect(home / "data.db")
    connection.execute("DELETE FROM log WHERE offset = 3")
    connection.close()
    with pytest.raises(StoreCorrupt, match="no entry at offset 3"):
        unpacked(str(home))


def test_P2_columns_that_a_node_sends_without_values_are_problems() -> None:
    raw = envelopes.state_set("k", 1, id=make_id(1))
    good = {
        **{"log": "ana", "epoch": 1, "offset": 1, "id": id_text(make_id(1)), "mesh": "team"},
        **{"op": "state.set", "entity": "k", "origin": "bob", "lamport": 1},
        **{"recorded_at": 0, "raw": raw},
    }
    assert problem_of(good) is None
    for name in ("id", "mesh", "op", "entity", "origin", "lamport"):
        assert problem_of(good | {name: None}) == _ANOTHER.format(name)
    assert problem_of(good | {"recorded_at": None}) == _NO_TIME
    assert problem_of(good | {"raw": None}) == "bad_envelope: its bytes are not there"


def problem_of(row: dict[str, Any]) -> str | None:
    batch = pa.RecordBatch.from_pylist([row], schema=LOG)
    found: str | None = decode_header(batch).column("problem").to_pylist()[0]
    return found


# --- a node that lies --------------------------------------------------------------------------


def streamed(schema: pa.Schema, batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with ipc.new_stream(out, schema) as writer:
        writer.write_batch(batch)
    told: bytes = out.getvalue().to_pybytes()
    return told


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> bytes:
    at = batch.schema.get_field_index(name)
    columns = [column if place == at else found for place, found in enumerate(batch.columns)]
    schema = batch.schema.set(at, pa.field(name, column.type))
    return streamed(schema, pa.RecordBatch.from_arrays(columns, schema=schema))


def test_P1_no_stream_of_a_node_does_more_than_end_in_a_named_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(home) as up:
        log = open_log(up.unix, {"retries": "0"})
        assert isinstance(log, NodeLog)
        accept = {"Accept": "application/vnd.apache.arrow.stream"}
        whole = b"".join(log._client.stream("GET", "/v1/facts/range", headers=accept))
        (batch,) = ipc.open_stream(whole)

        def told(stream: bytes) -> dict[int, str]:
            monkeypatch.setattr(log._client, "stream", lambda *_, **__: iter_of(stream))
            batches = log.batches(1, 1, ROWS + 1)
            rows = [row for batch in batches for row in decode_header(batch).to_pylist()]
            assert [row["offset"] for row in rows] == list(range(1, ROWS + 1))
            return {row["offset"]: row["problem"] for row in rows if row["problem"]}

        assert told(whole) == {}
        names = batch.column("entity").view(pa.binary()).to_pylist()
        names[4] = b"\xc3"
        harmed = pa.array(names, pa.binary()).view(pa.string())
        assert told(with_column(batch, "entity", harmed)) == {5: _ANOTHER.format("entity")}
        far = pa.array([0, 2**63 - 1] * (ROWS // 2)).cast(batch.schema.field("recorded_at").type)
        assert told(with_column(batch, "recorded_at", far)) == dict.fromkeys(
            range(2, ROWS + 1, 2), _NO_TIME
        )
        _, places, joined = batch.column("raw").buffers()
        moved = np.frombuffer(places, dtype=np.int32)[: ROWS + 1].copy()
        moved[3] = moved[-1] + 1000
        beyond = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(moved), joined])
        for name, column in (("raw", beyond), ("mesh", pa.array(range(ROWS)))):
            with pytest.raises(BadAnswer, match="offsets 1 to 14"):
                told(with_column(batch, name, column))
        random = Random(7)
        for _ in range(150):
            at, bit = random.randrange(len(whole)), 1 << random.randrange(8)
            with suppress(HoldfastError, AssertionError):
                told(whole[:at] + bytes((whole[at] ^ bit,)) + whole[at + 1 :])
        log.close()


def iter_of(stream: bytes) -> Iterator[bytes]:
    yield stream
