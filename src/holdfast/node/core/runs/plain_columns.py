"""The fold of a run that came in columns: plain entries of one coordinator, one after another.

It makes the rows that `plain_commits` makes of the same entries, by one statement for each table,
and no object for an entry. `fold_columns` returns None, and has changed nothing, for a run in which
something needs a second look; the caller then reads its entries one by one.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from holdfast.rules.commit_columns import TYPE, CommitColumns
from holdfast.rules.errors import FenceForged, FenceTooOld
from holdfast.rules.push_columns import unpacked
from holdfast.rules.quorum.fence import FenceToken, check_newer
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.storage.ports import Transaction


class CommittedColumns(NamedTuple):
    """Entries that follow each other, and the authority under which the first was committed: those
    of the others differ in the sequence only.
    """

    columns: CommitColumns
    fence: FenceToken

    def fence_at(self, place: int) -> FenceToken:
        return self.fence.further(place)


class ColumnsFolded(NamedTuple):
    """What became of a run: all of it was applied, and counts from these on."""

    number: int
    offset: int
    revisions: array[int]


def fold_columns(
    tx: Transaction, standing: QuorumRow, run: CommittedColumns, now_ms: int
) -> ColumnsFolded | None:
    columns, fence, mesh = run.columns, run.fence, standing.mesh
    if fence.incarnation != standing.incarnation:
        return None
    try:
        check_newer(standing.fence, fence, mesh)
    except (FenceTooOld, FenceForged):
        return None
    if not tx.intents_are_new(mesh, columns.id_list()) or not _stand(tx, mesh, columns):
        return None
    offset = tx.log_append_columns(mesh, columns, now_ms)
    if offset is None:
        return None  # one of them has waited in the log, or stands here twice
    number = standing.number + 1
    return ColumnsFolded(number, offset, tx.columns_put(mesh, columns, fence, number, offset))


def _stand(tx: Transaction, mesh: str, columns: CommitColumns) -> bool:
    """Whether every entity stands where the writer of a change said, if it said so."""
    if columns.bases is None:
        return True
    keys = [(TYPE, id) for id in columns.entity_list()]
    stands = tx.entity_revision_many(mesh, keys)
    for key, base in zip(keys, unpacked(columns.bases), strict=True):
        revision = stands.get(key, 0)
        if base not in (-1, revision):
            return False
        stands[key] = revision + 1
    return True
