"""A personal mesh becomes a shared one, in six phases.

    1 authenticate   the broker proves its key, and we ours
    2 register       the broker knows the mesh and its owner; the same again is the same mesh
    3 transition     here, in one transaction: from now on every write leaves for the broker
    4 bring          what was written before goes there too: through the outbox, or as a snapshot
    5 wait           until the broker has what the outbox holds, or for a while
    6 invite         a first invite, to be given to others

Each is written down before the next begins, in one row of jobs. Whatever stops it, running it again
goes on from there; nothing before phase 3 changes the mesh, and after it the mesh works as any
shared one. Others may write meanwhile: what they write takes the way of every write.

**What is brought.** Up to ten thousand changes go through the outbox in chunks, from the log, in
its order, without those that later ones have superseded. A larger mesh, or one whose log has
forgotten what its tables still show, or that has forgotten deletions, goes as a snapshot, which a
node that joins takes first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import msgspec

from holdfast.node.broker_client.client import BrokerClient
from holdfast.node.core.engine import NodeEngine
from holdfast.node.sharing.copy_mesh import check_copy, copy_mesh, end_copy
from holdfast.node.snapshots.jobs import Progress, no_progress
from holdfast.node.snapshots.mesh_export import entries, has_forgotten, is_exported
from holdfast.node.snapshots.upload import upload_snapshot
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import AlreadyExists, Conflict, NotShared, StoreBusy
from holdfast.rules.invites import check_broker_url
from holdfast.rules.limits import BACKFILL_ROWS_MAX, INVITE_FIRST_HOURS
from holdfast.rules.outbox import OutboxState, lane_of, outbox_row
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.ports import Reader, Transaction

OWNER: Final = "shared_owner"
GUEST: Final = "shared_guest"

Phase = Literal["register", "transition", "bring", "wait", "invite"]
"""The phase that comes next. Before the first there is nothing to write down."""
Way = Literal["backfill", "snapshot"]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing a mesh came to."""

    mesh: str
    server_id: str
    broker_url: str
    broker_card: str
    epoch: int
    rows: int
    """Changes from before the mesh was shared that were sent."""
    way: str
    waiting: int
    """Changes that still wait for the broker: the daemon sends them."""
    invite: str | None
    resumed: bool
    """True if an earlier run had begun it."""


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """How far publishing has come, as it stands in the jobs."""

    phase: Phase = "register"
    url: str
    card: str
    server_id: str = ""
    epoch: int = 0
    upto: int = 0
    """The last offset from before the transition."""
    way: Way | None = None
    cursor: int = 0
    """The offset that the backfill goes on from."""
    rows: int = 0


