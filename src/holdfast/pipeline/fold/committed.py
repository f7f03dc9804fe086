"""Rows of silver from what quorums have committed.

The table `commits` has records and envelopes in commit order. A record says what became of its
envelope, so nothing is decided again: an applied change makes the revisions that its record names,
and a turn of a task is one that counts, whatever it came to. Each commit is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from holdfast.pipeline.fold.tasks import batch_of
from holdfast.pipeline.lake.known_commits import Lost, is_lost
from holdfast.pipeline.lake.schema import COMMITTED, SILVER, arrow_schema
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.ids import id_text
from holdfast.rules.limits import SECOND_MS
from holdfast.rules.quorum.commit_record import CommitRecord, decode_stored_record
from holdfast.rules.quorum.intents import EntityChange, decode_trusted_intent
from holdfast.rules.quorum.past import recorded_operations
from holdfast.rules.quorum.task_turns import committed_turns

NEEDED: Final = ("record", "raw")
"""The columns of `commits` that rows are made of."""
_ENTITY: Final = "entity."
_TASK: Final = "task."

_Row = tuple[Any, ...]


def rows_of_commits(commits: pa.Table, lost: Lost) -> dict[str, pa.Table]:
    """By table of turns: the rows that these commits make. Those without bytes make none, and those
    that a recovery has left behind neither.
    """
    found: dict[str, list[_Row]] = {name: [] for name in sorted(COMMITTED)}
    there = commits.filter(pc.is_valid(commits["raw"]))
    for raw_record, raw in zip(*(there[name].to_pylist() for name in NEEDED), strict=True):
        record, envelope = decode_stored_record(raw_record), decode_trusted(raw)
        if lost and is_lost(lost, record.mesh, record.fence.incarnation, record.number):
            continue
        if envelope.op.startswith(_ENTITY):
            found["entity_revisions"] += _revisions(record, envelope)
        elif envelope.op.startswith(_TASK):
            found["task_events"] += _turns(record, envelope)
    return {
        name: pa.Table.from_batches([batch_of(rows, arrow_schema(SILVER[name]))])
        for name, rows in found.items()
        if rows
    }


class CommittedFrame(NamedTuple):
    """Commits for Spark."""

    rows: DataFrame
    """Of the table `commits`."""
    lost: Lost


def committed_frame(name: str, commits: CommittedFrame) -> DataFrame:
    """The rows of a table of turns that commits make, by Spark."""
    lost = commits.lost

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = rows_of_commits(pa.Table.from_batches([batch]), lost).get(name)
            if rows is not None:
                yield from rows.to_batches()

    return commits.rows.where("first").select(*NEEDED).mapInArrow(read, SILVER[name])


def upto(commits: pa.Table, numbers: Mapping[str, int]) -> pa.Table:
    """The commits of these meshes up to a number each."""
    meshes = pa.array(sorted(numbers), pa.string())
    ends = pa.array([numbers[mesh] for mesh in sorted(numbers)], pa.int64())
    at = pc.index_in(commits["mesh"], value_set=meshes)
    end = pc.fill_null(ends.take(pc.fill_null(at, 0)), 0) if len(ends) else None
    if end is None:
        return commits.slice(0, 0)
    inside = pc.and_(pc.is_valid(at), pc.less_equal(commits["number"], end))
    return commits.filter(inside)


def _revisions(record: CommitRecord, envelope: Envelope) -> Iterator[_Row]:
    change = decode_trusted_intent(envelope) if record.revisions else None
    if not isinstance(change, EntityChange):
        return
    stamp = (envelope.lamport, envelope.origin, id_text(envelope.id))
    fence = record.fence
    for revision, one in recorded_operations(change, record.revisions):
        yield (
            *(record.mesh, one.type, one.id, revision, one.kind),
            *(one.fields.decode(), list(one.removed), *stamp, envelope.created_at * SECOND_MS),
            *(record.number, fence.incarnation, fence.lease_epoch, fence.coordinator),
            *(fence.sequence, record.committed_at * SECOND_MS),
        )


def _turns(record: CommitRecord, envelope: Envelope) -> Sequence[_Row]:
    body = None if record.outcome is None else decode_trusted_intent(envelope)
    if body is None:
        return []
    return [
        (
            *(record.mesh, envelope.entity, turn.version.lamport, turn.version.peer),
            *(id_text(turn.version.id), turn.kind, turn.generation, None),
            *(turn.event_time * SECOND_MS, None, None, None, turn.title, turn.description),
            record.number,
        )
        for turn in committed_turns(envelope, body, record.outcome)
    ]
