"""The rows of the Raft logs, read, with a look at each whether it is what was written.

An entry bears a BLAKE3 sum over the tag of its log, its index, term, kind and payload. The sums are
not chained: an entry that is missing is noticed because the indexes of a log have no gaps, and one
that stands there from an earlier time because its term differs from that of its run (in Raft, index
and term tell the content). So a read of a few entries can be believed without reading all before
them, and a truncation changes no row that stays. The head of a log bears a sum too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import apsw
import msgspec
from blake3 import blake3

from holdfast.rules.errors import EntryDamaged, StoreCorrupt, Truncated, UnknownGroup
from holdfast.rules.quorum.log_rows import (
    CONFIG_KIND,
    BoundaryRow,
    EntryRow,
    GroupRow,
    LogHead,
    QuorumSnapshot,
    SnapshotIntake,
    Standing,
    TermRun,
)
from holdfast.rules.quorum.log_saves import INDEX_MAX

INDEX_BITS: Final = 40
"""Of a place; the rest is the number of the log."""
SUM_BYTES: Final = 16
_ENTRY_HEAD: Final = struct.Struct(">QQB")
_LOAD: Final = (
    "SELECT g.id, g.number, g.entry_tag, g.scope, g.incarnation, g.tag, g.voter, g.standing, "
    "g.reason, h.sum, h.term, h.vote, h.commit_index, h.written, h.base, h.base_term, h.last, "
    "h.last_term FROM quorum_group AS g LEFT JOIN head AS h USING (id)"
)
_HINT: Final = "the group must rejoin; its rows are kept as they are"


class Card(NamedTuple):
    """One group with its log, as its rows say."""

    id: int
    number: int
    """Of the log; another one when the log is given up."""
    entry_tag: bytes
    group: GroupRow
    head: LogHead

    def place(self, index: int) -> int:
        return self.number << INDEX_BITS | index

    @property
    def end(self) -> int:
        """The last place that the log can have."""
        return self.place(INDEX_MAX)


def entry_sum(tag: bytes, entry: EntryRow) -> bytes:
    head = _ENTRY_HEAD.pack(entry.index, entry.term, entry.kind)
    return blake3(tag + head + entry.payload).digest(length=SUM_BYTES)


def head_sum(card: Card) -> bytes:
    group, head = card.group, card.head
    named = (card.id, card.number, card.entry_tag, msgspec.structs.astuple(group))
    content = msgspec.msgpack.encode((named, msgspec.structs.astuple(head)))
    return blake3(content).digest(length=SUM_BYTES)


def config_sum(card: Card, config: bytes) -> bytes:
    bound = _ENTRY_HEAD.pack(card.head.base, card.head.base_term, 0)
    return blake3(card.entry_tag + bound + config).digest(length=SUM_BYTES)


def part_sum(content: bytes) -> bytes:
    return blake3(content).digest(length=SUM_BYTES)


def damaged(scope: str, what: str) -> EntryDamaged:
    return EntryDamaged(f"{what} of the Raft log of {scope} is not what was written", hint=_HINT)


def unknown(scope: str) -> UnknownGroup:
    return UnknownGroup(f"this node has no group {scope!r}")


class QuorumRows:
    """What one connection sees."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._con = connection

    def cards(self) -> dict[str, Card]:
        """All groups, by scope."""
        cards = map(_card, self._con.execute(f"{_LOAD} ORDER BY g.scope"))
        return {card.group.scope: card for card in cards}

    def card(self, scope: str) -> Card:
        row = self._con.execute(f"{_LOAD} WHERE g.scope = ?", (scope,)).get
        if row is None:
            raise unknown(scope)
        return _card(cast("tuple[Any, ...]", row))

    def meta(self, name: str) -> Any:
        return self._con.execute("SELECT value FROM meta WHERE name = ?", (name,)).get

    def voters_used(self, scope: str) -> frozenset[int]:
        rows = self._con.execute("SELECT voter FROM used_voter WHERE scope = ?", (scope,))
        return frozenset(row[0] for row in rows)

    # --- the log -------------------------------------------------------------------------------

    def boundary(self, card: Card) -> BoundaryRow:
        row = cast(
            "tuple[bytes, bytes] | None",
            self._con.execute("SELECT config, sum FROM boundary WHERE id = ?", (card.id,)).get,
        )
        if row is None or not isinstance(row[0], bytes) or config_sum(card, row[0]) != row[1]:
            raise damaged(card.group.scope, "the boundary")
        return BoundaryRow(index=card.head.base, term=card.head.base_term, config=row[0])

    def term_at(self, card: Card, index: int) -> int | None:
        head = card.head
        if index == head.base:
            return head.base_term
        if not head.base < index <= head.last:
            return None
        found = self._con.execute(
            "SELECT term FROM run WHERE place BETWEEN ? AND ? ORDER BY place DESC LIMIT 1",
            (card.place(0), card.place(index)),
        ).get
        if not isinstance(found, int):
            raise damaged(card.group.scope, f"the term of entry {index}")
        return found

    def term_runs(self, card: Card, start: int = 0, end: int = INDEX_MAX) -> list[TermRun]:
        """Those that have an entry with start <= index < end."""
        start, last = max(start, card.head.first), min(end - 1, card.head.last)
        if start > last:
            return []
        rows = self._con.execute(
            "SELECT place, term FROM run WHERE place BETWEEN (SELECT max(place) FROM run "
            "WHERE place BETWEEN ? AND ?) AND ? ORDER BY place DESC",
            (card.place(0), card.place(start), card.place(last)),
        )
        runs: list[TermRun] = []
        for place, term in rows:
            first = max(place & INDEX_MAX, start)
            if runs and runs[-1].term == term:
                last = runs.pop().last
            runs.append(TermRun(first=first, last=last, term=term))
            last = first - 1
        runs.reverse()
        if not runs or any(run.first > run.last for run in runs):
            raise damaged(card.group.scope, "the runs of terms")
        return runs

    def entries(self, card: Card, start: int, end: int, bytes_max: int) -> list[EntryRow]:
        if start <= card.head.base:
            raise Truncated(
                f"entry {start} of {card.group.scope} stands in the snapshot",
                first_available=card.head.first,
            )
        last = min(end - 1, card.head.last)
        found: list[EntryRow] = []
        size = 0
        for entry in self._verified(card, start, last):
            size += len(entry.payload)
            if found and size > bytes_max:
                break
            found.append(entry)
            if size >= bytes_max:
                break
        return found

    def reaches_beyond(self, card: Card) -> bool:
        """Whether rows stand after the end of the log, which no write leaves there."""
        span = (card.place(card.head.last + 1), card.end)
        return any(
            self._con.execute(
                f"SELECT 1 FROM {table} WHERE place BETWEEN ? AND ? LIMIT 1", span
            ).get
            for table in ("entry", "run")
        )

    def _verified(self, card: Card, start: int, last: int) -> Iterator[EntryRow]:
        """The entries from start to last, each compared with its sum and with the runs."""
        if start > last:
            return
        scope, expected = card.group.scope, start
        runs = iter(self.term_runs(card, start, last + 1))
        run = next(runs)
        rows = self._con.execute(
            "SELECT place, term, kind, payload, sum FROM entry WHERE place BETWEEN ? AND ? "
            "ORDER BY place",
            (card.place(start), card.place(last)),
        )
        for place, term, kind, payload, total in rows:
            entry = self._entry(card, place, term, kind, payload, total)
            if entry.index != expected:
                break
            while run.last < expected:
                run = next(runs)
            if run.term != entry.term:
                raise damaged(scope, f"the term of entry {expected}")
            yield entry
            expected += 1
        if expected != last + 1:
            raise damaged(scope, f"entry {expected}")

    def _entry(
        self, card: Card, place: int, term: object, kind: object, payload: object, total: object
    ) -> EntryRow:
        index = place & INDEX_MAX
        if isinstance(term, int) and isinstance(kind, int) and isinstance(payload, bytes):
            entry = EntryRow(index=index, term=term, kind=kind, payload=payload)
            if term >= 0 and 0 <= kind < 256 and entry_sum(card.entry_tag, entry) == total:
                return entry
        raise damaged(card.group.scope, f"entry {index}")

    def configs(self, card: Card) -> list[EntryRow]:
        rows = self._con.execute(
            "SELECT place, term, kind, payload, sum FROM entry INDEXED BY entry_config "
            f"WHERE kind = {CONFIG_KIND} AND place BETWEEN ? AND ? ORDER BY place",
            (card.place(card.head.first), card.place(card.head.last)),
        )
        return [self._entry(card, *row) for row in rows]

    # --- a snapshot that comes in ----------------------------------------------------------------

    def intake(self, card: Card) -> tuple[int, SnapshotIntake] | None:
        """The number of its parts, and how far it is."""
        row = cast(
            "tuple[Any, ...] | None",
            self._con.execute(
                "SELECT number, received, installed, idx, term, config, size, digest FROM intake "
                "WHERE id = ?",
                (card.id,),
            ).get,
        )
        if row is None:
            return None
        number, received, installed, index, term, config, size, digest = row
        snapshot = QuorumSnapshot(index=index, term=term, config=config, size=size, digest=digest)
        return number, SnapshotIntake(
            snapshot=snapshot, received=received, installed=bool(installed)
        )

    def intake_part(self, number: int, offset: int) -> bytes:
        place = number << INDEX_BITS | offset
        row = cast(
            "tuple[bytes, bytes] | None",
            self._con.execute("SELECT content, sum FROM intake_part WHERE place = ?", (place,)).get,
        )
        if row is None:
            return b""
        content, total = row
        if not isinstance(content, bytes) or part_sum(content) != total:
            raise StoreCorrupt(
                f"the part of a snapshot at byte {offset} is not what came in",
                hint="drop it, and let it come in again",
            )
        return content


def _card(row: tuple[Any, ...]) -> Card:
    """A group with its head. One whose head is damaged is shown as one that must rejoin."""
    id_, number, entry_tag, scope, incarnation, tag, voter, standing, reason, total, *head = row
    group = GroupRow(
        scope=scope,
        incarnation=incarnation,
        tag=tag,
        voter=voter,
        standing=cast(Standing, standing),
        reason=reason,
    )
    term, vote, commit, written, base, base_term, last, last_term = head
    card = Card(
        id_,
        number,
        entry_tag,
        group,
        LogHead(
            term=term,
            vote=vote,
            commit=commit,
            written=written,
            base=base,
            base_term=base_term,
            last=last,
            last_term=last_term,
        ),
    )
    if head_sum(card) == total:
        return card
    group = msgspec.structs.replace(group, standing="must_rejoin", reason=DAMAGED_HEAD)
    return card._replace(group=group, head=LogHead())


DAMAGED_HEAD: Final = "the row that says how far its log is was damaged"
