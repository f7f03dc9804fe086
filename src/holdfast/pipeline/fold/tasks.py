"""Tasks, folded on Spark by the rule that nodes use.

A task is the fold of all turns on it (created, claimed, completed …), and the task events of silver
are these turns, each with its outcome. So both tables are made of turns, and turns can be read from
bronze and from events alike: that is how events of several folds are merged.

Spark brings the turns of a task together and sorts them; Python takes one task after another and
has only one in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.pipeline.fold.decode import with_body
from holdfast.pipeline.lake.schema import KEYS, SILVER, arrow_schema
from holdfast.rules import tasks
from holdfast.rules.order import ORDER_COLUMNS, Version

TURN: Final = (
    *("mesh", "task", "lamport", "peer", "id"),
    *("kind", "generation", "event_time", "title", "description"),
)
"""The columns of a turn."""
_ROWS_AT_ONCE: Final = 8192

_Row = tuple[Any, ...]


def turns_of(changes: DataFrame) -> DataFrame:
    """The turns that envelopes hold."""
    return with_body("task_events", changes).select(*TURN)


def tasks_of(turns: DataFrame) -> DataFrame:
    """The tasks that these turns make; each turn may be there more than once."""
    return _folded(turns, "tasks")


def events_of(turns: DataFrame) -> DataFrame:
    """The turns, each once, with their outcomes."""
    return _folded(turns, "task_events")


def _folded(turns: DataFrame, name: str) -> DataFrame:
    ordered = (
        turns.select(*TURN)
        .repartition(*KEYS[name])
        .sortWithinPartitions(*KEYS[name], *ORDER_COLUMNS)
    )
    return ordered.mapInArrow(partial(fold_turns, name), SILVER[name])


# --- on the executors ----------------------------------------------------------------------------


def fold_turns(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `tasks` or `task_events`, made of turns that are sorted by task and version."""
    to_rows = _task if name == "tasks" else _events
    arrow = arrow_schema(SILVER[name])
    rows: list[_Row] = []
    for (mesh, task), group in groupby(_rows(batches), key=lambda row: row[:2]):
        rows += to_rows(mesh, task, _turns(group))
        if len(rows) >= _ROWS_AT_ONCE:
            yield _batch(rows, arrow)
            rows = []
    if rows:
        yield _batch(rows, arrow)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        time = batch.schema.get_field_index("event_time")
        # Times stay plain numbers: the fold does not look at them.
        whole = batch.set_column(time, "event_time", batch.column(time).cast(pa.int64()))
        yield from zip(*(column.to_pylist() for column in whole.columns), strict=True)


def _turns(rows: Iterator[_Row]) -> list[tasks.Turn]:
    """The turns of sorted rows, each once. Ids as text sort as their bytes do."""
    turns: list[tasks.Turn] = []
    for _, _, lamport, peer, id, *rest in rows:
        version = Version(lamport, peer, id.encode())
        if not turns or turns[-1].version != version:
            turns.append(tasks.Turn(version, *rest))
    return turns


def _task(mesh: str, task: str, turns: list[tasks.Turn]) -> list[_Row]:
    made, _ = tasks.fold(turns)
    last = turns[-1]
    return [
        (
            *(mesh, task, made.known, made.title, made.description, made.created_by),
            *(made.created_at, made.status.value, made.generation),
            *(*_plain(made.holder), made.claimed_at, *_plain(made.ended), made.ended_at),
            *(*_plain(last.version), last.event_time),
        )
    ]


def _events(mesh: str, task: str, turns: list[tasks.Turn]) -> list[_Row]:
    _, history = tasks.fold(turns)
    return [
        (
            *(mesh, task, *_plain(judged.turn.version)),
            *(judged.turn.kind, judged.turn.generation, judged.event.value),
            *(judged.turn.event_time, *_plain(judged.against)),
            *(judged.turn.title, judged.turn.description),
        )
        for judged in history
    ]


def _plain(version: Version | None) -> tuple[int | None, str | None, str | None]:
    if version is None:
        return (None, None, None)
    return (version.lamport, version.peer, version.id.decode())


def _batch(rows: list[_Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