class Publishing:
    """One mesh on its way to a broker."""

    def __init__(
        self,
        engine: NodeEngine,
        calls: BrokerClient,
        mesh: str,
        *,
        name: str | None = None,
        token: str | None = None,
        progress: Progress = no_progress,
        wait: Callable[[], int] | None = None,
        invite_hours: int = INVITE_FIRST_HOURS,
        of: str = "",
    ) -> None:
        """`token` is what a broker may ask for before it takes new meshes. `wait` sends what the
        outbox holds, or waits for the daemon to do it, and returns how many changes are left.
        `invite_hours`: how long the first invite is good for. `of`: the mesh is to be a copy of
        this one.
        """
        self._engine, self._calls, self._mesh = engine, calls, mesh
        self._name, self._token, self._progress = name, token, progress
        self._invite_hours, self._of = invite_hours, of
        self._wait = wait or (lambda: waiting_in(engine, mesh))
        check_broker_url(calls.url)

    def run(self) -> Published:
        if self._of:
            self._copy()
        row = self._engine.require_mesh(self._mesh)
        job = self._engine.read("mesh.publish", partial(_job_of, mesh=self._mesh))
        before = job
        if job is None or self._is_other(job):
            if row.shared:
                return self._done_before(row)
            self._calls.hello()  # phase 1
            job = self._note(before, _Job(url=self._calls.url, card=self._calls.card))
        if job.phase == "register":
            job = self._register(job, row)
        if job.phase == "transition":
            job = self._engine.write("mesh.publish", partial(self._transition, job))
        if job.phase == "bring":
            job = self._bring(job)
        left = 0
        if job.phase == "wait":
            left = self._wait()
            job = self._note(job, _on(job, phase="invite"))
        invite = self._calls.invite(self._mesh, hours=self._invite_hours)
        self._engine.write("mesh.publish", partial(self._finish, job))
        return _published(self._mesh, job, left, invite.text, resumed=before is not None)

    def _copy(self) -> None:
        """Makes the copy that is to be published, once its name is ours at the broker."""
        mesh, of = self._mesh, self._of
        here = self._engine.read("mesh.publish", lambda tx: tx.mesh_get(mesh))
        if here is not None and here.kind == OWNER and here.broker_url == self._calls.url:
            return  # an earlier run has come so far
        self._engine.read("mesh.publish", lambda tx: check_copy(tx, of, mesh))
        self._calls.hello()
        try:
            self._calls.register(mesh, self._name or mesh, self._token)
        except AlreadyExists as error:
            raise self._taken(error) from None
        copy_mesh(self._engine, of, mesh, self._progress)

    # --- the phases --------------------------------------------------------------------------

    def _register(self, job: _Job, row: MeshRow) -> _Job:
        try:
            there = self._calls.register(self._mesh, self._name or row.name, self._token)
        except AlreadyExists as error:
            self._engine.write("mesh.publish", partial(self._finish, job))
            raise self._taken(error) from None
        return self._note(
            job, _on(job, phase="transition", server_id=there.server_id, epoch=there.epoch)
        )

    def _taken(self, error: AlreadyExists) -> AlreadyExists:
        """The name is taken there: what to type to publish a copy under one that is free."""
        ours = {row.slug for row in self._engine.read("mesh.list", lambda tx: tx.mesh_list())}
        names = [name for name in error.free if name not in ours]
        # A broker of an earlier version offers none.
        name = names[0] if names else "NAME"
        which = f"{name} is free there" if names else "choose a NAME"
        place = f"--broker {self._calls.url}"
        if not self._calls.url.startswith("http:"):
            place = f"{place} --card {self._calls.card}"
        return AlreadyExists(
            error.message,
            free=tuple(names),
            hint=f"publish a copy, {which}: "
            f"holdfast mesh publish {self._of or self._mesh} --as {name} {place}",
        )

    def _transition(self, job: _Job, tx: Transaction) -> _Job:
        self._require(tx, job)
        row = tx.mesh_get(self._mesh)
        assert row is not None
        if row.shared:
            raise Conflict(f"{self._mesh!r} was shared elsewhere in between")
        now = self._engine.ctx.now_ms()
        tx.mesh_change(
            msgspec.structs.replace(
                row,
                kind=OWNER,
                name=self._name or row.name,
                broker_url=job.url,
                broker_card=job.card,
                server_id=job.server_id,
                broker_epoch=job.epoch,
                broker_seq=0,
                updated_at=now,
            )
        )
        first, last = tx.log_bounds()
        after = _on(job, phase="bring", upto=last, cursor=first)
        self._put(tx, after)
        return after

    def _bring(self, job: _Job) -> _Job:
        if job.way is None:
            way = self._engine.read("mesh.publish", partial(self._choose, job))
            job = self._note(job, _on(job, way=way))
        while job.phase == "bring" and job.way == "backfill":
            job = self._engine.write("mesh.publish", partial(self._backfill, job))
            self._progress("changes", job.rows, None)
        if job.phase == "bring":
            done = upload_snapshot(self._engine, self._calls, self._mesh, self._progress)
            job = self._note(job, _on(job, phase="wait", rows=done.rows))
        return job

    def _choose(self, job: _Job, tx: Reader) -> Way:
        count = 0
        place: int | None = job.cursor
        while place is not None and place <= job.upto:
            page, place = entries(tx, self._mesh, place, job.upto)
            count += sum(is_exported(tx, entry) for entry in page)
            if count > BACKFILL_ROWS_MAX:
                return "snapshot"
        ended = (OutboxState.DONE, OutboxState.DEAD, OutboxState.ABORTED)
        if tx.outbox_list(lane_of(self._mesh), ended, 0, 1):
            return (
                "snapshot"  # it was shared before: the outbox knows these ids, this broker does not
            )
        row = tx.mesh_get(self._mesh)
        if row is not None and row.forgotten_lamport:
            return "snapshot"  # only a snapshot says to those who join what was forgotten
        return "snapshot" if has_forgotten(tx, self._mesh) else "backfill"

    def _backfill(self, job: _Job, tx: Transaction) -> _Job:
        """Puts one chunk into the outbox, and notes where the next one begins."""
        self._require(tx, job)
        if tx.log_bounds()[0] > job.cursor:
            # Truncated before we got there: the tables still have what the log has lost.
            after = _on(job, way="snapshot", rows=0)
        else:
            page, following = entries(tx, self._mesh, job.cursor, job.upto)
            lane, now = lane_of(self._mesh), self._engine.ctx.now_ms()
            rows = [
                outbox_row(lane, decode_trusted(entry.raw), entry.offset, now)
                for entry in page
                if is_exported(tx, entry)
            ]
            tx.outbox_add(rows)
            following = None if following is None or following > job.upto else following
            after = _on(
                job,
                phase="wait" if following is None else "bring",
                cursor=job.cursor if following is None else following,
                rows=job.rows + len(rows),
            )
        self._put(tx, after)
        return after

    # --- what is written down ------------------------------------------------------------------

    def _note(self, before: _Job | None, after: _Job) -> _Job:
        def work(tx: Transaction) -> None:
            self._require(tx, before)
            self._put(tx, after)

        self._engine.write("mesh.publish", work)
        return after

    def _require(self, tx: Reader, job: _Job | None) -> None:
        """Raises StoreBusy if another process has gone on with the job."""
        if _job_of(tx, self._mesh) != job:
            raise StoreBusy(
                f"another process is publishing {self._mesh!r}",
                hint="let it finish; if it was ended, run the same command again",
            )

    def _put(self, tx: Transaction, job: _Job) -> None:
        now = self._engine.ctx.now_ms()
        cursor: dict[str, Any] = msgspec.to_builtins(job)
        tx.job_put(JobRow(name=_name_of(self._mesh), cursor=cursor, updated_at=now))

    def _finish(self, job: _Job, tx: Transaction) -> None:
        self._require(tx, job)
        tx.job_drop(_name_of(self._mesh))
        if job.phase == "invite":
            end_copy(tx, self._mesh)

    def _is_other(self, job: _Job) -> bool:
        """True if the job was begun with another broker, which may change until the mesh is
        shared.
        """
        if (job.url, job.card) == (self._calls.url, self._calls.card):
            return False
        if job.phase not in ("register", "transition"):
            raise AlreadyExists(
                f"{self._mesh!r} is being published at {job.url}",
                hint=f"finish that: holdfast mesh publish {self._mesh}",
            )
        return True

    def _done_before(self, row: MeshRow) -> Published:
        """The answer for a mesh that is shared already, at this broker."""
        if row.kind != OWNER or row.broker_url != self._calls.url:
            raise AlreadyExists(
                f"{self._mesh!r} is shared at {row.broker_url}",
                hint=f"see: holdfast mesh info {self._mesh}",
            )
        assert row.server_id is not None
        assert row.broker_card is not None
        return Published(
            mesh=self._mesh,
            server_id=row.server_id,
            broker_url=row.broker_url,
            broker_card=row.broker_card,
            epoch=row.broker_epoch,
            rows=0,
            way="before",
            waiting=waiting_in(self._engine, self._mesh),
            invite=None,
            resumed=False,
        )


