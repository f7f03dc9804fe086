"""Whether a task was in two hands.

The fold gives each generation of a task to one claim and lets one turn end it. Silver that says
otherwise is a finding. Two peers that claim a task while they cannot hear each other both work on
it until they meet, and then the lower stamp wins: that is how Holdfast works without a quorum, and
it is told as a notice, because somebody's work was in vain.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import FINDING, NOTICE, Audit, AuditTables, sentence, told
from holdfast.rules.tasks import TaskEvent, TaskStatus

_ENDS: Final = (TaskEvent.COMPLETED.value, TaskEvent.CANCELLED.value)


def _claims(tables: AuditTables) -> DataFrame:
    parts = [_two_hands(tables), _two_ends(tables), _not_as_told(tables), _in_vain(tables)]
    return reduce(DataFrame.unionByName, parts)


def _two_hands(tables: AuditTables) -> DataFrame:
    generation = Window.partitionBy("mesh", "task", "generation")
    claimed = tables.task_events.filter(F.col("event") == TaskEvent.CLAIMED.value)
    rows = claimed.withColumn("times", F.count("*").over(generation)).filter("times > 1")
    detail = sentence("generation {} was given to {} claims", "generation", "times")
    return _told(rows, FINDING, detail)


def _two_ends(tables: AuditTables) -> DataFrame:
    ended = tables.task_events.filter(F.col("event").isin(*_ENDS))
    whole = Window.partitionBy("mesh", "task")
    rows = ended.withColumn("times", F.count("*").over(whole)).filter("times > 1")
    return _told(rows, FINDING, sentence("the task ended {} times", "times"))


def _not_as_told(tables: AuditTables) -> DataFrame:
    """A task whose holder or end is not the one that its events name."""
    events = tables.task_events.select("mesh", "task", F.col("id").alias("turn"), "event")
    tasks = tables.tasks.filter(F.col("status") != TaskStatus.OPEN.value)
    named = tasks.withColumns(
        {
            "said": F.when(
                F.col("status") == TaskStatus.CLAIMED.value, F.lit(TaskEvent.CLAIMED.value)
            )
            .otherwise(F.col("status"))
            .cast("string"),
            "by": F.when(F.col("status") == TaskStatus.CLAIMED.value, F.col("holder_id")).otherwise(
                F.col("ended_id")
            ),
        }
    ).select("mesh", "task", "said", "by", "holder_peer", "updated_at")
    rows = named.join(
        events.withColumnRenamed("turn", "by").withColumnRenamed("event", "said"),
        ["mesh", "task", "said", "by"],
        "left_anti",
    )
    detail = sentence("the task is {} by {}, and its events do not say so", "said", "by")
    return told(
        rows,
        CLAIMS.name,
        FINDING,
        detail,
        entity="task",
        id="by",
        origin="holder_peer",
        at="updated_at",
    )


def _in_vain(tables: AuditTables) -> DataFrame:
    """Claims that lost against one of the same generation: each was good where it was made."""
    winners = tables.task_events.filter(F.col("event") == TaskEvent.CLAIMED.value).select(
        "mesh", "task", "generation", F.col("id").alias("against_id")
    )
    lost = tables.task_events.filter(
        (F.col("event") == TaskEvent.SUPERSEDED.value) & (F.col("kind") == "claim")
    )
    rows = lost.join(winners, ["mesh", "task", "generation", "against_id"])
    detail = sentence(
        "generation {} was claimed by {} too, whose stamp is lower", "generation", "against_peer"
    )
    return _told(rows, NOTICE, detail)


def _told(rows: DataFrame, severity: str, detail: Column) -> DataFrame:
    return told(rows, CLAIMS.name, severity, detail, entity="task", origin="peer", at="event_time")


CLAIMS: Final = Audit("claims", "tasks in two hands, or ended twice", _claims)
