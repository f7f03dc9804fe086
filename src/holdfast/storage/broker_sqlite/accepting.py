"""Accepting: many envelopes in one transaction, set by set.

The ids of the whole batch are looked up at once, everything that decides (members, grants,
destinations) is read once for each that occurs, the verdicts are given in the order of the batch,
and what was created is inserted by prepared statements that run without coming back to Python.
Nothing is kept from one transaction to the next, so nothing can be stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.delivery import CHANGE
from holdfast.rules.desk import Accepted, Arriving, Verdict
from holdfast.rules.destinations import rank
from holdfast.storage.broker_sqlite.base import SEQ_BITS, DeskBase

KINDS: Final = ("change", "topic", "dm", "queue")
"""By the number that stands for each in the table."""
KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
_QUEUE: Final = KIND_NUMBERS["queue"]

_DEDUPE: Final = (
    "INSERT INTO dedupe (mesh, id, fingerprint, epoch, seq, broker_id, first_seen_at, expires_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_MESSAGE: Final = (
    "INSERT INTO message (place, kind, rank, ref, sender, id, broker_id, expires_at, raw) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_QUEUED: Final = "INSERT INTO queued (place, mesh, queue, rank) VALUES (?, ?, ?, ?)"
_KNOWN: Final = (
    "SELECT id, fingerprint, epoch, seq, broker_id, first_seen_at, history FROM dedupe "
    "WHERE mesh = ? AND id IN carray(?)"
)


class Known(msgspec.Struct, frozen=True, gc=False):
    """A dedupe row."""

    fingerprint: bytes
    epoch: int
    seq: int
    broker_id: bytes
    first_seen_at: int
    history: bool

    def answer(self, fingerprint: bytes, epoch: int) -> Accepted:
        same = fingerprint == self.fingerprint
        return Accepted(
            verdict=Verdict.DUPLICATE if same else Verdict.REUSED,
            epoch=epoch,
            message_epoch=self.epoch,
            seq=self.seq,
            broker_id=self.broker_id,
            first_seen_at=self.first_seen_at,
            history_available=self.history,
            fingerprint=b"" if same else self.fingerprint,
        )


class _Growing:
    """A mesh while a batch is judged."""

    __slots__ = ("before", "doors", "epoch", "known", "number", "places", "seq", "slug")

    def __init__(self, slug: str, number: int, epoch: int, seq: int) -> None:
        self.slug, self.number, self.epoch, self.before, self.seq = slug, number, epoch, seq, seq
        self.known: dict[bytes, Known] = {}
        self.doors: dict[tuple[bytes, str, str], Verdict | None] = {}
        """By sender, kind and origin: why none of these is let in."""
        self.places: dict[tuple[str, str], bool] = {}
        """By kind and name: is there such a destination?"""


class _Batch:
    """The rows that a batch makes, and the answers."""

    def __init__(self, now_ms: int, keep_ms: int, dedupe_ms: int | None) -> None:
        self.now_ms = now_ms
        self.keep_until = now_ms + keep_ms
        self.dedupe_until = None if dedupe_ms is None else now_ms + dedupe_ms
        self.answers: list[Accepted] = []
        self.dedupe: list[tuple[Any, ...]] = []
        self.messages: list[tuple[Any, ...]] = []
        self.queued: list[tuple[int, int, str, int]] = []

    def create(self, mesh: _Growing, one: Arriving) -> None:
        mesh.seq = seq = mesh.seq + 1
        now, id, broker_id, ref = self.now_ms, one.id, one.broker_id, one.ref
        place, kind = (mesh.number << SEQ_BITS) + seq, KIND_NUMBERS[one.kind]
        turn = rank(one.priority)
        print_, epoch = one.fingerprint, mesh.epoch
        self.dedupe.append((mesh.number, id, print_, epoch, seq, broker_id, now, self.dedupe_until))
        self.messages.append(
            (place, kind, turn, ref, one.sender, id, broker_id, self.keep_until, one.raw)
        )
        if kind == _QUEUE:
            self.queued.append((place, mesh.number, ref, turn))
        mesh.known[id] = Known(print_, epoch, seq, broker_id, now, True)
        self.answers.append(
            Accepted(
                verdict=Verdict.CREATED,
                epoch=epoch,
                message_epoch=epoch,
                seq=seq,
                broker_id=broker_id,
                first_seen_at=now,
            )
        )

    def insert(self, con: apsw.Connection, meshes: Iterable[_Growing]) -> None:
        # By the order of the key: the tree is then walked once, from left to right.
        self.dedupe.sort()
        con.executemany(_DEDUPE, self.dedupe)
        con.executemany(_MESSAGE, self.messages)
        if self.queued:
            con.executemany(_QUEUED, self.queued)
        for mesh in meshes:
            new = mesh.seq - mesh.before
            if new:
                con.execute(
                    "UPDATE mesh SET seq = ?, messages = messages + ?, dedupe = dedupe + ? "
                    "WHERE number = ?",
                    (mesh.seq, new, new, mesh.number),
                )


class Accepting(DeskBase):
    """`accept` and `known` of a desk."""

    async def accept(
        self, batch: Sequence[Arriving], now_ms: int, *, keep_ms: int, dedupe_ms: int | None
    ) -> list[Accepted]:
        if not batch:
            return []
        self.mark_if_due()
        work = _Batch(now_ms, keep_ms, dedupe_ms)
        with self.writing() as con:
            meshes = _meshes(con, batch)
            self._judge(batch, meshes, work)
            grown = [mesh for mesh in meshes.values() if mesh.seq > mesh.before]
            work.insert(con, grown)
            for mesh in grown:
                self.news(mesh.slug, mesh.seq)
        for mesh in grown:
            self._reached[mesh.slug] = mesh.seq
        return work.answers

    def _judge(self, batch: Sequence[Arriving], meshes: dict[str, _Growing], work: _Batch) -> None:
        answers = work.answers
        for one in batch:
            mesh = meshes.get(one.mesh)
            if mesh is None:
                answers.append(Accepted(verdict=Verdict.UNKNOWN_MESH))
                continue
            door = (one.sender, one.kind, one.origin)
            if door not in mesh.doors:
                mesh.doors[door] = self._refused(mesh.number, *door)
            refused = mesh.doors[door]
            if refused is None and (known := mesh.known.get(one.id)) is not None:
                answers.append(known.answer(one.fingerprint, mesh.epoch))
                continue
            if refused is None and one.epoch not in (0, mesh.epoch):
                refused = Verdict.EPOCH_MISMATCH
            if refused is None and one.kind != CHANGE:
                place = (one.kind, one.ref)
                if place not in mesh.places:
                    mesh.places[place] = self._is_there(mesh.number, *place)
                if not mesh.places[place]:
                    refused = Verdict.UNKNOWN_DESTINATION
            if refused is None:
                work.create(mesh, one)
            else:
                answers.append(Accepted(verdict=refused, epoch=mesh.epoch))

    def _refused(self, mesh: int, sender: bytes, kind: str, origin: str) -> Verdict | None:
        row = self.connection.execute(
            "SELECT name, grants FROM member WHERE mesh = ? AND key = ? AND removed_at IS NULL",
            (mesh, sender),
        ).get
        if row is None:
            return Verdict.NOT_A_MEMBER
        name, grants = row[0], row[1].split()
        if ("write" if kind == CHANGE else "send") not in grants:
            return Verdict.NOT_GRANTED
        return None if origin == name or "relay" in grants else Verdict.NOT_GRANTED

    def _is_there(self, mesh: int, kind: str, ref: str) -> bool:
        if kind == "dm":
            asked = "member WHERE mesh = ? AND key = ? AND removed_at IS NULL"
            values: tuple[Any, ...] = (mesh, bytes.fromhex(ref))
        else:
            asked = "destination WHERE mesh = ? AND kind = ? AND ref = ?"
            values = (mesh, kind, ref)
        return self.connection.execute(f"SELECT 1 FROM {asked}", values).get is not None

    async def known(self, mesh: str, asked: Sequence[tuple[bytes, bytes]]) -> list[Accepted | None]:
        with self.reading() as con:
            row = con.execute("SELECT number, epoch FROM mesh WHERE slug = ?", (mesh,)).get
            if row is None:
                return [None] * len(asked)
            number, epoch = row
            found = _known(con, number, [id for id, _ in asked])
        return [
            found[id].answer(fingerprint, epoch) if id in found else None
            for id, fingerprint in asked
        ]


def _meshes(con: apsw.Connection, batch: Sequence[Arriving]) -> dict[str, _Growing]:
    """Those that occur, each with what is known of the ids that are handed in."""
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
