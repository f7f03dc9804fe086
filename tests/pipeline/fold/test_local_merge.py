"""The fold that never leaves Arrow: the rows, the buckets and the order that Spark would give."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from holdfast.pipeline.fold import local_merge as gathering
from holdfast.pipeline.fold import local_partition as scattering
from holdfast.pipeline.fold.local_merge import LocalMerge, taken, winning
from holdfast.pipeline.fold.local_partition import LocalPartition, replacing
from holdfast.pipeline.fold.local_scan import LocalScan
from holdfast.pipeline.fold.spark_hash import buckets_of, hashed
from holdfast.pipeline.fold.winners import bucketed
from holdfast.pipeline.lake.schema import KEYS
from holdfast.rules.order import Version, is_newer

pytestmark = pytest.mark.timeout(400)

BUCKETS = 5
SCHEMA = pa.schema(
    {
        "mesh": pa.string(),
        "key": pa.string(),
        "value": pa.string(),
        "lamport": pa.int64(),
        "peer": pa.string(),
        "id": pa.string(),
    }
)
STORED = SCHEMA.append(pa.field("bucket", pa.int32()))
Row = tuple[str, str, str, int, str, str]


# --- the hash ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0xEF46DB3751D8E999), ("a", 0xD24EC4F1A98C6E5B), ("abc", 0x44BC2CF5AD770999)],
)
def test_P3_the_hash_gives_the_known_values_of_xxh64(text: str, expected: int) -> None:
    assert hashed(pa.array([text]), np.zeros(1, np.uint64)).tolist() == [expected]


def test_P3_a_key_falls_into_the_bucket_that_spark_gives_it(spark: SparkSession) -> None:
    rng = random.Random(11)
    letters = "ab/-é漢\U0001f40d"
    texts = [
        tuple("".join(rng.choices(letters, k=rng.randrange(30))) for _ in KEYS["memory"])
        for _ in range(2_000)
    ]
    rows = pa.table(dict(zip(KEYS["memory"], zip(*texts, strict=True), strict=True)))
    expected = [row.bucket for row in bucketed("memory", spark.createDataFrame(rows)).collect()]
    columns = [rows[key].combine_chunks() for key in KEYS["memory"]]
    assert buckets_of(columns, 64).tolist() == expected
    # A part of an array begins somewhere within its buffers; one length is a way of its own.
    assert (
        buckets_of([column.slice(77, 500) for column in columns], 64).tolist() == expected[77:577]
    )
    same = pa.array([f"key {number:06}" for number in range(500)])
    alone = [buckets_of([same.slice(at, 1)], 64)[0] for at in range(500)]
    assert buckets_of([same], 64).tolist() == alone


# --- the winners ---------------------------------------------------------------------------------

NAMES = st.sampled_from(["", "a", "b", "ä", "b\U0001f40d", "b￿"])
ROWS = st.lists(
    st.tuples(NAMES, NAMES, NAMES, st.integers(0, 2), NAMES, st.sampled_from("0123")), min_size=1
)


def newest(rows: list[Row]) -> list[Row]:
    """By the rule, sorted by key."""
    best: dict[tuple[bytes, bytes], Row] = {}
    for row in rows:
        key = (row[0].encode(), row[1].encode())
        if key not in best or is_newer(_version(row), _version(best[key])):
            best[key] = row
    return [best[key] for key in sorted(best)]


def _version(row: Row) -> Version:
    return Version(row[3], row[4], row[5].encode())


def table_of(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def rows_of(table: pa.Table) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@given(ROWS, st.integers(1, 7))
def test_P3_the_newest_of_every_key_stays_in_the_order_of_keys(rows: list[Row], size: int) -> None:
    table = table_of(rows)
    places = winning(table, ["mesh", "key"])
    found = rows_of(taken(table.to_batches(max_chunksize=size), places))
    # Rows that agree in their stamp are one change: which copy stays is all one.
    assert [(row[:2], row[3:]) for row in found] == [(r[:2], r[3:]) for r in newest(rows)]
    assert set(found) <= set(rows)


# --- whole files ---------------------------------------------------------------------------------


def made(rng: random.Random, count: int) -> list[Row]:
    return [
        (
            f"mesh {rng.randrange(2)}",
            f"key {rng.randrange(count // 4)}",
            "v" * rng.randrange(50),
            rng.randrange(9),
            rng.choice(("ana", "ben")),
            f"{number:08}",
        )
        for number in range(count)
    ]


class Given(LocalScan, frozen=True, kw_only=True):
    """Lets everything pass."""

    def share(self, paths):  # type: ignore[no-untyped-def]
        for path in paths:
            yield from pq.read_table(path).to_batches(max_chunksize=100)


def folded(folder: Path, shares: list[list[Row]], *, files: int, times: int = 1) -> list[pa.Table]:
    """The files that come of it, each task run so many times."""
    folder.mkdir()
    paths = [folder.parent / f"{folder.name}-{number}" for number in range(len(shares))]
    for path, rows in zip(paths, shares, strict=True):
        pq.write_table(table_of(rows), path)
    scan = Given(
        name="state",
        schema=SCHEMA,
        keys=["mesh", "entity"],
        taken={},
        ops=[],
        since=-1,
        shares=[[str(path)] for path in paths],
    )
    keys = ["mesh", "key"]
    scatter = LocalPartition(scan=scan, keys=keys, buckets=BUCKETS, folder=str(folder))
    gather = LocalMerge(
        schema=STORED,
        keys=keys,
        shares=scatter.paths,
        buckets=BUCKETS,
        files=files,
        folder=str(folder),
    )
    for _ in range(times):
        for work, count in ((scatter, len(shares)), (gather, files)):
            for number in range(count):
                work(number)
    found = sorted(folder.glob("*.parquet"))
    assert len(list(folder.iterdir())) == len(found) + len(shares)
    return [pq.read_table(path) for path in found]


@pytest.mark.parametrize("portion", [1, 4_000, 1 << 30])
@pytest.mark.parametrize("files", [1, 2, BUCKETS])
def test_P3_files_hold_the_winners_by_bucket_and_key_whatever_the_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, portion: int
) -> None:
    for module in (scattering, gathering):
        monkeypatch.setattr(module, "FOLD_PORTION_BYTES", portion)
    rng = random.Random(3)
    shares = [made(rng, 800), made(rng, 400), []]
    tables = folded(tmp_path / "table", shares, files=files, times=2)
    assert len(tables) == files
    assert sorted(rows_of(pa.concat_tables(tables).select(SCHEMA.names))) == sorted(
        newest([row for share in shares for row in share])
    )
    seen: list[int] = []
    for table in tables:
        keys = [table[name].combine_chunks() for name in ("mesh", "key")]
        assert table["bucket"].to_pylist() == buckets_of(keys, BUCKETS).tolist()
        columns = (table[name].to_pylist() for name in ("bucket", "mesh", "key"))
        places = [(at, *(text.encode() for text in key)) for at, *key in zip(*columns, strict=True)]
        assert places == sorted(places)
        seen += sorted({place[0] for place in places})
    assert seen == list(range(BUCKETS))


def test_P3_no_rows_make_files_without_rows(tmp_path: Path) -> None:
    assert sum(table.num_rows for table in folded(tmp_path / "table", [[], []], files=2)) == 0


def test_P2_a_task_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("whole")

    def fail() -> None:
        with replacing(str(path)) as passing:
            Path(passing).write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "whole"
