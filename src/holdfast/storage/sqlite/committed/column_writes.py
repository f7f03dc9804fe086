"""The rows of a run of committed entries that came in columns: one statement for each table.

An array holds the spans of a run. Its rows are numbered from 1 on, as are the bytes of what is
joined; SQL cuts the rows out of the columns, without coming back to Python. It is imported where a
quorum folds, and nowhere else.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, cast

import apsw

from holdfast.rules.commit_columns import DIGITS, TYPE, CommitColumns, record_columns
from holdfast.rules.push_columns import SPAN_BITS, SPAN_MASK
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.plain_intents import CHANGE

_INT64: Final = apsw.SQLITE_CARRAY_INT64
_SPAN: Final = f"(value >> {SPAN_BITS}) + 1, value & {SPAN_MASK}"


def _text(column: str, width: str) -> str:
    """Of a column that is padded with blanks."""
    return f"rtrim(CAST(substr({column}, (rowid - 1) * {width} + 1, {width}) AS TEXT))"


def _number(column: str) -> str:
    return f"CAST(substr({column}, (rowid - 1) * {DIGITS} + 1, {DIGITS}) AS INTEGER)"


_ID: Final = f"substr({_text('?3', '?4')}, {len(TYPE) + 2})"
_LOG: Final = (
    "INSERT INTO log (id, mesh, op, entity, origin, lamport, raw, recorded_at, via, leaf) "
    f"SELECT substr(?7, rowid * 16 - 15, 16), ?2, '{CHANGE}', {_text('?3', '?4')}, "
    f"{_text('?5', '?6')}, {_number('?8')}, substr(?9, {_SPAN}), ?10, 0, "
    "substr(?11, rowid * 32 - 31, 32) FROM carray(?1) WHERE true ON CONFLICT (id) DO NOTHING"
)
_CHANGED: Final = (
    *("parent", "deleted", "whole", "origin", "lamport", "incarnation", "lease_epoch"),
    *("coordinator", "sequence", "committed_at", "fields"),
)
# What stands there goes on counting its revisions.
_ENTITY: Final = (
    f"INSERT INTO entity (mesh, type, id, revision, {', '.join(_CHANGED)}) "
    f"SELECT ?2, '{TYPE}', {_ID}, 1, '', 0, 1, {_text('?5', '?6')}, {_number('?7')}, "
    f"?8, ?9, ?10, ?11 + rowid - 1, {_number('?12')}, CAST(substr(?13, {_SPAN}) AS TEXT) "
    "FROM carray(?1) WHERE true ON CONFLICT (mesh, type, id) DO UPDATE SET "
    "revision = entity.revision + 1, "
    + ", ".join(f"{name} = excluded.{name}" for name in _CHANGED)
    + " RETURNING sequence, revision"
)
_REVISION: Final = (
    "INSERT INTO entity_revision (mesh, type, id, revision, number, deleted, whole) "
    f"SELECT ?2, '{TYPE}', {_ID}, value, ?5 + rowid - 1, 0, 1 FROM carray(?1)"
)
_COMMIT: Final = (
    "INSERT INTO quorum_commit (offset, mesh, number, id, head, record) "
    "SELECT ?2 + rowid, ?3, ?4 + rowid, substr(?5, rowid * 16 - 15, 16), ?2 + rowid, "
    f"substr(?6, {_SPAN}) FROM carray(?1)"
)


def log_insert(con: apsw.Connection, mesh: str, run: CommitColumns, recorded_at: int) -> None:
    con.execute(
        _LOG,
        (
            *(_numbers(run.spans), mesh, run.names, run.name_width, run.origins, run.origin_width),
            *(run.ids, run.stamp_words, run.payload, recorded_at, run.leaves),
        ),
    )


def put_columns(
    con: apsw.Connection,
    mesh: str,
    run: CommitColumns,
    fence: FenceToken,
    number: int,
    offset: int,
) -> array[int]:
    """Entities, their revisions and the commit records; the revisions come back."""
    found = con.execute(
        _ENTITY,
        (
            *(_numbers(run.row_spans), mesh, run.names, run.name_width, run.origins),
            *(run.origin_width, run.stamp_words, fence.incarnation, fence.lease_epoch),
            *(fence.coordinator, fence.sequence, run.time_words, run.rows),
        ),
    )
    # In whatever order they come back.
    made: dict[Any, Any] = dict(cast("Any", found.fetchall()))
    first = fence.sequence
    revisions = array("q", [made[at] for at in range(first, first + run.size)])
    con.execute(_REVISION, (_numbers(revisions), mesh, run.names, run.name_width, number))
    records, spans = record_columns(mesh, run, fence=fence, number=number, revisions=revisions)
    con.execute(_COMMIT, (_numbers(spans), offset - 1, mesh, number - 1, run.ids, records))
    return revisions


def _numbers(column: bytes | array[int]) -> Any:
    return apsw.carray(column, flags=_INT64)
