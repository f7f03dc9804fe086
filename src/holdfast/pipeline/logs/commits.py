"""Commit records of a log as Arrow: what quorums made of the strong envelopes in it.

A log gives envelopes by offset, and a strong one may stand in it long before it is committed. So
its record is read by the number of the commit, and the envelope with it: whoever folds what was
committed has both in one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.log import ReadCommit
from holdfast.rules.ids import id_text
from holdfast.rules.limits import SECOND_MS
from holdfast.rules.quorum.commit_record import CommitRecord, decode_stored_record

COMMITS: Final = schema.arrow_schema(schema.COMMITS)


def commit_rows(log: str, epoch: int, commits: Sequence[ReadCommit], batch: int) -> pa.Table:
    """The rows of `commits` that these commits of a log make."""
    read: list[CommitRecord] = [decode_stored_record(one.record) for one in commits]
    fences = [one.fence for one in read]
    columns = {
        "log": [log] * len(read),
        "epoch": [epoch] * len(read),
        "mesh": [one.mesh for one in read],
        "number": [one.number for one in read],
        "id": [id_text(one.id) for one in read],
        "incarnation": [fence.incarnation for fence in fences],
        "lease_epoch": [fence.lease_epoch for fence in fences],
        "coordinator": [fence.coordinator for fence in fences],
        "sequence": [fence.sequence for fence in fences],
        "committed_at": [one.committed_at * SECOND_MS for one in read],
        "outcome": [None if one.outcome is None else one.outcome.value for one in read],
        "reason": [one.reason or None for one in read],
        "record": [one.record for one in commits],
        "first": [one.raw is not None for one in commits],
        "raw": [one.raw for one in commits],
        "batch": [batch] * len(read),
    }
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in COMMITS})
