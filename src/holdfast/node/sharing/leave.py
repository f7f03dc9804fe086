"""A shared mesh becomes a personal one again: all that is in it stays, nothing leaves any more.

The broker hears of it first. A guest ends its membership; the owner takes the mesh away from the
broker, and from everybody who shares it there (they keep what they have). Then the mesh here is
made personal, which ends its lane, and what still waited in it is given up. Which mesh it was is
noted: it may be joined again (`rejoin.py`).
"""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.sharing import copy_mesh, join, publish
from holdfast.node.sharing.publish import OWNER
from holdfast.node.sharing.rejoin import note_left
from holdfast.node.snapshots import jobs
from holdfast.node.snapshots.mesh_export import GIVEN_UP
from holdfast.rules.errors import Conflict, NotAMember, NotFound
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Transaction


class Left(msgspec.Struct, frozen=True):
    """What leaving came to."""

    mesh: str
    given_up: int
    """Changes and messages that the broker never got."""


def tell_broker(calls: BrokerClient, row: MeshRow, key: str, *, remove: bool) -> None:
    """Ends our membership at the broker, or the mesh if it is ours; nothing if we are no member."""
    if row.kind == OWNER and not remove:
        raise Conflict(
            f"{row.slug!r} is yours: if you leave, it is gone at the broker for everybody",
            hint=f"if that is what you want: holdfast mesh leave {row.slug} --remove",
        )
    try:
        if row.kind == OWNER:
            calls.remove_mesh(row.slug)
        else:
            calls.remove_member(row.slug, key)
    except (NotAMember, NotFound):
        return


def make_personal(engine: NodeEngine, mesh: str) -> Left:
    """Changes the mesh in this home. If it is cut off in the middle, the next call goes on."""

    def turn(tx: Transaction) -> None:
        row = tx.mesh_get(mesh)
        assert row is not None
        note_left(tx, row, engine.ctx.now_ms())
        tx.mesh_change(
            msgspec.structs.replace(
                row,
                kind="personal",
                broker_url=None,
                broker_card=None,
                server_id=None,
                broker_epoch=0,
                broker_seq=0,
                sync_paused=False,
                updated_at=engine.ctx.now_ms(),
            )
        )
        tx.known_members_put(mesh, [])
        for module in (publish, join, jobs, copy_mesh):
            for job in module.jobs_of(mesh):
                tx.job_drop(job)

    engine.write("mesh.leave", turn)
    while engine.write("mesh.leave", lambda tx: tx.broker_positions_drop(mesh, CHUNK_ROWS)):
        pass
    given_up = after = 0
    while True:
        step = partial(_give_up, engine=engine, mesh=mesh, after=after)
        count, last = engine.write("mesh.leave", step)
        given_up += count
        if last == after:
            return Left(mesh, given_up)
        after = last


def _give_up(tx: Transaction, engine: NodeEngine, mesh: str, after: int) -> tuple[int, int]:
    """How many of a chunk the broker never got, and the number of its last row. What a person had
    dropped is marked too, so that another broker may get it one day.
    """
    never = (OutboxState.PENDING, OutboxState.INFLIGHT, OutboxState.DEAD, OutboxState.ABORTED)
    rows = tx.outbox_list(lane_of(mesh), never, after, CHUNK_ROWS)
    for row in rows:
        tx.outbox_put(
            msgspec.structs.replace(
                row,
                state=OutboxState.ABORTED,
                ended_at=engine.ctx.now_ms(),
                code=GIVEN_UP,
                error="this node has left the mesh",
            )
        )
    return len(rows), rows[-1].number if rows else after
