"""What every vector index promises, and what the one on SQLite promises besides.

The first half runs on both indexes. Whether large indexes find what they should is in
`test_vector_recall`.
"""

from __future__ import annotations

import math
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules import sketches
from holdfast.rules.errors import (
    BadVector,
    DiskFull,
    OverLimit,
    StoreCorrupt,
    StoreFailed,
    UnknownModel,
)
from holdfast.rules.limits import SEARCH_LIMIT_MAX
from holdfast.rules.vectors import Model, pack, table_name
from holdfast.storage.sqlite import migrations, vector_index, vector_sketches
from holdfast.storage.sqlite.connection import connect
from support.vector_indexes import MemoryVectorIndex, SqliteVectorIndex, VectorIndex, counted

MODEL = Model(provider="custom", name="small", dim=4)
TWIN = Model(provider="custom", name="small", version="2", dim=4)
WIDER = Model(provider="custom", name="small", dim=5)
TABLE = table_name(MODEL.fingerprint)


def vec(*values: float) -> bytes:
    return pack(values, len(values))


def at(x: float) -> bytes:
    return vec(x, 0, 0, 0)


def database(path: Path | str) -> apsw.Connection:
    con = connect(path, sync="normal")
    migrations.migrate(con)
    return con


@pytest.fixture
def con(tmp_path: Path) -> Iterator[apsw.Connection]:
    opened = database(tmp_path / "v.db")
    with opened:
        vector_index.ensure_table(opened, MODEL, 1)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "memory"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorIndex]:
    if request.param == "memory":
        yield MemoryVectorIndex()
        return
    opened = database(tmp_path / "v.db")
    opened.execute("BEGIN IMMEDIATE")
    yield SqliteVectorIndex(opened)
    opened.execute("COMMIT")
    opened.close()


# --- both ----------------------------------------------------------------------------------------


def test_S8_the_nearest_come_first_with_their_distances(index: VectorIndex) -> None:
    index.ensure_table(MODEL, 1)
    for number, x in enumerate([5.0, 1.0, 3.0, -2.0]):
        index.put(MODEL, number, "m", at(x))
    assert index.search(MODEL, "m", at(0), 3) == [(1, 1.0), (3, 2.0), (2, 3.0)]
    assert index.search(MODEL, "m", at(0), 3, exact=True) == [(1, 1.0), (3, 2.0), (2, 3.0)]
    assert index.count(MODEL, "m") == 4


def test_S8_equal_distances_come_by_number(index: VectorIndex) -> None:
    index.ensure_table(MODEL, 1)
    for number in (9, 4, 7, 1):
        index.put(MODEL, number, "m", at(1))
    assert [number for number, _ in index.search(MODEL, "m", at(0), 10)] == [1, 4, 7, 9]


@pytest.mark.parametrize("size", [0, 12, 20, 15])
def test_S8_a_wrong_dimension_is_an_error(index: VectorIndex, size: int) -> None:
    index.ensure_table(MODEL, 1)
    with pytest.raises(BadVector):
        index.put(MODEL, 1, "m", bytes(size))
    with pytest.raises(BadVector):
        index.search(MODEL, "m", bytes(size), 5)
    assert index.count(MODEL, "m") == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_S8_a_vector_that_cannot_be_compared_is_an_error(index: VectorIndex, bad: float) -> None:
    raw = struct.pack("<4f", 1.0, bad, 0.0, 0.0)
    index.ensure_table(MODEL, 1)
    with pytest.raises(BadVector):
        index.put(MODEL, 1, "m", raw)
    with pytest.raises(BadVector):
        index.search(MODEL, "m", raw, 5)
    assert index.search(MODEL, "m", at(0), 5) == []


@pytest.mark.parametrize("limit", [0, -3, SEARCH_LIMIT_MAX + 1])
def test_S8_a_limit_out_of_bounds_is_an_error(index: VectorIndex, limit: int) -> None:
    index.ensure_table(MODEL, 1)
    with pytest.raises(OverLimit):
        index.search(MODEL, "m", at(0), limit)


