"""A whole mesh as envelopes, piece by piece: what a node needs that has nothing of it yet.

First come the entries of the log in their order, without superseded ones, without messages, which
are only for their receivers, and without what the broker has refused. Then, family by family, comes
what the log no longer holds: envelopes that are rebuilt from the rows that they made (see
`rules.rebuild`). In this order nothing is missed if the log is truncated meanwhile. Something may
be exported twice, which does no harm.

A **place** says how far the export has got: the stage, and a key of that stage. It is plain JSON,
so that it can be stored between two pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.node.core.fold import current_version
from holdfast.rules.bodies import Nothing, family_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CHUNK_ROWS, INTAKE_BATCH_BYTES, LAMPORT_MAX
from holdfast.rules.message import MESSAGE
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rebuild import rebuild_envelope, rebuild_event, rebuild_turn
from holdfast.rules.rows import Entry, StateRow, VersionedRow
from holdfast.storage.ports import Reader

Place = list[Any]
"""The number of the stage, and how far it has got."""

START: Final[Place] = [0, 0]
TABLES: Final[Place] = [1, ""]
"""Where the tables begin: what the log still holds is left out."""

GIVEN_UP: Final = "left_mesh"
"""The code of rows that still waited when this node left the mesh: another broker may get them."""


class MeshExport:
    """The export of one mesh, up to one offset of the log, from one consistent state."""

    def __init__(
        self,
        tx: Reader,
        mesh: str,
        upto: int,
        *,
        rows: int | None = None,
        hides: Callable[[StateRow], bool] = lambda row: False,
    ) -> None:
        """`rows`: how many of a table one piece looks at. `hides` says of a value whether it may
        stand in the place of one that is asked for; then `hidden` says so too.
        """
        self._tx, self._mesh, self._upto = tx, mesh, upto
        self._rows = CHUNK_ROWS if rows is None else rows
        self._first = tx.log_bounds()[0]
        self._hides = hides
        self.hidden = ""
        """A key whose value hides another."""

    def piece(self, place: Place) -> tuple[list[bytes], Place | None]:
        """Some envelopes, often none, and the place of the next piece; None at the end."""
        stage, key = place
        raws, following = _STAGES[stage](self, key)
        if following is not None:
            return raws, [stage, following]
        if stage + 1 < len(_STAGES) and self._first > 1:  # else the log still holds everything
            return raws, [stage + 1, _BEGINNINGS[stage + 1]]
        return raws, None

    # --- the log -------------------------------------------------------------------------------

    def _log(self, start: int) -> tuple[list[bytes], int | None]:
        begin = max(start, self._first)
        if begin > self._upto:
            return [], None
        page, following = entries(self._tx, self._mesh, begin, self._upto)
        return [entry.raw for entry in page if is_exported(self._tx, entry)], following

    # --- what the log has forgotten --------------------------------------------------------------

    def _state(self, after: str) -> tuple[list[bytes], str | None]:
        rows = self._tx.state_scan(self._mesh, "", after, self._rows)
        self.hidden = next((row.key for row in rows if self._hides(row)), self.hidden)
        return self._rebuilt(rows), rows[-1].key if rows else None

    def _memory(self, after: list[str]) -> tuple[list[bytes], list[str] | None]:
        rows = self._tx.memory_scan(self._mesh, None, (after[0], after[1]), self._rows)
        return self._rebuilt(rows), [rows[-1].owner, rows[-1].key] if rows else None

    def _files(self, after: list[str]) -> tuple[list[bytes], list[str] | None]:
        rows = self._tx.file_scan(self._mesh, None, (after[0], after[1]), self._rows)
        return self._rebuilt(rows), [rows[-1].owner, rows[-1].path] if rows else None

    def _vectors(self, after: int) -> tuple[list[bytes], int | None]:
        rows = self._tx.vector_scan(self._mesh, None, after, self._rows, live_only=False)
        models = {model.id: model for model in self._tx.model_list()} if rows else {}
        rebuilt = [
            rebuild_envelope(row, self._fingerprint(row.id), models.get(row.model))
            for _, row in rows
            if self._is_gone(row.offset, row.id) and (row.tombstone or row.model in models)
        ]
        return rebuilt, rows[-1][0] if rows else None

    def _tasks(self, after: str) -> tuple[list[bytes], str | None]:
        tasks = self._tx.task_scan(self._mesh, None, after, self._rows, known_only=False)
        rebuilt = [
            rebuild_turn(event, self._fingerprint(event.version.id))
            for task in tasks
            for event in self._tx.task_events(self._mesh, task.task)
            if self._tx.log_find(event.version.id) is None
        ]
        return rebuilt, tasks[-1].task if tasks else None

    def _audit(self, after: list[str]) -> tuple[list[bytes], list[str] | None]:
        stream, origin, epoch, seq = after
        place = (stream, origin, int(epoch), int(seq))
        rows = self._tx.audit_scan(self._mesh, None, None, place, self._rows)
        gone = [rebuild_event(row) for row in rows if self._is_gone(row.offset, row.id)]
        if not rows:
            return gone, None
        last = rows[-1]
        return gone, [last.stream, last.origin, str(last.epoch), str(last.seq)]

    def _rebuilt(self, rows: list[Any]) -> list[bytes]:
        gone: list[VersionedRow] = [row for row in rows if self._is_gone(row.offset, row.id)]
        return [rebuild_envelope(row, self._fingerprint(row.id)) for row in gone]

    def _is_gone(self, offset: int, id: bytes) -> bool:
        return offset < self._first and self._tx.log_find(id) is None

    def _fingerprint(self, id: bytes) -> bytes | None:
        known = self._tx.forgotten(id)
        return None if known is None else known[1]


def check_place(place: Place) -> bool:
    """Whether this may be a place of an export: others keep them, and hand them back."""
    if len(place) != 2 or type(place[0]) is not int or not 0 <= place[0] < len(_STAGES):
        return False
    stage, key = place
    like = _BEGINNINGS[stage]
    if isinstance(like, list):
        known = isinstance(key, list) and len(key) == len(like)
        return known and all(map(_is_like, key, like))
    return type(key) is type(like) and not (type(key) is int and not 0 <= key < LAMPORT_MAX)


def _is_like(key: Any, like: str) -> bool:
    """Text, or a number as text where the place begins with one."""
    return type(key) is str and (not like or (key.isascii() and key.isdecimal() and len(key) < 19))


def entries(tx: Reader, mesh: str, start: int, upto: int) -> tuple[list[Entry], int | None]:
    """Some entries of a mesh from an offset on, and where the next begin; None at the end."""
    filter = Filter(meshes=(mesh,))
    page = tx.log_columns(start, upto + 1, CHUNK_ROWS, INTAKE_BATCH_BYTES, filter)
    columns = (getattr(page, name) for name in Entry.__struct_fields__)
    rows = [Entry(*row) for row in zip(*columns, strict=True)]
    return rows, page.upto + 1 if page.upto < upto else None


def is_exported(tx: Reader, entry: Entry) -> bool:
    """Whether other nodes need an entry: not if a later one replaced it, nor a message, nor what
    the broker has refused.

    A change that still waits in the outbox is exported: the broker may have it, and only its answer
    is missing. So is what such a change has replaced: if the broker refuses it, other nodes have
    that.
    """
    if entry.op == MESSAGE or _was_refused(tx, entry):
        return False
    if family_of(entry.op) not in _REPLACING:
        return True
    newest = current_version(tx, decode_trusted(entry.raw), Nothing())
    if newest is None or newest.id == entry.id:
        return True
    row = tx.outbox_get(lane_of(entry.mesh), newest.id)
    return row is not None and row.state != OutboxState.DONE and row.code != GIVEN_UP


def _was_refused(tx: Reader, entry: Entry) -> bool:
    row = tx.outbox_get(lane_of(entry.mesh), entry.id)
    if row is None or row.code == GIVEN_UP:
        return False
    return row.state == OutboxState.DEAD or (row.state == OutboxState.ABORTED and row.attempts > 0)


def has_forgotten(tx: Reader, mesh: str) -> bool:
    """Whether the log lacks anything that a table of the mesh still shows."""
    return next(tables_of(tx, mesh), None) is not None


def tables_of(tx: Reader, mesh: str) -> Iterator[bytes]:
    """What tables of the mesh still show and the log lacks, rebuilt."""
    place: Place | None = TABLES
    export = MeshExport(tx, mesh, 0)
    while place is not None and tx.log_bounds()[0] > 1:
        raws, place = export.piece(place)
        yield from raws


_REPLACING: Final = ("state", "memory", "file")
"""Families in which a later write replaces an earlier one."""

_STAGES: Final[tuple[Callable[[MeshExport, Any], tuple[list[bytes], Any]], ...]] = (
    MeshExport._log,
    MeshExport._state,
    MeshExport._memory,
    MeshExport._files,
    MeshExport._vectors,
    MeshExport._tasks,
    MeshExport._audit,
)
_BEGINNINGS: Final[tuple[Any, ...]] = (0, "", ["", ""], ["", ""], 0, "", ["", "", "0", "0"])
