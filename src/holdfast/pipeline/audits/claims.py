"""Whether a task was in two hands.

The fold gives each generation of a task to one claim and lets one turn end it. Silver that says
otherwise is a finding. Two peers that claim a task while they cannot reach each other both work on
it until they meet, and then the lower stamp wins: that is how Holdfast works without a quorum. It
is reported as a notice, because the work of one of them was for nothing.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import (
    FINDING,
    NOTICE,
    Audit,
    AuditTables,
    all_of,
    as_findings,
    sentence,
)
from holdfast.rules.tasks import TaskEvent, TaskStatus

_ENDS: Final = (TaskEvent.COMPLETED.value, TaskEvent.CANCELLED.value)


def _two_hands(tables: AuditTables) -> DataFrame:
    generation = Window.partitionBy("mesh", "task", "generation")
    claimed = tables.task_events.filter(F.col("event") == TaskEvent.CLAIMED.value)
    rows = claimed.withColumn("times", F.count("*").over(generation)).filter("times > 1")
    detail = sentence("generation {} was given to {} claims", "generation", "times")
    return _of_events(rows, FINDING, detail)


def _two_ends(tables: AuditTables) -> DataFrame:
    ended = tables.task_events.filter(F.col("event").isin(*_ENDS))
    whole = Window.partitionBy("mesh", "task")
    rows = ended.withColumn("times", F.count("*").over(whole)).filter("times > 1")
    return _of_events(rows, FINDING, sentence("the task ended {} times", "times"))


def _unlike_events(tables: AuditTables) -> DataFrame:
    """Tasks whose holder or end is not the one in their events."""
    claimed = F.col("status") == TaskStatus.CLAIMED.value
    named = tables.tasks.filter(F.col("status") != TaskStatus.OPEN.value).select(
        *("mesh", "task", "holder_peer", "updated_at"),
        F.when(claimed, TaskEvent.CLAIMED.value).otherwise(F.col("status")).alias("event"),
        F.when(claimed, F.col("holder_id")).otherwise(F.col("ended_id")).alias("id"),
    )
    rows = named.join(tables.task_events, ["mesh", "task", "event", "id"], "left_anti")
    detail = sentence("the task is {} by {}, and its events do not say so", "event", "id")
    known = {"entity": "task", "origin": "holder_peer", "at": "updated_at"}
    return as_findings(rows, CLAIMS.name, FINDING, detail, **known)


def _superseded(tables: AuditTables) -> DataFrame:
    """Claims that lost against another of the same generation."""
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
    return _of_events(rows, NOTICE, detail)


def _of_events(rows: DataFrame, severity: str, detail: Column) -> DataFrame:
    return as_findings(
        rows, CLAIMS.name, severity, detail, entity="task", origin="peer", at="event_time"
    )


CLAIMS: Final = Audit(
    "claims",
    "tasks in two hands, or ended twice",
    all_of(_two_hands, _two_ends, _unlike_events, _superseded),
)
