"""The rows of the Raft logs, changed: the inside of one transaction of the writer.

Every step first asks `rules.quorum.log_saves` whether it fits, and changes rows after that. What
was read of the groups is kept between transactions, since only this connection writes, and read
again after something was undone.

Entries and heads of a transaction are written together, by `flush`: many writes of a group make one
statement for their entries and one for the head of the log.

Rows are dropped in two steps. The first moves the base of a log or gives its number up, which is
one row. The second (`sweep`) removes rows that nobody reads any more, few at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.rules.errors import AlreadyExists, LogMismatch, OverLimit
from holdfast.rules.limits import QUORUM_PART_BYTES_MAX, QUORUM_SWEEP_BYTES, QUORUM_SWEEP_ROWS
from holdfast.rules.quorum.log_rows import (
    TAKES_PART,
    EntryRow,
    GroupRow,
    GroupWrite,
    HardStateRow,
    LogHead,
    QuorumSnapshot,
    SavedWrite,
    SnapshotIntake,
    Standing,
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
from holdfast.storage.sqlite.connection import refusing
from holdfast.storage.sqlite.quorum.rows import (
    DAMAGED_HEAD,
    INDEX_BITS,
    Card,
    QuorumRows,
    config_sum,
    entry_sum,
    head_sum,
    part_sum,
    unknown,
)

_HEAD: Final = (
    "INSERT INTO head VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "term = excluded.term, vote = excluded.vote, commit_index = excluded.commit_index, "
    "written = excluded.written, base = excluded.base, base_term = excluded.base_term, "
    "last = excluded.last, last_term = excluded.last_term, sum = excluded.sum"
)
_GROUP: Final = (
    "INSERT INTO quorum_group VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "incarnation = excluded.incarnation, tag = excluded.tag, entry_tag = excluded.entry_tag, "
    "voter = excluded.voter, standing = excluded.standing, reason = excluded.reason, "
    "number = excluded.number"
)
_SWEPT: Final = ("entry", "run", "intake_part")


class QuorumWrites(QuorumRows):
    """What a write may do. `promised` says whether something was changed that must stand in the
    mark before anybody is answered.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._once = connection.cursor()
        self._known: dict[str, Card] | None = None
        """All groups; None when they have to be read again."""
        self._new_entries: list[tuple[int, int, int, bytes, bytes]] = []
        self._new_heads: dict[str, Card] = {}
        """What `flush` writes."""
        self.promised = False
        self.written = 0
        """Writes in this transaction."""

    def disown(self) -> None:
        self._con = self._once = refusing()

    def start(self) -> None:
        self.promised, self.written = False, 0

    def forget(self) -> None:
        """What is known of the groups may have been undone."""
        self._known = None
        self._new_entries.clear()
        self._new_heads.clear()

    def flush(self) -> None:
        """Writes what is still to be written: before the commit, a savepoint, or another look."""
        if self._new_entries:
            self._once.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", self._new_entries)
            self._new_entries.clear()
        for card in self._new_heads.values():
            head = msgspec.structs.astuple(card.head)
            self._once.execute(_HEAD, (card.id, *head, head_sum(card)))
        self._new_heads.clear()

    def cards(self) -> dict[str, Card]:
        if self._known is None:
            self._known = super().cards()
        return self._known

    def card(self, scope: str) -> Card:
        found = self.cards().get(scope)
        if found is None:
            raise unknown(scope)
        return found

    def note(self, name: str, value: object) -> None:
        self._con.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (name, value),
        )

    # --- groups --------------------------------------------------------------------------------

    def init(self, scope: str, tag: bytes, voter: int, config: bytes) -> GroupRow:
        check_identity(tag, voter, 1)
        if scope in self.cards():
            raise AlreadyExists(
                f"there is or was a group of {scope!r} here", hint="a scope is begun once"
            )
        check_fresh_voter(scope, voter, self.voters_used(scope))
        group = GroupRow(scope=scope, incarnation=1, tag=tag, voter=voter, standing="voter")
        return self.add(group, LogHead(), config)

    def found(self, group: GroupRow, config: bytes, term: int) -> GroupRow:
        old = self.cards().get(group.scope)
        if old is not None and old.group.tag == group.tag:
            return old.group
        before = None if old is None else (old.group, old.head)
        head = founded(group, before, self.voters_used(group.scope), term)
        if old is None:
            return self.add(group, head, config)
        self.intake_drop(group.scope)
        self._give_up(old.number)
        return self.add(group, head, config, id_=old.id)

    def join(self, scope: str, incarnation: int, tag: bytes, voter: int) -> GroupRow:
        check_identity(tag, voter, incarnation)
        check_fresh_voter(scope, voter, self.voters_used(scope))
        group = GroupRow(
            scope=scope, incarnation=incarnation, tag=tag, voter=voter, standing="learner"
        )
        old = self.cards().get(scope)
        if old is None:
            return self.add(group, LogHead())
        if old.group.standing in TAKES_PART:
            raise AlreadyExists(
                f"this node is {old.group.standing} {old.group.voter} of {scope!r}",
                hint="remove that one first",
            )
        if incarnation < old.group.incarnation:
            raise LogMismatch(f"{scope} is in incarnation {old.group.incarnation} here")
        head = LogHead(term=old.head.term, vote=old.head.vote, written=old.head.written)
        self.intake_drop(scope)
        self._give_up(old.number)
        return self.add(group, head, id_=old.id)

    def add(
        self, group: GroupRow, head: LogHead, config: bytes = b"", *, id_: int | None = None
    ) -> GroupRow:
        """A group whose log begins here."""
        if id_ is None:
            id_ = 1 + max((card.id for card in self.cards().values()), default=0)
        card = Card(id_, self._next_number(), group.tag, group, head)
        self._put_group(card)
        self._put_boundary(card, config)
        return group

    def set_standing(self, scope: str, voter: int, standing: Standing, reason: str) -> None:
        card = self.card(scope)
        if (card.group.voter, card.group.standing) == (voter, standing):
            return
        check_takes_part(card.group, voter)
        reason = (reason or "its driver says so") if standing == "must_rejoin" else ""
        self._put_group(card._replace(group=replace(card.group, standing=standing, reason=reason)))

    def begin_incarnation(self, scope: str, incarnation: int, tag: bytes, voter: int) -> GroupRow:
        check_identity(tag, voter, incarnation)
        card = self.card(scope)
        check_takes_part(card.group, card.group.voter)
        check_fresh_voter(scope, voter, self.voters_used(scope))
        if incarnation <= card.group.incarnation:
            raise LogMismatch(f"{scope} is in incarnation {card.group.incarnation} already")
        group = replace(card.group, incarnation=incarnation, tag=tag, voter=voter)
        self._put_group(card._replace(group=group))
        return group

    def condemn(self, scope: str, reason: str, head: LogHead | None = None) -> None:
        """The group must rejoin. Its log stays as it is."""
        card = self.card(scope)
        if card.group.standing in TAKES_PART or card.group.reason == DAMAGED_HEAD:
            group = replace(card.group, standing="must_rejoin", reason=reason)
            self._put_group(card._replace(group=group, head=head or card.head))

    def _put_group(self, card: Card) -> None:
        group = card.group
        self._con.execute(
            _GROUP,
            (
                *(card.id, group.scope, group.incarnation, group.tag, card.entry_tag),
                *(group.voter, group.standing, group.reason, card.number),
            ),
        )
        self.note_voter(group.scope, group.voter)
        self._put_head(card)
        self.promised = True

    def note_voter(self, scope: str, voter: int) -> None:
        """This node has, or had, this id: it is never used again."""
        self._con.execute("INSERT OR IGNORE INTO used_voter VALUES (?, ?)", (scope, voter))

    def _put_head(self, card: Card) -> None:
        self.cards()[card.group.scope] = self._new_heads[card.group.scope] = card

    def _put_boundary(self, card: Card, config: bytes) -> None:
        self._con.execute(
            "INSERT OR REPLACE INTO boundary VALUES (?, ?, ?)",
            (card.id, config, config_sum(card, config)),
        )

    def _next_number(self) -> int:
        number = int(self.meta("numbers") or 0) + 1
        self.note("numbers", number)
        return number

    # --- the log -------------------------------------------------------------------------------

    def save(self, write: GroupWrite) -> SavedWrite:
        card = self.card(write.scope)
        before = card.head
        head = after_write(card.group, before, write, partial(self.term_at, card))
        kept_term, kept = before.last_term, before.last
        if write.cut_from is not None and write.cut_from <= before.last:
            kept = write.cut_from - 1
            kept_term = self.term_at(card, kept) or 0
            self.flush()
            span = (card.place(write.cut_from), card.end)
            self._once.execute("DELETE FROM entry WHERE place BETWEEN ? AND ?", span)
            self._once.execute("DELETE FROM run WHERE place BETWEEN ? AND ?", span)
        if write.entries:
            # After an empty log a run begins in any case: an older one may be swept.
            self._append(card, write.entries, kept_term if kept > before.base else -1)
        self._put_head(card._replace(head=head))
        self.promised |= (head.term, head.vote) != (before.term, before.vote)
        self.written += 1
        return _saved(card, head)

    def _append(self, card: Card, entries: Sequence[EntryRow], term: int) -> None:
        tag, base = card.entry_tag, card.place(0)
        self._new_entries += [
            (base | e.index, e.term, e.kind, e.payload, entry_sum(tag, e)) for e in entries
        ]
        for entry in entries:
            if entry.term != term:
                term = entry.term
                self._once.execute(
                    "INSERT OR REPLACE INTO run VALUES (?, ?)", (base | entry.index, term)
                )

    def compact(self, scope: str, index: int, config: bytes) -> None:
        card = self.card(scope)
        head = after_compaction(card.group, card.head, index, partial(self.term_at, card))
        card = card._replace(head=head)
        self._put_head(card)
        self._put_boundary(card, config)

    # --- a snapshot that comes in ----------------------------------------------------------------

    def intake_begin(self, scope: str, voter: int, snapshot: QuorumSnapshot) -> int:
        card = self.card(scope)
        check_snapshot(card.group, card.head, snapshot, voter)
        found = self.intake(card)
        if found is not None and found[1].snapshot == snapshot:
            return found[1].received
        self.intake_drop(scope)
        s = snapshot
        self._con.execute(
            "INSERT INTO intake VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
            (card.id, self._next_number(), s.index, s.term, s.config, s.size, s.digest),
        )
        return 0

    def intake_add(self, scope: str, offset: int, content: bytes) -> int:
        if len(content) > QUORUM_PART_BYTES_MAX:
            raise OverLimit(f"a part of {len(content)} bytes; {QUORUM_PART_BYTES_MAX} may be")
        card = self.card(scope)
        number, intake = self._intake_here(card)
        received = intake.received + len(content)
        if intake.installed or offset != intake.received or received > intake.snapshot.size:
            raise LogMismatch(
                f"a snapshot of {scope} is here up to byte {intake.received} of "
                f"{intake.snapshot.size}: {len(content)} bytes from {offset} on do not follow"
            )
        if content:
            place = number << INDEX_BITS | offset
            self._con.execute(
                "INSERT INTO intake_part VALUES (?, ?, ?)", (place, content, part_sum(content))
            )
            self._con.execute("UPDATE intake SET received = ? WHERE id = ?", (received, card.id))
        return received

    def intake_install(
        self,
        scope: str,
        voter: int,
        write: int,
        expected: QuorumSnapshot | None,
        hard: HardStateRow | None = None,
    ) -> SavedWrite:
        """`expected` is what the caller has found to be whole."""
        card = self.card(scope)
        _, intake = self._intake_here(card)
        snapshot = intake.snapshot
        if snapshot != expected or intake.received != snapshot.size:
            raise LogMismatch(
                f"of a snapshot of {scope} {intake.received} of {snapshot.size} bytes are here"
            )
        head, stays = after_install(
            card.group, card.head, snapshot, voter, write, partial(self.term_at, card), hard
        )
        if not stays:
            self._give_up(card.number)
            card = card._replace(number=self._next_number())
        card = card._replace(head=head)
        self._put_group(card)
        self._put_boundary(card, snapshot.config)
        self._con.execute("UPDATE intake SET installed = 1 WHERE id = ?", (card.id,))
        self.written += 1
        return _saved(card, head)

    def intake_drop(self, scope: str) -> None:
        card = self.card(scope)
        found = self.intake(card)
        if found is not None:
            self._give_up(found[0])
            self._con.execute("DELETE FROM intake WHERE id = ?", (card.id,))

    # --- what nobody reads any more --------------------------------------------------------------

    def _give_up(self, number: int) -> None:
        self._con.execute("INSERT OR IGNORE INTO given_up VALUES (?)", (number,))

    def sweep(self, scope: str) -> bool:
        """Removes a few rows: of this log those before its base, and of logs that were given up.
        True if there may be more.
        """
        self.flush()
        card = self.card(scope)
        # Of the runs the one stays in which the first entry lies.
        last_run = self._con.execute(
            "SELECT max(place) FROM run WHERE place BETWEEN ? AND ?",
            (card.place(0), card.place(card.head.first)),
        ).get
        before = card.place(card.head.base)
        spans = [("entry", card.place(0), before)]
        if isinstance(last_run, int):
            spans.append(("run", card.place(0), last_run - 1))
        number = self._con.execute("SELECT min(number) FROM given_up").get
        if isinstance(number, int):
            whole = number << INDEX_BITS, (number + 1 << INDEX_BITS) - 1
            spans += [(table, *whole) for table in _SWEPT]
        for table, first, last in spans:
            if self._remove_some(table, first, last):
                return True
        self._con.execute("DELETE FROM given_up WHERE number = ?", (number,))
        return number is not None

    def _remove_some(self, table: str, first: int, last: int) -> bool:
        size = {"entry": "length(payload)", "run": "0", "intake_part": "length(content)"}[table]
        end, total = None, 0
        for place, length in self._con.execute(
            f"SELECT place, {size} FROM {table} WHERE place BETWEEN ? AND ? ORDER BY place LIMIT ?",
            (first, last, QUORUM_SWEEP_ROWS),
        ):
            total += length
            if end is not None and total > QUORUM_SWEEP_BYTES:
                break
            end = place
        if end is None:
            return False
        self._con.execute(f"DELETE FROM {table} WHERE place BETWEEN ? AND ?", (first, end))
        return True

    def _intake_here(self, card: Card) -> tuple[int, SnapshotIntake]:
        found = self.intake(card)
        if found is None:
            raise LogMismatch(f"no snapshot of {card.group.scope} is coming in", hint="begin it")
        return found


def _saved(card: Card, head: LogHead) -> SavedWrite:
    return SavedWrite(
        scope=card.group.scope, number=head.written, last=head.last, last_term=head.last_term
    )
