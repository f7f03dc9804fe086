"""Checks that the tables are what the log makes of them.

Tables are a fold of the log, so each can be compared with the other. By default some rows of every
family are compared with the entry that made them, and some of the newest entries with the rows they
should have led to. On request the whole log is folded again and every row compared; the fold is
done in parts, each with a share of the keys, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from holdfast.node.core.fold import current_version
from holdfast.node.core.fold_tasks import task_of, task_of_events
from holdfast.node.log.history import replay
from holdfast.rules import limits
from holdfast.rules.audit_chain import AuditRow, named
from holdfast.rules.bodies import (
    AuditAppend,
    Body,
    FileShare,
    MemorySet,
    StateSet,
    VectorStore,
    decode_trusted_body,
)
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.merge import version_of
from holdfast.rules.order import is_newer
from holdfast.rules.rows import (
    Entry,
    FileRow,
    MemoryRow,
    StateRow,
    TaskEventRow,
    TaskRow,
    VectorRow,
)
from holdfast.storage.ports import Reader
from holdfast.storage.scans import (
    audit_rows,
    file_rows,
    log_entries,
    memory_rows,
    state_rows,
    task_rows,
    vector_rows,
)

FamilyRow = StateRow | MemoryRow | FileRow | VectorRow


class Compared(NamedTuple):
    """How many rows and entries were compared, and the differences as sentences."""

    number: int
    differences: list[str]


def compare_some(reader: Reader, since: int) -> Compared:
    """Compares samples in both directions, of what was written at the offset `since` or later."""
    head = reader.log_bounds()[1]
    count, found = 0, []
    for mesh in reader.mesh_list():
        for row in _sample(reader, mesh.slug):
            if row.offset >= since:
                count += 1
                found += _row_against_entry(reader, row)
        for task in reader.task_scan(mesh.slug, None, "", limits.DOCTOR_SAMPLE_ROWS):
            if task.offset >= since:
                count += 1
                found += _task_against_turns(reader, task)
    start = max(since, head - limits.DOCTOR_SAMPLE_ROWS + 1)
    for entry in reader.log_range(start, head + 1, limits.DOCTOR_SAMPLE_ROWS):
        count += 1
        found += _entry_against_row(reader, entry)
    return Compared(count, found)


def compare_all(reader: Reader, peer: str) -> Compared:
    """Compares every row of every family with the fold of the whole log, which must begin at 1."""
    head = reader.log_bounds()[1]
    parts = head // limits.DOCTOR_REPLAY_ROWS + 1
    meshes = {row.slug for row in reader.mesh_list()}
    count, found = 0, []
    for part in range(parts):

        def ours(entity: str, part: int = part) -> bool:
            return crc32(entity.encode()) % parts == part

        entries = (
            entry
            for entry in log_entries(reader, 1, head + 1)
            if entry.mesh in meshes and ours(entry.entity)
        )
        with replay(entries, reader.mesh_list(), peer).read() as folded:
            compared = _compare(reader, folded, ours)
        count += compared.number
        found += compared.differences
    return Compared(count, found)


# --- some ----------------------------------------------------------------------------------------


def _sample(reader: Reader, mesh: str) -> Iterator[FamilyRow]:
    most = limits.DOCTOR_SAMPLE_ROWS
    yield from reader.state_scan(mesh, "", "", most)
    yield from reader.memory_scan(mesh, None, ("", ""), most)
    yield from reader.file_scan(mesh, None, ("", ""), most)
    for _, row in reader.vector_scan(mesh, None, 0, most, live_only=False):
        yield row


def _row_against_entry(reader: Reader, row: FamilyRow) -> list[str]:
    entry = reader.log_get(row.offset)
    if entry is None or entry.id != row.id:
        return [f"{_name(row)} was made at offset {row.offset}, where the log has something else"]
    body = decode_trusted_body(decode_trusted(entry.raw))
    if _content(row) != _content_of(body):
        return [f"{_name(row)} is not what offset {row.offset} says"]
    return []


def _entry_against_row(reader: Reader, entry: Entry) -> list[str]:
    envelope = decode_trusted(entry.raw)
    body = decode_trusted_body(envelope)
    if isinstance(body, AuditAppend):
        return _event_against_row(reader, body.event(envelope))
    if body is None or entry.op.startswith(("fact.", "task.", "message.")):
        return []
    current = current_version(reader, envelope, body)
    if current is None or is_newer(version_of(envelope), current):
        return [f"{entry.op} {entry.entity!r} at offset {entry.offset} is in no table"]
    return []


def _event_against_row(reader: Reader, event: AuditRow) -> list[str]:
    found = reader.audit_get(event.chain, event.seq)
    if found is None or found.hash != event.hash:
        return [f"{named(event)} in {event.mesh!r} is not in its chain"]
    return []


def _task_against_turns(reader: Reader, row: TaskRow) -> list[str]:
    if task_of_events(reader.task_events(row.mesh, row.task)) != task_of(row):
        return [f"task {row.task} in {row.mesh!r} is not what its turns make of it"]
    return []


def _content(row: FamilyRow) -> tuple[Any, ...] | None:
    if row.tombstone:
        return None
    if isinstance(row, StateRow):
        return (row.value,)
    if isinstance(row, MemoryRow):
        return (row.value, row.tags)
    if isinstance(row, FileRow):
        return (row.sha256, row.size, row.content)
    return (row.model, row.embedding, row.content, row.metadata)


def _content_of(body: Body | None) -> tuple[Any, ...] | None:
    if isinstance(body, StateSet):
        return (body.value,)
    if isinstance(body, MemorySet):
        return (body.value, body.tags)
    if isinstance(body, FileShare):
        return (body.sha256.hex(), body.size, body.content)
    if isinstance(body, VectorStore):
        return (body.identity().fingerprint, body.embedding, body.content, body.metadata)
    return None


def _name(row: FamilyRow) -> str:
    key = row.path if isinstance(row, FileRow) else row.key
    family = type(row).__name__.removesuffix("Row").lower()
    return f"{family} {key!r} in {row.mesh!r}"


# --- all -----------------------------------------------------------------------------------------


def _compare(reader: Reader, folded: Reader, ours: Callable[[str], bool]) -> Compared:
    count, found = 0, []
    for mesh in reader.mesh_list():
        expected = {_key(row): row for row in _rows(folded, mesh.slug)}
        for row in _rows(reader, mesh.slug):
            if ours(_entity(row)):
                count += 1
                found += _differs(row, expected.pop(_key(row), None))
        # A sweep may have removed a tombstone, but nothing live.
        found += [f"{_name(row)} is missing" for row in expected.values() if _is_live(row)]
        for event in audit_rows(folded, mesh.slug):
            count += 1
            found += _event_against_row(reader, event)
        for task in task_rows(reader, mesh.slug):
            if ours(task.task) and not _is_committed(reader, task):
                count += 1
                found += _task_differs(reader, folded, task)
        for task in task_rows(folded, mesh.slug):
            gone = reader.task_get(mesh.slug, task.task) is None
            if gone and not reader.task_forgotten(mesh.slug, task.task):
                found.append(f"task {task.task} in {mesh.slug!r} is missing")
    return Compared(count, found)


def _rows(reader: Reader, mesh: str) -> Iterator[FamilyRow]:
    yield from state_rows(reader, mesh)
    yield from memory_rows(reader, mesh)
    yield from file_rows(reader, mesh)
    yield from vector_rows(reader, mesh)


def _entity(row: FamilyRow) -> str:
    return row.path if isinstance(row, FileRow) else row.key


def _key(row: FamilyRow) -> tuple[Any, ...]:
    if isinstance(row, StateRow):
        return ("state", row.key)
    if isinstance(row, VectorRow):
        # Rows of vectors are only added: each has a key of its own.
        return ("vector", row.id)
    return (type(row), row.owner, _entity(row))


def _is_live(row: FamilyRow) -> bool:
    return row.live if isinstance(row, VectorRow) else not row.tombstone


def _differs(row: FamilyRow, expected: FamilyRow | None) -> list[str]:
    if expected is None:
        return [f"{_name(row)} is in no entry of the log"]
    if _without_place(row) != _without_place(expected):
        return [f"{_name(row)} is not what the log makes of it"]
    return []


def _task_differs(reader: Reader, folded: Reader, row: TaskRow) -> list[str]:
    expected = folded.task_get(row.mesh, row.task)
    if expected is None or _without_place(row) != _without_place(expected):
        return [f"task {row.task} in {row.mesh!r} is not what the log makes of it"]
    turns = [reader.task_events(row.mesh, row.task), folded.task_events(row.mesh, row.task)]
    if any(event.standing is None for event in turns[0]):
        # Some were stored before turns had standings; the next late turn gives them theirs.
        turns = [[_without_standing(event) for event in events] for events in turns]
    here, there = ([msgspec.structs.replace(e, applied_at=0) for e in events] for events in turns)
    return [] if here == there else [f"the turns of task {row.task} differ from the log"]


def _is_committed(reader: Reader, row: TaskRow) -> bool:
    """Whether commit order has decided about a task: `check_commits` compares those."""
    return any(event.place for event in reader.task_events(row.mesh, row.task))


def _without_standing(event: TaskEventRow) -> TaskEventRow:
    return msgspec.structs.replace(event, standing=None, opened=None)


def _without_place(row: Any) -> Any:
    return msgspec.structs.replace(row, offset=0)
