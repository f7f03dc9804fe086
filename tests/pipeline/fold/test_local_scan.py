"""What a task lets pass is at least the winners, of whatever files and in whatever portions."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold import fold, local_scan, silver
from holdfast.pipeline.fold.fold import can_scan_locally, merged, scan_for, shares_of
from holdfast.pipeline.fold.local_scan import highest, numbered
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.rules.limits import FOLD_SHARE_ROWS_MAX, FOLD_SIEVE_ROWS_MAX, FOLD_TWO_SCANS_ROWS_MIN
from support.envelopes import file_share, memory_set, raw, state_set
from support.histories import PEERS, Histories, grow
from support.lake_rows import Rows, bronze_of, held, silver_rows

pytestmark = pytest.mark.timeout(400)  # many jobs, on a machine that may be busy

LAST_WRITER = ("state", "memory", "files")


# --- keys and times, without files ---------------------------------------------------------------

TEXTS = st.sampled_from(["", "a", "b", "ab", "é", "a" * 40])
KEYS = st.tuples(TEXTS, TEXTS, TEXTS)


def columns_of(keys: list[tuple[str, str, str]], cut: int) -> list[pa.ChunkedArray]:
    """Two pieces; the first column as numbers of texts, in each piece other ones."""
    made = []
    for place, texts in enumerate(zip(*keys, strict=True)):
        pieces = [pa.array(texts[:cut], pa.string()), pa.array(texts[cut:], pa.string())]
        if place == 0:
            pieces = [piece.dictionary_encode() for piece in pieces]
        made.append(pa.chunked_array(pieces))
    return made


@given(st.lists(KEYS, min_size=1, max_size=60), st.integers(0, 60))
def test_P3_equal_keys_and_only_those_get_one_number(
    keys: list[tuple[str, str, str]], cut: int
) -> None:
    numbers = numbered(columns_of(keys, min(cut, len(keys)))).tolist()
    by_number: dict[int, tuple[str, str, str]] = {}
    for number, key in zip(numbers, keys, strict=True):
        assert by_number.setdefault(number, key) == key
    assert len(by_number) == len(set(keys))


def test_P3_numbers_of_keys_stay_small_however_many_columns_make_the_key() -> None:
    rng = random.Random(5)
    rows = 3_000
    keys = [(f"{rng.random()}", f"{rng.random()}", f"{rng.random()}") for _ in range(rows)]
    numbers = numbered(columns_of(keys, 1_000))
    assert len(set(numbers.tolist())) == rows
    # Unless they are given anew, they go up to the product of all three.
    assert numbers.max() < rows * local_scan._SPARSE


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1))
def test_P3_rows_with_the_highest_time_of_their_key_pass_and_no_others(
    rows: list[tuple[int, int]],
) -> None:
    keys, times = (pa.array(part, pa.int64()).to_numpy() for part in zip(*rows, strict=True))
    top = {key: max(time for other, time in rows if other == key) for key, _ in rows}
    assert highest(keys, times).tolist() == [time == top[key] for key, time in rows]


# --- files ---------------------------------------------------------------------------------------


def ties(rng: random.Random) -> list[bytes]:
    """Equal times of different peers, or of one peer whose home was copied, under names that differ
    in one part of the key only. What has an owner is written by that one, and there are two.
    """
    raws = []
    for number in range(900):
        key, owner = f"key {rng.randrange(12)}", rng.choice(PEERS[1:3])
        mesh = f"mesh-{rng.randrange(2)}"
        origin = rng.choice(PEERS)
        stamp = {"lamport": rng.randint(1, 4), "mesh": mesh}
        made: list[Callable[..., bytes]] = [
            partial(state_set, key, number, origin=origin),
            partial(raw, "state.delete", key, origin=origin),
            partial(memory_set, key, number, origin=owner),
            partial(raw, "memory.forget", key, origin=owner),
            partial(file_share, key, b"%d" % number, origin=owner),
            partial(raw, "file.delete", key, origin=owner),
        ]
        raws.append(rng.choice(made)(seq=number + 1, **stamp))
    return raws


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    histories = grow(31, tmp_path_factory.mktemp("homes"), nodes=2, meshes=4, ops=300)
    raws = ties(random.Random(7))
    for peer in histories.peers:
        with histories.open(peer) as node:
            assert [applied.error for applied in node.apply(raws) if applied.error] == []
    return histories


@pytest.fixture(scope="module")
def node_rows(histories: Histories) -> Rows:
    with histories.open(histories.peers[0]) as node:
        return held(node._engine.store)


@pytest.fixture(scope="module")
def bronze(spark: SparkSession, histories: Histories) -> DataFrame:
    return bronze_of(spark, histories.homes.values()).cache()


@pytest.fixture(scope="module")
def lake(bronze: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two batches, each of several files."""
    lake = Lake.open(tmp_path_factory.mktemp("lakes") / "lake", create=True)
    for batch in range(2):
        rows = bronze.where(F.pmod(F.xxhash64("id"), F.lit(2)) == batch)
        newer = bronze.where("op = 'state.set'").limit(3 * batch)
        unknown = {"op": F.lit("state.append"), "raw": F.lit(b"?"), "lamport": F.lit(1 << 60)}
        rows = rows.unionByName(newer.withColumns(unknown))
        numbered = rows.withColumn("batch", F.lit(batch).cast("bigint"))
        staged = lake.bronze.stage(numbered.repartition(2))
        lake.bronze.commit(staged.files)
        lake = lake.fresh()
    return lake


