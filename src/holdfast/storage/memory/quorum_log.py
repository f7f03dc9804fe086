"""The Raft logs of a node in dictionaries, for tests, models and simulations.

It keeps what its twin in `storage/sqlite/quorum` keeps, by the same rules
(`rules/quorum/log_saves`), as long as the object lives: every call is judged first and done after
that, so nothing has to be undone. A submitted write is answered before `submit` returns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from blake3 import blake3
from msgspec.structs import replace

from holdfast.rules.errors import (
    AlreadyExists,
    HoldfastError,
    LogMismatch,
    OverLimit,
    StoreClosed,
    StoreCorrupt,
    Truncated,
    UnknownGroup,
)
from holdfast.rules.limits import QUORUM_PART_BYTES_MAX
from holdfast.rules.quorum.log_rows import (
    CONFIG_KIND,
    TAKES_PART,
    BoundaryRow,
    EntryRow,
    GroupRow,
    GroupWrite,
    HardStateRow,
    LogHead,
    QuorumSnapshot,
    SaveAnswer,
    SavedWrite,
    SnapshotIntake,
    Standing,
    TermRun,
)
from holdfast.rules.quorum.log_saves import (
    after_compaction,
    after_install,
    after_write,
    check_fresh_voter,
    check_identity,
    check_snapshot,
    check_takes_part,
    founded,
)
from holdfast.storage.quorum_port import Answer, LogState


class _Group:
    """One group and its log; the entry with index `head.first` stands first."""

    def __init__(self, row: GroupRow, head: LogHead, config: bytes) -> None:
        self.row, self.head, self.config = row, head, config
        self.entries: list[EntryRow] = []
        self.intake: SnapshotIntake | None = None
        self.parts: dict[int, bytes] = {}

    def term_at(self, index: int) -> int | None:
        head = self.head
        if index == head.base:
            return head.base_term
        if not head.base < index <= head.last:
            return None
        return self.entries[index - head.first].term

    def drop_intake(self) -> None:
        self.intake, self.parts = None, {}

    def saved(self) -> SavedWrite:
        head = self.head
        return SavedWrite(
            scope=self.row.scope, number=head.written, last=head.last, last_term=head.last_term
        )


class MemoryQuorumLog:
    """The Raft logs of all groups of a node, until it is gone."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._used: dict[str, set[int]] = {}
        self._state: LogState = "open"
        self._lock = threading.RLock()

    @property
    def state(self) -> LogState:
        return self._state

    def close(self) -> None:
        self._state = "closed"

    @contextmanager
    def _at(self, scope: str) -> Iterator[_Group]:
        with self._open():
            found = self._groups.get(scope)
            if found is None:
                raise UnknownGroup(f"this node has no group {scope!r}")
            yield found

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._state != "open":
                raise StoreClosed("the Raft logs are closed")
            yield

    # --- groups --------------------------------------------------------------------------------

    def groups(self) -> list[GroupRow]:
        with self._open():
            return [self._groups[scope].row for scope in sorted(self._groups)]

    def group(self, scope: str) -> GroupRow:
        with self._at(scope) as group:
            return group.row

    def voters_used(self, scope: str) -> frozenset[int]:
        with self._at(scope):
            return frozenset(self._used[scope])

    def init(self, scope: str, *, tag: bytes, voter: int, config: bytes) -> GroupRow:
        check_identity(tag, voter, 1)
        with self._open():
            if scope in self._groups:
                raise AlreadyExists(
                    f"there is or was a group of {scope!r} here", hint="a scope is begun once"
                )
            row = GroupRow(scope=scope, incarnation=1, tag=tag, voter=voter, standing="voter")
            return self._add(row, LogHead(), config)

    def found(
        self, scope: str, *, incarnation: int, tag: bytes, voter: int, config: bytes, term: int
    ) -> GroupRow:
        row = GroupRow(scope=scope, incarnation=incarnation, tag=tag, voter=voter, standing="voter")
        with self._open():
            old = self._groups.get(scope)
            if old is not None and old.row.tag == tag:
                return old.row
            before = None if old is None else (old.row, old.head)
            head = founded(row, before, self._used.get(scope, ()), term)
            return self._add(row, head, config)

    def join(self, scope: str, *, incarnation: int, tag: bytes, voter: int) -> GroupRow:
        check_identity(tag, voter, incarnation)
        with self._open():
            check_fresh_voter(scope, voter, self._used.get(scope, ()))
            row = GroupRow(
                scope=scope, incarnation=incarnation, tag=tag, voter=voter, standing="learner"
            )
            old = self._groups.get(scope)
            if old is None:
                return self._add(row, LogHead(), b"")
            if old.row.standing in TAKES_PART:
                raise AlreadyExists(
                    f"this node is {old.row.standing} {old.row.voter} of {scope!r}",
                    hint="remove that one first",
                )
            if incarnation < old.row.incarnation:
                raise LogMismatch(f"{scope} is in incarnation {old.row.incarnation} here")
            head = LogHead(term=old.head.term, vote=old.head.vote, written=old.head.written)
            return self._add(row, head, b"")

    def _add(self, row: GroupRow, head: LogHead, config: bytes) -> GroupRow:
        self._groups[row.scope] = _Group(row, head, config)
        self._used.setdefault(row.scope, set()).add(row.voter)
        return row

    def set_standing(self, scope: str, voter: int, standing: Standing, reason: str = "") -> None:
        with self._at(scope) as group:
            if (group.row.voter, group.row.standing) == (voter, standing):
                return
            check_takes_part(group.row, voter)
            reason = (reason or "its driver says so") if standing == "must_rejoin" else ""
            group.row = replace(group.row, standing=standing, reason=reason)

    def begin_incarnation(
        self, scope: str, *, incarnation: int, tag: bytes, voter: int
    ) -> GroupRow:
        check_identity(tag, voter, incarnation)
        with self._at(scope) as group:
            check_takes_part(group.row, group.row.voter)
            check_fresh_voter(scope, voter, self._used[scope])
            if incarnation <= group.row.incarnation:
                raise LogMismatch(f"{scope} is in incarnation {group.row.incarnation} already")
            group.row = replace(group.row, incarnation=incarnation, tag=tag, voter=voter)
            self._used[scope].add(voter)
            return group.row

    # --- writes --------------------------------------------------------------------------------

    def save(self, write: GroupWrite) -> SavedWrite:
        with self._at(write.scope) as group:
            before = group.head
            group.head = after_write(group.row, before, write, group.term_at)
            if write.cut_from is not None:
                del group.entries[write.cut_from - before.first :]
            group.entries.extend(write.entries)
            return group.saved()

    def submit(self, writes: Sequence[GroupWrite], answer: Answer) -> int:
        answers = []
        for write in writes:
            try:
                answers.append(SaveAnswer(write=write, saved=self.save(write)))
            except HoldfastError as error:
                answers.append(SaveAnswer(write=write, error=error))
        if answers:
            answer(answers)
        return len(answers)

    def save_at_once(self, write: GroupWrite) -> SaveAnswer | None:
        return None  # There is no thread that it would spare.

    def oldest_unsynced_ms(self) -> int | None:
        return None

    # --- the log -------------------------------------------------------------------------------

    def head(self, scope: str) -> LogHead:
        with self._at(scope) as group:
            return group.head

    def boundary(self, scope: str) -> BoundaryRow:
        with self._at(scope) as group:
            head = group.head
            return BoundaryRow(index=head.base, term=head.base_term, config=group.config)

    def term_at(self, scope: str, index: int) -> int | None:
        with self._at(scope) as group:
            return group.term_at(index)

    def term_runs(self, scope: str) -> list[TermRun]:
        with self._at(scope) as group:
            runs: list[TermRun] = []
            for entry in group.entries:
                first = entry.index
                if runs and runs[-1].term == entry.term:
                    first = runs.pop().first
                runs.append(TermRun(first=first, last=entry.index, term=entry.term))
            return runs

    def entries(self, scope: str, start: int, end: int, bytes_max: int) -> list[EntryRow]:
        with self._at(scope) as group:
            first = group.head.first
            if start < first:
                raise Truncated(
                    f"entry {start} of {scope} stands in the snapshot", first_available=first
                )
            found: list[EntryRow] = []
            size = 0
            for entry in group.entries[start - first : max(0, end - first)]:
                size += len(entry.payload)
                if found and size > bytes_max:
                    break
                found.append(entry)
            return found

    def configs(self, scope: str) -> list[EntryRow]:
        with self._at(scope) as group:
            return [entry for entry in group.entries if entry.kind == CONFIG_KIND]

    def compact(self, scope: str, index: int, config: bytes) -> None:
        with self._at(scope) as group:
            before = group.head
            group.head = after_compaction(group.row, before, index, group.term_at)
            group.config = config
            del group.entries[: index - before.base]

    # --- a snapshot that comes in ----------------------------------------------------------------

    def intake(self, scope: str) -> SnapshotIntake | None:
        with self._at(scope) as group:
            return group.intake

    def intake_part(self, scope: str, offset: int) -> bytes:
        with self._at(scope) as group:
            return group.parts.get(offset, b"")

    def intake_begin(self, scope: str, voter: int, snapshot: QuorumSnapshot) -> int:
        with self._at(scope) as group:
            check_snapshot(group.row, group.head, snapshot, voter)
            if group.intake is None or group.intake.snapshot != snapshot:
                group.drop_intake()
                group.intake = SnapshotIntake(snapshot=snapshot, received=0, installed=False)
            return group.intake.received

    def intake_add(self, scope: str, offset: int, content: bytes) -> int:
        if len(content) > QUORUM_PART_BYTES_MAX:
            raise OverLimit(f"a part of {len(content)} bytes; {QUORUM_PART_BYTES_MAX} may be")
        with self._at(scope) as group:
            intake = _coming_in(group)
            received = intake.received + len(content)
            if intake.installed or offset != intake.received or received > intake.snapshot.size:
                raise LogMismatch(
                    f"a snapshot of {scope} is here up to byte {intake.received} of "
                    f"{intake.snapshot.size}: {len(content)} bytes from {offset} on do not follow"
                )
            if content:
                group.parts[offset] = content
                group.intake = replace(intake, received=received)
            return received

    def intake_install(
        self, scope: str, voter: int, number: int, hard: HardStateRow | None = None
    ) -> SavedWrite:
        with self._at(scope) as group:
            intake = _coming_in(group)
            snapshot = intake.snapshot
            if intake.received != snapshot.size:
                raise LogMismatch(
                    f"of a snapshot of {scope} {intake.received} of {snapshot.size} bytes are here"
                )
            if blake3(b"".join(group.parts.values())).digest() != snapshot.digest:
                group.drop_intake()
                raise StoreCorrupt(
                    f"a snapshot of {scope} is not what was announced",
                    hint="it has to come in again",
                )
            before = group.head
            judge = partial(after_install, group.row, before, snapshot, voter, number)
            group.head, stays = judge(group.term_at, hard)
            group.entries = group.entries[snapshot.index - before.base :] if stays else []
            group.config, group.intake = snapshot.config, replace(intake, installed=True)
            return group.saved()

    def intake_drop(self, scope: str) -> None:
        with self._at(scope) as group:
            group.drop_intake()


def _coming_in(group: _Group) -> SnapshotIntake:
    if group.intake is None:
        raise LogMismatch(f"no snapshot of {group.row.scope} is coming in", hint="begin it")
    return group.intake
