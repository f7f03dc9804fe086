"""From rows to changes: which column is what, and what may stand in it.

The layout is made once, from the schema and the options, before anything is written: a column that
the sink does not know, or whose type does not fit, fails the whole write. What is wrong with a
single row is an error of that row only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark

from holdfast.node.library.documents import WRITABLE
from holdfast.pipeline.sink.ids import Write, check_ms, row_id
from holdfast.pipeline.sink.json_values import (
    check_type,
    holds_whole_numbers,
    legible,
    packed,
    plain,
)
from holdfast.rules.bodies import OWNED, encode_value, family_of
from holdfast.rules.errors import BadInput, BadValue, HoldfastError, OverLimit
from holdfast.rules.limits import BODY_BYTES_MAX
from holdfast.rules.message import MESSAGE
from holdfast.rules.strict_json import strict_json

_ENTITY: Final = ("entity", "key", "subject", "path", "task")
"""Names for the column that says what a row is about."""
_TEXT: Final = frozenset(
    (
        *("id", "mesh", "op", "owner", "predicate", "content", "title", "description"),
        *("provider", "model", "version", "quantization", *_ENTITY),
    )
)
_JSON: Final = frozenset({"value", "object", "metadata", "meta"})
_TEXTS: Final = frozenset({"tags", "objects"})
_KNOWN: Final = _TEXT | _JSON | _TEXTS | {"embedding", "data", "dim", "time"}
_MODEL: Final = {
    "provider": "provider",
    "model": "name",
    "version": "version",
    "dim": "dim",
    "quantization": "quantization",
}
_CONSTANTS: Final = ("op", "mesh", "owner", "predicate", *_MODEL)
_NULL_IS_A_VALUE: Final = {"state.set": "value", "memory.set": "value", "fact.append": "object"}
_NOT_SENT: Final = (
    f"{MESSAGE} cannot be written from a table, which would send a message for every row: "
    "send it by holdfast send, or POST /v1/send"
)

_encode: Final = msgspec.json.Encoder().encode


class SinkRow(msgspec.Struct, frozen=True):
    """One row: the change that it becomes as a line of JSON, or what is wrong with it."""

    batch: Any
    index: int
    id: str
    line: bytes
    error: HoldfastError | None = None

    def shown(self) -> dict[str, Any]:
        """The row itself, for a report."""
        one = self.batch.slice(self.index, 1)
        return {
            name: legible(plain(column)[0])
            for name, column in zip(one.schema.names, one.columns, strict=True)
        }


@dataclass(frozen=True)
class Layout:
    """Which columns there are and what they mean."""

    entity: str | None
    """The column that says what a row is about."""
    key: tuple[str, ...]
    """The columns that tell rows apart."""
    constants: Mapping[str, str]
    json_text: bool
    """Text in the columns of values is JSON already."""

    @classmethod
    def of(cls, schema: spark.StructType, options: Mapping[str, str]) -> Layout:
        """`options` by names in lower case."""
        columns = {field.name: field.dataType for field in schema.fields}
        key = tuple(name.strip() for name in options.get("key", "").split(",") if name.strip())
        if missing := [name for name in key if name not in columns]:
            raise BadInput(f"the option key names no column of this table: {', '.join(missing)}")
        if unknown := [name for name in columns if name not in _KNOWN and name not in key]:
            raise BadInput(
                f"the sink knows no column {', '.join(unknown)}: drop it, rename it to one of "
                f"{', '.join(sorted(_KNOWN))}, or name it in the option key"
            )
        named = [name for name in _ENTITY if name in columns]
        if len(named) > 1:
            raise BadInput(f"{' and '.join(named)} all say what a row is about: keep one of them")
        constants = {name: options[name] for name in _CONSTANTS if name in options}
        _check_constants(constants, columns)
        for name, kind in columns.items():
            check_type(kind, name)
            _check_column(name, kind)
        form = options.get("valueformat", "text")
        if form not in ("text", "json"):
            raise BadInput(f"the option valueFormat is {form!r}: use text or json")
        return cls(
            entity=named[0] if named else None,
            key=key or tuple(sorted(columns)),
            constants=constants,
            json_text=form == "json",
        )

    def rows(self, batch: pa.RecordBatch, write: Write, peer: str) -> Iterator[SinkRow]:
        """Every row of a batch, in its order."""
        told = "quantization" in self.constants or "quantization" in batch.schema.names
        columns = {
            name: packed(column)
            if name == "embedding" and not (told and holds_whole_numbers(column))
            else plain(column)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        if "data" in columns:
            columns["data"] = batch.column("data").to_pylist()
        times = _times(batch)
        for index in range(batch.num_rows):
            values = {name: column[index] for name, column in columns.items()}
            yield self._row(batch, index, values, times[index], write, peer)

    def _row(
        self,
        batch: pa.RecordBatch,
        index: int,
        values: dict[str, Any],
        at_ms: int | None,
        write: Write,
        peer: str,
    ) -> SinkRow:
        id = values.get("id")
        try:
            document = self._document(values)
            if id is None:
                key = _key([values[name] for name in self.key])
                mesh, owner = document.get("mesh", ""), document.get("owner", "")
                at = None if at_ms is None else check_ms(at_ms)
                id = row_id(write, peer, mesh, owner, key, at)
            line = _encode({**document, "id": id})
            if len(line) > BODY_BYTES_MAX:
                raise OverLimit(f"the row has {len(line)} bytes; the most is {BODY_BYTES_MAX}")
        except BadInput as error:
            return SinkRow(batch, index, id or "", b"", error)
        return SinkRow(batch, index, id, line)

    def _document(self, values: dict[str, Any]) -> dict[str, Any]:
        op = values.get("op") or self.constants.get("op", "")
        if op == MESSAGE:
            raise BadInput(_NOT_SENT)
        document: dict[str, Any] = {"op": op}
        model: dict[str, Any] = {}
        for name, value in values.items():
            if name not in _KNOWN or name in ("id", "op", "time"):
                continue
            if name in _JSON:
                if value is not None or _NULL_IS_A_VALUE.get(op) == name:
                    document[name] = self._json(name, value)
            elif value is None:
                continue
            elif name in _MODEL:
                model[_MODEL[name]] = value
            else:
                document["entity" if name == self.entity else name] = value
        self._add_constants(document, model, family_of(op))
        if model:
            document["model"] = model
        return document

    def _add_constants(self, document: dict[str, Any], model: dict[str, Any], family: str) -> None:
        """Adds the options that the row does not set itself, and that its family uses."""
        fits = {"mesh": True, "owner": family in OWNED, "predicate": family == "fact"}
        for name, value in self.constants.items():
            if name in _MODEL:
                if family == "vector":
                    model.setdefault(_MODEL[name], int(value) if name == "dim" else value)
            elif fits.get(name):
                document.setdefault(name, value)

    def _json(self, name: str, value: Any) -> msgspec.Raw:
        if self.json_text and isinstance(value, str):
            try:
                value = strict_json(value.encode())
            except BadInput as error:
                raise BadValue(f"the column {name} is not JSON: {error.message}") from None
        return msgspec.Raw(encode_value(value))


def _check_constants(constants: Mapping[str, str], columns: Mapping[str, Any]) -> None:
    for name in ("op", "mesh"):
        if name not in constants and name not in columns:
            raise BadInput(f"nothing says the {name}: give the option {name}, or a column {name}")
    if twice := [name for name in constants if name in columns]:
        raise BadInput(f"{', '.join(twice)} is an option and a column: keep one of them")
    if constants.get("op") == MESSAGE:
        raise BadInput(_NOT_SENT)
    if constants.get("op", WRITABLE[0]) not in WRITABLE:
        raise BadInput(
            f"there is no op {constants['op']!r} to write: use one of {', '.join(WRITABLE)}"
        )
    if not constants.get("dim", "1").isdecimal():
        raise BadInput(f"the option dim is {constants['dim']!r}: give a whole number")


def _check_column(name: str, kind: spark.DataType) -> None:
    text = isinstance(kind, spark.StringType | spark.CharType | spark.VarcharType | spark.NullType)
    listed = kind.elementType if isinstance(kind, spark.ArrayType) else None
    numbers = isinstance(listed, spark.FractionalType | spark.IntegralType)
    fits = {
        "embedding": isinstance(kind, spark.BinaryType)
        or (numbers and not isinstance(listed, spark.DecimalType)),
        "data": isinstance(kind, spark.BinaryType),
        "dim": isinstance(kind, spark.IntegralType),
        "time": isinstance(kind, spark.TimestampType),
        **dict.fromkeys(_TEXT, text),
        **dict.fromkeys(_TEXTS, isinstance(listed, spark.StringType)),
    }
    wants = {
        "embedding": "an array of numbers, or binary",
        "data": "binary",
        "dim": "a whole number",
        "time": "a timestamp",
        **dict.fromkeys(_TEXTS, "an array of text"),
    }
    if not fits.get(name, True):
        raise BadInput(
            f"the column {name} is {kind.simpleString()} and should be "
            f"{wants.get(name, 'text')}: cast it"
        )


def _times(batch: pa.RecordBatch) -> list[int | None]:
    if "time" not in batch.schema.names:
        return [None] * batch.num_rows
    found: list[int | None] = (
        batch.column("time")
        .cast(pa.timestamp("ms", "UTC"), safe=False)
        .cast(pa.int64())
        .to_pylist()
    )
    return found


def _key(values: list[Any]) -> bytes:
    """The key of a row as bytes. NaN and binary values get forms that no other value has."""
    return json.dumps(values, ensure_ascii=False, default=_bytes_marked).encode()


def _bytes_marked(value: object) -> object:
    assert isinstance(value, bytes), f"a {type(value).__name__} was let through"
    return {"": value.hex()}
