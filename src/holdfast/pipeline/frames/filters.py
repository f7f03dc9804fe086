"""Which rows of a table are wanted: conditions of a column, an operator and a value.

    [("mesh", "=", "site"), ("lamport", ">=", 7), ("key", "in", ["a", "b"])]

All of them must hold. Arrow and Spark get them as expressions of their own, so both can leave out
files and row groups that have no such rows. A null meets no condition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.rules.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Condition = tuple[str, str, Any]

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_AMONG: Final = ("in", "not in")


def expression(schema: pa.Schema, filters: Sequence[Condition]) -> pc.Expression | None:
    """The conditions for Arrow; None if there are none."""
    terms = [_term(schema, *_checked(schema, one)) for one in filters]
    return reduce(operator.and_, terms) if terms else None


def spark_rows(frame: DataFrame, schema: pa.Schema, filters: Sequence[Condition]) -> DataFrame:
    """The rows of a Spark frame that meet the conditions."""
    for one in filters:
        name, how, value = _checked(schema, one)
        frame = frame.where(_spark_term(frame[name], how, value))
    return frame


def column_names(schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The columns to give: these, or all without a choice. BadInput if one is not there."""
    names = schema.names if columns is None else list(columns)
    for name in names:
        _known(schema, name)
    return names


def _checked(schema: pa.Schema, one: Condition) -> Condition:
    try:
        name, how, value = one
    except (TypeError, ValueError):
        raise BadInput(
            f"{one!r} is no condition", hint="write it as (COLUMN, OPERATOR, VALUE)"
        ) from None
    _known(schema, name)
    if how not in (*_COMPARE, *_AMONG):
        raise BadInput(
            f"there is no operator {how!r}", hint=f"use one of: {', '.join((*_COMPARE, *_AMONG))}"
        )
    return name, how, value


def _term(schema: pa.Schema, name: str, how: str, value: Any) -> pc.Expression:
    kind, column = schema.field(name).type, pc.field(name)
    try:
        if how in _AMONG:
            among = column.isin(pa.array(list(value), kind))
            return among if how == "in" else ~among & column.is_valid()
        return _COMPARE[how](column, pa.scalar(value, kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise BadInput(f"{value!r} cannot be compared with {name}: {error}") from None


def _spark_term(column: Column, how: str, value: Any) -> Column:
    if how in _AMONG:
        among = column.isin(*value)
        return among if how == "in" else ~among
    term: Column = _COMPARE[how](column, value)
    return term


def _known(schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise BadInput(f"there is no column {name!r}", hint=f"there are: {', '.join(schema.names)}")