def test_S8_an_unknown_model_gives_nothing_and_takes_nothing(index: VectorIndex) -> None:
    assert index.search(MODEL, "m", at(0), 5) == []
    assert index.count(MODEL, "m") == 0
    assert index.remove(MODEL, 1, "m") is False
    assert index.drop_table(MODEL.fingerprint) is False
    with pytest.raises(UnknownModel):
        index.put(MODEL, 1, "m", at(0))


def test_S8_no_search_crosses_models(index: VectorIndex) -> None:
    for model in (MODEL, TWIN, WIDER):
        index.ensure_table(model, 1)
    index.put(MODEL, 1, "m", at(1))
    index.put(TWIN, 1, "m", at(2))
    index.put(TWIN, 2, "m", at(3))
    index.put(WIDER, 3, "m", vec(0, 0, 0, 0, 0))
    assert index.search(MODEL, "m", at(0), 10) == [(1, 1.0)]
    assert index.search(TWIN, "m", at(0), 10) == [(1, 2.0), (2, 3.0)]
    assert index.remove(TWIN, 1, "m") is True
    assert index.search(MODEL, "m", at(0), 10) == [(1, 1.0)]


def test_S8_the_mesh_filter_works_inside_the_search(index: VectorIndex) -> None:
    """Nine meshes are full of nearer vectors; all that were asked for still come back."""
    index.ensure_table(MODEL, 1)
    number = 0
    for mesh in range(10):
        for step in range(40):
            number += 1
            index.put(MODEL, number, f"mesh{mesh}", at(step + (1000 if mesh == 3 else 0)))
    found = index.search(MODEL, "mesh3", at(0), 40)
    assert [number for number, _ in found] == list(range(121, 161))
    assert len(index.search(MODEL, "mesh3", at(0), 25)) == 25
    assert index.count(MODEL, "mesh3") == 40
    assert index.search(MODEL, "mesh", at(0), 5) == []


def test_S8_what_is_removed_makes_room_for_what_is_live(index: VectorIndex) -> None:
    index.ensure_table(MODEL, 1)
    for number in range(300):
        index.put(MODEL, number, "m", at(number))
    for number in range(290):
        assert index.remove(MODEL, number, "m") is True
    found = index.search(MODEL, "m", at(0), 10)
    assert [number for number, _ in found] == list(range(290, 300))
    assert index.count(MODEL, "m") == 10


def test_S8_removing_what_is_not_there_changes_nothing(index: VectorIndex) -> None:
    index.ensure_table(MODEL, 1)
    index.put(MODEL, 1, "m", at(1))
    assert index.remove(MODEL, 2, "m") is False
    assert index.remove(MODEL, 1, "other") is False
    assert index.count(MODEL, "m") == 1
    assert index.remove(MODEL, 1, "m") is True
    assert index.remove(MODEL, 1, "m") is False
    assert index.count(MODEL, "m") == 0


def test_S8_a_mesh_that_was_emptied_can_fill_again(index: VectorIndex) -> None:
    index.ensure_table(MODEL, 1)
    for _ in range(3):
        for number in range(30):
            index.put(MODEL, number, "m", at(number))
        assert len(index.search(MODEL, "m", at(0), 100)) == 30
        for number in range(30):
            index.remove(MODEL, number, "m")
        assert index.search(MODEL, "m", at(0), 100) == []


def test_S8_putting_a_number_again_replaces_its_vector(index: VectorIndex) -> None:
    index.ensure_table(MODEL, 1)
    index.put(MODEL, 1, "m", at(1))
    index.put(MODEL, 1, "m", at(5))
    assert index.search(MODEL, "m", at(0), 5) == [(1, 5.0)]
    index.put(MODEL, 1, "other", at(7))
    assert index.search(MODEL, "m", at(0), 5) == []
    assert index.search(MODEL, "other", at(0), 5) == [(1, 7.0)]
    assert (index.count(MODEL, "m"), index.count(MODEL, "other")) == (0, 1)


def test_S8_a_dropped_model_is_unknown_and_may_come_back(index: VectorIndex) -> None:
    for model in (MODEL, TWIN):
        index.ensure_table(model, 1)
        index.put(model, 1, "m", at(1))
    assert index.drop_table(MODEL.fingerprint) is True
    assert index.drop_table(MODEL.fingerprint) is False
    assert index.search(MODEL, "m", at(0), 5) == []
    assert index.count(MODEL, "m") == 0
    assert index.search(TWIN, "m", at(0), 5) == [(1, 1.0)]
    index.ensure_table(MODEL, 2)
    assert index.search(MODEL, "m", at(0), 5) == []
    index.put(MODEL, 1, "m", at(2))
    assert index.search(MODEL, "m", at(0), 5) == [(1, 2.0)]


