"""What the rows of a snapshot of committed state may be, one by one and beside each other.

A row that is taken in is shown, compared, counted and folded upon later like one that this node has
made, so it must be one that it could have made: names and sizes within their limits, fields that an
entity of this type may have, fences and numbers no newer than the snapshot's, keys that only grow.
Whether it is the right row only the order could tell, and that is gone: the giver is a voter, whom
this node believes what it commits too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from holdfast.rules import ids, limits, names
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import BadQuorumSnapshot, Refused
from holdfast.rules.order import Version
from holdfast.rules.quorum.commit_record import CommitRecord, decode_record
from holdfast.rules.quorum.entities import (
    check_given,
    check_name,
    check_result,
    check_type,
    parent_of,
    read_fields,
    refuse_inexact,
)
from holdfast.rules.quorum.fence import FenceToken, check_newer, check_order
from holdfast.rules.quorum.intents import TURN_KINDS, check_lease_name, check_ttl
from holdfast.rules.quorum.state_rows import LOST, RevisionRow, WaitingConflict
from holdfast.rules.quorum.view import EntityRow, LeaseRow, NodeRow
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus

_CLASHES: Final = frozenset({"moved", "ahead", "covered"})


@contextmanager
def _as_row(what: str) -> Iterator[None]:
    """Errors of the rules, as errors of a snapshot."""
    try:
        yield
    except BadQuorumSnapshot:
        raise
    except (Refused, ValueError, TypeError, KeyError) as error:
        why = error.message if isinstance(error, Refused) else str(error)
        raise BadQuorumSnapshot(f"{what}: {why[: limits.REASON_CHARS_MAX]}") from None


class SnapshotRules:
    """Looks at the rows of one snapshot in their order."""

    def __init__(self, mesh: str, number: int, fence: FenceToken | None, committed_at: int) -> None:
        self._mesh, self._number = mesh, number
        self._fence, self._committed_at = fence, committed_at
        self._commits = 0
        self._last_record: CommitRecord | None = None
        self._keys: dict[str, Any] = {}

    # --- one by one --------------------------------------------------------------------------

    def commit(self, raw_record: bytes, raw: bytes | None) -> tuple[CommitRecord, Envelope | None]:
        with _as_row(f"commit {self._commits + 1}"):
            record = decode_record(raw_record)
            self._commits += 1
            if (record.mesh, record.number) != (self._mesh, self._commits):
                raise BadQuorumSnapshot(
                    f"commit {record.number} of {record.mesh!r} where {self._commits} belongs"
                )
            last = self._last_record
            check_newer(None if last is None else last.fence, record.fence, "a commit")
            self._last_record = record
            if raw is None:
                _check(record.number < LOST, "it is too late to be without an envelope")
                return record, None
            envelope = decode(raw)
            if (envelope.id, envelope.mesh, envelope.fingerprint) != (
                record.id,
                record.mesh,
                record.fingerprint,
            ):
                raise BadQuorumSnapshot("the record is not that of its envelope")
            return record, envelope

    def end_of_commits(self) -> None:
        """All of them were here, and the last is where the snapshot stands."""
        last = self._last_record
        there = (0, None, 0) if last is None else (last.number, last.fence, last.committed_at)
        if there != (self._number, self._fence, self._committed_at):
            raise BadQuorumSnapshot(
                f"a snapshot of {self._number} commits has records of {self._commits}"
            )

    def entity(self, row: EntityRow) -> None:
        with _as_row(f"the {row.type} {row.id!r}"):
            check_type(row.type)
            check_name(row.type, row.id)
            self._grows("entity", (row.type, row.id.encode()))
            self._check_fence(row.fence)
            names.check_peer(row.origin)
            _check(row.revision > 0, "its revision is below 1")
            fields = read_fields(row.fields)
            _check(isinstance(fields, dict), "its fields are no object")
            if row.deleted:
                _check(row.fields == b"{}" and not row.parent and row.whole, "deleted, with fields")
                return
            check_given(row.type, fields, whole=True)
            check_result(row.type, fields, row.fields)
            refuse_inexact(row.fields, fields)
            _check(row.parent == parent_of(row.type, row.id, fields), "it has another parent")

    def revision(self, row: RevisionRow) -> None:
        with _as_row(f"revision {row.revision} of the {row.type} {row.id!r}"):
            check_type(row.type)
            check_name(row.type, row.id)
            key = (row.type, row.id.encode(), row.revision)
            before = self._keys.get("revision")
            self._grows("revision", key)
            last = before[2] if before is not None and before[:2] == key[:2] else 0
            _check(row.revision == last + 1, "one before it is missing")
            self._check_number(row.number)

    def void(self, id: bytes, number: int) -> None:
        with _as_row(f"the void {id.hex()}"):
            ids.check_id(id)
            self._grows("void", id)
            self._check_number(number)

    def lease(self, row: LeaseRow) -> None:
        with _as_row(f"the lease {row.name!r}"):
            check_lease_name(row.name)
            self._grows("lease", row.name.encode())
            _check(row.grant is not None and row.renewed is not None, "nobody granted it")
            self._check_fence(row.grant)
            self._check_fence(row.renewed)
            _check(len(row.waiting) <= limits.LEASE_WAITERS_MAX, "too many wait for it")
            sessions = [row.session]
            for holder, session, ttl_ms in [
                (row.holder, row.session, row.ttl_ms),
                *((one.holder, one.session, one.ttl_ms) for one in row.waiting),
            ]:
                names.check_peer(holder)
                ids.check_id(session)
                check_ttl(ttl_ms)
                sessions.append(session)
            _check(len(set(sessions)) == len(sessions) - 1, "somebody waits twice")

    def node(self, row: NodeRow) -> None:
        with _as_row(f"the node {row.peer!r}"):
            names.check_peer(row.peer)
            self._grows("node", row.peer.encode())
            self._check_fence(row.fence)

    def conflict(self, row: WaitingConflict) -> None:
        with _as_row(f"the conflict of commit {row.number}"):
            self._grows("conflict", row.number)
            self._check_number(row.number)
            _check(bool(row.clashes), "it clashes with nothing")
            _check(len(row.clashes) <= limits.INTENT_OPERATIONS_MAX, "it has too many clashes")
            names.check_key(row.resolution or "-", "resolution")
            for clash in row.clashes:
                check_type(clash.type)
                check_name(clash.type, clash.id)
                _check(clash.kind in _CLASHES, "it clashes in no way that we know")
                for field in clash.fields:
                    names.check_key(field, "name of a field")

    def task(self, row: TaskRow) -> None:
        with _as_row(f"the task {row.task!r}"):
            names.check_key(row.task, "task")
            self._grows("task", row.task.encode())
            _check_texts(row.title, row.description)
            if row.created_by:
                names.check_peer(row.created_by)
            _check(row.status is not TaskStatus.CLAIMED or row.holder is not None, "nobody has it")
            for version in (row.holder, row.ended, row.last):
                _check_version(version)

    def turn(self, row: TaskEventRow) -> None:
        with _as_row(f"a turn of the task {row.task!r}"):
            names.check_key(row.task, "task")
            self._grows("turn", (row.task.encode(), row.place, _order(row.version)))
            _check_texts(row.title, row.description)
            _check(row.kind in TURN_KINDS, "it is no turn that we know")
            _check(row.place <= 2 * self._number + 1, "it was committed later")
            standing = row.standing
            held = () if standing is None else (standing.holder, standing.ended)
            for version in (row.version, row.against, *held):
                _check_version(version)

    # --- inside ------------------------------------------------------------------------------

    def _grows(self, kind: str, key: Any) -> None:
        before = self._keys.get(kind)
        _check(before is None or before < key, "it stands there twice, or out of order")
        self._keys[kind] = key

    def _check_number(self, number: int) -> None:
        _check(1 <= number <= self._number, f"it is of commit {number}, of {self._number}")

    def _check_fence(self, token: FenceToken | None) -> None:
        if token is None:
            return
        check_order(token.order)
        names.check_peer(token.coordinator)
        _check(self._fence is not None and token.order <= self._fence.order, "its fence is newer")


def check_last_revision(
    row: EntityRow, revisions: Sequence[RevisionRow], record: CommitRecord | None
) -> None:
    """An entity stands at its last revision, as the commit says that made it. `revisions` are those
    from its own on.
    """
    with _as_row(f"the {row.type} {row.id!r}"):
        _check([one.revision for one in revisions] == [row.revision], "it is not the last revision")
        (last,) = revisions
        _check((last.deleted, last.whole) == (row.deleted, row.whole), "its last revision differs")
        _check(record is not None, "no commit made it")
        assert record is not None
        made = {(one.type, one.id, one.revision) for one in record.revisions}
        _check((row.type, row.id, row.revision) in made, "the commit that made it does not say so")
        _check(
            (record.fence, record.committed_at) == (row.fence, row.committed_at),
            "it has another fence or time than the commit that made it",
        )


def _check(holds: bool, why: str) -> None:
    if not holds:
        raise BadQuorumSnapshot(why)


def _check_texts(title: str, description: str) -> None:
    """As long as a body may be, and text that can be written down."""
    size = len(title.encode()) + len(description.encode())
    _check(size <= limits.ENVELOPE_BYTES_MAX, "its text is too long")


def _check_version(version: Version | None) -> None:
    if version is None:
        return
    _check(0 < version.lamport < limits.LAMPORT_MAX, "a stamp that no clock can show")
    names.check_peer(version.peer)
    ids.check_id(version.id)


def _order(version: Version) -> tuple[int, bytes, bytes]:
    return version.lamport, version.peer.encode(), version.id
