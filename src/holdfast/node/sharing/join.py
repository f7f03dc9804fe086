"""Joining a mesh that another node has shared, by an invite.

The invite names the broker with its card, so this node talks to the right broker or to none.
The broker makes us a member and counts the invite as used; who lost the answer may ask again. Then
the mesh is made here, with a cursor at the beginning, and the broker's snapshot is taken, if it has
one. Everything after that is brought by the sync, as for any member.

Whatever stops it, joining again with the same invite goes on: a mesh that is there already, from
the same broker and under the same id, is the one that was meant. So is one that was left
(`rejoin.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.sharing.publish import GUEST
from holdfast.node.sharing.rejoin import bring_next, check_whole, left_mesh
from holdfast.node.snapshots.download import SnapshotTaken, take_snapshot
from holdfast.node.snapshots.jobs import Progress, no_progress
from holdfast.protocol.broker_http import Standing
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.invites import Invite
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.ports import Reader, Transaction


class JoinedMesh(msgspec.Struct, frozen=True, kw_only=True):
    """What joining came to."""

    mesh: str
    name: str
    broker_url: str
    broker_card: str
    server_id: str
    grants: tuple[str, ...]
    rows: int
    """Changes that the snapshot brought."""
    resumed: bool


def join(
    engine: NodeEngine, calls: BrokerClient, invite: Invite, progress: Progress = no_progress
) -> JoinedMesh:
    """Makes this node a member, and the mesh one of its own."""
    mesh = invite.mesh
    # Before the invite is used up in vain.
    before = engine.read("mesh.join", lambda tx: _check_free(tx, engine, invite, None))
    there = calls.join(invite)
    while not engine.write("mesh.join", lambda tx: _add(tx, engine, invite, there)):
        pass
    took = _take(engine, calls, mesh, progress)
    return JoinedMesh(
        mesh=mesh,
        name=there.name,
        broker_url=invite.url,
        broker_card=invite.card,
        server_id=there.server_id,
        grants=there.grants,
        rows=0 if took is None else took.rows,
        resumed=before is not None,
    )


def go_on(engine: NodeEngine, calls: BrokerClient, mesh: str, ended: Callable[[], bool]) -> None:
    """Finishes a join whose mesh is here and whose snapshot is not; does nothing otherwise."""
    if engine.read("mesh.join", lambda tx: is_joining(tx, mesh)):
        _take(engine, calls, mesh, no_progress, ended)


def is_joining(tx: Reader, mesh: str) -> bool:
    return tx.job_get(_job(mesh)) is not None


def _take(
    engine: NodeEngine,
    calls: BrokerClient,
    mesh: str,
    progress: Progress,
    ended: Callable[[], bool] = lambda: False,
) -> SnapshotTaken | None:
    job = engine.read("mesh.join", lambda tx: tx.job_get(_job(mesh)))
    cursor = {} if job is None else job.cursor
    joined = (int(cursor.get("epoch", 0)), int(cursor.get("seq", 0)))
    took = take_snapshot(engine, calls, mesh, progress, ended, joined=joined)
    if not ended():
        engine.write("mesh.join", lambda tx: tx.job_drop(_job(mesh)))
    return took


def _check_free(
    tx: Reader, engine: NodeEngine, invite: Invite, server_id: str | None
) -> MeshRow | None:
    """The mesh if it is here by an earlier join; AlreadyExists if another has its name. One that
    was left may be joined again.
    """
    row, left = tx.mesh_get(invite.mesh), left_mesh(tx, invite.mesh)
    if row is None:
        return None
    if row.shared:
        if row.broker_card != invite.card or server_id not in (None, row.server_id):
            raise AlreadyExists(
                f"this home has another mesh {invite.mesh!r}, shared at {row.broker_url}",
                hint="join with another home: --home FOLDER",
            )
        return row
    if left is None or left.card != invite.card or server_id not in (None, left.server_id):
        raise AlreadyExists(
            f"this home has a mesh {invite.mesh!r} of its own",
            hint="join with another home (--home FOLDER), or copy the mesh under another name: "
            f"holdfast export --mesh {invite.mesh} FILE; holdfast import --map OLD=NEW FILE",
        )
    check_whole(tx, engine, row, left)
    return None


def _add(tx: Transaction, engine: NodeEngine, invite: Invite, there: Standing) -> bool:
    """Makes the mesh a shared one here. Returns False if there is more to do first."""
    now = engine.ctx.now_ms()
    if _check_free(tx, engine, invite, there.server_id) is not None:
        return True
    row, left = tx.mesh_get(invite.mesh), left_mesh(tx, invite.mesh)
    if row is not None and left is not None and not bring_next(tx, engine, row, left):
        return False
    kept = row or MeshRow(slug=invite.mesh, name=there.name, created_at=now, updated_at=now)
    shared = msgspec.structs.replace(
        kept,
        kind=GUEST,
        updated_at=now,
        broker_url=invite.url,
        broker_card=invite.card,
        server_id=there.server_id,
        broker_epoch=there.epoch,
        broker_seq=0,
    )
    if row is None:
        tx.mesh_add(shared)
    else:
        tx.mesh_change(shared)
    # Until its snapshot is in, or it is known that there is none.
    cursor = {"epoch": there.epoch, "seq": there.seq}
    tx.job_put(JobRow(name=_job(invite.mesh), cursor=cursor, updated_at=now))
    return True


def jobs_of(mesh: str) -> tuple[str, ...]:
    return (_job(mesh),)


def _job(mesh: str) -> str:
    return f"join:{mesh}"
