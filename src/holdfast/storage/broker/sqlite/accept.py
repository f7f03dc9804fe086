"""Accepting: many envelopes in one transaction, set by set.

The ids of the whole batch are looked up at once, everything that decides (members, grants,
destinations) is read once for each that occurs, and the verdicts are given in the order of the
batch: columns of which all are new and welcome get theirs as a whole. What was created is inserted
by one statement for each run of rows that are alike, which cuts them out of the columns: it runs
from its first row to its last without coming back to Python, so that other threads do their work
meanwhile. Nothing is kept from one transaction to the next, so nothing can be stale.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import apsw

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.destinations import rank
from holdfast.rules.message import CHANGE
from holdfast.rules.push_columns import (
    SPAN_BITS,
    SPAN_MASK,
    Created,
    Parts,
    PushColumns,
    Run,
    in_columns,
    unpacked,
)
from holdfast.storage.broker.accepted import Known
from holdfast.storage.broker.sqlite.database import SEQ_BITS, SEQ_MASK, BrokerDatabase

KINDS: Final = ("change", "topic", "dm", "queue")
"""By the number that stands for each in the table."""
KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
_INT64: Final = apsw.SQLITE_CARRAY_INT64

# An array holds the spans of a run of envelopes. Its rows are numbered from 1 on, as are the bytes
# of what is joined; ?2 is where the run begins in the columns.
_MESSAGE: Final = (
    "INSERT INTO message (place, kind, rank, epoch, ref, sender, id, broker_id, expires_at, "
    "fingerprint, first_seen_at, known_until, raw) "
    "SELECT ?3 + rowid, ?4, ?5, ?6, ?7, ?8, substr(?9, (?2 + rowid) * 16 - 15, 16), "
    "substr(?10, (?2 + rowid) * 16 - 15, 16), ?11, substr(?12, (?2 + rowid) * 32 - 31, 32), "
    f"?13, ?14, substr(?15, (value >> {SPAN_BITS}) - ?16, value & {SPAN_MASK}) FROM carray(?1)"
)
_ONE_MESSAGE: Final = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE_ID: Final = "INSERT INTO dedupe VALUES (?, ?, ?)"
_ID: Final = (
    "INSERT INTO dedupe (mesh, id, seq) "
    "SELECT ?2, substr(?3, rowid * 16 - 15, 16), ?4 + rowid FROM carray(?1)"
)
_QUEUED: Final = (
    "INSERT INTO queued (place, mesh, queue, rank) "
    "SELECT place, ?, ref, rank FROM message WHERE place BETWEEN ? AND ?"
)
_SEQ: Final = "SELECT seq FROM dedupe WHERE mesh = ? AND id = ?"
_SEQS: Final = "SELECT id, seq FROM dedupe WHERE mesh = ? AND id IN carray(?)"
_KNOWN: Final = (
    "SELECT place, id, fingerprint, epoch, broker_id, first_seen_at, 1 FROM message "
    "WHERE place IN carray(?1) UNION ALL "
    "SELECT place, id, fingerprint, epoch, broker_id, first_seen_at, 0 FROM gone "
    "WHERE place IN carray(?1)"
)


class _Gate:
    """What holds for all envelopes of one kind from one sender to one destination."""

    __slots__ = ("closed", "refused")

    def __init__(self, refused: AcceptVerdict | None, closed: AcceptVerdict | None) -> None:
        self.refused = refused
        """Why none of these envelopes is answered with more than a refusal, known or not."""
        self.closed = closed
        """Why none of them is accepted that is not known yet."""

    @property
    def is_open(self) -> bool:
        return self.refused is None and self.closed is None


class _Growing:
    """A mesh while a batch is judged: what is known of it, and what becomes new."""

    __slots__ = (
        *("_places", "created", "epoch", "gates", "grown", "ids", "known", "lost", "number"),
        "seq",
    )

    def __init__(self, number: int, epoch: int, seq: int) -> None:
        self.number, self.epoch, self.seq = number, epoch, seq
        self.grown = seq
        """The last seq."""
        self.known: dict[bytes, Known] = {}
        self.lost: list[bytes] = []
        """Ids that lead to nothing: they come again as new ones."""
        self.gates: dict[tuple[bytes, int, str, str, str], _Gate] = {}
        self.created: list[tuple[PushColumns, int]] = []
        """What was created, each with the seq before its first."""
        self.ids: set[bytes] = set()
        """Of what was created."""
        self._places: dict[bytes, tuple[int, int]] | None = None

    @property
    def returned(self) -> list[bytes]:
        """Those of the lost ids that were created again."""
        return [id for id in self.lost if id in self.ids]

    def are_new(self, ids: tuple[bytes, ...]) -> bool:
        """Whether all of these are different, and none was seen before."""
        those = set(ids)
        return (
            len(those) == len(ids)
            and self.ids.isdisjoint(those)
            and self.known.keys().isdisjoint(those)
        )

    def create(self, columns: PushColumns, now_ms: int) -> Created:
        """Adds envelopes, and returns their answers."""
        before = self.grown
        if self._places is not None:
            self._places.update(_places(len(self.created), columns))
        self.created.append((columns, before))
        self.grown += len(columns)
        self.ids.update(columns.ids)
        return Created(self.epoch, before + 1, columns.tickets, now_ms)

    def find(self, id: bytes, now_ms: int) -> Known | None:
        found = self.known.get(id)
        if found is None and id in self.ids:
            part, at = self._place_of(id)
            columns, before = self.created[part]
            one = columns[at]
            found = Known(one.fingerprint, self.epoch, before + at + 1, one.broker_id, now_ms, True)
        return found

    def _place_of(self, id: bytes) -> tuple[int, int]:
        if self._places is None:
            self._places = {}
            for part, (columns, _) in enumerate(self.created):
                self._places.update(_places(part, columns))
        return self._places[id]


def _places(part: int, columns: PushColumns) -> Iterator[tuple[bytes, tuple[int, int]]]:
    return ((id, (part, at)) for at, id in enumerate(columns.ids))


class SqliteAccept(BrokerDatabase):
    """`accept` and `known` of the store."""

    groups_max: Final = 1

    def may_hold_up_the_loop(self, when: Callable[[], bool]) -> None: ...  # it always does

    async def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> Sequence[AcceptResult]:
        """Columns are answered as columns, if they are created as a whole."""
        if not batch:
            return []
        self.mark_if_due()
        known_until = None if dedupe_ms is None else now_ms + dedupe_ms
        found = in_columns(batch)
        with self.writing(adds=True) as con:
            meshes = _meshes(con, found)
            answers = [self._judge(one, meshes.get(one.mesh), now_ms) for one in found]
            grown = {slug: mesh for slug, mesh in meshes.items() if mesh.created}
            for slug, mesh in grown.items():
                insert_ids(con, mesh)
                insert_messages(con, mesh, now_ms, now_ms + keep_ms, known_until)
                self.news(slug, mesh.grown)
        for slug, mesh in grown.items():
            self._reached[slug] = mesh.grown
        return Parts(answers) if len(answers) > 1 else answers[0]

    def _judge(
        self, columns: PushColumns, mesh: _Growing | None, now_ms: int
    ) -> Sequence[AcceptResult]:
        if mesh is None:
            return [AcceptResult(verdict=AcceptVerdict.UNKNOWN_MESH)] * len(columns)
        gates = [self._gate_of(mesh, columns, run) for run in columns.runs]
        if all(gate.is_open for gate in gates) and mesh.are_new(columns.ids):
            return mesh.create(columns, now_ms)
        answers: list[AcceptResult] = []
        for run, gate in zip(columns.in_runs(), gates, strict=True):
            answers += self._judge_run(run, mesh, gate, now_ms)
        return answers

    def _judge_run(
        self, run: PushColumns, mesh: _Growing, gate: _Gate, now_ms: int
    ) -> Sequence[AcceptResult]:
        """One by one: some are known, or refused."""
        if gate.refused is not None:
            return [AcceptResult(verdict=gate.refused, epoch=mesh.epoch)] * len(run)
        answers: list[AcceptResult] = []
        begin = 0  # of those that are new, and not created yet
        new: set[bytes] = set()
        for at, one in enumerate(run):
            if one.id in new:
                answers += mesh.create(run[begin:at], now_ms)
                begin, new = at, set()
            known = mesh.find(one.id, now_ms)
            if known is None and gate.closed is None:
                new.add(one.id)
                continue
            if new:
                answers += mesh.create(run[begin:at], now_ms)
                new = set()
            begin = at + 1
            if known is not None:
                answers.append(known.answer(one.fingerprint, mesh.epoch))
            elif gate.closed is not None:
                answers.append(AcceptResult(verdict=gate.closed, epoch=mesh.epoch))
        if new:
            answers += mesh.create(run[begin:], now_ms)
        return answers

    def _gate_of(self, mesh: _Growing, columns: PushColumns, run: Run) -> _Gate:
        key = (columns.sender, columns.epoch, run.kind, run.ref, run.origin)
        gate = mesh.gates.get(key)
        if gate is None:
            gate = mesh.gates[key] = self._gate(mesh, columns, run)
        return gate

    def _gate(self, mesh: _Growing, columns: PushColumns, run: Run) -> _Gate:
        refused = self._refused(mesh.number, columns.sender, run.kind, run.origin)
        closed = None
        if refused is None:
            if columns.epoch not in (0, mesh.epoch):
                closed = AcceptVerdict.EPOCH_MISMATCH
            elif run.kind != CHANGE and not self._is_there(mesh.number, run.kind, run.ref):
                closed = AcceptVerdict.UNKNOWN_DESTINATION
        return _Gate(refused, closed)

    def _refused(self, mesh: int, sender: bytes, kind: str, origin: str) -> AcceptVerdict | None:
        row = self.connection.execute(
            "SELECT name, grants FROM member WHERE mesh = ? AND key = ? AND removed_at IS NULL",
            (mesh, sender),
        ).get
        if row is None:
            return AcceptVerdict.NOT_A_MEMBER
        name, grants = row[0], row[1].split()
        if ("write" if kind == CHANGE else "send") not in grants:
            return AcceptVerdict.NOT_GRANTED
        return None if origin == name or "relay" in grants else AcceptVerdict.NOT_GRANTED

    def _is_there(self, mesh: int, kind: str, ref: str) -> bool:
        if kind == "dm":
            table = "member WHERE mesh = ? AND key = ? AND removed_at IS NULL"
            values: tuple[Any, ...] = (mesh, bytes.fromhex(ref))
        else:
            table = "destination WHERE mesh = ? AND kind = ? AND ref = ?"
            values = (mesh, kind, ref)
        return self.connection.execute(f"SELECT 1 FROM {table}", values).get is not None

    async def known(
        self, mesh: str, ids: Sequence[tuple[bytes, bytes]]
    ) -> list[AcceptResult | None]:
        with self.reading() as con:
            row = con.execute("SELECT number, epoch FROM mesh WHERE slug = ?", (mesh,)).get
            if row is None:
                return [None] * len(ids)
            number, epoch = row
            found, _ = _known(con, number, [id for id, _ in ids])
        return [
            found[id].answer(fingerprint, epoch) if id in found else None for id, fingerprint in ids
        ]


def _meshes(con: apsw.Connection, found: Sequence[PushColumns]) -> dict[str, _Growing]:
    """The meshes of a batch, each with what is known of the ids that it gets."""
    ids: dict[str, list[tuple[bytes, ...]]] = {}
    for columns in found:
        ids.setdefault(columns.mesh, []).append(columns.ids)
    meshes = {}
    for slug, those in ids.items():
        row = con.execute("SELECT number, epoch, seq FROM mesh WHERE slug = ?", (slug,)).get
        if row is not None:
            mesh = meshes[slug] = _Growing(*row)
            ids_of_all = tuple(chain.from_iterable(those))
            mesh.known, mesh.lost = _known(con, mesh.number, ids_of_all)
    return meshes


def _known(
    con: apsw.Connection, mesh: int, ids: Sequence[bytes]
) -> tuple[dict[bytes, Known], list[bytes]]:
    """What is known of each id. Behind them the ids of which nothing but damage has left a trace:
    what stood there cannot be answered for, so it is as if it had never come.
    """
    places = _places_of(con, mesh, ids)
    if not places:
        return {}, []  # nearly always
    known: dict[bytes, Known] = {}
    for place, id, mark, epoch, broker_id, seen_at, history in con.execute(
        _KNOWN, (apsw.carray(array("q", places.values()), flags=_INT64),)
    ):
        if places.get(id) == place:
            seq = place & SEQ_MASK
            known[id] = Known(mark, epoch, seq, broker_id, seen_at, bool(history))
    return known, [id for id in places if id not in known]


def _places_of(con: apsw.Connection, mesh: int, ids: Sequence[bytes]) -> dict[bytes, int]:
    base = mesh << SEQ_BITS
    if len(ids) == 1:
        seq = con.execute(_SEQ, (mesh, ids[0])).get
        return {} if seq is None else {ids[0]: base + seq}
    if not ids:
        return {}
    return {id: base + seq for id, seq in con.execute(_SEQS, (mesh, apsw.carray(tuple(ids))))}


def insert_ids(con: apsw.Connection, mesh: _Growing) -> None:
    for id in mesh.returned:
        con.execute("DELETE FROM dedupe WHERE mesh = ? AND id = ?", (mesh.number, id))
    for columns, before in mesh.created:
        if len(columns) == 1:
            con.execute(_ONE_ID, (mesh.number, columns.ids[0], before + 1))
            continue
        ids = apsw.carray(columns.spans, stop=len(columns), flags=_INT64)
        con.execute(_ID, (ids, mesh.number, b"".join(columns.ids), before))


def insert_messages(
    con: apsw.Connection, mesh: _Growing, now_ms: int, keep_until: int, known_until: int | None
) -> None:
    number = mesh.number
    times = (keep_until, now_ms, known_until)
    for columns, seq in mesh.created:
        first = (number << SEQ_BITS) + seq
        if len(columns) == 1:
            con.execute(_ONE_MESSAGE, _one_message(columns, first + 1, mesh.epoch, times))
        else:
            _insert_runs(con, columns, first, mesh.epoch, times)
        for begin, run in _begins(columns):
            if run.kind == "queue":
                span = (first + begin + 1, first + begin + run.length)
                con.execute(_QUEUED, (number, *span))
    many = mesh.grown - mesh.seq
    con.execute(
        "UPDATE mesh SET seq = ?, messages = messages + ?, dedupe = dedupe + ? WHERE number = ?",
        (mesh.grown, many, many - len(mesh.returned), number),
    )


def _insert_runs(
    con: apsw.Connection,
    columns: PushColumns,
    before: int,
    epoch: int,
    times: tuple[int, int, int | None],
) -> None:
    keep_until, now_ms, known_until = times
    ids = b"".join(columns.ids)
    told = (ids, columns.tickets, keep_until, columns.prints, now_ms, known_until)
    payload = (columns.payload, columns.base - 1)
    for begin, run in _begins(columns):
        end = begin + run.length
        spans = apsw.carray(columns.spans, start=begin, stop=end, flags=_INT64)
        kind = KIND_NUMBERS[run.kind]
        alike = (kind, rank(run.priority), epoch, run.ref, columns.sender)
        con.execute(_MESSAGE, (spans, begin, before + begin, *alike, *told, *payload))


def _one_message(
    columns: PushColumns, place: int, epoch: int, times: tuple[int, int, int | None]
) -> tuple[Any, ...]:
    """The row of one that came alone."""
    (run,), (span,) = columns.runs, unpacked(columns.spans)
    keep_until, now_ms, known_until = times
    begin = (span >> SPAN_BITS) - columns.base
    alike = (KIND_NUMBERS[run.kind], rank(run.priority), epoch, run.ref, columns.sender)
    told = (columns.ids[0], columns.tickets, keep_until, columns.prints, now_ms, known_until)
    raw = columns.payload[begin : begin + (span & SPAN_MASK)]
    return (place, *alike, *told, raw)


def _begins(columns: PushColumns) -> Iterator[tuple[int, Run]]:
    """The runs of alike envelopes, and where each begins."""
    begin = 0
    for run in columns.runs:
        yield begin, run
        begin += run.length
