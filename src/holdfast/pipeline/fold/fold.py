"""The state of any part of bronze, as frames: pure functions on Spark frames, for readers.

The tables of silver are kept up by tasks (`silver.py`). Here Spark folds what a reader asks for: a
state of the past, or base and increments of a table together. The merge of a family decides which
rows it makes; `rules.merge.MERGES` names it for nodes and for the lake alike. `merged` joins the
rows of several folds: folding the parts and merging them gives the same as folding the whole, in
any split, in any order, however often a part is repeated.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.pipeline.fold.columns import MADE_LIKE, ops_of, taken_from
from holdfast.pipeline.fold.decode import with_body
from holdfast.pipeline.fold.tasks import events_of, tasks_of, turns_of
from holdfast.pipeline.fold.winners import contenders, winners, with_live
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, SILVER
from holdfast.rules.limits import FOLD_KEYS_AT_ONCE_ROWS_MAX, FOLD_TWO_SCANS_ROWS_MIN
from holdfast.rules.merge import DELETES, MERGES, Merge


def fold_family(name: str, bronze: DataFrame, rows: int = 0) -> DataFrame:
    """The rows of one silver table, made of these envelopes. `rows`: about how many envelopes there
    are, if that is known; if they are many, `bronze` is scanned twice.
    """
    changes = changes_of(name, bronze)
    merge = MERGES[FAMILY_OF[name]]
    if merge is Merge.TURNS:
        turns = turns_of(changes)
        return tasks_of(turns) if name == "tasks" else events_of(turns)
    if name == "models":
        return _models(changes)
    if merge is Merge.LAST_WRITER and rows >= FOLD_TWO_SCANS_ROWS_MIN:
        spread = rows <= FOLD_KEYS_AT_ONCE_ROWS_MAX
        changes = contenders(changes, KEYS[name], spread=spread)
    return with_body(name, _joined(name, changes)).select(*SILVER[name].names)


def merged(name: str, parts: DataFrame) -> DataFrame:
    """The rows that several folds of one table make together."""
    assert name != "tasks", "a task is made of all of its events"
    if name == "task_events":
        return events_of(parts)
    return _joined(name, parts).select(*SILVER[name].names)


def tasks_from(events: DataFrame) -> DataFrame:
    """The rows of the table `tasks`, made of task events."""
    return tasks_of(events)


def changes_of(name: str, bronze: DataFrame) -> DataFrame:
    """The envelopes that a table is made of: their bytes, and the columns of bronze under the names
    that silver has for them.
    """
    like = MADE_LIKE.get(name, name)
    known = {column: F.col(source) for column, source in taken_from(like).items()}
    known["kind"] = F.substring_index("op", ".", -1)
    known["tombstone"] = F.col("op").isin(*sorted(DELETES))
    columns = [known[column].alias(column) for column in SILVER[like].names if column in known]
    return bronze.where(F.col("op").isin(*ops_of(name))).select(*columns, "raw")


def _joined(name: str, rows: DataFrame) -> DataFrame:
    """The rows that the merge of the family keeps, of changes or of folded rows."""
    match MERGES[FAMILY_OF[name]]:
        case Merge.LAST_WRITER:
            return winners(rows, KEYS[name])
        case Merge.NEWEST_LIVES if name == "vectors":
            return with_live(rows, KEYS[name])
        case _:
            return rows.dropDuplicates(list(KEYS[name]))


def _models(changes: DataFrame) -> DataFrame:
    """Every model that a vector was stored with, decoded from one envelope of each."""
    first = changes.groupBy("model").agg(F.min("id").alias("id"))
    one_each = changes.join(F.broadcast(first), ["model", "id"], "left_semi")
    models = with_body("models", one_each.select(F.col("model").alias("id"), "raw"))
    return models.select(*SILVER["models"].names)
