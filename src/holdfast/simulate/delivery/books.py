"""What a broker and its nodes have promised each other, seen from outside.

The book of a mesh has a row for every seq that the broker ever gave out, and who was to get it
then. After everything that the broker does, its store must be what the book says, grown at its end;
after everything that a node does, it must hold what its cursor has passed. Whatever is wrong is
told as a sentence.

A broker that is restored from an older copy goes back: its book then ends where the copy does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.ids import id_text
from holdfast.rules.limits import DAY_MS, HOUR_MS
from holdfast.rules.rows import MeshRow
from holdfast.simulate.delivery.broker_machine import ID_DAYS, BrokerMachine
from holdfast.simulate.world.log_history import LogHistory
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.broker.sqlite.inspect import known_ids, messages, subscribers
from holdfast.storage.ports import Reader

ALL: Final = 1 << 40
IDS_KEPT_MS: Final = ID_DAYS * DAY_MS - 2 * HOUR_MS
"""Clocks here are wrong by an hour, in both directions."""
CHANGE: Final = "change"


class BookRow(NamedTuple):
    """What stands at one seq."""

    id: bytes
    kind: str
    ref: str
    sender: str
    entitled: frozenset[str]
    """Who gets it: of a message only. A change is for everybody."""


class BookPlace(NamedTuple):
    """How far a node was when it was last looked at."""

    epoch: int
    seq: int


@dataclass(slots=True)
class MeshBook:
    """One mesh at the broker."""

    slug: str
    epoch: int = 1
    rows: list[BookRow] = field(default_factory=list)
    seqs: dict[bytes, int] = field(default_factory=dict)
    ever: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Every id that was ever accepted, by epoch and seq."""
    gone: set[bytes] = field(default_factory=set)
    """Messages that the broker has swept, in their time."""
    over: set[bytes] = field(default_factory=set)
    """The same for good: an older copy of the broker may bring one back, to nobody in particular.
    Whoever had passed its place when it was gone does not look there again."""
    looked_at: int = 0
    """When the broker was last looked at, by the clock of the world; not while its disk fails."""
    since: dict[bytes, int] = field(default_factory=dict)
    """By id: a time by the same clock, after which it was accepted."""
    forgotten: set[int] = field(default_factory=set)
    """Seqs whose ids the broker does not remember any more."""
    places: dict[str, BookPlace] = field(default_factory=dict)
    jumped: dict[str, int] = field(default_factory=dict)
    """Up to where a node has a snapshot in place of single changes."""

    @property
    def seq(self) -> int:
        return len(self.rows)

    def had_its_time(self, id: bytes) -> None:
        self.gone.add(id)
        self.over.add(id)

    def may_come(self, id: bytes, kind: str) -> bool:
        """Whether the broker may accept it now. A change may come again when its id is forgotten:
        nodes know it. A message may not.
        """
        seq = self.seqs.get(id)
        return seq is None or (kind == CHANGE and seq in self.forgotten)

    def ids_lost(self, known: Mapping[int, bytes], now_ms: int) -> list[str]:
        """Notes which ids are forgotten since; none may be before its time."""
        problems = []
        for seq, row in enumerate(self.rows, 1):
            if seq in known or seq in self.forgotten:
                continue
            self.forgotten.add(seq)
            age = now_ms - self.since[row.id]
            if row.id not in self.gone or age < IDS_KEPT_MS:
                problems.append(
                    f"the id of {seq} of {self.slug} is forgotten after {age // HOUR_MS} hours"
                )
        return problems

    def went_back(self, rows: list[BookRow]) -> None:
        """The broker went back to the time when it held these rows."""
        same = sum(1 for a, b in zip(self.rows, rows, strict=False) if a.id == b.id)
        self.rows = list(rows)
        self.seqs = {row.id: seq for seq, row in enumerate(rows, 1)}
        self.gone.clear()  # what is not there is noted anew
        self.forgotten.clear()
        self.jumped = {peer: min(to, same) for peer, to in self.jumped.items()}


