"""Which task reads what: the stretches of a batch, divided among tasks.

Nodes of one mesh hold the same envelopes, in almost the same order. So every task reads the same
share of each log, as the first tenth of all of them: most of what two logs both have then meets in
one task, which drops the second at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.pipeline.ingest.plan import LogStretch
from holdfast.pipeline.source.plan import even_parts
from holdfast.rules.limits import LAKE_FILE_ROWS, SOURCE_BATCH_ROWS, SOURCE_PARTITION_ROWS


def task_count(rows: int, parallelism: int) -> int:
    """How many tasks share so many rows: no task reads too many, all cores have work, and no task
    makes a small file for nothing.
    """
    enough = -(-rows // SOURCE_PARTITION_ROWS)
    rounds = -(-enough // parallelism)
    return max(1, min(rounds * parallelism, -(-rows // LAKE_FILE_ROWS)))


def tasks_of(batch: Sequence[LogStretch], parallelism: int) -> list[list[LogStretch]]:
    """The stretches of each task."""
    count = task_count(sum(part.rows for part in batch), parallelism)
    tasks: list[list[LogStretch]] = [[] for _ in range(count)]
    small: list[LogStretch] = []
    for part in batch:
        pieces = list(even_parts(part.start, part.stop, _piece_rows(part, count)))
        if len(pieces) == 1:
            small.append(part)
            continue
        for number, ends in enumerate(pieces):
            piece = LogStretch(part.log, part.key, *ends)
            tasks[number * count // len(pieces)].append(piece)
    filled = [sum(part.rows for part in task) for task in tasks]
    for part in small:
        number = filled.index(min(filled))
        tasks[number].append(part)
        filled[number] += part.rows
    return [task for task in tasks if task]


def _piece_rows(part: LogStretch, count: int) -> int:
    """How many rows of a stretch one task reads. To open a log for a few rows is not worth it."""
    return max(1, -(-part.rows // count), min(SOURCE_BATCH_ROWS, part.rows))
