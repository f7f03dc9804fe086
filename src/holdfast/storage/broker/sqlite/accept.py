"""Accepting: many envelopes in one transaction, set by set.

The ids of the whole batch are looked up at once, everything that decides (members, grants,
destinations) is read once for each that occurs, and the verdicts are given in the order of the
batch. What was created is inserted by one statement for each run of rows that are alike: a
statement runs from its first row to its last without coming back to Python, so that other threads
do their work meanwhile. Nothing is kept from one transaction to the next, so nothing can be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import apsw

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, PushedEnvelope
from holdfast.rules.destinations import rank
from holdfast.rules.message import CHANGE
from holdfast.storage.broker.accepted import Known
from holdfast.storage.broker.sqlite.database import SEQ_BITS, BrokerDatabase

KINDS: Final = ("change", "topic", "dm", "queue")
"""By the number that stands for each in the table."""
KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
_QUEUE: Final = KIND_NUMBERS["queue"]

# The rows of an array are numbered from 1 on, and so are the bytes of those that are joined to one.
_DEDUPE: Final = (
    "INSERT INTO dedupe "
    "(mesh, id, fingerprint, epoch, seq, broker_id, first_seen_at, expires_at, kind, ref) "
    "SELECT ?2, value, substr(?3, rowid * 32 - 31, 32), ?4, ?5 + rowid, "
    "substr(?6, rowid * 16 - 15, 16), ?7, ?8, ?9, ?10 FROM carray(?1)"
)
_MESSAGE: Final = (
    "INSERT INTO message (place, kind, rank, ref, sender, id, broker_id, expires_at, raw) "
    "SELECT ?2 + rowid, ?3, ?4, ?5, ?6, substr(?7, rowid * 16 - 15, 16), "
    "substr(?8, rowid * 16 - 15, 16), ?9, value FROM carray(?1)"
)
_QUEUED: Final = (
    "INSERT INTO queued (place, mesh, queue, rank) "
    "SELECT place, ?, ref, rank FROM message WHERE place BETWEEN ? AND ?"
)
_KNOWN: Final = (
    "SELECT id, fingerprint, epoch, seq, broker_id, first_seen_at, history FROM dedupe "
    "WHERE mesh = ? AND id IN carray(?)"
)


class _Gate:
    """What holds for all envelopes of one kind from one sender to one destination."""

    __slots__ = ("closed", "kind", "rank", "ref", "refused", "sender")

    def __init__(
        self, one: PushedEnvelope, refused: AcceptVerdict | None, closed: AcceptVerdict | None
    ) -> None:
        self.refused = refused
        """Why none of these envelopes is answered with more than a refusal, known or not."""
        self.closed = closed
        """Why none of them is accepted that is not known yet."""
        self.kind, self.rank = KIND_NUMBERS[one.kind], rank(one.priority)
        self.ref, self.sender = one.ref, one.sender


class _Growing:
    """A mesh while a batch is judged: what is known of it, and what becomes new."""

    __slots__ = ("created", "epoch", "gates", "known", "made", "number", "runs", "seq", "slug")

    def __init__(self, slug: str, number: int, epoch: int, seq: int) -> None:
        self.slug, self.number, self.epoch, self.seq = slug, number, epoch, seq
        self.known: dict[bytes, Known] = {}
        self.gates: dict[tuple[bytes, str, str, str, str, int], _Gate] = {}
        self.created: list[PushedEnvelope] = []
        self.made: dict[bytes, int] = {}
        """By id: the place of what was created in this batch."""
        self.runs: list[tuple[_Gate, int]] = []
        """What was created, in runs of the same gate: where each begins."""

    def create(self, one: PushedEnvelope, gate: _Gate) -> int:
        """Adds an envelope, and returns its seq."""
        created = self.created
        if not self.runs or self.runs[-1][0] is not gate:
            self.runs.append((gate, len(created)))
        self.made[one.id] = len(created)
        created.append(one)
        return self.seq + len(created)

    def find(self, id: bytes, now_ms: int) -> Known | None:
        found = self.known.get(id)
        if found is None and (at := self.made.get(id)) is not None:
            one, seq = self.created[at], self.seq + at + 1
            found = Known(one.fingerprint, self.epoch, seq, one.broker_id, now_ms, True)
        return found

    def alike(self) -> Iterator[tuple[_Gate, int, list[PushedEnvelope]]]:
        """The runs of what was created: their gate, where they begin, and what is in them."""
        ends = [begin for _, begin in self.runs[1:]] + [len(self.created)]
        for (gate, begin), end in zip(self.runs, ends, strict=True):
            yield gate, begin, self.created[begin:end]

    @property
    def grown(self) -> int:
        """The last seq."""
        return self.seq + len(self.created)


class SqliteAccept(BrokerDatabase):
    """`accept` and `known` of the store."""

    groups_max: Final = 1

    def may_hold_up_the_loop(self, when: Callable[[], bool]) -> None: ...  # it always does

    async def accept(
        self, batch: Sequence[PushedEnvelope], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> list[AcceptResult]:
        if not batch:
            return []
        self.mark_if_due()
        keep_until = now_ms + keep_ms
        dedupe_until = None if dedupe_ms is None else now_ms + dedupe_ms
        with self.writing(adds=True) as con:
            meshes = _meshes(con, batch)
            answers = self._judge(batch, meshes, now_ms)
            grown = [mesh for mesh in meshes.values() if mesh.created]
            for mesh in grown:
                insert_ids(con, mesh, now_ms, dedupe_until)
                insert_messages(con, mesh, keep_until)
                self.news(mesh.slug, mesh.grown)
        for mesh in grown:
            self._reached[mesh.slug] = mesh.grown
        return answers

    def _judge(
        self, batch: Sequence[PushedEnvelope], meshes: dict[str, _Growing], now_ms: int
    ) -> list[AcceptResult]:
        answers: list[AcceptResult] = []
        for one in batch:
            mesh = meshes.get(one.mesh)
            if mesh is None:
                answers.append(AcceptResult(verdict=AcceptVerdict.UNKNOWN_MESH))
                continue
            key = (one.sender, one.kind, one.ref, one.origin, one.priority, one.epoch)
            gate = mesh.gates.get(key)
            if gate is None:
                gate = mesh.gates[key] = self._gate(mesh, one)
            epoch = mesh.epoch
            refused = gate.refused
            if refused is None:
                known = mesh.find(one.id, now_ms)
                if known is not None:
                    answers.append(known.answer(one.fingerprint, epoch))
                    continue
                refused = gate.closed
            if refused is not None:
                answers.append(AcceptResult(verdict=refused, epoch=epoch))
                continue
            answers.append(
                AcceptResult(
                    verdict=AcceptVerdict.CREATED,
                    epoch=epoch,
                    message_epoch=epoch,
                    seq=mesh.create(one, gate),
                    broker_id=one.broker_id,
                    first_seen_at=now_ms,
                )
            )
        return answers

    def _gate(self, mesh: _Growing, one: PushedEnvelope) -> _Gate:
        refused = self._refused(mesh.number, one.sender, one.kind, one.origin)
        closed = None
        if refused is None:
            if one.epoch not in (0, mesh.epoch):
                closed = AcceptVerdict.EPOCH_MISMATCH
            elif one.kind != CHANGE and not self._is_there(mesh.number, one.kind, one.ref):
                closed = AcceptVerdict.UNKNOWN_DESTINATION
        return _Gate(one, refused, closed)

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
            found = _known(con, number, [id for id, _ in ids])
        return [
            found[id].answer(fingerprint, epoch) if id in found else None for id, fingerprint in ids
        ]


def _meshes(con: apsw.Connection, batch: Sequence[PushedEnvelope]) -> dict[str, _Growing]:
    """The meshes of a batch, each with what is known of the ids that it gets."""
    ids: dict[str, list[bytes]] = {}
    for one in batch:
        ids.setdefault(one.mesh, []).append(one.id)
    meshes = {}
    for slug, those in ids.items():
        row = con.execute("SELECT number, epoch, seq FROM mesh WHERE slug = ?", (slug,)).get
        if row is not None:
            mesh = meshes[slug] = _Growing(slug, *row)
            mesh.known = _known(con, mesh.number, those)
    return meshes


def _known(con: apsw.Connection, mesh: int, ids: Sequence[bytes]) -> dict[bytes, Known]:
    if not ids:
        return {}
    rows = con.execute(_KNOWN, (mesh, apsw.carray(tuple(ids))))
    return {
        id: Known(fingerprint, epoch, seq, broker_id, first_seen_at, bool(history))
        for id, fingerprint, epoch, seq, broker_id, first_seen_at, history in rows
    }


def insert_ids(con: apsw.Connection, mesh: _Growing, now_ms: int, dedupe_until: int | None) -> None:
    for gate, begin, run in mesh.alike():
        prints = b"".join([one.fingerprint for one in run])
        tickets = b"".join([one.broker_id for one in run])
        assert len(prints) == 2 * len(tickets) == 32 * len(run), "each has its own bytes"
        con.execute(
            _DEDUPE,
            (
                apsw.carray(tuple([one.id for one in run])),
                *(mesh.number, prints, mesh.epoch, mesh.seq + begin, tickets),
                *(now_ms, dedupe_until, gate.kind, gate.ref),
            ),
        )


def insert_messages(con: apsw.Connection, mesh: _Growing, keep_until: int) -> None:
    number, many = mesh.number, len(mesh.created)
    for gate, begin, run in mesh.alike():
        before = (number << SEQ_BITS) + mesh.seq + begin
        con.execute(
            _MESSAGE,
            (
                apsw.carray(tuple([one.raw for one in run])),
                *(before, gate.kind, gate.rank, gate.ref, gate.sender),
                b"".join([one.id for one in run]),
                b"".join([one.broker_id for one in run]),
                keep_until,
            ),
        )
        if gate.kind == _QUEUE:
            con.execute(_QUEUED, (number, before + 1, before + len(run)))
    con.execute(
        "UPDATE mesh SET seq = ?, messages = messages + ?, dedupe = dedupe + ? WHERE number = ?",
        (mesh.grown, many, many, number),
    )
