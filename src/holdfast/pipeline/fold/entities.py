"""Entities, folded from their revisions.

A quorum has decided which changes were applied, and its records say which revision each of them
made. So nothing is decided here: an entity is what its last whole write left, with the patches
behind it, and the revisions of silver are these changes. Of two changes under one revision, which
only a recovery that lost commits can leave, the one with the newer fence is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from holdfast.pipeline.fold.tasks import batch_of
from holdfast.pipeline.lake.schema import SILVER, arrow_schema
from holdfast.rules.quorum.entities import parent_of, read_fields
from holdfast.rules.quorum.intents import EntityOperation
from holdfast.rules.quorum.past import fields_of

REVISION: Final = tuple(SILVER["entity_revisions"].names)
"""The columns of a revision."""
REVISION_ORDER: Final = ("revision", "incarnation", "lease_epoch", "sequence")
_ROWS_AT_ONCE: Final = 8192
_KEY: Final = 3
_TIMES: Final = ("updated_at", "committed_at")

_Row = tuple[Any, ...]
_Named = dict[str, Any]


def fold_revisions(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `entities` or `entity_revisions`, made of revisions that are sorted by entity
    and `REVISION_ORDER`.
    """
    arrow = arrow_schema(SILVER[name])
    rows: list[_Row] = []
    for _, group in groupby(_rows(batches), key=lambda row: row[:_KEY]):
        once = {row[_KEY]: row for row in group}  # the last of each revision
        revisions = [once[revision] for revision in sorted(once)]
        rows += revisions if name != "entities" else [_entity(revisions)]
        if len(rows) >= _ROWS_AT_ONCE:
            yield batch_of(rows, arrow)
            rows = []
    if rows:
        yield batch_of(rows, arrow)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        whole = batch
        for name in _TIMES:
            at = batch.schema.get_field_index(name)
            whole = whole.set_column(at, name, whole.column(at).cast(pa.int64()))
        yield from zip(*(column.to_pylist() for column in whole.columns), strict=True)


def _entity(revisions: Sequence[_Row]) -> _Row:
    """The entity after these revisions."""
    named = [dict(zip(REVISION, row, strict=True)) for row in revisions]
    last = named[-1]
    fields = _fields(named)
    deleted, known = last["kind"] == "delete", fields is not None
    parent = ""
    if fields is not None and not deleted:
        parent = parent_of(last["type"], last["entity"], read_fields(fields))
    made: _Named = {
        **last,
        "fields": fields.decode() if fields is not None else None,
        "parent": parent if known else None,
        "whole": last["kind"] != "patch",
        "tombstone": deleted,
    }
    return tuple(made[column] for column in SILVER["entities"].names)


def _fields(revisions: Sequence[_Named]) -> bytes | None:
    """The fields, from the last whole write on; None if a revision since then was not read."""
    begin = max((at for at, row in enumerate(revisions) if row["kind"] != "patch"), default=None)
    if begin is None:
        return None
    since = revisions[begin:]
    if since[-1]["revision"] - since[0]["revision"] != len(since) - 1:
        return None
    return fields_of(
        EntityOperation(
            row["kind"],
            row["type"],
            row["entity"],
            fields=row["fields"].encode(),
            removed=tuple(row["removed"]),
        )
        for row in since
    )
