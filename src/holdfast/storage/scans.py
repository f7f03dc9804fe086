"""Every row of a table, for work that goes through all of it: exports, digests, checks, backups.

Each function reads a page of CHUNK_ROWS rows at a time and yields the rows one by one, so memory
stays bounded however large the table is. Rows come live and dead unless the function says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from holdfast.rules.audit_chain import AuditRow
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.quorum.view import EntityRow
from holdfast.rules.rows import BlobRow, Entry, FileRow, MemoryRow, StateRow, TaskRow, VectorRow
from holdfast.storage.ports import Reader

T = TypeVar("T")


def paged(page: Callable[[Any], list[T]], place_of: Callable[[T], Any], after: Any) -> Iterator[T]:
    """All rows of a paged read: `page(after)` gives the rows behind a place, `place_of` the place
    of a row.
    """
    while rows := page(after):
        yield from rows
        after = place_of(rows[-1])


def state_rows(reader: Reader, mesh: str) -> Iterator[StateRow]:
    return paged(lambda at: reader.state_scan(mesh, "", at, CHUNK_ROWS), lambda row: row.key, "")


def memory_rows(reader: Reader, mesh: str) -> Iterator[MemoryRow]:
    return paged(
        lambda at: reader.memory_scan(mesh, None, at, CHUNK_ROWS),
        lambda row: (row.owner, row.key),
        ("", ""),
    )


def file_rows(reader: Reader, mesh: str) -> Iterator[FileRow]:
    return paged(
        lambda at: reader.file_scan(mesh, None, at, CHUNK_ROWS),
        lambda row: (row.owner, row.path),
        ("", ""),
    )


def vector_rows(reader: Reader, mesh: str) -> Iterator[VectorRow]:
    numbered = paged(
        lambda at: reader.vector_scan(mesh, None, at, CHUNK_ROWS, live_only=False),
        lambda row: row[0],
        0,
    )
    return (row for _, row in numbered)


def task_rows(reader: Reader, mesh: str, *, known_only: bool = True) -> Iterator[TaskRow]:
    """`known_only` leaves out tasks whose creation has not arrived yet."""
    return paged(
        lambda at: reader.task_scan(mesh, None, at, CHUNK_ROWS, known_only=known_only),
        lambda row: row.task,
        "",
    )


def entity_rows(reader: Reader, mesh: str) -> Iterator[EntityRow]:
    """Of all types, also those that were deleted."""
    for type in ENTITY_TYPES:
        page = partial(_entity_page, reader, mesh, type)
        yield from paged(page, lambda row: row.id, "")


def _entity_page(reader: Reader, mesh: str, type: str, after: str) -> list[EntityRow]:
    return reader.entity_list(mesh, type, after, CHUNK_ROWS, live_only=False)


def audit_rows(reader: Reader, mesh: str) -> Iterator[AuditRow]:
    return paged(
        lambda at: reader.audit_scan(mesh, None, None, at, CHUNK_ROWS),
        lambda row: (row.stream, row.origin, row.epoch, row.seq),
        ("", "", -1, 0),
    )


def blob_rows(reader: Reader) -> Iterator[BlobRow]:
    return paged(lambda at: reader.blob_scan(at, CHUNK_ROWS), lambda row: row.sha256, "")


def log_entries(reader: Reader, start: int, end: int) -> Iterator[Entry]:
    """The entries with start <= offset < end that the log still holds."""
    return paged(
        lambda at: reader.log_range(at + 1, end, CHUNK_ROWS), lambda entry: entry.offset, start - 1
    )
