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

from holdfast.pipeline.fold.columns import MADE_LIKE, STRONG, ops_of, taken_from
from holdfast.pipeline.fold.committed import CommittedFrame, committed_frame
from holdfast.pipeline.fold.decode import with_body
from holdfast.pipeline.fold.turned import things_of, turn_fold, turns_table
from holdfast.pipeline.fold.winners import contenders, winners, with_live
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, MADE_OF, SILVER
from holdfast.rules.limits import FOLD_KEYS_AT_ONCE_ROWS_MAX, FOLD_TWO_SCANS_ROWS_MIN
from holdfast.rules.merge import DELETES, MERGES, Merge


def fold_family(
    name: str, bronze: DataFrame, rows: int = 0, commits: CommittedFrame | None = None
) -> DataFrame:
    """The rows of one silver table, made of these envelopes, and of these commits where a quorum
    decides. `rows`: about how many envelopes there are, if that is known; if they are many,
    `bronze` is scanned twice.
    """
    merge = MERGES[FAMILY_OF[name]]
    if merge is Merge.TURNS:
        return things_of(name, _turns(turns_table(name), bronze, commits))
    changes = changes_of(name, bronze)
    if name == "models":
        return _models(changes)
    if merge is Merge.LAST_WRITER and rows >= FOLD_TWO_SCANS_ROWS_MIN:
        spread = rows <= FOLD_KEYS_AT_ONCE_ROWS_MAX
        changes = contenders(changes, KEYS[name], spread=spread)
    return with_body(name, _joined(name, changes)).select(*SILVER[name].names)


def merged(name: str, parts: DataFrame) -> DataFrame:
    """The rows that several folds of one table make together."""
    assert name not in MADE_OF, "a thing is made of all of its turns"
    if MERGES[FAMILY_OF[name]] is Merge.TURNS:
        return things_of(name, parts)
    return _joined(name, parts).select(*SILVER[name].names)


def _turns(name: str, bronze: DataFrame, commits: CommittedFrame | None) -> DataFrame:
    """The turns that envelopes hold, those of strong ones by their commits."""
    columns = turn_fold(name).columns
    if not ops_of(name):
        assert commits is not None, "only quorums decide about entities"
        return committed_frame(name, commits).select(*columns)
    stamped = with_body(name, changes_of(name, bronze))
    turns = stamped.withColumn("number", F.lit(None).cast("bigint")).select(*columns)
    if commits is None:
        return turns
    return turns.unionByName(committed_frame(name, commits).select(*columns))


def changes_of(name: str, bronze: DataFrame) -> DataFrame:
    """The envelopes that a table is made of: their bytes, and the columns of bronze under the names
    that silver has for them.
    """
    like = MADE_LIKE.get(name, name)
    known = {column: F.col(source) for column, source in taken_from(like).items()}
    known["kind"] = F.substring_index("op", ".", -1)
    known["tombstone"] = F.col("op").isin(*sorted(DELETES))
    columns = [known[column].alias(column) for column in SILVER[like].names if column in known]
    ours = F.col("op").isin(*ops_of(name)) & (F.col("write_class") != STRONG)
    return bronze.where(ours).select(*columns, "raw")


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
