"""Tasks, folded on Spark by the rule that nodes use.

A task is the fold of all turns on it (created, claimed, completed …), and the task events of silver
are these turns, each with its outcome. So both tables are made of turns, and turns can be read from
bronze, from commits and from events alike: that is how events of several folds are merged.

Turns that a quorum has committed have the number of their commit, and come in that order behind
those that stamps decide. Which of them count, their records have said (`committed.py`).

Tasks get the turns of a task together and sorted; Python takes one task after another and has only
one in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa

from holdfast.pipeline.lake.schema import SILVER, arrow_schema
from holdfast.rules import tasks
from holdfast.rules.order import Version
from holdfast.rules.quorum.task_turns import fold_both

TURN: Final = (
    *("mesh", "task", "lamport", "peer", "id"),
    *("kind", "generation", "event_time", "title", "description", "number"),
)
"""The columns of a turn."""
_ROWS_AT_ONCE: Final = 8192

_Row = tuple[Any, ...]


class _Turns(NamedTuple):
    """The turns of one task, each once."""

    stamped: list[tasks.Turn]
    committed: list[tasks.Turn]
    """In commit order."""
    numbers: dict[Version, int]
    """By version of a committed turn: the number of its commit."""

    @property
    def last(self) -> tasks.Turn:
        return (self.committed or self.stamped)[-1]


def fold_turns(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `tasks` or `task_events`, made of turns that are sorted by task and version."""
    to_rows = _task if name == "tasks" else _events
    arrow = arrow_schema(SILVER[name])
    rows: list[_Row] = []
    for (mesh, task), group in groupby(_rows(batches), key=lambda row: row[:2]):
        rows += to_rows(mesh, task, _turns(group))
        if len(rows) >= _ROWS_AT_ONCE:
            yield batch_of(rows, arrow)
            rows = []
    if rows:
        yield batch_of(rows, arrow)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        time = batch.schema.get_field_index("event_time")
        # Times stay plain numbers: the fold does not look at them.
        whole = batch.set_column(time, "event_time", batch.column(time).cast(pa.int64()))
        yield from zip(*(column.to_pylist() for column in whole.columns), strict=True)


def _turns(rows: Iterator[_Row]) -> _Turns:
    """The turns of sorted rows. Ids as text sort as their bytes do."""
    stamped: list[tasks.Turn] = []
    committed: dict[Version, tasks.Turn] = {}
    numbers: dict[Version, int] = {}
    for _, _, lamport, peer, id, *rest, number in rows:
        version = Version(lamport, peer, id.encode())
        if number is not None:
            committed[version], numbers[version] = tasks.Turn(version, *rest), number
        elif not stamped or stamped[-1].version != version:
            stamped.append(tasks.Turn(version, *rest))
    # What was adopted stays in stamp order. A handoff is two turns of one commit and one id: the
    # release comes before the claim that follows it.
    shared = Counter(version.id for version in committed)

    def place(turn: tasks.Turn) -> tuple[int, int, int]:
        version = turn.version
        generation = turn.generation if shared[version.id] > 1 else 0
        return numbers[version], version.lamport, generation

    in_order = sorted(committed.values(), key=place)
    return _Turns(stamped, in_order, numbers)


def _task(mesh: str, task: str, turns: _Turns) -> list[_Row]:
    made, _ = fold_both(turns.stamped, turns.committed)
    last = turns.last
    return [
        (
            *(mesh, task, made.known, made.title, made.description, made.created_by),
            *(made.created_at, made.status.value, made.generation),
            *(*_plain(made.holder), made.claimed_at, *_plain(made.ended), made.ended_at),
            *(*_plain(last.version), last.event_time, turns.numbers.get(last.version)),
        )
    ]


def _events(mesh: str, task: str, turns: _Turns) -> list[_Row]:
    _, history = fold_both(turns.stamped, turns.committed)
    return [
        (
            *(mesh, task, *_plain(judged.turn.version)),
            *(judged.turn.kind, judged.turn.generation, judged.event.value),
            *(judged.turn.event_time, *_plain(judged.against)),
            *(judged.turn.title, judged.turn.description),
            turns.numbers.get(judged.turn.version),
        )
        for judged in history
    ]


def _plain(version: Version | None) -> tuple[int | None, str | None, str | None]:
    if version is None:
        return (None, None, None)
    return (version.lamport, version.peer, version.id.decode())


def batch_of(rows: list[_Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as Arrow; times are given as microseconds."""
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
