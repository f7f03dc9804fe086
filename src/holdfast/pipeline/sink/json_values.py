"""Columns of Arrow as the values that JSON can say.

Nothing is rounded and nothing is guessed. A decimal with a fraction becomes text, because most
programs read a number in JSON as a double; times become ISO 8601, instants in UTC with a Z; bytes
become base64; a struct keeps its nulls. A column of another type (intervals, variants, maps whose
keys are not text) is refused by its name before anything is written.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

import numpy
import pyarrow as pa
from pyspark.sql import types as spark

from holdfast.rules.errors import BadInput

Convert = Callable[[Any], Any]

_PLAIN = (
    *(spark.NullType, spark.BooleanType, spark.IntegralType, spark.FractionalType),
    *(spark.StringType, spark.CharType, spark.VarcharType, spark.BinaryType),
    *(spark.DateType, spark.TimestampType, spark.TimestampNTZType),
)


def check_type(kind: spark.DataType, column: str) -> None:
    """Raises BadInput for a type that has no exact form in JSON."""
    if isinstance(kind, _PLAIN):
        return
    if isinstance(kind, spark.ArrayType):
        check_type(kind.elementType, column)
    elif isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        check_type(kind.valueType, column)
    elif isinstance(kind, spark.StructType):
        for field in kind.fields:
            check_type(field.dataType, f"{column}.{field.name}")
    else:
        raise BadInput(
            f"the column {column} is {kind.simpleString()}, which JSON cannot say: cast it first, "
            "to text for example"
        )


def plain(column: pa.Array) -> list[Any]:
    """The values of a column as JSON values; numbers may still be NaN or infinite."""
    values: list[Any] = column.to_pylist()
    convert = _converter(column.type)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def holds_whole_numbers(column: pa.Array) -> bool:
    """Whether it is a column of lists of integers, which a node packs by the model."""
    kind = column.type
    return bool(pa.types.is_list(kind) and pa.types.is_integer(kind.value_type))


def packed(column: pa.Array) -> list[bytes | None]:
    """A column of vectors as little-endian float32, without a Python number for each number."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        found: list[bytes | None] = column.to_pylist()
        return found
    # A null among the numbers becomes NaN, and a number beyond float32 infinity: the node refuses
    # both.
    with numpy.errstate(over="ignore"):
        numbers = column.values.to_numpy(zero_copy_only=False).astype("<f4")
    starts = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [
        numbers[start:stop].tobytes() if there else None
        for start, stop, there in zip(starts[:-1], starts[1:], valid, strict=True)
    ]


def legible(value: Any) -> Any:
    """A value in a form that a report can show, also if it could not be written."""
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, list):
        return [legible(part) for part in value]
    if isinstance(value, dict):
        return {key: legible(part) for key, part in value.items()}
    return value


def _converter(kind: pa.DataType) -> Convert | None:
    """The function that turns Python values of an Arrow type into JSON values; None if they are the
    same.
    """
    types = pa.types
    if types.is_float32(kind) or types.is_float16(kind):
        return _short_float
    if types.is_decimal(kind):
        return _whole if kind.scale <= 0 else _decimal_text
    if types.is_date(kind):
        return _iso
    if types.is_timestamp(kind):
        return _iso if kind.tz is None else _instant
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _base64
    if types.is_map(kind):
        return _map_of(_converter(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return _list_of(_converter(kind.value_type))
    if types.is_struct(kind):
        return _struct_of({field.name: _converter(field.type) for field in kind})
    return None


def _short_float(value: float) -> float:
    """A float32 as the shortest number that means it: 0.1, not 0.10000000149011612."""
    return float(str(numpy.float32(value)))


def _whole(value: Decimal) -> int:
    return int(value)


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _iso(value: Any) -> str:
    text: str = value.isoformat()
    return text


def _instant(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _map_of(item: Convert | None) -> Convert:
    def convert(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: _with(item, part) for key, part in pairs}

    return convert


def _list_of(element: Convert | None) -> Convert | None:
    if element is None:
        return None
    return lambda values: [_with(element, part) for part in values]


def _struct_of(fields: dict[str, Convert | None]) -> Convert:
    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {name: _with(fields[name], part) for name, part in value.items()}

    return convert


def _with(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)
