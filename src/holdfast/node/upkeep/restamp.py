"""The way back for a node whose writes another node refuses as too old.

A node that others only read, as a sensor, hears of nobody's clock: its stamps stay low. A reader
that has forgotten deletions refuses its writes to keys that may have been among them (`TooOld`),
and says up to which stamp. Nobody can stamp those writes anew but the node that wrote them. There
`restamp` moves the clock past that stamp and writes again what is this node's own and live: the
same values as new changes, which every reader takes.

A chunk is one transaction. What it has written is past the stamp, so a run that was interrupted
goes on, and a second run writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.node.core import operations
from holdfast.node.core.change import Change
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bodies import decode_value
from holdfast.rules.errors import BadInput
from holdfast.rules.lamport import check_incoming
from holdfast.rules.limits import CHUNK_ROWS, LAMPORT_MAX
from holdfast.rules.rows import FileRow, MemoryRow, StateRow, VectorRow
from holdfast.rules.vectors import Model
from holdfast.storage.ports import Reader, Transaction
from holdfast.storage.scans import file_rows, memory_rows, state_rows, vector_rows

OwnRow = StateRow | MemoryRow | FileRow | VectorRow


class _Found(NamedTuple):
    """A row that is to be written again: how it is read, and the change that made it. The rows
    themselves, with all their contents, might not fit into memory.
    """

    look: Callable[[Reader], OwnRow | None]
    id: bytes


class RestampReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written again."""

    mesh: str
    lamport: int
    """Where the clock stands now."""
    state: int = 0
    memory: int = 0
    files: int = 0
    vectors: int = 0
    without_content: int = 0
    """Files of which only the name is here."""


def restamp(engine: NodeEngine, mesh: str, past: int) -> RestampReport:
    """Writes again what is this node's own in a mesh, live, and stamped at `past` or before."""
    if isinstance(past, bool) or not isinstance(past, int) or not 1 <= past < LAMPORT_MAX:
        raise BadInput(f"{past!r} is no stamp", hint="give the number that the refusal names")
    engine.require_mesh(mesh)
    engine.write("mesh.restamp", partial(_move_clock, engine=engine, mesh=mesh, past=past))
    counts: dict[str, int] = {}
    for name, scan in _SCANS:
        for rows in _chunks(engine, partial(_own, scan, engine.ctx.peer, mesh, past)):
            written, hollow = engine.write(
                "mesh.restamp", partial(_write, engine=engine, rows=rows)
            )
            counts[name] = counts.get(name, 0) + written
            counts["without_content"] = counts.get("without_content", 0) + hollow
    return RestampReport(mesh=mesh, lamport=engine.require_mesh(mesh).lamport, **counts)


def _move_clock(tx: Transaction, engine: NodeEngine, mesh: str, past: int) -> None:
    row = tx.mesh_get(mesh)
    assert row is not None, "it was there just now"
    if row.lamport < past:
        now_ms = engine.ctx.now_ms()
        check_incoming(row.lamport, past, now_ms)
        tx.tick_merged(mesh, past, now_ms)


def _chunks(
    engine: NodeEngine, find: Callable[[Reader], list[_Found]]
) -> Iterator[Sequence[_Found]]:
    """Rows to write, as of now; what is written meanwhile is not among them any more."""
    rows = engine.read("mesh.restamp", find)
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


_SCANS: tuple[tuple[str, Callable[[Reader, str], Iterator[Any]]], ...] = (
    ("state", state_rows),
    ("memory", memory_rows),
    ("files", file_rows),
    ("vectors", vector_rows),
)


def _own(
    scan: Callable[[Reader, str], Iterator[Any]], peer: str, mesh: str, past: int, tx: Reader
) -> list[_Found]:
    rows = (row for row in scan(tx, mesh) if _is_meant(row, peer, past))
    return [_Found(_looking(row), row.id) for row in rows]


def _is_meant(row: Any, peer: str, past: int) -> bool:
    if row.peer != peer or row.lamport > past or row.tombstone:
        return False
    return not isinstance(row, VectorRow) or row.live


def _write(tx: Transaction, engine: NodeEngine, rows: Sequence[_Found]) -> tuple[int, int]:
    """How many were written, and how many could not be, because their content is not here."""
    models = {row.id: row for row in tx.model_list()}
    written = hollow = 0
    for found in rows:
        row = found.look(tx)
        if row is None or row.id != found.id:
            continue  # somebody wrote it since
        if isinstance(row, FileRow) and row.in_blob and not engine.blobs.exists(row.sha256):
            hollow += 1
            continue
        _again(engine, row, models)(tx)
        written += 1
    return written, hollow


def _looking(row: OwnRow) -> Callable[[Reader], OwnRow | None]:
    """Reads the row of the same key again."""
    mesh = row.mesh
    if isinstance(row, StateRow):
        key = row.key
        return lambda tx: tx.state_get(mesh, key)
    if isinstance(row, MemoryRow):
        owner, key = row.owner, row.key
        return lambda tx: tx.memory_get(mesh, owner, key)
    if isinstance(row, FileRow):
        owner, path = row.owner, row.path
        return lambda tx: tx.file_get(mesh, owner, path)
    owner, key, model = row.owner, row.key, row.model
    return lambda tx: tx.vector_live(mesh, owner, key, model)


def _again(engine: NodeEngine, row: OwnRow, models: dict[str, Any]) -> Change:
    ctx, mesh = engine.ctx, row.mesh
    if isinstance(row, StateRow):
        return operations.state_set(ctx, mesh, row.key, decode_value(row.value))
    if isinstance(row, MemoryRow):
        return operations.memory_set(ctx, mesh, row.key, decode_value(row.value), row.tags)
    if isinstance(row, FileRow):
        return operations.file_share(ctx, mesh, row.path, row.sha256, row.size, row.content)
    known = models[row.model]
    model = Model(
        provider=known.provider,
        name=known.name,
        version=known.version,
        dim=known.dim,
        quantization=known.quantization,
    )
    metadata = decode_value(row.metadata)
    return operations.vector_store(ctx, mesh, row.key, row.embedding, model, row.content, metadata)