@pytest.mark.parametrize(
    "name",
    ["x'); DROP TABLE vector_model; --", 'x"; DELETE FROM vector_mesh; --', "naïve ✓", "%s?"],
)
def test_S8_names_are_data_and_never_statements(index: VectorIndex, name: str) -> None:
    model = Model(provider=name.replace(":", ""), name=name, dim=4)
    index.ensure_table(model, 1)
    index.put(model, 1, name, at(1))
    assert index.search(model, name, at(0), 5) == [(1, 1.0)]
    assert index.drop_table(name) is False
    assert index.count(model, name) == 1


numbers = st.integers(0, 12)
meshes = st.sampled_from(["a", "b"])
coordinate = st.integers(-3, 3)
change = st.one_of(
    st.tuples(st.just("put"), numbers, meshes, st.tuples(*[coordinate] * 4)),
    st.tuples(st.just("remove"), numbers, meshes, st.none()),
)


@given(st.lists(change, max_size=30), st.integers(1, 6))
@settings(max_examples=60)
def test_S8_both_indexes_answer_alike(changes: list[Any], limit: int) -> None:
    con = _scratch()
    one, other = SqliteVectorIndex(con), MemoryVectorIndex()
    with con:
        for each in (one, other):
            each.ensure_table(MODEL, 1)
        for what, number, mesh, values in changes:
            if what == "put":
                one.put(MODEL, number, mesh, vec(*values))
                other.put(MODEL, number, mesh, vec(*values))
            else:
                assert one.remove(MODEL, number, mesh) == other.remove(MODEL, number, mesh)
    for mesh in ("a", "b"):
        assert one.count(MODEL, mesh) == other.count(MODEL, mesh)
        mine, theirs = (i.search(MODEL, mesh, at(0), limit) for i in (one, other))
        # At the cut, either of two equally far ones may come.
        assert [far for _, far in mine] == pytest.approx([far for _, far in theirs], abs=1e-5)
        everything = dict(other.search(MODEL, mesh, at(0), 20))
        assert all(everything[number] == pytest.approx(far, abs=1e-5) for number, far in mine)
    con.close()


def _scratch() -> apsw.Connection:
    """A database in memory, without what a file needs."""
    con = apsw.Connection(":memory:")
    migrations.migrate(con)
    return con


# --- the registry on SQLite ----------------------------------------------------------------------


def test_S8_registering_a_model_twice_keeps_the_first_row(con: apsw.Connection) -> None:
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
        assert vector_index.ensure_table(con, MODEL, 99) == TABLE
    assert con.execute("SELECT id, vec_table, created_at FROM vector_model").fetchall() == [
        (MODEL.fingerprint, TABLE, 1)
    ]
    assert vector_index.search(con, MODEL, "m", at(0), 5) == [(1, 1.0)]


def test_S8_two_connections_may_register_a_model_at_the_same_time(tmp_path: Path) -> None:
    database(tmp_path / "v.db").close()
    together, failed = threading.Barrier(4), []

    def register(number: int) -> None:
        try:
            mine = connect(tmp_path / "v.db", sync="normal")
            together.wait()
            mine.execute("BEGIN IMMEDIATE")
            vector_index.ensure_table(mine, MODEL, number)
            vector_index.put(mine, MODEL, number, "m", at(number))
            mine.execute("COMMIT")
            mine.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=register, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    con = connect(tmp_path / "v.db")
    assert con.execute("SELECT count(*) FROM vector_model").get == 1
    found = vector_index.search(con, MODEL, "m", at(0), 10)
    assert found == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    con.close()


