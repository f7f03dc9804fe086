"""A home from a snapshot of a lake, for a new node or one that was away for too long.

A snapshot holds envelopes as their origins wrote them, and the node takes them in like all others
from outside. So nothing gets a new id: every stamp and fingerprint is the one that all other nodes
have, and what arrives later through a link meets the same versions as anywhere.

**Nothing half done looks done.** Everything is checked before the first write. A new home is made
under another name beside its place and renamed when it is complete. In a home that is there, only
meshes are filled that it does not have yet. Either way each chunk is written together with a note
of how far the restore is: an interrupted restore goes on where it stopped when it is run again, and
refuses to go on with another snapshot.

**A node that was away for too long** cannot simply link again: it would refuse old writes of
others, because it has forgotten deletions, and others would refuse its own. Its owner keeps the old
home and makes a new one from a snapshot. If the new home has the old name (`take_over`), it counts
in a new epoch and its clocks skip ahead, as after any restore, so that what the old home wrote
stays apart.

**What quorums have decided** comes behind everything else, in the order of commits, as pages bring
it: the node decides again, and stands at the last commit of the snapshot. From there it follows.

The content of large files is not in a snapshot. Rows name it, links and peers have it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.node.core.committed_intake import CommitPageIntake, raise_fork
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied, Intake
from holdfast.node.library.node import open_node
from holdfast.node.snapshots.manifest import (
    SnapshotManifest,
    check_signer,
    commits_of,
    plain_parts,
    read_manifest,
)
from holdfast.node.snapshots.parts import content_sum, envelopes, log_sum, sum_text, verify_parts
from holdfast.node.snapshots.places import remember, restored_from
from holdfast.protocol.commit_page import CommitLine, CommitPage, check_page, decode_line
from holdfast.rules import limits
from holdfast.rules.errors import AlreadyExists, BadPeerId, StoreBusy, StoreCorrupt
from holdfast.rules.lamport import after_loss
from holdfast.rules.names import check_mesh
from holdfast.rules.quorum.commit_record import decode_record
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import JobRow, MeshRow
from holdfast.storage.files.durable import TEMPORARY_PREFIX, make_folder, rename_folder
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader, Transaction
from holdfast.storage.scans import blob_rows

Progress = Callable[[int, int], None]
"""Called with the number of envelopes that are stored, and with how many there are."""

JOB: Final = "restore"
"""The row of the job table that says how far a restore is; its last step removes it."""
STAGING: Final = f"{TEMPORARY_PREFIX}restoring-"
_NAMED_MAX: Final = 1000


class RefusedEnvelope(msgspec.Struct, frozen=True):
    """An envelope that this node refused, and why."""

    id: str | None
    code: str
    message: str


class SnapshotRestored(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a restore."""

    home: Path
    peer: str
    meshes: tuple[str, ...]
    rows: int
    """Envelopes of the snapshot."""
    counts: dict[str, int]
    """Envelopes by outcome of their intake."""
    refused: tuple[RefusedEnvelope, ...]
    """The first of the refused envelopes."""
    head: int
    signed_by: str
    """The card of the signer; empty if the snapshot is not signed."""
    checked: bool
    """Whether the caller asked for this signer."""
    logs: dict[str, tuple[int, int]]
    """Where links begin: epoch and offset of each node's log."""
    missing: int
    """How many objects that rows name have no content here."""
    missing_objects: tuple[str, ...]
    """The hashes of the first of them."""
    resumed_after: int
    """Envelopes that an earlier, interrupted run had stored."""
    left: tuple[Path, ...] = ()
    """Folders of other unfinished restores for this home; they can be removed."""


