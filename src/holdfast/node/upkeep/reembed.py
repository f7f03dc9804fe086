"""Moving vectors from one embedding model to another.

The old model is marked deprecated, then each live vector is embedded again, stored under the new
model and deleted under the old one, a chunk per transaction. After an interruption a second run
goes on with what is still live under the old model. Searches in the old model work until its index
is dropped, thirty days after the last search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.node.core import operations
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bodies import decode_value
from holdfast.rules.errors import BadVector, UnknownModel
from holdfast.rules.limits import CHUNK_ROWS, DAY_MS, VECTOR_MODEL_UNREAD_DAYS
from holdfast.rules.order import is_newer
from holdfast.rules.rows import VectorRow
from holdfast.rules.vectors import Model
from holdfast.storage.ports import Reader, Transaction

Embed = Callable[[list[str]], Sequence[Any]]
Progress = Callable[[int, int], None]


def reembed(
    engine: NodeEngine,
    mesh: str,
    old: Model,
    new: Model,
    embed: Embed,
    progress: Progress | None = None,
) -> int:
    """Moves this node's own vectors; returns how many. Other peers move theirs."""
    if old == new:
        raise BadVector("the old and the new model are the same")
    known = {row.id for row in engine.read("vector.models", lambda tx: tx.model_list())}
    if old.fingerprint not in known:
        raise UnknownModel(f"nothing is stored under {old.provider}:{old.name}")
    now = engine.ctx.now_ms()
    engine.write("vector.reembed", lambda tx: tx.model_mark(old.fingerprint, deprecated_at=now))
    total = engine.read("vector.reembed", lambda tx: _count(tx, mesh, old, engine.ctx.peer))
    moved = after = 0
    while True:
        page = engine.read("vector.reembed", partial(_page, mesh=mesh, model=old, after=after))
        if not page:
            return moved
        after = page[-1][0]
        mine = [row for _, row in page if row.owner == engine.ctx.peer]
        if mine:
            moved += _move(engine, mesh, old, new, mine, embed([row.content for row in mine]))
        if progress is not None:
            progress(moved, total)


def _page(tx: Reader, mesh: str, model: Model, after: int) -> list[tuple[int, VectorRow]]:
    return tx.vector_scan(mesh, model.fingerprint, after, CHUNK_ROWS, live_only=True)


def _count(tx: Reader, mesh: str, model: Model, peer: str) -> int:
    count = after = 0
    while page := _page(tx, mesh, model, after):
        count += sum(row.owner == peer for _, row in page)
        after = page[-1][0]
    return count


def _move(
    engine: NodeEngine,
    mesh: str,
    old: Model,
    new: Model,
    rows: list[VectorRow],
    embeddings: Sequence[Any],
) -> int:
    if len(embeddings) != len(rows):
        raise BadVector(f"the model gave {len(embeddings)} vectors for {len(rows)} texts")
    changes = []
    for row, embedding in zip(rows, embeddings, strict=True):
        store = operations.vector_store(
            engine.ctx, mesh, row.key, embedding, new, row.content, decode_value(row.metadata)
        )
        changes.append((row, store, operations.vector_delete(engine.ctx, mesh, row.key, old)))

    def work(tx: Transaction) -> int:
        moved = 0
        for row, store, delete in changes:
            live = tx.vector_live(mesh, row.owner, row.key, old.fingerprint)
            if live is not None and live.id == row.id:  # not replaced while the model was at work
                newest = tx.vector_newest(mesh, row.owner, row.key, new.fingerprint)
                if newest is None or is_newer(row.version, newest):
                    store(tx)  # else the new model holds something younger already
                delete(tx)
                moved += 1
        return moved

    return engine.write("vector.reembed", work)


def note_read(engine: NodeEngine, model: Model) -> None:
    """Notes, once a day, that a deprecated model is still searched."""
    rows = engine.read("vector.models", lambda tx: tx.model_list())
    now = engine.ctx.now_ms()
    known = next((row for row in rows if row.id == model.fingerprint), None)
    if known is None or known.deprecated_at is None or now - (known.last_read_at or 0) <= DAY_MS:
        return
    engine.write("vector.search", lambda tx: tx.model_mark(known.id, last_read_at=now))


def drop_unread(engine: NodeEngine) -> list[str]:
    """Drops the index of deprecated models that nobody has searched for thirty days; returns
    them.
    """
    limit = engine.ctx.now_ms() - VECTOR_MODEL_UNREAD_DAYS * DAY_MS
    doomed = [
        row.id
        for row in engine.read("vector.models", lambda tx: tx.model_list())
        if row.deprecated_at is not None and max(row.deprecated_at, row.last_read_at or 0) < limit
    ]

    def work(tx: Transaction) -> list[str]:
        dropped = []
        for model in doomed:
            meshes = [mesh.slug for mesh in tx.mesh_list()]
            if not any(tx.vector_scan(m, model, 0, 1, live_only=True) for m in meshes):
                tx.model_drop(model)
                dropped.append(model)
        return dropped

    return engine.write("vector.drop", work) if doomed else []
