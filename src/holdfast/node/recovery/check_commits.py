"""Checks of the doctor about quorums: is what is committed here what the committed order makes?

By default some entities are compared with the commits that made them, and where this node stands
with the records that it keeps. On request the whole order is folded again and everything compared,
up to as many commits as fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.node.core.commit import CommitRun, CommittedEntry
from holdfast.node.core.committed_intake import CommitTrouble, commit_trouble
from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold_tasks import task_of
from holdfast.node.log.history import replay
from holdfast.node.recovery.check_log import REPAIR
from holdfast.node.recovery.checks import Check, fail, ok
from holdfast.rules import limits
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import CommitForked, HoldfastError, OrderContested
from holdfast.rules.quorum.commit_record import CommitRecord, decode_stored_record
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.quorum.view import EntityRevision, EntityRow
from holdfast.rules.rows import Entry, MeshRow
from holdfast.storage.files.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Reader, Transaction
from holdfast.storage.scans import log_entries, paged, task_rows

_DIVERGED: Final = (
    "this node and the voters run different rules, or it missed what came before the voters: "
    "upgrade it, then leave the mesh and join it again"
)


class _Again:
    """The clock and ids of a fold that makes nothing new."""

    def now_ms(self) -> int:
        return 0

    def new_id(self) -> bytes:
        raise AssertionError("folding again writes nothing of its own")


def check_commits(reader: Reader, peer: str, *, full: bool = False) -> Iterator[Check]:
    rows = reader.quorum_list()
    for row in rows:
        found = commit_faults(reader, peer, row, full=full)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield fail("commits", f"{row.mesh}: {found[0]}{more}", REPAIR)
        else:
            how = "make what is here" if full and _fits(reader, row) else "look right"
            yield ok("commits", f"{row.mesh}: {row.number} commits {how}")
        yield from _troubles(reader, row.mesh)


def _troubles(reader: Reader, mesh: str) -> Iterator[Check]:
    """What others have brought that is not what this node has, or would have made."""
    found = commit_trouble(reader, mesh)
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield fail(
            "commits",
            f"{mesh}: {first.kind} at commit {first.number}, as {first.source} has it: "
            f"{first.detail}{more}",
            _hint(first, mesh),
        )


def _hint(trouble: CommitTrouble, mesh: str) -> str:
    if trouble.by_voter:
        return (
            f"{OrderContested.default_hint}; if {trouble.source} is gone and this group goes on: "
            f"holdfast quorum forget-claim {trouble.source} --mesh {mesh}"
        )
    return CommitForked.default_hint if trouble.kind == "commit_forked" else _DIVERGED


def commit_faults(reader: Reader, peer: str, row: QuorumRow, *, full: bool) -> list[str]:
    """What is wrong with what is kept of the quorum of a mesh."""
    try:
        faults = [*_standing_faults(reader, row), *_sampled_faults(reader, row.mesh)]
        if full and not faults and _fits(reader, row):
            faults = _differences(reader, _folded_again(reader, peer, row), row.mesh)
    except HoldfastError as error:
        return [f"it cannot be read: {error.message}"]
    return faults


def _fits(reader: Reader, row: QuorumRow) -> bool:
    """Whether the whole order can be folded again."""
    if row.number > limits.DOCTOR_REPLAY_ROWS or reader.log_bounds()[0] != 1:
        return False
    return reader.commit_lowest() >= 0  # Else a snapshot brought records without envelopes.


def _standing_faults(reader: Reader, row: QuorumRow) -> Iterator[str]:
    newest = reader.commit_range(row.mesh, row.number, 2)
    if row.number == 0:
        if newest:
            yield "there are commit records, and the node says that nothing was committed"
        return
    if [one.number for one in newest] != [row.number]:
        yield f"the node says that it has folded {row.number} commits, and the records do not"
        return
    record = decode_stored_record(newest[0].record)
    if record.fence != row.fence:
        yield f"the fence {row.fence} is not the one of commit {row.number}, {record.fence}"


def _sampled_faults(reader: Reader, mesh: str) -> Iterator[str]:
    for type in ENTITY_TYPES:
        rows = reader.entity_list(mesh, type, "", limits.DOCTOR_SAMPLE_ROWS, live_only=False)
        for row in rows:
            if (fault := _entity_fault(reader, mesh, row)) is not None:
                yield fault


def _entity_fault(reader: Reader, mesh: str, row: EntityRow) -> str | None:
    what = f"{row.type} {row.id!r} at revision {row.revision}"
    revisions = reader.entity_revisions(mesh, row.type, row.id, row.revision - 1, 2)
    if [one.revision for one in revisions] != [row.revision]:
        return f"{what} is not the last one that was committed"
    commits = reader.commit_range(mesh, revisions[0].number, 1)
    if not commits or commits[0].number != revisions[0].number:
        return f"{what} was made by commit {revisions[0].number}, which has no record"
    record = decode_stored_record(commits[0].record)
    if EntityRevision(row.type, row.id, row.revision) not in record.revisions:
        return f"{what} is not in the record of commit {record.number}"
    if (record.fence, record.committed_at) != (row.fence, row.committed_at):
        return f"{what} has another fence or time than commit {record.number}"
    entry = reader.log_get(commits[0].offset)
    if entry is not None and (entry.id, entry.origin, entry.lamport) != (
        record.id,
        row.origin,
        row.lamport,
    ):
        return f"{what} was made at offset {entry.offset}, where the log has something else"
    return None


# --- all -----------------------------------------------------------------------------------------


def _folded_again(reader: Reader, peer: str, row: QuorumRow) -> MemoryStore:
    """The committed order of a mesh, folded into a store in memory after what stamps decided."""
    mesh = reader.mesh_get(row.mesh)
    assert mesh is not None, "the table says so"
    store = replay(_undecided(reader, row.mesh), [mesh], peer)
    ctx = NodeContext(peer, 1, _Again(), MemoryBlobs())
    commits = paged(
        lambda after: reader.commit_range(row.mesh, after + 1, limits.CHUNK_ROWS),
        lambda commit: commit.number,
        0,
    )
    for commit in commits:
        record = decode_stored_record(commit.record)
        store.write(lambda tx, record=record: _stand(tx, mesh, record))  # type: ignore[misc]
        entry = reader.log_get(commit.offset)
        raw = b"" if entry is None else entry.raw
        one = CommittedEntry(raw, record.fence, record.committed_at, commit.number)
        store.write(CommitRun(ctx, row.mesh, [one]))
    return store


def _undecided(reader: Reader, mesh: str) -> Iterator[Entry]:
    """The turns of tasks that stamps decided, before the mesh had voters."""
    first, head = reader.log_bounds()
    for entry in log_entries(reader, first, head + 1):
        if entry.mesh != mesh or not entry.op.startswith("task."):
            continue
        if decode_trusted(entry.raw).write_class != "strong":
            yield entry


def _stand(tx: Transaction, mesh: MeshRow, record: CommitRecord) -> None:
    """Makes room for the next entry, of whichever incarnation it is."""
    known = tx.quorum_get(mesh.slug)
    if known is None:
        tx.quorum_put(QuorumRow(mesh=mesh.slug, incarnation=record.fence.incarnation, tag=b""))
    elif known.incarnation != record.fence.incarnation:
        tx.quorum_put(msgspec.structs.replace(known, incarnation=record.fence.incarnation))


def _differences(reader: Reader, store: MemoryStore, mesh: str) -> list[str]:
    with store.read() as folded:
        return [
            *_commits_differ(reader, folded, mesh),
            *_entities_differ(reader, folded, mesh),
            *_others_differ(reader, folded, mesh),
        ]


def _commits_differ(reader: Reader, folded: Reader, mesh: str) -> Iterator[str]:
    at = 1
    while page := reader.commit_range(mesh, at, limits.CHUNK_ROWS):
        again = folded.commit_range(mesh, at, len(page))
        if [one.record for one in page] != [one.record for one in again]:
            yield f"of the commits from {at} on, one is recorded otherwise than it folds"
            return
        at = page[-1].number + 1


def _entities_differ(reader: Reader, folded: Reader, mesh: str) -> Iterator[str]:
    for type in ENTITY_TYPES:
        expected = {row.id: row for row in _entities(folded, mesh, type)}
        for row in _entities(reader, mesh, type):
            if expected.pop(row.id, None) != row:
                yield f"{type} {row.id!r} is not what the commits make of it"
        for id in expected:
            yield f"{type} {id!r} is missing"


def _entities(reader: Reader, mesh: str, type: str) -> Iterator[EntityRow]:
    yield from paged(
        lambda after: reader.entity_list(mesh, type, after, limits.CHUNK_ROWS, live_only=False),
        lambda row: row.id,
        "",
    )


def _others_differ(reader: Reader, folded: Reader, mesh: str) -> Iterator[str]:
    most = limits.DOCTOR_REPLAY_ROWS
    if reader.lease_list(mesh, "", most) != folded.lease_list(mesh, "", most):
        yield "the leases are not what the commits make of them"
    if reader.node_list(mesh) != folded.node_list(mesh):
        yield "the nodes that are lost are not those of the commits"
    for row in task_rows(reader, mesh):
        expected = folded.task_get(mesh, row.task)
        if expected is None or task_of(expected) != task_of(row):
            yield f"task {row.task} is not what the commits make of it"