def restore_snapshot(
    home: str | Path,
    folder: str | Path,
    peer: str | None = None,
    *,
    signed_by: str | None = None,
    take_over: bool = False,
    progress: Progress | None = None,
    sync: str | None = None,
) -> SnapshotRestored:
    """Fills a home with a snapshot; makes the home, for `peer`, if there is none.

    `signed_by` is a card or a key: then the snapshot must be signed by its owner. `take_over`
    allows a new home to have the name of a peer that is in the snapshot: the old home of that peer
    must not be used any more.
    """
    home, folder = Path(home).absolute(), Path(folder).absolute()
    manifest = read_manifest(folder)
    if signed_by is not None:
        check_signer(manifest, signed_by)
    for mesh in manifest.meshes:
        check_mesh(mesh)
    new = not HomePaths(home).database.exists()
    if new:
        _check_new(home, peer, manifest, take_over)
    verify_parts(folder, manifest)
    work = _staging(home, manifest) if new else home
    with open_node(work, peer=peer, create=new, sync=sync) as node:
        restore = _Restore(node._engine, folder, manifest, new=new, take_over=take_over)
        report = restore.run(home, signed_by is not None, progress)
    if new:
        rename_folder(work, home)
    left = sorted(home.parent.glob(f"{glob.escape(STAGING + home.name)}-*"))
    return msgspec.structs.replace(report, left=tuple(left))


def _check_new(home: Path, peer: str | None, manifest: SnapshotManifest, take_over: bool) -> None:
    if peer is None:
        raise BadPeerId("a new home needs the name of its peer", hint="give it with --peer NAME")
    if peer in manifest.origins and not take_over:
        raise AlreadyExists(
            f"the snapshot holds what a peer {peer!r} wrote already",
            hint="choose another name; or --take-over, if the old home of that peer is gone for "
            "good: two nodes of one name would write over each other",
        )
    if home.exists() and (not home.is_dir() or os.listdir(home)):
        raise AlreadyExists(
            f"{home} is not empty and not a Holdfast home", hint="choose another folder"
        )


def _staging(home: Path, manifest: SnapshotManifest) -> Path:
    """The folder in which a new home is made: beside the home, so that a rename is enough, and one
    for each snapshot, so that two never mix.
    """
    missing = [folder for folder in home.parents if not folder.exists()]
    for folder in reversed(missing):
        make_folder(folder)
    return home.parent / f"{STAGING}{home.name}-{manifest.digest[:16]}"


class _Progress(msgspec.Struct):
    """How far a restore is, as its job row keeps it."""

    digest: str
    part: int = 0
    row: int = 0
    rows: int = 0
    total: str = sum_text(0)
    counts: dict[str, int] = {}
    refused: list[RefusedEnvelope] = []