def test_S8_a_connection_sees_what_another_registered_and_dropped(
    con: apsw.Connection, tmp_path: Path
) -> None:
    other = connect(tmp_path / "v.db")
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
    assert vector_index.search(other, MODEL, "m", at(0), 5) == [(1, 1.0)]
    with con:
        vector_index.drop_table(con, MODEL.fingerprint)
    assert vector_index.search(other, MODEL, "m", at(0), 5) == []
    with other:
        vector_index.ensure_table(other, MODEL, 2)
        vector_index.put(other, MODEL, 2, "m", at(2))
    assert vector_index.search(con, MODEL, "m", at(0), 5) == [(2, 2.0)]
    other.close()


FORGERIES = {
    "another table": "UPDATE vector_model SET vec_table = 'vector_mesh'",
    "a statement": "UPDATE vector_model SET vec_table = 'x; DROP TABLE vector_mesh; --'",
    "a fingerprint that is not its own": (
        "UPDATE vector_model SET vec_table = 'vectors_0123456789abcdef'"
    ),
    "another dim": "UPDATE vector_model SET dim = 5",
    "another provider": "UPDATE vector_model SET provider = 'evil'",
    "a provider that no model has": "UPDATE vector_model SET provider = 'e:vil'",
    "another name": "UPDATE vector_model SET name = 'evil'",
    "another version": "UPDATE vector_model SET version = '9'",
    "another quantization": "UPDATE vector_model SET quantization = 'int8'",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_S8_a_registry_row_that_does_not_fit_its_model_stops_the_work(
    con: apsw.Connection, forgery: str
) -> None:
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
    con.execute(forgery)
    uses: list[Callable[[], object]] = [
        lambda: vector_index.ensure_table(con, MODEL, 2),
        lambda: vector_index.put(con, MODEL, 2, "m", at(2)),
        lambda: vector_index.remove(con, MODEL, 1, "m"),
        lambda: vector_index.search(con, MODEL, "m", at(0), 5),
        lambda: vector_index.search(con, MODEL, "m", at(0), 5, exact=True),
        lambda: vector_index.drop_table(con, MODEL.fingerprint),
    ]
    for use in uses:
        with pytest.raises(StoreCorrupt), con:
            use()
    assert con.execute(f"SELECT count(*) FROM {TABLE}").get == 1
    assert con.execute("SELECT live FROM vector_mesh").get == 1


def test_S8_a_row_under_a_forged_id_drops_nothing(con: apsw.Connection) -> None:
    forged = "x; DROP TABLE vector_mesh"
    con.execute("UPDATE vector_model SET id = ?", (forged,))
    with pytest.raises(StoreCorrupt), con:
        vector_index.drop_table(con, forged)
    assert con.execute(f"SELECT count(*) FROM {TABLE}").get == 0


def test_S8_a_dropped_model_leaves_no_table_behind(con: apsw.Connection) -> None:
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
        vector_index.drop_table(con, MODEL.fingerprint)
    left = con.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'vectors%'").fetchall()
    assert left == []
    assert con.execute("SELECT count(*) FROM vector_mesh").get == 0


# --- transactions on SQLite ----------------------------------------------------------------------


def test_S8_what_is_rolled_back_was_never_there(con: apsw.Connection) -> None:
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
    con.execute("BEGIN IMMEDIATE")
    vector_index.put(con, MODEL, 2, "m", at(2))
    vector_index.remove(con, MODEL, 1, "m")
    con.execute("ROLLBACK")
    assert vector_index.search(con, MODEL, "m", at(0), 5) == [(1, 1.0)]
    assert counted(con, MODEL, "m") == 1


def test_S8_a_model_registered_in_a_member_that_failed_can_be_registered_again(
    con: apsw.Connection,
) -> None:
    con.execute("BEGIN IMMEDIATE")
    con.execute("SAVEPOINT member")
    vector_index.ensure_table(con, TWIN, 1)
    vector_index.put(con, TWIN, 1, "m", at(1))
    con.execute("ROLLBACK TO member")
    con.execute("RELEASE member")
    assert vector_index.search(con, TWIN, "m", at(0), 5) == []
    con.execute("SAVEPOINT member")
    vector_index.ensure_table(con, TWIN, 1)
    vector_index.put(con, TWIN, 2, "m", at(2))
    con.execute("RELEASE member")
    con.execute("COMMIT")
    assert vector_index.search(con, TWIN, "m", at(0), 5) == [(2, 2.0)]


def test_S8_a_full_disk_is_told_as_such_and_leaves_what_was_there(con: apsw.Connection) -> None:
    """sqlite-vec reports only that something went wrong."""
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
    pages = con.pragma("page_count")
    con.pragma("max_page_count", pages + 1)
    con.execute("BEGIN IMMEDIATE")
    with pytest.raises(DiskFull):
        _fill(con, range(2, 5000))
    assert not con.in_transaction
    assert vector_index.search(con, MODEL, "m", at(0), 5) == [(1, 1.0)]
    con.pragma("max_page_count", 1_000_000)
    with con:
        vector_index.put(con, MODEL, 2, "m", at(2))
    assert counted(con, MODEL, "m") == 2


def _fill(con: apsw.Connection, numbers: range) -> None:
    for number in numbers:
        vector_index.put(con, MODEL, number, "m", at(number))


def test_S8_a_reading_connection_searches_without_a_transaction_of_its_own(
    con: apsw.Connection, tmp_path: Path
) -> None:
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
    reader = connect(tmp_path / "v.db", read_only=True)
    assert vector_index.search(reader, MODEL, "m", at(0), 5) == [(1, 1.0)]
    assert not reader.in_transaction
    reader.close()


@pytest.mark.parametrize(
    "damage",
    [
        f"DELETE FROM {TABLE}_vector_chunks00",
        f"UPDATE {TABLE}_vector_chunks00 SET vectors = zeroblob(3)",
        f"UPDATE {TABLE}_chunks SET validity = zeroblob(9)",
        f"DROP TABLE {TABLE}",
    ],
)
def test_S8_a_damaged_index_is_told_as_such(con: apsw.Connection, damage: str) -> None:
    with con:
        vector_index.put(con, MODEL, 1, "m", at(1))
        con.execute(damage)
    with pytest.raises(StoreCorrupt):
        vector_index.search(con, MODEL, "m", at(0), 5)


# --- the extension -------------------------------------------------------------------------------


def test_S8_the_extension_is_loaded_once_and_the_door_is_closed_again(tmp_path: Path) -> None:
    con = connect(tmp_path / "v.db")
    for _ in range(3):
        vector_index.load_extension(con)
    assert con.execute("SELECT vec_version()").get
    with pytest.raises(apsw.SQLError, match="not authorized"):
        con.execute("SELECT load_extension('anything')").fetchall()
    con.close()


def test_S8_the_extensions_slow_package_is_never_imported() -> None:
    program = (
        "import sys, apsw\n"
        "from holdfast.storage.sqlite import vector_index as vectors\n"
        "vectors.load_extension(apsw.Connection(':memory:'))\n"
        "assert not {'sqlite_vec', 'numpy', 'sqlite3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_S8_a_missing_extension_is_told_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    con = _scratch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StoreFailed) as told:
        vector_index.ensure_table(con, MODEL, 1)
    assert "sqlite-vec" in told.value.hint


def test_S8_an_extension_that_does_not_load_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vec0.so").write_bytes(b"not a library")
    monkeypatch.setattr(vector_index, "_extension_path", lambda: str(tmp_path / "vec0.so"))
    con = _scratch()
    with pytest.raises(StoreFailed):
        vector_index.load_extension(con)
    with pytest.raises(apsw.SQLError, match="not authorized"):
        con.execute("SELECT load_extension('anything')").fetchall()


# --- sketches follow their vectors ---------------------------------------------------------------


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> int:
    """Sketches from the twentieth vector on, and used at once, so that small tests meet them."""
    monkeypatch.setattr(sketches, "VECTOR_SKETCH_DIM_MIN", 1)
    monkeypatch.setattr(sketches, "VECTOR_SKETCH_FLOATS", 20 * MODEL.dim)
    monkeypatch.setattr(sketches, "VECTOR_PREFILTER_FLOATS", 0)
    monkeypatch.setattr(sketches, "ROWS_PER_CANDIDATE", 1)
    return 20


def sketched(con: apsw.Connection) -> list[Any]:
    return con.execute(f"SELECT rowid, mesh FROM {TABLE}_bits ORDER BY rowid").fetchall()


def test_S8_sketches_come_with_the_twentieth_vector_and_follow_each_change(
    con: apsw.Connection, early: int
) -> None:
    chance = random.Random(5)
    for mesh in ("a", "b"):
        for number in range(early - 1):
            with con:
                vector_index.put(
                    con, MODEL, ord(mesh) * 100 + number, mesh, vec(*_gauss(chance, MODEL.dim))
                )
    assert con.execute("SELECT count(*) FROM vector_mesh WHERE centre IS NULL").get == 2
    live = set(range(9700, 9700 + early - 1))
    for step in range(200):
        number = 9700 + chance.randrange(60)
        with con:
            if number in live and chance.random() < 0.5:
                assert vector_index.remove(con, MODEL, number, "a")
                live.discard(number)
            else:
                vector_index.put(con, MODEL, number, "a", vec(*_gauss(chance, MODEL.dim)))
                live.add(number)
        if con.execute("SELECT centre IS NOT NULL FROM vector_mesh WHERE mesh = 'a'").get:
            assert sketched(con) == [(number, "a") for number in sorted(live)], step
        assert counted(con, MODEL, "a") == len(live)
    assert sketched(con)


def _gauss(chance: random.Random, dim: int) -> list[float]:
    return [chance.gauss(0, 1) for _ in range(dim)]


def test_S8_a_mesh_that_was_emptied_starts_without_sketches(
    con: apsw.Connection, early: int
) -> None:
    _sketch(con, early + 5)
    assert len(sketched(con)) == early + 5
    with con:
        for number in range(early + 5):
            vector_index.remove(con, MODEL, number, "a")
        assert sketched(con) == []
        vector_index.put(con, MODEL, 1, "a", at(1))
    assert con.execute("SELECT live, norm_min, norm_max, centre FROM vector_mesh").get == (
        1,
        1.0,
        1.0,
        None,
    )


def test_S8_the_lengths_of_a_meshs_vectors_are_known(con: apsw.Connection) -> None:
    with con:
        for number, length in enumerate([2.0, 1.0, 4.0, 3.0]):
            vector_index.put(con, MODEL, number, "a", at(length))
        vector_index.put(con, MODEL, 9, "b", at(7.0))
    known = con.execute("SELECT mesh, norm_min, norm_max FROM vector_mesh ORDER BY mesh")
    assert known.fetchall() == [("a", 1.0, 4.0), ("b", 7.0, 7.0)]


def test_S8_sketches_go_with_their_model(con: apsw.Connection, early: int) -> None:
    _sketch(con, early)
    assert len(sketched(con)) == early
    with con:
        vector_index.drop_table(con, MODEL.fingerprint)
    left = con.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'vectors%'").fetchall()
    assert left == []


def test_S8_sketches_without_vectors_are_told(con: apsw.Connection, early: int) -> None:
    _sketch(con, early)
    con.execute(f"DELETE FROM {TABLE} WHERE rowid < 18")
    with pytest.raises(StoreCorrupt):
        vector_index.search(con, MODEL, "a", at(0.5), 3)


def test_S8_vectors_without_sketches_are_told(con: apsw.Connection, early: int) -> None:
    _sketch(con, early)
    con.execute(f"DELETE FROM {TABLE}_bits WHERE rowid < 18")
    with pytest.raises(StoreCorrupt):
        vector_index.search(con, MODEL, "a", at(0.5), 3)
    with pytest.raises(StoreCorrupt):
        vector_index.remove(con, MODEL, 1, "a")


def _sketch(con: apsw.Connection, rows: int) -> None:
    chance = random.Random(8)
    with con:
        for number in range(rows):
            vector_index.put(con, MODEL, number, "a", vec(*_gauss(chance, MODEL.dim)))


def test_S8_identical_vectors_are_found_without_looking_further(
    con: apsw.Connection, early: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sketch(con, early)
    same = vec(*_gauss(random.Random(9), MODEL.dim))
    with con:
        for number in range(100, 400):
            vector_index.put(con, MODEL, number, "a", same)
    monkeypatch.setattr(vector_index, "_nearest", lambda *a: pytest.fail("measured every vector"))
    found = vector_index.search(con, MODEL, "a", same, 10)
    assert [far for _, far in found] == [0.0] * 10
    assert vector_sketches.CHUNK_ROWS < 400  # so that they lie in more than one chunk