class Books:
    """The books of a world."""

    def __init__(self, meshes: Collection[str], names: dict[bytes, str]) -> None:
        self.meshes = {slug: MeshBook(slug) for slug in meshes}
        self.names = names
        """Peers by their keys."""
        self.to_come: tuple[str, ...] = ()
        """Meshes that somebody may yet make at the broker."""
        self.inboxes: dict[str, dict[bytes, int]] = {name: {} for name in names.values()}
        """By peer: what came, and under which number."""

    # --- the broker ---------------------------------------------------------------------------

    def look(self, broker_machine: BrokerMachine) -> list[str]:
        """Notes what is new at the broker; returns what is wrong with it."""
        problems: list[str] = []
        for slug in self.to_come:
            if (
                slug not in self.meshes
                and broker_machine.peek(SqliteBrokerStore.mesh_get, slug) is not None
            ):
                self.meshes[slug] = MeshBook(slug)
        for book in self.meshes.values():
            problems += broker_machine.peek(_look, book, self.names, broker_machine.world.now_ms)
        return problems

    def audit(self, broker_machine: BrokerMachine) -> list[str]:
        """Everything that the broker holds, against the books."""
        problems: list[str] = []
        for book in self.meshes.values():
            problems += broker_machine.peek(_audit, book)
        found = broker_machine.peek(lambda store: store.orphans(10))
        return problems + [f"orphan: {one.what}, seq {one.seq} of {one.mesh}" for one in found]

    def swept(self, broker_machine: BrokerMachine, *, early: bool = False) -> list[str]:
        """After a sweep: what is gone is noted. Nothing may be if it was by a clock far ahead."""
        problems: list[str] = []
        for book in self.meshes.values():
            gone = len(book.gone)
            problems += broker_machine.peek(_swept, book)
            known = broker_machine.peek(_known, book)
            problems += book.ids_lost(known, broker_machine.world.now_ms)
            if early and len(book.gone) > gone:
                problems.append(
                    f"{len(book.gone) - gone} of {book.slug} are swept before their time"
                )
        return problems

    # --- nodes --------------------------------------------------------------------------------

    def look_at_node(self, peer: str, log: LogHistory, tx: Reader) -> list[str]:
        """Checks a node after something that it did; returns what is wrong."""
        problems = self._inbox(peer, tx)
        for book in self.meshes.values():
            row = tx.mesh_get(book.slug)
            if row is not None:
                problems += self._passed(peer, log, book, row)
                problems += self._done(peer, book, tx)
        return problems

    def forget_node(self, peer: str, log: LogHistory) -> None:
        """It was restored: it stands where it stood then, and its inbox is that of then."""
        self.inboxes[peer] = {id: 0 for id in self.inboxes[peer] if log.holds(id)}
        for book in self.meshes.values():
            book.places.pop(peer, None)

    def _inbox(self, peer: str, tx: Reader) -> list[str]:
        known = self.inboxes[peer]
        problems = []
        for row in tx.inbox_list(None, False, max(known.values(), default=0), ALL):
            if known.get(row.id):
                problems.append(f"{id_text(row.id)} is in its inbox a second time")
            known[row.id] = row.number
        return problems

    def _passed(self, peer: str, log: LogHistory, book: MeshBook, row: MeshRow) -> list[str]:
        """Its cursor has passed nothing that it does not hold."""
        now = BookPlace(row.broker_epoch, row.broker_seq)
        before = book.places.get(peer, BookPlace(0, 0))
        if now == before or now.epoch != book.epoch:
            return []
        if now.seq > book.seq:
            return [f"its cursor is at {now.seq} of {book.slug}, the broker at {book.seq}"]
        start = before.seq if before.epoch == now.epoch else 0
        book.places[peer] = now
        problems = []
        for seq in range(start + 1, now.seq + 1):
            found = book.rows[seq - 1]
            if self._is_missed(peer, log, book, seq, found):
                problems.append(
                    f"its cursor has passed {found.kind} {seq} of {book.slug}, "
                    f"{id_text(found.id)}, which it does not hold"
                )
        return problems

    def _is_missed(
        self, peer: str, log: LogHistory, book: MeshBook, seq: int, row: BookRow
    ) -> bool:
        if row.sender == peer or log.holds(row.id):
            return False
        if row.kind == CHANGE:
            return seq > book.jumped.get(peer, 0)
        return peer in row.entitled and row.id not in book.over

    def _done(self, peer: str, book: MeshBook, tx: Reader) -> list[str]:
        """What its outbox calls done the broker has taken, there and then."""
        lane = f"broker:{book.slug}"
        problems = []
        for row in tx.outbox_list(lane, ("done",), 0, ALL):
            assert row.broker_epoch is not None
            assert row.broker_seq is not None
            if book.ever.get((row.broker_epoch, row.broker_seq)) != row.id:
                problems.append(
                    f"it was told that {id_text(row.id)} is {row.broker_seq} of epoch "
                    f"{row.broker_epoch} in {book.slug}, which the broker has never said"
                )
        return problems

    # --- in the end ---------------------------------------------------------------------------

    def undelivered(self) -> list[str]:
        """Messages that are at the broker and not with everybody whom they are for."""
        return [
            f"{row.kind} {id_text(row.id)} never came to {peer}"
            for book in self.meshes.values()
            for row in book.rows
            if row.id not in book.over
            for peer in sorted(row.entitled)
            if row.id not in self.inboxes[peer]
        ]

    def unseen(self, peer: str, log: LogHistory) -> list[str]:
        """Changes that are at the broker and not with a node."""
        return [
            f"{id_text(row.id)}, {seq} of {book.slug}, never came to {peer}"
            for book in self.meshes.values()
            for seq, row in enumerate(book.rows, 1)
            if row.kind == CHANGE and not log.holds(row.id) and seq > book.jumped.get(peer, 0)
        ]