class _Restore:
    """One restore in progress."""

    def __init__(
        self,
        engine: NodeEngine,
        folder: Path,
        manifest: SnapshotManifest,
        *,
        new: bool,
        take_over: bool,
    ) -> None:
        self._engine, self._folder, self._manifest = engine, folder, manifest
        self._new, self._take_over = new, new and take_over
        self._place = _Progress(digest=manifest.digest)

    def run(self, home: Path, checked: bool, progress: Progress | None) -> SnapshotRestored:
        resumed_after = 0
        if not self._engine.read("restore", self._is_done):
            self._place = self._engine.write("restore", self._begin)
            resumed_after = self._place.rows
            for chunk, after, voted in self._chunks():
                take = partial(self._take, chunk, after, voted)
                self._place = self._engine.write("intake", take)
                if progress is not None:
                    progress(self._place.rows, self._manifest.rows)
            self._engine.write("restore", self._end)
        return self._engine.read("restore", partial(self._report, home, checked, resumed_after))

    def _is_done(self, tx: Reader) -> bool:
        digests = {restored_from(tx, mesh) for mesh in self._manifest.meshes}
        return tx.job_get(JOB) is None and digests == {self._manifest.digest}

    # --- the beginning -----------------------------------------------------------------------

    def _begin(self, tx: Transaction) -> _Progress:
        """Creates all meshes, together with the note that they are not complete; or reads the note
        of an interrupted restore.
        """
        job = tx.job_get(JOB)
        if job is not None:
            place = msgspec.convert(job.cursor, _Progress)
            if place.digest != self._manifest.digest:
                raise AlreadyExists(
                    "this home is half restored from another snapshot",
                    hint="run that restore again first: it goes on where it stopped",
                )
            return place
        self._check_free(tx)
        now = self._engine.ctx.now_ms()
        for mesh, point in sorted(self._manifest.meshes.items()):
            tx.mesh_add(MeshRow(slug=mesh, name=mesh, created_at=now, updated_at=now))
            # At the beginning: what users write here meanwhile is newer than all that comes.
            if point.clock:
                tx.tick_merged(mesh, point.clock, now)
            if self._take_over:
                tx.clock_raise(mesh, after_loss(point.clock, limits.RESTORE_LAMPORT_SKIP, now))
        if self._take_over:
            # The old home counted its own writes; this one must not give the same numbers again.
            seen = self._manifest.origins.get(self._engine.ctx.peer, 0)
            tx.set_epoch(max(tx.epoch(), seen) + 1)
        self._note(tx, self._place)
        return self._place

    def _check_free(self, tx: Reader) -> None:
        there = sorted(row.slug for row in tx.mesh_list() if row.slug in self._manifest.meshes)
        if there:
            raise AlreadyExists(
                f"this home has the mesh {', '.join(there)} already",
                hint="restore into another home, and keep the old one",
            )
        peer = self._engine.ctx.peer
        if peer in self._manifest.origins and not self._take_over:
            raise AlreadyExists(
                f"the snapshot holds what {peer!r} itself wrote in another home",
                hint="restore into a new home",
            )

    # --- chunk by chunk ----------------------------------------------------------------------

    def _chunks(self) -> Iterator[tuple[list[bytes], tuple[int, int], bool]]:
        """What is not stored yet, each chunk with the part and row behind it, and whether it is of
        commits.
        """
        begin, skip = self._place.part, self._place.row
        # Larger chunks for a new home: nobody else waits to write into it.
        rows = limits.LINK_BATCH_ROWS if self._new else limits.CHUNK_ROWS
        for number in range(begin, len(self._manifest.parts)):
            part, voted = self._manifest.parts[number], number >= plain_parts(self._manifest)
            chunk: list[bytes] = []
            size = row = 0
            for row, raw in enumerate(envelopes(self._folder, part), 1):
                if number == begin and row <= skip:
                    continue
                chunk.append(raw)
                size += len(raw)
                full = len(chunk) >= rows or size >= limits.INTAKE_BATCH_BYTES
                # The last chunk of a part waits until the hash of the whole part was checked.
                if full and row < part.rows:
                    yield chunk, (number, row), voted
                    chunk, size = [], 0
            yield chunk, (number + 1, 0), voted

    def _take(
        self, chunk: list[bytes], after: tuple[int, int], voted: bool, tx: Transaction
    ) -> _Progress:
        before = self._place
        job = tx.job_get(JOB)
        if job is None or job.cursor["rows"] != before.rows or job.cursor["part"] != before.part:
            raise StoreBusy(
                "the same snapshot is being restored by another process",
                hint="let it finish; a restore that was interrupted goes on where it stopped",
            )
        counts, refused = before.counts, before.refused
        raws = chunk
        if voted:
            lines = [decode_line(raw) for raw in chunk]
            raws = [line.raw for line in lines]
            counts = _counted(counts, self._fold(tx, lines))
        else:
            applied = Intake(self._engine.ctx, chunk)(tx)
            counts = _counted(counts, [one.outcome for one in applied])
            refused = [*refused, *_refusals(applied)][:_NAMED_MAX]
        place = _Progress(
            digest=before.digest,
            part=after[0],
            row=after[1],
            rows=before.rows + len(chunk),
            total=sum_text(content_sum(raws, int(before.total, 16))),
            counts=counts,
            refused=refused,
        )
        self._note(tx, place)
        return place

    def _fold(self, tx: Transaction, lines: Sequence[CommitLine]) -> list[Outcome | None]:
        """Folds commits in their order; returns what became of each."""
        outcomes: list[Outcome | None] = []
        records = [decode_record(line.record) for line in lines]
        pairs = zip(records, lines, strict=True)
        for mesh, group in groupby(pairs, key=lambda pair: pair[0].mesh):
            known = list(group)
            page = CommitPage(
                mesh=mesh,
                # Which engine it is, and its tag, the first page tells that a member brings.
                engine="embedded",
                incarnation=known[-1][0].fence.incarnation,
                tag=b"",
                first=known[0][0].number,
                rows=tuple(line for _, line in known),
                end=commits_of(self._manifest).get(mesh, 0),
            )
            taken = CommitPageIntake(self._engine.ctx, check_page(page), "a snapshot")(tx)
            raise_fork(mesh, taken)
            if taken.new != len(known):
                raise StoreCorrupt(
                    f"the snapshot has commit {page.first} of {mesh} where {taken.number + 1} "
                    "should follow",
                    hint="make the snapshot again, and restore it into a new home",
                )
            outcomes += [one.outcome for one in taken.results]
        return outcomes

    def _note(self, tx: Transaction, place: _Progress) -> None:
        cursor: dict[str, Any] = msgspec.to_builtins(place)
        tx.job_put(JobRow(name=JOB, cursor=cursor, updated_at=self._engine.ctx.now_ms()))

    # --- the end -----------------------------------------------------------------------------

    def _end(self, tx: Transaction) -> None:
        place, manifest = self._place, self._manifest
        if (place.rows, place.total) != (manifest.rows, manifest.content):
            raise StoreCorrupt(
                f"{place.rows} envelopes are in, and they are not the {manifest.rows} that the "
                "snapshot says it holds",
                hint="make the snapshot again, and restore it into a new home",
            )
        for mesh, number in commits_of(manifest).items():
            standing = tx.quorum_get(mesh)
            if standing is None or standing.number != number:
                raise StoreCorrupt(
                    f"{mesh} does not stand at commit {number}, as the snapshot says",
                    hint="make the snapshot again, and restore it into a new home",
                )
        if self._new and not place.refused:
            stored = log_sum(tx, manifest.meshes)
            if sum_text(stored) != manifest.content:
                raise StoreCorrupt(
                    "what was stored is not what the snapshot holds",
                    hint="look at the disk; then restore into a new home",
                )
        for mesh, point in manifest.meshes.items():
            if point.forgotten:
                tx.forget_below(mesh, point.forgotten)
        remember(tx, manifest, self._engine.ctx.now_ms())
        tx.job_drop(JOB)

    def _report(
        self, home: Path, checked: bool, resumed_after: int, tx: Reader
    ) -> SnapshotRestored:
        missing = 0
        first: list[str] = []
        for row in blob_rows(tx):
            if row.released_at is None and not self._engine.blobs.exists(row.sha256):
                missing += 1
                first += [row.sha256] if missing <= _NAMED_MAX else []
        manifest = self._manifest
        return SnapshotRestored(
            home=home,
            peer=self._engine.ctx.peer,
            meshes=tuple(sorted(manifest.meshes)),
            rows=manifest.rows,
            counts=self._place.counts,
            refused=tuple(self._place.refused),
            head=tx.log_bounds()[1],
            signed_by=manifest.signer,
            checked=checked,
            logs={place.log: (place.epoch, place.offset) for place in manifest.logs},
            missing=missing,
            missing_objects=tuple(first),
            resumed_after=resumed_after,
        )


def _counted(before: dict[str, int], outcomes: list[Outcome | None]) -> dict[str, int]:
    counts = dict(before)
    for outcome in outcomes:
        name = "refused" if outcome is None else outcome.value
        counts[name] = counts.get(name, 0) + 1
    return counts


def _refusals(applied: Sequence[Applied]) -> list[RefusedEnvelope]:
    return [
        RefusedEnvelope(envelope.id, envelope.error.code, envelope.error.message)
        for envelope in applied
        if envelope.error is not None
    ]
