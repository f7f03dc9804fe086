"""The committed state of a mesh as an object, for who has no vote and came too late for pages.

A source whose log was truncated cannot send the envelopes of old commits. It makes a snapshot of
everything that was committed, as voters do for a new voter, and puts it where objects are: under
its hash, which it tells to those who may read the mesh. They fetch it as they fetch any object,
piece by piece, and go on after a break. Nothing names it, so a sweep removes it in its time, here
and there.

    truncated ─► number and hash ─► object ─► every row checked ─► in place ─► pages from there on

What the snapshot says counts as a page does: it is no proof, and who brings it must be believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.node.core.committed_intake import CommitTrouble, note_trouble, tell_trouble
from holdfast.node.core.committed_snapshot import SnapshotStage, give_snapshot
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.commit_page import StateObject
from holdfast.rules.errors import (
    BadQuorumSnapshot,
    CommitForked,
    LogMismatch,
    NoVoters,
    UnknownMesh,
)
from holdfast.rules.limits import BLOB_CHUNK_BYTES, COMMIT_STATE_REUSE_MS, REASON_CHARS_MAX
from holdfast.rules.quorum.log_rows import TAG_BYTES
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction

_JOB: Final = "commits.state:"


class _Given(msgspec.Struct, frozen=True):
    """The object that was made last for a mesh."""

    number: int
    sha256: str
    size: int
    made_at: int


# --- giving --------------------------------------------------------------------------------------


def give_state(engine: NodeEngine, mesh: str, have: int = 0) -> StateObject:
    """The committed state of a mesh as an object of this node, for one that has `have` commits. It
    lasts: for a while the same one is given to all whom it helps. NoVoters if this node knows of
    no quorum.
    """
    standing, given = engine.read("commits.state", lambda tx: (_known(tx, mesh), _given(tx, mesh)))
    now = engine.ctx.now_ms()
    if given is None or given.number <= have or not _serves(engine, given, now):
        given = _make(engine, mesh, now)
    return StateObject(mesh, given.number, standing.engine, given.sha256, given.size)


def _serves(engine: NodeEngine, given: _Given, now_ms: int) -> bool:
    return 0 <= now_ms - given.made_at < COMMIT_STATE_REUSE_MS and engine.blobs.exists(given.sha256)


def _known(tx: Reader, mesh: str) -> QuorumRow:
    standing = tx.quorum_get(mesh)
    if standing is None or not standing.number or len(standing.tag) != TAG_BYTES:
        raise NoVoters(f"this node has nothing that a quorum of {mesh!r} has committed")
    return standing


def _given(tx: Reader, mesh: str) -> _Given | None:
    job = tx.job_get(_JOB + mesh)
    return None if job is None else msgspec.convert(job.cursor, _Given)


def _make(engine: NodeEngine, mesh: str, now_ms: int) -> _Given:
    upload = engine.blobs.receive()

    def write(piece: bytes) -> None:
        engine.check_room()
        upload.write(piece)

    def read(tx: Reader) -> int:
        give_snapshot(tx, mesh, write)
        return _known(tx, mesh).number

    try:
        number = engine.read("commits.state", read)
        blob = upload.finish()
    finally:
        upload.discard()
    given = _Given(number, blob.sha256, blob.size, now_ms)
    row = JobRow(name=_JOB + mesh, cursor=msgspec.to_builtins(given), updated_at=now_ms)
    engine.write("commits.state", lambda tx: tx.job_put(row))
    return given


# --- taking in -----------------------------------------------------------------------------------


def take_state(engine: NodeEngine, state: StateObject, source: str) -> None:
    """Takes a state in whose object is here. BadQuorumSnapshot if it is none, LogMismatch if this
    node votes or is further, CommitForked if it has another order: nothing has changed then.
    """
    mesh = state.mesh

    def chunks() -> Iterator[bytes]:
        with engine.blobs.open_unchecked(state.sha256) as file:
            while piece := file.read(BLOB_CHUNK_BYTES):
                yield piece

    def check(tx: Reader) -> None:
        if tx.mesh_get(mesh) is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        standing = tx.quorum_get(mesh)
        if standing is not None and (standing.voter is not None or standing.number >= state.number):
            raise LogMismatch(f"this node has {standing.number} commits of {mesh!r} by itself")

    engine.read("commits.state", check)
    stage = SnapshotStage(engine.store, engine.ctx, mesh, chunks, follows=state.engine)
    try:
        stage.stage(None)
    except CommitForked as error:
        detail = error.message[:REASON_CHARS_MAX]
        trouble = CommitTrouble(
            kind="commit_forked",
            number=state.number,
            source=source,
            detail=detail,
            found_at=engine.ctx.now_ms(),
        )

        def note(tx: Transaction) -> tuple[CommitTrouble, ...]:
            return note_trouble(tx, mesh, [trouble])

        tell_trouble(mesh, engine.write("commits.state", note))
        raise
    if stage.number != state.number:
        told, found = state.number, stage.number
        stage.clear()
        raise BadQuorumSnapshot(f"a state of {found} commits of {mesh!r}, offered as {told}")
    stage.put_in_place(None)
