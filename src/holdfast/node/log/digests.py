"""What a node holds, as digests that can be compared with another's (see `rules.digests`).

One transaction reads everything, so the digests belong to one place in the log. On a large node it
may take minutes; meanwhile writers go on, and only the space of the write-ahead log waits to be
used again. Memory stays bounded: rows pass page by page and leave one number per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import nsmallest
from typing import Any, Final

import msgspec

from holdfast.node.log.history import repaired_to
from holdfast.rules import digests as rules
from holdfast.rules.digests import AnyRow, DigestTally, MeshEntity, Values, values_of
from holdfast.rules.errors import UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.rules.limits import DIGEST_ROWS_MAX, RANGE_BATCH_BYTES, RANGE_BATCH_ROWS
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Reader
from holdfast.storage.scans import (
    entity_rows,
    file_rows,
    memory_rows,
    state_rows,
    task_rows,
    vector_rows,
)

_LOG: Final = "log"


class TableDigests(msgspec.Struct, frozen=True):
    """The digests of one table of a mesh."""

    rows: int
    buckets: dict[str, str]
    """By bucket: the digest of its rows. Buckets without rows are left out."""


class MeshDigests(msgspec.Struct, frozen=True):
    """The digests of one mesh."""

    forgotten_lamport: int
    """A sweep may have removed dead rows up to this stamp, so they are in no digest."""
    tables: dict[str, TableDigests]
    commit_number: int = 0
    """The last commit of the mesh that the node has folded; 0 if it has no voters."""


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """What a node holds at one place in its log."""

    format: int
    peer: str
    epoch: int
    first: int
    head: int
    repaired_to: int | None
    """A repair lost entries of the log up to this offset; None if none were lost."""
    meshes: dict[str, MeshDigests]


class HeldRow(msgspec.Struct, frozen=True):
    """One row, with its digest."""

    key: list[Any]
    """The values that tell it from every other row of its mesh and table."""
    digest: str
    row: dict[str, Any]
    """Its columns; a long value as its length and hash."""


class BucketRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows behind one digest, at one place in the log."""

    peer: str
    epoch: int
    first: int
    head: int
    mesh: str
    forgotten_lamport: int
    table: str
    bucket: str
    rows: list[HeldRow]
    """Sorted by key."""
    more: bool
    """Whether the bucket has more rows; these are the first by their keys."""
    commit_number: int = 0
    """The last commit of the mesh that the node had folded."""


def digests(reader: Reader, peer: str, meshes: Collection[str] = ()) -> Digests:
    """The digests of these meshes, or of all meshes."""
    first, head = reader.log_bounds()
    known = {row.slug: row for row in reader.mesh_list() if not meshes or row.slug in meshes}
    logs = _log_tallies(reader, known, first, head)
    return Digests(
        format=rules.FORMAT,
        peer=peer,
        epoch=reader.epoch(),
        first=first,
        head=head,
        repaired_to=repaired_to(reader),
        meshes={
            slug: MeshDigests(
                row.forgotten_lamport,
                {
                    name: TableDigests(tally.rows, tally.digests())
                    for name, tally in _tallies(reader, row, logs[slug]).items()
                },
                _commit_number(reader, slug),
            )
            for slug, row in known.items()
        },
    )


def bucket_rows(reader: Reader, peer: str, mesh: str, table: str, bucket: int) -> BucketRows:
    """The rows of one bucket, and where the log was when they were read."""
    rules.check_table(table)
    row = reader.mesh_get(mesh)
    if row is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    first, head = reader.log_bounds()
    in_bucket = (
        held_row(table, values)
        for values in _covered(reader, row, table, first, head)
        if rules.bucket_of(table, values) == bucket
    )
    rows = nsmallest(DIGEST_ROWS_MAX + 1, in_bucket, key=lambda held: held.key)
    return BucketRows(
        peer=peer,
        epoch=reader.epoch(),
        first=first,
        head=head,
        mesh=mesh,
        forgotten_lamport=row.forgotten_lamport,
        table=table,
        bucket=rules.bucket_name(bucket),
        rows=rows[:DIGEST_ROWS_MAX],
        more=len(rows) > DIGEST_ROWS_MAX,
        commit_number=_commit_number(reader, mesh),
    )


def _commit_number(reader: Reader, mesh: str) -> int:
    standing = reader.quorum_get(mesh)
    return 0 if standing is None else standing.number


def held_row(table: str, values: Values) -> HeldRow:
    return HeldRow(
        list(rules.row_key(table, values)),
        rules.row_digest(table, values).hex(),
        rules.shown(table, values),
    )


def _tallies(reader: Reader, mesh: MeshRow, of_log: DigestTally) -> dict[str, DigestTally]:
    tallies = {table: DigestTally() for table in rules.TABLES if table != _LOG}
    for table, values in _rows(reader, mesh.slug):
        if rules.is_covered(table, values, mesh.forgotten_lamport):
            tallies[table].add(rules.bucket_of(table, values), rules.row_digest(table, values))
    return {**tallies, _LOG: of_log}


def _log_tallies(
    reader: Reader, meshes: Collection[str], first: int, head: int
) -> dict[str, DigestTally]:
    """The tallies of the log by mesh; the log is read once for all of them."""
    tallies = {mesh: DigestTally() for mesh in meshes}
    for values in _log(reader, meshes, first, head):
        tally = tallies[values[0]]
        tally.add(rules.bucket_of(_LOG, values), rules.row_digest(_LOG, values))
    return tallies


# --- all rows, page by page ----------------------------------------------------------------------


def _covered(reader: Reader, mesh: MeshRow, wanted: str, first: int, head: int) -> Iterator[Values]:
    if wanted == _LOG:
        yield from _log(reader, (mesh.slug,), first, head)
        return
    for table, values in _rows(reader, mesh.slug, wanted):
        if table == wanted and rules.is_covered(table, values, mesh.forgotten_lamport):
            yield values


def _rows(reader: Reader, mesh: str, wanted: str = "") -> Iterator[tuple[str, Values]]:
    """The rows of one table, or of all tables of families, as digests take them."""
    for table, scan in _SCANS.items():
        if wanted in ("", table):
            yield from map(values_of, scan(reader, mesh))
    if wanted in ("", "tasks", "task_events"):
        for task in task_rows(reader, mesh, known_only=False):
            yield values_of(task)
            if wanted != "tasks":
                yield from map(values_of, reader.task_events(mesh, task.task))


def _entities(reader: Reader, mesh: str) -> Iterator[MeshEntity]:
    return (MeshEntity(mesh, row) for row in entity_rows(reader, mesh))


_SCANS: Final[dict[str, Callable[[Reader, str], Iterator[AnyRow]]]] = {
    "state": state_rows,
    "memory": memory_rows,
    "files": file_rows,
    "vectors": vector_rows,
    "entities": _entities,
}


def _log(reader: Reader, meshes: Collection[str], first: int, head: int) -> Iterator[Values]:
    """What the log still holds of these meshes. An entry whose bytes have changed counts as it is
    now: so its digest differs and its row is named, where an error would hide all other rows.
    """
    if not meshes:
        return  # a filter without meshes would let all of them pass
    filter = Filter(meshes=tuple(meshes))
    at = first
    while at <= head:
        page = reader.log_columns(
            at, head + 1, RANGE_BATCH_ROWS, RANGE_BATCH_BYTES, filter, damaged=True
        )
        for mesh, id, raw in zip(page.mesh, page.id, page.raw, strict=True):
            yield mesh, id.hex(), raw
        at = page.upto + 1
