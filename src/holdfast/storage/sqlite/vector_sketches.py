"""Sign sketches beside a model's vectors: kept per mesh, and searched before them.

`rules.sketches` says what a sketch is and when a search with it has seen enough; here is the SQL
for it. The sketches of a mesh are made when it comes to have many vectors, around the centre of
those; later ones are made as their vectors arrive. Table names come checked from `vector_index`.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import apsw

from holdfast.rules import sketches
from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.vectors import FLOAT_BYTES, pack, unpack

CHUNK_ROWS: Final = 256
"""Sketches per chunk. Fewer cost more to open; more make it dear to learn that a reach takes in
too many, since sqlite-vec picks the smallest of a chunk one by one."""


def index_by_mesh(con: apsw.Connection, table: str) -> None:
    """Lets sqlite-vec find a mesh's chunks. It looks for them by their partition at each insert
    and search, reading past those of all other meshes unless there is an index.
    """
    con.execute(f"CREATE INDEX IF NOT EXISTS {table}_chunks_mesh ON {table}_chunks (partition00)")


def build(con: apsw.Connection, table: str, dim: int, mesh: str, live: int) -> bytes:
    """Makes the sketches of a mesh. Returns their centre, empty if they would not help."""
    rows: list[Any] = con.execute(
        f"SELECT rowid, embedding FROM {table} WHERE embedding MATCH ? AND k = ? AND mesh = ?",
        (bytes(dim * FLOAT_BYTES), live, mesh),
    ).fetchall()
    if len(rows) != live:
        raise StoreCorrupt(f"{table} holds {len(rows)} vectors of {mesh!r}; {live} are counted")
    # Every so many: they come sorted by length, and the centre is that of all of them.
    step = sketches.sample_step(live, dim)
    samples = [unpack(embedding) for _, embedding in rows[::step]]
    middle = sketches.centre_of(samples)
    if not sketches.worth_sketching(samples, middle):
        return b""
    con.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table}_bits USING vec0("
        f"mesh TEXT PARTITION KEY, bits BIT[{sketches.sketch_dim(dim)}], chunk_size={CHUNK_ROWS})"
    )
    index_by_mesh(con, f"{table}_bits")
    centre = pack(array("f", middle), dim)
    for rowid, embedding in rows:
        put(con, table, dim, rowid, mesh, embedding, centre)
    return centre


def put(
    con: apsw.Connection,
    table: str,
    dim: int,
    rowid: int,
    mesh: str,
    packed: bytes,
    centre: bytes,
) -> None:
    con.execute(
        f"INSERT INTO {table}_bits (rowid, mesh, bits) "
        "VALUES (?, ?, vec_quantize_binary(vec_sub(?, ?)))",
        (rowid, mesh, _padded(packed, dim), _padded(centre, dim)),
    )


def remove(con: apsw.Connection, table: str, rowid: int) -> None:
    con.execute(f"DELETE FROM {table}_bits WHERE rowid = ?", (rowid,))
    if con.changes() != 1:
        raise StoreCorrupt(f"{table} held vector {rowid} without its sketch")


def search(
    con: apsw.Connection,
    table: str,
    dim: int,
    mesh: str,
    packed: bytes,
    limit: int,
    *,
    centre: bytes,
    most: int,
    even: bool,
) -> list[tuple[int, float]] | None:
    """The nearest by sketches; None if those do not tell enough and all must be measured."""
    sketch, radius = con.execute(
        "SELECT vec_quantize_binary(vec_sub(?1, ?2)), vec_distance_l2(?1, ?2)",
        (_padded(packed, dim), _padded(centre, dim)),
    ).get
    found: list[tuple[float, int, int]] = _measured(
        con,
        table,
        packed,
        con.execute(
            f"SELECT rowid, distance FROM {table}_bits "
            "WHERE bits MATCH vec_bit(?) AND k = ? AND mesh = ?",
            (sketch, sketches.seeds(limit), mesh),
        ).fetchall(),
    )
    if len(found) < limit:
        raise StoreCorrupt(f"{table} has sketches of only {len(found)} vectors of {mesh!r}")
    seen, reached = 0, -1
    for _ in range(sketches.ROUNDS_MAX):
        farthest = found[limit - 1][0]
        if farthest == 0.0:
            break
        differing = [bits for _, _, bits in found[: sketches.witnesses(limit)]]
        widest = 0 if even else sketches.widest_reach(farthest, radius, dim)
        if widest is None:
            return None
        if max(widest, sketches.reach(differing, dim, sketches.ENOUGH_MARGIN)) <= reached:
            break
        goal = max(widest, sketches.reach(differing, dim, sketches.FIRST_MARGIN))
        if sketches.takes_in_too_much(goal, dim):
            return None
        # One more than wanted shows that there are too many.
        fresh: list[Any] = con.execute(
            f"SELECT rowid, distance FROM {table}_bits WHERE bits MATCH vec_bit(?) "
            "AND k = ? AND mesh = ? AND distance > ? AND distance <= ?",
            (sketch, most - seen + 1, mesh, reached, goal),
        ).fetchall()
        seen += len(fresh)
        if seen > most:
            return None
        # The first time this finds the seeds again.
        before = [] if reached < 0 else found
        found = sorted(before + _measured(con, table, packed, fresh))
        reached = goal
    else:
        return None
    return [(rowid, distance) for distance, rowid, _ in found[:limit]]


def _measured(
    con: apsw.Connection, table: str, packed: bytes, candidates: list[Any]
) -> list[tuple[float, int, int]]:
    """Distance, number and differing bits of each candidate, nearest first."""
    bits = {rowid: int(differing) for rowid, differing in candidates}
    # CROSS JOIN keeps the order of the loops: the other way round would read every vector.
    rows: list[Any] = con.execute(
        f"SELECT vec_distance_l2(t.embedding, ?), t.rowid FROM json_each(?) AS wanted "
        f"CROSS JOIN {table} AS t ON t.rowid = wanted.value",
        (packed, f"[{','.join(map(str, bits))}]"),
    ).fetchall()
    if len(rows) != len(bits):
        raise StoreCorrupt(f"{table} lacks {len(bits) - len(rows)} vectors that have sketches")
    return sorted((distance, rowid, bits[rowid]) for distance, rowid in rows)


def _padded(packed: bytes, dim: int) -> bytes:
    return packed + bytes((sketches.sketch_dim(dim) - dim) * FLOAT_BYTES)