# --- the store -----------------------------------------------------------------------------------


async def _look(
    store: SqliteBrokerStore, book: MeshBook, names: dict[bytes, str], now_ms: int
) -> list[str]:
    before, book.looked_at = book.looked_at or now_ms, now_ms
    mesh = await store.mesh_get(book.slug)
    if mesh is None:
        return [f"the mesh {book.slug} is gone"]
    problems = []
    if mesh.epoch != book.epoch:
        if mesh.epoch < book.epoch or mesh.base > mesh.seq:
            problems.append(f"{book.slug} is in epoch {mesh.epoch} after {book.epoch}")
        book.epoch = mesh.epoch
    if mesh.seq < book.seq:
        return [*problems, f"{book.slug} is at {mesh.seq} and was at {book.seq}"]
    if mesh.seq == book.seq:
        return problems
    for seq, kind, ref, sender, id, raw in messages(store, book.slug, book.seq):
        if seq != book.seq + 1:
            problems.append(f"{book.slug} has {seq} after {book.seq}")
            break
        if not book.may_come(id, kind):
            problems.append(f"{id_text(id)} is {book.seqs[id]} and {seq} of {book.slug}")
        entitled = frozenset(_entitled(store, book.slug, kind, ref, seq, names))
        origin = decode_trusted(raw).origin  # who knows it without getting it
        book.rows.append(BookRow(id, kind, ref, names[sender], entitled - {origin}))
        book.seqs[id] = seq
        book.gone.discard(id)  # a change that came again
        book.since[id] = before
        book.ever[mesh.epoch, seq] = id
    if book.seq != mesh.seq:
        problems.append(f"{book.slug} says {mesh.seq} and holds {book.seq}")
    return problems


def _entitled(
    store: SqliteBrokerStore, mesh: str, kind: str, ref: str, seq: int, names: dict[bytes, str]
) -> Iterable[str]:
    if kind == "dm":
        return [names[bytes.fromhex(ref)]]
    if kind == "topic":
        return [names[key] for key in subscribers(store, mesh, ref, seq)]
    return []


async def _audit(store: SqliteBrokerStore, book: MeshBook) -> list[str]:
    known = known_ids(store, book.slug)
    problems = []
    rows = dict(enumerate(book.rows, 1))
    if known != {seq: row.id for seq, row in rows.items() if seq not in book.forgotten}:
        problems.append(f"{book.slug} knows {len(known)} ids, and took {book.seq}")
    there = {seq: id for seq, _, _, _, id, _ in messages(store, book.slug)}
    owed = {seq: id for id, seq in book.seqs.items() if id not in book.gone}
    if there != owed:
        lost = sorted(owed.keys() - there.keys())[:5]
        more = sorted(there.keys() - owed.keys())[:5]
        problems.append(f"{book.slug} lacks the messages {lost}, and has {more} too much")
    return problems


async def _swept(store: SqliteBrokerStore, book: MeshBook) -> list[str]:
    there = {seq for seq, *_ in messages(store, book.slug)}
    snapshot = await store.snapshot_get(book.slug)
    covered = 0 if snapshot is None else snapshot.seq
    problems = []
    for seq, row in enumerate(book.rows, 1):
        if seq in there or row.id in book.gone or book.seqs[row.id] != seq:
            continue
        book.had_its_time(row.id)
        if row.kind == CHANGE and seq > covered:
            problems.append(f"a sweep took change {seq} of {book.slug}, which no snapshot holds")
    return problems


async def _known(store: SqliteBrokerStore, book: MeshBook) -> dict[int, bytes]:
    return known_ids(store, book.slug)
