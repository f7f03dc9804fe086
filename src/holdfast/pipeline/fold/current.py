"""A table of the state as it is now, for Spark: its base, with what was folded since over it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.fold import merged, tasks_from
from holdfast.pipeline.fold.silver import EVENTS, tasks_are_current
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import KEYS, SILVER


def current(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table of the state as it is now: base and increments together. The base is not shuffled:
    the keys that changed since are few, and every task gets them.
    """
    if name == "tasks":
        return _current_tasks(spark, lake)
    # Increments first: one that is merged meanwhile is then read twice, and not left out.
    increments, base = lake.increments(name), lake.silver(name)
    if not increments.files():
        return base.read(spark).select(*SILVER[name].names)
    return _overlaid(name, base.read(spark), increments.read(spark)).select(*SILVER[name].names)


def _overlaid(name: str, base: DataFrame, new: DataFrame) -> DataFrame:
    keys = list(KEYS[name])
    touched = F.broadcast(new.select(*keys).distinct())
    columns = SILVER[name].names
    met = base.join(touched, keys, "left_semi").select(*columns)
    left = base.join(touched, keys, "left_anti").select(*columns)
    return left.unionByName(merged(name, met.unionByName(new.select(*columns))))


def _current_tasks(spark: SparkSession, lake: Lake) -> DataFrame:
    increments, events, base = lake.increments(EVENTS), lake.silver(EVENTS), lake.silver("tasks")
    keys, columns = list(KEYS["tasks"]), SILVER["tasks"].names
    waiting = increments.files()
    if not tasks_are_current(lake):
        # A job was killed after it had merged events and before it made tasks of them.
        return tasks_from(current(spark, lake, EVENTS))
    if not waiting:
        return base.read(spark).select(*columns)
    new = increments.read(spark)
    touched = F.broadcast(new.select(*keys).distinct())
    turns = events.read(spark).join(touched, keys, "left_semi").unionByName(new)
    left = base.read(spark).join(touched, keys, "left_anti").select(*columns)
    return left.unionByName(tasks_from(turns))
