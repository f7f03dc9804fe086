"""Tables that are folds of turns, and how each is folded.

A thing (a task, an entity) is the fold of all its turns in one order, and the turns are a table of
their own, so that folds can be merged: with turns of another fold, of bronze, or of commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.pipeline.fold.entities import REVISION, REVISION_ORDER, fold_revisions
from holdfast.pipeline.fold.tasks import TURN, fold_turns
from holdfast.pipeline.lake.schema import KEYS, MADE_OF, SILVER
from holdfast.rules.order import ORDER_COLUMNS


class TurnFold(NamedTuple):
    """How turns of one family are folded."""

    columns: Sequence[str]
    """The columns of a turn."""
    order: Sequence[str]
    """By which the turns of one thing are sorted."""
    fold: Callable[[str, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    """Makes the rows of the named table of sorted turns."""


_FOLDS: Final = {
    "task_events": TurnFold(TURN, ORDER_COLUMNS, fold_turns),
    "entity_revisions": TurnFold(REVISION, REVISION_ORDER, fold_revisions),
}


def turns_table(name: str) -> str:
    """The table of the turns that make a table, which may be itself."""
    return MADE_OF.get(name, name)


def turn_fold(name: str) -> TurnFold:
    """How a table of things or of turns is folded."""
    return _FOLDS[turns_table(name)]


def things_of(name: str, turns: DataFrame) -> DataFrame:
    """The rows of a table of things or of turns that these turns make, by Spark; each turn may be
    there more than once.
    """
    how = turn_fold(name)
    ordered = (
        turns.select(*how.columns)
        .repartition(*KEYS[name])
        .sortWithinPartitions(*KEYS[name], *how.order)
    )
    return ordered.mapInArrow(partial(how.fold, name), SILVER[name])
