"""A table of the state as it is now, for Spark: its base, with what was folded since over it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.fold import merged
from holdfast.pipeline.fold.silver import things_are_current
from holdfast.pipeline.fold.turned import things_of
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import KEYS, MADE_OF, SILVER


def current(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table of the state as it is now: base and increments together. The base is not shuffled:
    the keys that changed since are few, and every task gets them.
    """
    if name in MADE_OF:
        return _current_things(spark, lake, name)
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


def _current_things(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    turns = MADE_OF[name]
    increments, events, base = lake.increments(turns), lake.silver(turns), lake.silver(name)
    keys, columns = list(KEYS[name]), SILVER[name].names
    waiting = increments.files()
    if not things_are_current(lake, name):
        # A job was killed after it had merged turns and before it made things of them.
        return things_of(name, current(spark, lake, turns))
    if not waiting:
        return base.read(spark).select(*columns)
    new = increments.read(spark)
    touched = F.broadcast(new.select(*keys).distinct())
    both = events.read(spark).join(touched, keys, "left_semi").unionByName(new)
    left = base.read(spark).join(touched, keys, "left_anti").select(*columns)
    return left.unionByName(things_of(name, both))