def test_P3_a_fold_by_the_sieve_is_what_nodes_hold_and_bronze_is_counted_right(
    spark: SparkSession,
    lake: Lake,
    bronze: DataFrame,
    node_rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold, "FOLD_TWO_SCANS_ROWS_MIN", 1)
    taken: list[str] = []

    def seen(name: str, *arguments: object, **options: object) -> None:
        taken.append(name)
        fold.write_folded(name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(silver, "write_folded", seen)
    report = silver.fold_lake(spark, lake)
    assert taken == list(LAST_WRITER)
    assert report.changes == lake.bronze.rows
    for name in SILVER:
        stored = lake.silver(name).read(spark)
        assert silver_rows(name, stored.drop("bucket")) == node_rows[name], name
    # What was only on its way is gone.
    assert not list(Path(lake.root).rglob("*.arrow*"))


def test_P3_in_small_portions_more_pass_and_the_winners_are_the_same(
    spark: SparkSession, lake: Lake, node_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [lake.bronze.uri(file) for file in lake.bronze.files()]
    for name in LAST_WRITER:
        sifting = scan_for(name, lake.bronze, lake.bronze.files(), -1)
        whole = pa.Table.from_batches(sifting.share(paths))
        with monkeypatch.context() as patch:
            patch.setattr(local_scan, "FOLD_SIEVE_BYTES_MAX", 0)
            small = pa.Table.from_batches(sifting.share(paths))
        assert small.num_rows > whole.num_rows >= len(node_rows[name])
        frame = spark.createDataFrame(small)
        assert silver_rows(name, merged(name, frame)) == node_rows[name], name


def test_P3_the_sieve_takes_only_what_is_newer(spark: SparkSession, lake: Lake) -> None:
    files = lake.bronze.files()
    for since, wanted in ((-1, {0, 1}), (0, {1}), (1, set[int]())):
        folded = fold.fold_files("state", spark, lake.bronze, files, since, files=0)
        known = lake.bronze.read(spark).select("id", "batch")
        batches = {row.batch for row in folded.join(known, "id").select("batch").collect()}
        assert batches == wanted


def test_P4_files_of_one_family_and_batch_are_counted_without_a_job(
    bronze: DataFrame, tmp_path: Path
) -> None:
    lake, rows = Lake.open(tmp_path / "lake", create=True), list[int]()
    for batch in range(2):
        some = bronze.where(f"family = 'state' AND lamport % 2 = {batch}")
        numbered = some.withColumn("batch", F.lit(batch).cast("bigint"))
        staged = lake.bronze.stage(numbered.coalesce(1))
        lake.bronze.commit(staged.files)
        lake = lake.fresh()
        rows.append(staged.rows)
    since = {"state": 0, "memory": -1, "facts": 1}
    no_session: Any = None
    counted = silver._new_changes(no_session, lake.bronze, since)
    assert counted == {"state": rows[1], "memory": 0, "facts": 0}
    assert silver._new_changes(no_session, lake.bronze, {"state": -1})["state"] == sum(rows)


# --- what needs neither --------------------------------------------------------------------------


def test_P3_every_file_is_in_one_share_and_shares_are_alike() -> None:
    files = [File(path=f"{n}", size=1, rows=rows) for n, rows in enumerate((5, 3, 3, 2, 1))]
    shares = shares_of(files)
    assert sorted(file.path for share in shares for file in share) == list("01234")
    assert [sum(file.rows for file in share) for share in shares] == [7, 7]
    assert shares_of(files[:1]) == [files[:1]]
    large = [File(path=f"{n}", size=1, rows=FOLD_SHARE_ROWS_MAX) for n in range(5)]
    assert [len(share) for share in shares_of(large)] == [1] * 5


def test_P3_the_sieve_is_for_many_changes_of_a_lake_on_a_disk(tmp_path: Path) -> None:
    local = Lake.open(tmp_path / "lake", create=True).bronze
    away = Lake("s3://bucket/lake", "id").bronze
    assert can_scan_locally("state", local, FOLD_TWO_SCANS_ROWS_MIN)
    assert not can_scan_locally("state", local, FOLD_TWO_SCANS_ROWS_MIN - 1)
    assert not can_scan_locally("state", local, FOLD_SIEVE_ROWS_MAX + 1)
    assert not can_scan_locally("vectors", local, FOLD_TWO_SCANS_ROWS_MIN)
    assert not can_scan_locally("state", away, FOLD_TWO_SCANS_ROWS_MIN)
