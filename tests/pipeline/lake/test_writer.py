"""What a task writes, the reader and the commit find again; what others rewrote is read too."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.pipeline.lake import writer as writing
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.schema import columns
from holdfast.rules.errors import LakeNotSeen, StoreCorrupt

SCHEMA = columns("id string, n bigint, at timestamp, raw binary, day date")
DAYS = [date(2026, 11, 1), date(2026, 11, 1), date(2026, 11, 2), date(2026, 11, 2)]


def table_in(folder: Path) -> Table:
    return Table(str(folder), SCHEMA, partitions={"day": "date(at)"})


def rows(count: int = 4) -> pa.Table:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    values = {
        "id": [f"k{n}" for n in range(count)],
        "n": list(range(count)),
        "at": [at] * count,
        "raw": [bytes([n % 256]) for n in range(count)],
        "day": (DAYS * count)[:count] if count == 4 else [DAYS[0]] * count,
    }
    return pa.table(values)


def read(table: Table, files: list[File]) -> pa.Table:
    reader = table.reader()
    parts = []
    for file in files:
        with reader.open(file) as opened:
            parts += [opened.group(number) for number in range(opened.groups)]
    return pa.concat_tables(parts)


def test_P2_a_task_writes_a_file_for_each_partition(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    files = table.writer().write([rows().slice(0, 3), rows().slice(3)])
    assert [(f.rows, f.partition) for f in files] == [
        (2, {"day": "2026-11-01"}),
        (2, {"day": "2026-11-02"}),
    ]
    assert [(f.low["id"], f.high["n"]) for f in files] == [("k0", 1), ("k2", 3)]
    assert "raw" not in files[0].low
    assert read(table, files)["n"].to_pylist() == [0, 1, 2, 3]
    table.commit(files)
    assert table.fresh().rows == 4


def test_P2_files_and_row_groups_have_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LAKE_GROUP_ROWS", 10)
    monkeypatch.setattr(writing, "LAKE_FILE_BYTES", 1500)
    table = table_in(tmp_path / "t")
    files = table.writer().write(batch for batch in rows(100).to_batches(5))
    assert len(files) > 2
    assert sum(file.rows for file in files) == 100
    with table.reader().open(files[0]) as opened:
        assert opened.groups > 1
        assert opened.group(0, ["n"])["n"].to_pylist() == list(range(10))
    assert read(table, files)["n"].to_pylist() == list(range(100))


def test_P2_a_commit_names_no_file_that_the_driver_does_not_see(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    gone, short = table.writer().write([rows()])
    (tmp_path / "t" / short.path).write_bytes(b"PAR1")
    with pytest.raises(LakeNotSeen, match="it has 4 bytes"):
        table.commit([short])
    (tmp_path / "t" / gone.path).unlink()
    with pytest.raises(LakeNotSeen, match="it is not there"):
        table.commit([gone])
    assert not table.fresh().exists


def test_P2_what_another_engine_rewrote_is_read_with_our_types(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    (ours,) = table.writer().write([rows(3)])
    foreign = pa.schema(
        [
            pa.field("raw", pa.large_binary(), nullable=False),
            pa.field("id", pa.large_string(), nullable=False),
            pa.field("n", pa.int32(), nullable=False),
            pa.field("at", pa.timestamp("ms", tz="Europe/Berlin")),
        ]
    )
    values = rows(3).drop_columns("day").select(foreign.names)
    path = tmp_path / "t" / ours.path
    views = pa.schema([f.with_type(pa.string_view()) if f.name == "id" else f for f in foreign])
    for schema in (foreign, views):
        pq.write_table(values.cast(schema), path)
        found = read(table, [ours])
        assert found.schema.equals(table.reader().schema)
        assert found.to_pylist() == rows(3).drop_columns("day").to_pylist()
    with table.reader().open(ours, dictionaries=["id"]) as opened:
        coded = opened.group(0, ["id"])["id"]
        assert pa.types.is_dictionary(coded.type)
        assert coded.to_pylist() == ["k0", "k1", "k2"]
    pq.write_table(values.drop_columns("n"), path)
    assert read(table, [ours])["n"].to_pylist() == [None] * 3


def test_P2_a_file_that_is_not_what_its_commit_says_is_an_error(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    (file,) = table.writer().write([rows(3)])
    path = tmp_path / "t" / file.path
    pq.write_table(rows(2).drop_columns("day"), path)
    with pytest.raises(StoreCorrupt, match="has 2 rows where its commit says 3"):
        read(table, [file])
    path.write_bytes(b"not parquet")
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        read(table, [file])
    path.unlink()
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        read(table, [file])
