"""The vector index on SQLite, by the sqlite-vec extension: one table per model.

    vector_model     the registry: who the model is and which table holds its vectors
    vectors_<id>     the vectors themselves, sqlite-vec's own kind of table, split by mesh
    vector_mesh      per model and mesh: how many, how long, and the centre of their sketches
    vectors_<id>_bits  the sign sketches, once a mesh has many vectors (see `vector_sketches`)

Only live vectors are in here, so a search never has to skip dead ones. The split by mesh makes a
mesh's search read that mesh's vectors and no others.

The registry is data, and data can be damaged or forged; so a table's name is never taken from it.
Each use derives the name from the model and compares: a row that says otherwise stops the work.

The extension is loaded when a connection first needs it, because most commands never do. Functions
that write must be called inside a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import apsw

from holdfast.rules import sketches
from holdfast.rules.errors import BadVector, DiskFull, StoreCorrupt, StoreFailed, UnknownModel
from holdfast.rules.limits import VECTOR_NORM_MAX
from holdfast.rules.vectors import Model, check_limit, check_packed, table_name
from holdfast.storage.sqlite import vector_sketches

CHUNK_BYTES: Final = 48 * 1024
"""sqlite-vec keeps vectors in chunks of one mesh each. A chunk is one value in a chain of pages,
and reaching a vector inside walks the chain: at this size a single vector is read ten times faster
than from the extension's own 1024 vectors a chunk, a full search takes some percent longer, and a
mesh with one vector wastes less than 48 KiB (or seven vectors: there are eight in the least)."""
CHUNK_ROWS_MAX: Final = 256
_COLUMNS: Final = {"float32": "FLOAT", "int8": "INT8", "binary": "BIT"}
_AS_THESE: Final = {"float32": "?", "int8": "vec_int8(?)", "binary": "vec_bit(?)"}
"""How sqlite-vec is told what the bytes of a vector are. It compares them by their kind: by the
Euclidean distance, and bits by how many differ."""


def load_extension(con: apsw.Connection) -> None:
    """Loads sqlite-vec into the connection, unless it is there.

    Its Python package only says where the library lies, and importing it costs ten times what
    opening the database does; so the package is found and not imported.
    """
    try:
        con.execute("SELECT vec_version()")
    except apsw.SQLError:
        path = _extension_path()
        con.enable_load_extension(True)
        try:
            con.load_extension(path)
        except apsw.ExtensionLoadingError as error:
            raise StoreFailed(
                f"the vector extension {path} does not load: {error}",
                hint="reinstall the package sqlite-vec for this machine and Python",
            ) from error
        finally:
            con.enable_load_extension(False)


def _extension_path() -> str:
    from importlib.util import find_spec
    from os.path import join

    spec = find_spec("sqlite_vec")
    if spec is None or not spec.submodule_search_locations:
        raise StoreFailed(
            "vectors need the package sqlite-vec, which is not installed",
            hint="install it with: pip install sqlite-vec",
        )
    return join(spec.submodule_search_locations[0], "vec0")


# --- the registry ------------------------------------------------------------------------------


def ensure_table(con: apsw.Connection, model: Model, now_ms: int) -> str:
    """Registers the model and makes its table, unless that is done. Returns the table's name."""
    table = _table(con, model)
    if table is not None:
        return table
    load_extension(con)
    fingerprint = model.fingerprint
    name = table_name(fingerprint)
    con.execute(
        "INSERT INTO vector_model "
        "(id, provider, name, version, dim, quantization, vec_table, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (fingerprint, *_identity(model), name, now_ms),
    )
    # Another connection may have been first: what counts is the row that stands there now.
    if _table(con, model) is None:
        raise StoreCorrupt(f"the model {fingerprint} was registered and is not there")
    con.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING vec0("
        f"mesh TEXT PARTITION KEY, embedding {_COLUMNS[model.quantization]}[{model.dim}], "
        f"chunk_size={_chunk(model)})"
    )
    vector_sketches.index_by_mesh(con, name)
    return name


def drop_table(con: apsw.Connection, model_id: str) -> bool:
    """Forgets a model and its vectors. Rows that name the model elsewhere go first."""
    model = _registered(con, model_id)
    if model is None:
        return False
    table = _table(con, model)
    con.execute("DELETE FROM vector_mesh WHERE model = ?", (model_id,))
    con.execute("DELETE FROM vector_model WHERE id = ?", (model_id,))
    con.execute(f"DROP TABLE IF EXISTS {table}")
    con.execute(f"DROP TABLE IF EXISTS {table}_bits")
    return True


