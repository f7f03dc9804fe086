"""Bugs of delivery to plant, for `faults.planted`: mistakes of brokers, and of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import apsw
import msgspec
import pytest

from holdfast.node.core import operations
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.receive import apply_arrivals
from holdfast.node.sync import epoch as sync_epoch
from holdfast.node.sync import receive
from holdfast.node.sync.effects import Effect, StorePage
from holdfast.node.sync.mesh_conversation import MeshConversation
from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.session import MissingObjects
from holdfast.rules import outbox as outbox_rules
from holdfast.rules.broker_sync import Cursor, Move
from holdfast.rules.limits import SYNC_ANSWER_MS_MAX
from holdfast.rules.rows import OutboxRow
from holdfast.storage.broker.sqlite import accept, queues
from holdfast.storage.broker.sqlite.database import SEQ_BITS, BrokerDatabase
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite import outbox

Patch = Callable[[pytest.MonkeyPatch], None]


def _not_synced(patch: pytest.MonkeyPatch) -> None:
    """The broker answers before the disk has it."""
    init = BrokerDatabase.__init__

    def hasty(store: BrokerDatabase, *args: Any, **kwargs: Any) -> None:
        init(store, *args, **{**kwargs, "sync": "normal"})

    patch.setattr(BrokerDatabase, "__init__", hasty)


def _answered_before_commit(patch: pytest.MonkeyPatch) -> None:
    """The broker answers as if a commit could not fail."""

    def careless(store: BrokerDatabase, con: apsw.Connection) -> None:
        try:
            con.execute("COMMIT")
        except apsw.Error:
            store._undo(con)

    patch.setattr(BrokerDatabase, "_commit", careless)


def _dedupe_by_itself(patch: pytest.MonkeyPatch) -> None:
    """An id is known before its message is there."""
    insert = accept.insert_ids

    def apart(con: apsw.Connection, *given: Any) -> None:
        insert(con, *given)
        con.execute("COMMIT")
        con.execute("BEGIN IMMEDIATE")

    patch.setattr(accept, "insert_ids", apart)


def _cursor_before_rows(patch: pytest.MonkeyPatch) -> None:
    """The cursor is moved when a page is seen, not when it is stored."""

    def hasty(
        engine: NodeEngine,
        mesh: MeshState,
        incoming: receive.DecodedPage,
        absent: Collection[str] | None = None,
    ) -> receive.PageReceived:
        entries, arrivals = incoming

        def move(tx: Transaction) -> int:
            row = tx.mesh_get(mesh.slug)
            assert row is not None
            cursor = Cursor(row.broker_epoch, row.broker_seq)
            if cursor.epoch != entries.epoch or cursor.seq < entries.after:
                raise receive.CursorMoved(cursor)
            to = max(cursor.seq, entries.to)
            tx.mesh_change(msgspec.structs.replace(row, broker_seq=to))
            return to

        to = engine.write("sync.cursor", move)
        delivered = {row.raw: row.broker_id for row in entries.rows}

        def store(tx: Transaction) -> None:
            apply_arrivals(engine, tx, arrivals, mesh=mesh.slug, delivered=delivered)

        engine.write("sync.take", store)
        return receive.PageReceived(Cursor(entries.epoch, to), 0, 0, 0)

    patch.setattr(receive, "receive_page", hasty)


def _epoch_ignored(patch: pytest.MonkeyPatch) -> None:
    """A seq is a seq, also at a broker that went back."""

    def blind(cursor: Cursor, epoch: int, bases: Any, last: int, held: Any) -> Move | None:
        return None if epoch == cursor.epoch else Move(Cursor(epoch, min(cursor.seq, last)))

    patch.setattr(sync_epoch, "epoch_moved", blind)


def _forgotten_not_put_back(patch: pytest.MonkeyPatch) -> None:
    """What a broker forgot is for others to bring."""
    patch.setattr(sync_epoch, "put_back", lambda engine, mesh, lost, age: 0)


def _inflight_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What was under way when the line broke stays so."""
    patch.setattr(outbox.OutboxWrites, "outbox_recover", lambda tx, lane=None: 0)


def _lease_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """Whoever once had a message may say what becomes of it."""
    real = queues.SqliteQueues.settle

    async def careless(
        store: queues.SqliteQueues, mesh: str, queue: str, seq: int, lease: bytes, *rest: Any
    ) -> bool:
        place = (store.number_of(mesh) << SEQ_BITS) + seq
        found = store.connection.execute("SELECT lease FROM queued WHERE place = ?", (place,)).get
        return await real(store, mesh, queue, seq, found or lease, *rest)

    patch.setattr(queues.SqliteQueues, "settle", careless)


def _page_before_its_objects(patch: pytest.MonkeyPatch) -> None:
    """A page that names objects is stored without them."""
    taken = MeshConversation._taken

    def hasty(talk: MeshConversation, effect: Effect, result: Any) -> list[Effect]:
        if isinstance(effect, StorePage) and isinstance(result, MissingObjects):
            return [StorePage(talk.slug, piece=effect.piece, absent=frozenset(result.objects))]
        return taken(talk, effect, result)

    patch.setattr(MeshConversation, "_taken", hasty)


def _late_before_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    """Rows that a thread has just marked as in flight count as long unanswered."""

    def late_at(talk: MeshConversation) -> int | None:
        owed = talk._in_flight() and not talk._settling
        return (talk._owed_since or 0) + SYNC_ANSWER_MS_MAX if owed else None

    patch.setattr(MeshConversation, "_late_at", property(late_at))


def _waiting_send_keeps_its_id(patch: pytest.MonkeyPatch) -> None:
    """A send whose answer is not there yet stays in the way of what the broker accepted."""
    real = outbox_rules.gives_id_back

    def late(row: OutboxRow | None, *, broker_has_another: bool = False) -> bool:
        return real(row)

    patch.setattr(operations, "gives_id_back", late)


def _whole_group_again(patch: pytest.MonkeyPatch) -> None:
    """What failed together is sent together again, for ever."""
    patch.setattr(outbox_rules.Trial, "failed", lambda trial, *given: trial)


PLANTS: dict[str, Patch] = {
    "waiting send keeps its id": _waiting_send_keeps_its_id,
    "not synced": _not_synced,
    "answered before commit": _answered_before_commit,
    "dedupe by itself": _dedupe_by_itself,
    "cursor before rows": _cursor_before_rows,
    "epoch ignored": _epoch_ignored,
    "forgotten not put back": _forgotten_not_put_back,
    "inflight for ever": _inflight_for_ever,
    "lease not asked for": _lease_not_asked_for,
    "page before its objects": _page_before_its_objects,
    "late before it is sent": _late_before_it_is_sent,
    "whole group again": _whole_group_again,
}