# --- for others --------------------------------------------------------------------------------


class UnfinishedPublish(msgspec.Struct, frozen=True):
    """A publish that was begun and not finished."""

    url: str
    card: str
    phase: str


def begun(tx: Reader, mesh: str) -> UnfinishedPublish | None:
    job = _job_of(tx, mesh)
    return None if job is None else UnfinishedPublish(job.url, job.card, job.phase)


def check_published(tx: Reader, mesh: str) -> MeshRow:
    """A mesh that others may join. NotShared for a personal one; Conflict while it is only partly
    at its broker: who joined then would miss what comes with the snapshot.
    """
    row = tx.mesh_get(mesh)
    if row is None or not row.shared:
        raise NotShared(f"{mesh!r} is not shared")
    job = _job_of(tx, mesh)
    if job is not None and job.phase == "bring":
        raise Conflict(
            f"publishing {mesh!r} is not finished", hint=f"go on: holdfast mesh publish {mesh}"
        )
    return row


def waiting_in(engine: NodeEngine, mesh: str) -> int:
    """How many changes of a mesh its broker does not have yet."""
    counts = engine.read("outbox.counts", lambda tx: tx.outbox_counts())
    lane = lane_of(mesh)
    return counts.get((lane, OutboxState.PENDING), 0) + counts.get((lane, OutboxState.INFLIGHT), 0)


def _job_of(tx: Reader, mesh: str) -> _Job | None:
    job = tx.job_get(_name_of(mesh))
    return None if job is None else msgspec.convert(job.cursor, _Job)


def jobs_of(mesh: str) -> tuple[str, ...]:
    return (_name_of(mesh),)


def _name_of(mesh: str) -> str:
    return f"publish:{mesh}"


def _on(job: _Job, **changes: Any) -> _Job:
    return msgspec.structs.replace(job, **changes)


def _published(mesh: str, job: _Job, waiting: int, invite: str, *, resumed: bool) -> Published:
    assert job.way is not None
    return Published(
        mesh=mesh,
        server_id=job.server_id,
        broker_url=job.url,
        broker_card=job.card,
        epoch=job.epoch,
        rows=job.rows,
        way=job.way,
        waiting=waiting,
        invite=invite,
        resumed=resumed,
    )