def _registered(con: apsw.Connection, model_id: str) -> Model | None:
    row = con.execute(
        "SELECT provider, name, version, dim, quantization FROM vector_model WHERE id = ?",
        (model_id,),
    ).get
    if row is None:
        return None
    try:
        provider, name, version, dim, quantization = row
        model = Model(
            provider=provider, name=name, version=version, dim=dim, quantization=quantization
        )
    except BadVector as error:
        raise _forged(model_id, str(error)) from error
    if model.fingerprint != model_id:
        raise _forged(model_id, f"its fields make {model.fingerprint}")
    return model


def _table(con: apsw.Connection, model: Model) -> str | None:
    """The model's table after checking its row, with the extension at hand; None if unknown."""
    fingerprint = model.fingerprint
    row = con.execute(
        "SELECT provider, name, version, dim, quantization, vec_table "
        "FROM vector_model WHERE id = ?",
        (fingerprint,),
    ).get
    if row is None:
        return None
    name = table_name(fingerprint)
    if row != (*_identity(model), name):
        raise _forged(fingerprint, f"it should name {name}")
    load_extension(con)
    return name


def _identity(model: Model) -> tuple[str, str, str, int, str]:
    return model.provider, model.name, model.version, model.dim, model.quantization


def _forged(model_id: str, why: str) -> StoreCorrupt:
    return StoreCorrupt(f"the registered model {model_id!r} is not what it says: {why}")


