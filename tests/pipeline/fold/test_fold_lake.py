"""Silver is what nodes hold, however bronze is cut into batches, files, shares and spans.

All of it runs in this process, on `DriverWorkers`: the functions of the tasks are the same on
Spark. What Spark adds is tested in test_silver.py and test_workers.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from holdfast.pipeline.fold import gather, merge, plan, scatter, silver
from holdfast.pipeline.fold.buckets import with_buckets
from holdfast.pipeline.fold.count import count_new
from holdfast.pipeline.fold.silver import FOLDED, buckets_of, compact, fold_lake
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import KEYS, SILVER
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.pipeline.spark.workers import DriverWorkers, Exchanged, Parcel, Scattering
from holdfast.rules.errors import JobFailed
from holdfast.rules.limits import FOLD_BUCKETS
from support.envelopes import file_share, memory_set, raw, state_set
from support.histories import PEERS, Histories, grow
from support.lake_rows import STAMPED, Rows, arrow_rows, bronze_table, held, put_bronze
from support.seeds import seeds

pytestmark = pytest.mark.timeout(400)

S = TypeVar("S")
T = TypeVar("T")


def ties(rng: random.Random) -> list[bytes]:
    """Equal times of different peers, or of one peer whose home was copied, under names that differ
    in one part of the key only. What has an owner is written by that one, and there are two.
    """
    raws = []
    for number in range(400):
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
    folder = tmp_path_factory.mktemp("homes")
    histories = grow(31, folder, nodes=2, meshes=5, ops=300, message_watch=40)
    raws = ties(random.Random(7))
    for peer in histories.peers:
        with histories.open(peer) as node:
            assert [applied.error for applied in node.apply(raws) if applied.error] == []
    return histories


@pytest.fixture(scope="module")
def node_rows(histories: Histories) -> Rows:
    with histories.open(histories.peers[0]) as node:
        rows = held(node._engine.store)
    assert all(rows[name] for name in STAMPED)
    return rows


@pytest.fixture(scope="module")
def bronze(histories: Histories) -> pa.Table:
    """With envelopes of a later version of Holdfast, whose bytes nobody may try to read."""
    rows = bronze_table(histories.homes.values())
    newer = rows.filter(pc.equal(rows["op"], "state.set")).slice(0, 3)
    unknown = {"op": "state.append", "raw": b"?", "lamport": 1 << 60}
    for name, value in unknown.items():
        field = rows.schema.field(name)
        newer = newer.set_column(
            rows.column_names.index(name), field, pa.array([value] * len(newer), field.type)
        )
    ids = pa.array([f"ffffffff-ffff-7fff-8fff-{at:012}" for at in range(len(newer))])
    newer = newer.set_column(rows.column_names.index("id"), "id", ids)
    return pa.concat_tables([rows, newer]).combine_chunks()


class Rough(DriverWorkers):
    """Runs every task twice, as Spark may, and hands over parcels in any order."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._parallelism = rng.randint(1, 5)

    @property
    def parallelism(self) -> int:
        return self._parallelism

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        super().run(what, work, count)
        return super().run(what, work, count)

    def exchange(
        self,
        what: str,
        scatter: Callable[[int], Scattering[S]],
        scatters: int,
        gather: Callable[[int, Sequence[Parcel]], T],
        gathers: int,
    ) -> Exchanged[S, T]:
        def shuffled(number: int, parcels: Sequence[Parcel]) -> T:
            mixed = self._rng.sample(list(parcels), len(parcels))
            gather(number, parcels)
            return gather(number, mixed)

        return super().exchange(what, scatter, scatters, shuffled, gathers)


def rough_limits(rng: random.Random, patch: pytest.MonkeyPatch) -> None:
    """Limits so low that a few hundred rows reach them, each or not."""
    choices: list[tuple[Any, str, list[int]]] = [
        (plan, "FOLD_SHARE_ROWS_MAX", [100, 5_000_000]),
        (plan, "FOLD_TASK_ROWS_MIN", [10, 50_000]),
        (plan, "FOLD_FILE_ROWS", [40, 500_000]),
        (scatter, "FOLD_SIEVE_BYTES_MAX", [0, 10_000, 1 << 29]),
        (scatter, "FOLD_PORTION_BYTES", [1, 5_000, 1 << 26]),
        (scatter, "FOLD_SIEVE_ROWS_AT_ONCE", [7, 65_536]),
        (merge, "LAKE_GROUP_ROWS", [5, 100_000]),
        (gather, "LAKE_GROUP_ROWS", [3, 100_000]),
        (silver, "FOLD_FILE_ROWS", [0, 500_000]),
        (silver, "SILVER_SMALL_ROWS", [0, 30, 200_000]),
        (silver, "SILVER_BEHIND_PERCENT_MAX", [10, 10_000]),
    ]
    for module, name, values in choices:
        patch.setattr(module, name, rng.choice(values))


