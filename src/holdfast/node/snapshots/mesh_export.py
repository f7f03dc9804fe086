"""A whole mesh as envelopes, piece by piece: what others need who have nothing of it yet.

First the log in its order, without what was superseded, without messages, which are for those they
were sent to, and without what the broker has refused. Then, family by family, what the log no
longer holds: changes that are told again from the rows that they made (see `rules.retold`). In this
order nothing is missed if the log is truncated meanwhile; something may be told twice, which does
no harm.

A **place** says how far it has got: the stage, and a key of that stage. It is plain JSON, so that
it can be written down between two pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.rules.bodies import family_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CHUNK_ROWS, INTAKE_BATCH_BYTES
from holdfast.rules.message import MESSAGE
from holdfast.rules.order import Version
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rebuild import rebuild_envelope, rebuild_turn
from holdfast.rules.rows import Entry, VersionedRow
from holdfast.storage.ports import Reader

Place = list[Any]
"""The number of the stage, and how far it has got."""

START: Final[Place] = [0, 0]

GIVEN_UP: Final = "left_mesh"
"""The code of what was still waiting when a mesh was left: another broker may get it."""


class MeshExport:
    """One mesh, up to one offset of the log, as one consistent state shows it."""

    def __init__(self, tx: Reader, mesh: str, upto: int) -> None:
        self._tx, self._mesh, self._upto = tx, mesh, upto
        self._first = tx.log_bounds()[0]

    def piece(self, place: Place) -> tuple[list[bytes], Place | None]:
        """Some envelopes, often none, and the place to go on from; None at the end."""
        stage, key = place
        raws, following = _STAGES[stage](self, key)
        if following is not None:
            return raws, [stage, following]
        if stage + 1 < len(_STAGES) and self._first > 1:  # else it has forgotten nothing
            return raws, [stage + 1, _BEGINNINGS[stage + 1]]
        return raws, None

    # --- the log -------------------------------------------------------------------------------

    def _log(self, start: int) -> tuple[list[bytes], int | None]:
        begin = max(start, self._first)
        if begin > self._upto:
            return [], None
        page = entries(self._tx, self._mesh, begin, self._upto)
        told = [entry.raw for entry in page[0] if is_exported(self._tx, entry)]
        return told, page[1]

    # --- what the log has forgotten --------------------------------------------------------------

    def _state(self, after: str) -> tuple[list[bytes], str | None]:
        rows = self._tx.state_scan(self._mesh, "", after, CHUNK_ROWS)
        return self._again(rows), rows[-1].key if rows else None

    def _memory(self, after: list[str]) -> tuple[list[bytes], list[str] | None]:
        rows = self._tx.memory_scan(self._mesh, None, (after[0], after[1]), CHUNK_ROWS)
        return self._again(rows), [rows[-1].owner, rows[-1].key] if rows else None

    def _files(self, after: list[str]) -> tuple[list[bytes], list[str] | None]:
        rows = self._tx.file_scan(self._mesh, None, (after[0], after[1]), CHUNK_ROWS)
        return self._again(rows), [rows[-1].owner, rows[-1].path] if rows else None

    def _vectors(self, after: int) -> tuple[list[bytes], int | None]:
        rows = self._tx.vector_scan(self._mesh, None, after, CHUNK_ROWS, live_only=False)
        models = {model.id: model for model in self._tx.model_list()} if rows else {}
        told = [
            rebuild_envelope(row, self._fingerprint(row.id), models.get(row.model))
            for _, row in rows
            if self._is_gone(row.offset, row.id) and (row.tombstone or row.model in models)
        ]
        return told, rows[-1][0] if rows else None

    def _tasks(self, after: str) -> tuple[list[bytes], str | None]:
        tasks = self._tx.task_scan(self._mesh, None, after, CHUNK_ROWS, known_only=False)
        told = [
            rebuild_turn(event, self._fingerprint(event.version.id))
            for task in tasks
            for event in self._tx.task_events(self._mesh, task.task)
            if self._tx.log_find(event.version.id) is None
        ]
        return told, tasks[-1].task if tasks else None

    def _again(self, rows: list[Any]) -> list[bytes]:
        gone: list[VersionedRow] = [row for row in rows if self._is_gone(row.offset, row.id)]
        return [rebuild_envelope(row, self._fingerprint(row.id)) for row in gone]

    def _is_gone(self, offset: int, id: bytes) -> bool:
        return offset < self._first and self._tx.log_find(id) is None

    def _fingerprint(self, id: bytes) -> bytes | None:
        known = self._tx.forgotten(id)
        return None if known is None else known[1]


def entries(tx: Reader, mesh: str, start: int, upto: int) -> tuple[list[Entry], int | None]:
    """Entries of a mesh from an offset on, and the offset to go on from; None at the end."""
    filter = Filter(meshes=(mesh,))
    page = tx.log_columns(start, upto + 1, CHUNK_ROWS, INTAKE_BATCH_BYTES, filter)
    columns = (getattr(page, name) for name in Entry.__struct_fields__)
    found = [Entry(*row) for row in zip(*columns, strict=True)]
    return found, page.upto + 1 if page.upto < upto else None


def is_exported(tx: Reader, entry: Entry) -> bool:
    """Whether others need an entry: not if a later one has taken its place, nor a message, nor what
    the broker has refused.

    What still waits in the outbox is told: the broker may have it, and only its answer is missing.
    What such a change has replaced is told too: if it is refused, that is what others have.
    """
    if entry.op == MESSAGE or _was_refused(tx, entry):
        return False
    find = _NEWEST.get(family_of(entry.op))
    if find is None:
        return True
    newest = find(tx, entry)
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
    place: Place | None = [1, _BEGINNINGS[1]]
    export = MeshExport(tx, mesh, 0)
    while place is not None and tx.log_bounds()[0] > 1:
        raws, place = export.piece(place)
        if raws:
            return True
    return False


def _state_newest(tx: Reader, entry: Entry) -> Version | None:
    return tx.state_version(entry.mesh, entry.entity)


def _memory_newest(tx: Reader, entry: Entry) -> Version | None:
    row = tx.memory_get(entry.mesh, decode_trusted(entry.raw).owner, entry.entity)
    return None if row is None else row.version


def _file_newest(tx: Reader, entry: Entry) -> Version | None:
    row = tx.file_get(entry.mesh, decode_trusted(entry.raw).owner, entry.entity)
    return None if row is None else row.version


_NEWEST: Final[dict[str, Callable[[Reader, Entry], Version | None]]] = {
    "state": _state_newest,
    "memory": _memory_newest,
    "file": _file_newest,
}
"""Families in which a later write takes the place of an earlier one."""

_STAGES: Final[tuple[Callable[[MeshExport, Any], tuple[list[bytes], Any]], ...]] = (
    MeshExport._log,
    MeshExport._state,
    MeshExport._memory,
    MeshExport._files,
    MeshExport._vectors,
    MeshExport._tasks,
)
_BEGINNINGS: Final[tuple[Any, ...]] = (0, "", ["", ""], ["", ""], 0, "")