def _chunk(model: Model) -> int:
    """Vectors per chunk; sqlite-vec wants whole eights."""
    return min(CHUNK_ROWS_MAX, max(8, CHUNK_BYTES // model.packed_bytes // 8 * 8))


# --- vectors -----------------------------------------------------------------------------------


def put(con: apsw.Connection, model: Model, rowid: int, mesh: str, packed: bytes) -> None:
    """Adds a vector, or replaces the one with this number."""
    table = _table(con, model)
    if table is None:
        raise UnknownModel(f"the model {model.provider}:{model.name} is not registered")
    length = _length(con, packed, model)
    with _our_errors(con):
        old = con.execute(f"SELECT mesh FROM {table} WHERE rowid = ?", (rowid,)).get
        if old is not None:
            _take_out(con, model, table, rowid, old)
        con.execute(
            f"INSERT INTO {table} (rowid, mesh, embedding) "
            f"VALUES (?, ?, {_AS_THESE[model.quantization]})",
            (rowid, mesh, packed),
        )
        live, centre = con.execute(
            "INSERT INTO vector_mesh (model, mesh, live, norm_min, norm_max) "
            "VALUES (?1, ?2, 1, ?3, ?3) ON CONFLICT (model, mesh) DO UPDATE SET live = live + 1, "
            "norm_min = min(norm_min, ?3), norm_max = max(norm_max, ?3) RETURNING live, centre",
            (model.fingerprint, mesh, length),
        ).get
        if centre:
            vector_sketches.put(con, table, model.dim, rowid, mesh, packed, centre)
        elif centre is None and live == sketches.sketch_rows(model.dim, model.quantization):
            centre = vector_sketches.build(con, table, model.dim, mesh, live)
            con.execute(
                "UPDATE vector_mesh SET centre = ? WHERE model = ? AND mesh = ?",
                (centre, model.fingerprint, mesh),
            )


def remove(con: apsw.Connection, model: Model, rowid: int, mesh: str) -> bool:
    """Takes a vector out; False if it was not there."""
    table = _table(con, model)
    if table is None:
        return False
    with _our_errors(con):
        return _take_out(con, model, table, rowid, mesh)


def remove_row(con: apsw.Connection, model_id: str, rowid: int, mesh: str) -> bool:
    """As `remove`, of a model by its id."""
    model = _registered(con, model_id)
    return model is not None and remove(con, model, rowid, mesh)


def _take_out(con: apsw.Connection, model: Model, table: str, rowid: int, mesh: str) -> bool:
    con.execute(f"DELETE FROM {table} WHERE rowid = ? AND mesh = ?", (rowid, mesh))
    if con.changes() == 0:
        return False
    counted = con.execute(
        "UPDATE vector_mesh SET live = live - 1 WHERE model = ? AND mesh = ? "
        "RETURNING live, centre",
        (model.fingerprint, mesh),
    ).get
    if counted is None:
        raise StoreCorrupt(f"{table} held a vector of {mesh!r}, where none is counted")
    live, centre = counted
    if centre:
        vector_sketches.remove(con, table, rowid)
    if live == 0:
        # What follows may be quite different vectors: they get their own lengths and centre.
        con.execute(
            "DELETE FROM vector_mesh WHERE model = ? AND mesh = ?", (model.fingerprint, mesh)
        )
    return True


def search(
    con: apsw.Connection,
    model: Model,
    mesh: str,
    packed: bytes,
    limit: int,
    *,
    exact: bool = False,
    owner: str | None = None,
) -> list[tuple[int, float]]:
    """The nearest vectors of the mesh and their distances; nothing for an unknown model.

    Where there are many vectors, sketches pick the ones to measure (`rules.sketches`); `exact`
    measures all. Those of one owner are measured all: sketches would pick by the whole mesh, and
    leave too few of its own.
    """
    check_limit(limit)
    check_packed(packed, model.dim, model.quantization)
    # One snapshot for all statements, also where the caller has not begun a transaction.
    with nullcontext() if con.in_transaction else con:
        table = _table(con, model)
        if table is None:
            return []
        counted = con.execute(
            "SELECT live, norm_min, norm_max, centre FROM vector_mesh WHERE model = ? AND mesh = ?",
            (model.fingerprint, mesh),
        ).get
        if counted is None:
            return []
        live, shortest, longest, centre = counted
        with _our_errors(con):
            if owner is not None:
                return _nearest_of(con, table, model, mesh, owner, packed, limit)
            found = None
            if centre and not exact and sketches.worth_prefiltering(live, model.dim, limit):
                found = vector_sketches.search(
                    con,
                    table,
                    model.dim,
                    mesh,
                    packed,
                    limit,
                    centre=centre,
                    most=sketches.candidates_max(live),
                    even=sketches.norms_are_even(shortest, longest),
                )
            return _nearest(con, table, model, mesh, packed, limit) if found is None else found


def _nearest(
    con: apsw.Connection, table: str, model: Model, mesh: str, packed: bytes, limit: int
) -> list[tuple[int, float]]:
    rows: list[Any] = con.execute(
        f"SELECT rowid, distance FROM {table} "
        f"WHERE embedding MATCH {_AS_THESE[model.quantization]} AND k = ? AND mesh = ?",
        (packed, limit, mesh),
    ).fetchall()
    return sorted(rows, key=lambda row: (row[1], row[0]))


def _nearest_of(
    con: apsw.Connection,
    table: str,
    model: Model,
    mesh: str,
    owner: str,
    packed: bytes,
    limit: int,
) -> list[tuple[int, float]]:
    # The extension leaves the other rows out before it looks for the nearest, not after.
    rows: list[Any] = con.execute(
        f"SELECT rowid, distance FROM {table} "
        f"WHERE embedding MATCH {_AS_THESE[model.quantization]} AND k = ? AND mesh = ? "
        "AND rowid IN (SELECT row FROM vector "
        "WHERE mesh = ? AND owner = ? AND model = ? AND live = 1)",
        (packed, limit, mesh, mesh, owner, model.fingerprint),
    ).fetchall()
    return sorted(rows, key=lambda row: (row[1], row[0]))


def _length(con: apsw.Connection, packed: bytes, model: Model) -> float:
    """The vector's length; BadVector for what cannot be stored. SQL does it in a tenth the time.
    Only sketches of floats need it.
    """
    if model.quantization != "float32":
        check_packed(packed, model.dim, model.quantization)
        return 0.0
    if len(packed) == model.packed_bytes:
        length = con.execute("SELECT vec_distance_l2(?, ?)", (packed, bytes(len(packed)))).get
        if length is not None and length <= VECTOR_NORM_MAX:
            return float(length)
    check_packed(packed, model.dim, model.quantization)
    raise BadVector("the vector cannot be measured")


@contextmanager
def _our_errors(con: apsw.Connection) -> Iterator[None]:
    """Turns the bare errors of sqlite-vec into ours."""
    began = con.in_transaction
    try:
        yield
    except apsw.SQLError as error:
        if began and not con.in_transaction:
            # SQLite gives a whole transaction up only when it cannot write on.
            raise DiskFull(f"the vector index could not be written: {error}") from error
        raise StoreCorrupt(f"the vector index is damaged: {error}") from error
