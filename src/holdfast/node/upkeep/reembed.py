"""Moving vectors from one embedding model to another.

The old model is marked deprecated, then each live vector is embedded again, stored under the new
model and deleted under the old one, a chunk per transaction. After an interruption a second run
goes on with what is still live under the old model. Searches in the old model work until its index
is dropped, thirty days after the last search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.node.core import operations
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bodies import decode_value
from holdfast.rules.errors import BadVector, UnknownModel
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import CHUNK_ROWS, DAY_MS, VECTOR_MODEL_UNREAD_DAYS
from holdfast.rules.order import is_newer
from holdfast.rules.rows import VectorRow
from holdfast.rules.vectors import Model, pack
from holdfast.storage.ports import Reader, Transaction

Embed = Callable[[list[str]], Sequence[Any]]
Progress = Callable[[int, int], None]


class ToEmbed(msgspec.Struct, frozen=True):
    """A vector that is to move: its text is embedded again."""

    key: str
    id: str
    """Of the write that stored it: what was written since stays."""
    content: str


class ToEmbedPage(msgspec.Struct, frozen=True):
    """Vectors of this node that are live under the old model."""

    rows: Sequence[ToEmbed]
    next: int | None
    """The `after` of the next page; None at the end."""


class Moving(Protocol):
    """Where vectors are moved, step by step: a home, or the daemon of one."""

    def begin(self) -> int:
        """Marks the old model as deprecated; how many vectors there are to move."""

    def page(self, after: int) -> ToEmbedPage:
        """The next of them."""

    def move(self, rows: Sequence[ToEmbed], embeddings: Sequence[Any]) -> int:
        """Stores them under the new model and deletes them under the old one; how many."""


def reembed(steps: Moving, embed: Embed, progress: Progress | None = None) -> int:
    """Moves a node's own vectors; returns how many. Other peers move theirs."""
    total = steps.begin()
    moved, after = 0, 0
    while True:
        page = steps.page(after)
        if page.rows:
            embeddings = embed([row.content for row in page.rows])
            if len(embeddings) != len(page.rows):
                raise BadVector(
                    f"the model gave {len(embeddings)} vectors for {len(page.rows)} texts"
                )
            moved += steps.move(page.rows, embeddings)
        if progress is not None and (page.rows or page.next is not None):
            progress(moved, total)
        if page.next is None:
            return moved
        after = page.next


class HomeMoving:
    """Moves the vectors of a home that is open here."""

    def __init__(self, engine: NodeEngine, mesh: str, old: Model, new: Model) -> None:
        if old == new:
            raise BadVector("the old and the new model are the same")
        self._engine, self._mesh, self._old, self._new = engine, mesh, old, new

    def begin(self) -> int:
        engine, old = self._engine, self._old
        known = {row.id for row in engine.read("vector.models", lambda tx: tx.model_list())}
        if old.fingerprint not in known:
            raise UnknownModel(f"nothing is stored under {old.provider}:{old.name}")
        now = engine.ctx.now_ms()
        engine.write("vector.reembed", lambda tx: tx.model_mark(old.fingerprint, deprecated_at=now))
        return engine.read("vector.reembed", self._count)

    def page(self, after: int) -> ToEmbedPage:
        rows = self._engine.read("vector.reembed", lambda tx: self._rows(tx, after))
        own = self._engine.ctx.peer
        mine = [
            ToEmbed(row.key, id_text(row.id), row.content) for _, row in rows if row.owner == own
        ]
        return ToEmbedPage(mine, rows[-1][0] if rows else None)

    def move(self, rows: Sequence[ToEmbed], embeddings: Sequence[Any]) -> int:
        ctx, mesh, old, new = self._engine.ctx, self._mesh, self._old, self._new
        packed = [pack(embedding, new.dim, new.quantization) for embedding in embeddings]
        for row in rows:
            parse_id(row.id)

        def work(tx: Transaction) -> int:
            moved = 0
            for row, embedding in zip(rows, packed, strict=True):
                live = tx.vector_live(mesh, ctx.peer, row.key, old.fingerprint)
                if live is None or id_text(live.id) != row.id:
                    continue  # replaced while the model was at work
                newest = tx.vector_newest(mesh, ctx.peer, row.key, new.fingerprint)
                if newest is None or is_newer(live.version, newest):
                    metadata = decode_value(live.metadata)
                    operations.vector_store(
                        *(ctx, mesh, row.key, embedding, new, live.content, metadata)
                    )(tx)  # else the new model holds something younger already
                operations.vector_delete(ctx, mesh, row.key, old)(tx)
                moved += 1
            return moved

        return self._engine.write("vector.reembed", work)

    def _rows(self, tx: Reader, after: int) -> list[tuple[int, VectorRow]]:
        return tx.vector_scan(self._mesh, self._old.fingerprint, after, CHUNK_ROWS, live_only=True)

    def _count(self, tx: Reader) -> int:
        count = after = 0
        while page := self._rows(tx, after):
            count += sum(row.owner == self._engine.ctx.peer for _, row in page)
            after = page[-1][0]
        return count


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
