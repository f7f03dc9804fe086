"""Spark's filters as filters that a log can apply.

A log gives at least the rows that Spark wants, and often more: Spark filters again. A filter that a
log cannot apply is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from pyspark.sql import datasource as spark

from holdfast.pipeline.logs.log import LogBounds
from holdfast.rules.errors import BadInput
from holdfast.rules.filters import CLASSES, EVERYTHING, Filter

_NAMES: Final = {"mesh": "meshes", "origin": "origins", "entity": "subjects", "op": "classes"}


class SourceFilter(msgspec.Struct, frozen=True):
    """A filter for entries, and which logs and offsets are read at all."""

    filter: Filter = EVERYTHING
    logs: frozenset[str] | None = None
    start: int = 1
    stop: int | None = None

    @classmethod
    def of(cls, filters: Iterable[spark.Filter]) -> SourceFilter:
        wanted = cls()
        for term in filters:
            wanted = wanted.with_term(term)
        return wanted

    def with_term(self, term: spark.Filter) -> SourceFilter:
        """This filter, narrowed by one more term if a log can apply it."""
        column: tuple[str, ...] = getattr(term, "attribute", ())
        name = column[0] if len(column) == 1 else ""
        if name == "offset":
            return self._with_bound(term)
        if isinstance(term, spark.StringStartsWith):
            return self._with_names("entity", (term.value,)) if name == "entity" else self
        if isinstance(term, spark.EqualTo | spark.In):
            values = term.value if isinstance(term, spark.In) else (term.value,)
            if all(isinstance(value, str) for value in values):
                return self._with_names(name, tuple(values))
        return self

    def within(self, place: LogBounds, start: int, stop: int) -> tuple[int, int]:
        """The part of a range of a log that is read."""
        if self.logs is not None and place.log not in self.logs:
            return start, start
        return max(start, self.start), stop if self.stop is None else min(stop, self.stop)

    def _with_names(self, name: str, values: tuple[str, ...]) -> SourceFilter:
        if name == "log":
            logs = frozenset(values)
            return msgspec.structs.replace(
                self, logs=logs if self.logs is None else self.logs & logs
            )
        field = _NAMES.get(name)
        if field is None or not values or getattr(self.filter, field):
            return self  # a second term about the same column is left to Spark
        if field == "classes":
            values = _classes_of(values)
        filter = msgspec.structs.replace(self.filter, **{field: values})
        try:
            return msgspec.structs.replace(self, filter=filter.check())
        except BadInput:
            return self  # no entry can have such a name; Spark filters them all out

    def _with_bound(self, term: spark.Filter) -> SourceFilter:
        value = getattr(term, "value", None)
        if type(value) is not int:
            return self
        start, stop = self.start, self.stop
        if isinstance(term, spark.EqualTo | spark.GreaterThanOrEqual):
            start = max(start, value)
        elif isinstance(term, spark.GreaterThan):
            start = max(start, value + 1)
        if isinstance(term, spark.EqualTo | spark.LessThanOrEqual):
            stop = value + 1 if stop is None else min(stop, value + 1)
        elif isinstance(term, spark.LessThan):
            stop = value if stop is None else min(stop, value)
        return msgspec.structs.replace(self, start=start, stop=stop)


ANYTHING: Final = SourceFilter()


def _classes_of(ops: tuple[str, ...]) -> tuple[str, ...]:
    """The data classes that contain these ops; none if an op is in no known class."""
    found = {name for op in ops for name, known in CLASSES.items() if op in known}
    covered = {op for name in found for op in CLASSES[name]}
    return tuple(sorted(found)) if covered.issuperset(ops) else ()