def stored(lake: Lake, name: str) -> pa.Table:
    return lake.silver(name).delta.to_pyarrow_table()  # type: ignore[union-attr]


def assert_laid_out(lake: Lake, name: str) -> None:
    """Every row is in the bucket of its key, and files follow each other."""
    base = lake.silver(name)
    for file in base.files():
        rows = pq.read_table(base.uri(file), partitioning=None)
        again = with_buckets(rows.drop_columns(["bucket"]), KEYS[name], buckets_of(base))
        assert rows["bucket"].to_pylist() == again["bucket"].to_pylist()
        assert rows["bucket"].to_pylist() == sorted(rows["bucket"].to_pylist())


@pytest.mark.parametrize("seed", seeds(8))
def test_P3_any_cut_of_bronze_folds_to_what_nodes_hold(
    bronze: pa.Table,
    node_rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    rng = random.Random(seed)
    lake = Lake.open(tmp_path / "lake", create=True)
    cuts = sorted(rng.sample(range(1, len(bronze)), rng.randint(0, 3)))
    order = pa.array(rng.sample(range(len(bronze)), len(bronze)))
    mixed = bronze.take(order)
    hows: set[str] = set()
    for begin, end in zip([0, *cuts], [*cuts, len(bronze)], strict=True):
        rough_limits(rng, monkeypatch)
        monkeypatch.setattr(silver, "FOLD_BUCKETS", rng.choice((64, 128, FOLD_BUCKETS)))
        workers = Rough(rng)
        lake = put_bronze(lake, mixed.slice(begin, end - begin), files=rng.randint(1, 3))
        report = fold_lake(workers, lake, full=rng.random() < 0.1)
        hows |= {table.how for table in report.tables}
        if rng.random() < 0.3:
            compact(workers, lake)
        assert fold_lake(workers, lake).tables == []
    assert "rebuilt" in hows
    frames = LakeFrames(lake.fresh())
    for name in SILVER:
        assert arrow_rows(name, frames[name].arrow()) == node_rows[name], name
    compact(Rough(rng), lake)
    for name in SILVER:
        assert arrow_rows(name, stored(lake, name)) == node_rows[name], name
        if name in FOLDED:
            assert_laid_out(lake, name)
            assert not lake.increments(name).files()
    assert fold_lake(DriverWorkers(), lake).tables == []


def test_P3_a_fold_reports_all_that_is_new_and_what_it_knows(
    bronze: pa.Table, tmp_path: Path
) -> None:
    lake = put_bronze(Lake.open(tmp_path / "lake", create=True), bronze)
    report = fold_lake(DriverWorkers(), lake)
    assert report.changes == len(bronze) == lake.bronze.rows
    assert [table.name for table in report.tables] == [name for name in FOLDED if name in STAMPED]


# --- files of others -----------------------------------------------------------------------------


def foreign(kind: str, schema: pa.Schema) -> pa.Schema:
    """The types that another engine may write for the same values."""
    text = {"large": pa.large_string(), "view": pa.string_view()}.get(kind, pa.string())
    plain = {"large": pa.large_binary(), "view": pa.binary_view()}.get(kind, pa.binary())
    fields = []
    for field in schema:
        if pa.types.is_string(field.type):
            field = field.with_type(text)
        elif pa.types.is_binary(field.type):
            field = field.with_type(plain)
        elif kind == "required" and pa.types.is_timestamp(field.type):
            field = field.with_type(pa.timestamp("ns", "UTC"))
        fields.append(field)
    return pa.schema(fields)


def rewritten(table: Table, kind: str) -> None:
    """All files of a table, written again by another engine."""
    new: list[File] = []
    for file in table.files():
        rows = pq.read_table(table.uri(file), partitioning=None)
        rows = rows.cast(foreign(kind, rows.schema))
        if kind == "required":
            fields = [field.with_nullable(rows[field.name].null_count > 0) for field in rows.schema]
            rows = rows.cast(pa.schema(fields))
        path = f"{file.path}-{kind}.parquet"
        pq.write_table(rows, f"{table.root}/{path}", write_statistics=kind != "view")
        new.append(renamed(table, file, path))
    table.commit(new, table.files(), data_change=False)


def renamed(table: Table, file: File, path: str) -> File:
    size = Path(f"{table.root}/{path}").stat().st_size
    return msgspec.structs.replace(file, path=path, size=size)


@pytest.mark.parametrize("kind", ["required", "large", "view"])
def test_P2_files_that_another_engine_rewrote_are_folded_and_compacted(
    bronze: pa.Table, node_rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(silver, "SILVER_SMALL_ROWS", 0)
    monkeypatch.setattr(silver, "SILVER_BEHIND_PERCENT_MAX", 10_000)
    monkeypatch.setattr(silver, "FOLD_FILE_ROWS", 0)  # so that rows are counted, too
    half = len(bronze) // 2
    lake = put_bronze(Lake.open(tmp_path / "lake", create=True), bronze.slice(0, half))
    rewritten(lake.bronze, kind)
    fold_lake(DriverWorkers(), lake)
    for name in FOLDED:
        rewritten(lake.silver(name), kind)
    lake = put_bronze(lake, bronze.slice(half))
    rewritten(lake.bronze, kind)
    fold_lake(DriverWorkers(), lake)
    assert lake.increments("state").files()
    rewritten(lake.increments("state"), kind)
    compact(DriverWorkers(), lake)
    for name in SILVER:
        assert arrow_rows(name, stored(lake, name)) == node_rows[name], name


# --- nothing is committed that does not add up ---------------------------------------------------


class Forgetful(DriverWorkers):
    """Tasks that do not read all of their share, as if they saw another lake."""

    def exchange(self, what: str, scatter: Any, *rest: Any) -> Any:
        def partly(number: int) -> Scattering[Any]:
            shares = [share[1:] for share in scatter.shares]
            return (yield from msgspec.structs.replace(scatter, shares=shares)(number))

        return super().exchange(what, partly, *rest)


def test_P3_a_fold_that_has_not_read_all_of_bronze_is_refused(
    bronze: pa.Table, tmp_path: Path
) -> None:
    lake = put_bronze(Lake.open(tmp_path / "lake", create=True), bronze, files=3)
    with pytest.raises(JobFailed, match=r"rows of bronze were read where there are"):
        fold_lake(Forgetful(), lake)
    assert not any(lake.silver(name).exists for name in SILVER)


def test_P3_a_fold_that_has_not_written_all_of_a_table_is_refused(
    bronze: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = put_bronze(Lake.open(tmp_path / "lake", create=True), bronze)
    real = FileWriter.write
    monkeypatch.setattr(FileWriter, "write", lambda *args: real(*args)[1:])
    with pytest.raises(JobFailed, match=r"rows were to be written, 0 were"):
        fold_lake(DriverWorkers(), lake)
    assert not any(lake.silver(name).exists for name in SILVER)


def test_P3_rows_that_lie_in_the_wrong_bucket_stop_a_merge(
    bronze: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge by spans would not meet them, and their keys would be there twice."""
    lake = put_bronze(Lake.open(tmp_path / "lake", create=True), bronze.slice(0, 500))
    fold_lake(DriverWorkers(), lake)
    base = lake.silver("state")
    (file,) = base.files()
    rows = pq.read_table(base.uri(file))
    numbers = pa.array([FOLD_BUCKETS] * len(rows), pa.int32())
    moved = rows.set_column(rows.column_names.index("bucket"), "bucket", numbers)
    path = file.path.replace("part-", "moved-")
    pq.write_table(moved, f"{base.root}/{path}")
    base.commit([renamed(base, file, path)], [file])
    lake = put_bronze(lake, bronze.slice(500))
    version = lake.silver("state").version
    monkeypatch.setattr(plan, "FOLD_FILE_ROWS", 50)
    with pytest.raises(JobFailed, match=r"0 of \d+ rows of .* were merged"):
        fold_lake(DriverWorkers(), lake)
    assert lake.silver("state").version == version


def test_P4_what_is_new_is_counted_by_statistics_where_they_say_enough(
    bronze: pa.Table, tmp_path: Path
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    states = bronze.filter(pc.equal(bronze["family"], "state"))
    half = len(states) // 2
    lake = put_bronze(lake, states.slice(0, half))
    lake = put_bronze(lake, states.slice(half))
    since = {"state": 0, "memory": -1, "facts": 1}

    class Nobody(DriverWorkers):
        def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
            assert count == 0
            return []

    counted = count_new(Nobody(), lake.bronze, lake.bronze.files(), since)
    assert counted == {"state": len(states) - half, "memory": 0, "facts": 0}
    others = bronze.filter(pc.not_equal(bronze["family"], "state"))
    lake = put_bronze(lake, others)
    counted = count_new(DriverWorkers(), lake.bronze, lake.bronze.files(), since)
    families = others["family"].to_pylist()
    assert counted == {
        "state": len(states) - half,
        "memory": families.count("memory"),
        "facts": families.count("fact"),
    }
