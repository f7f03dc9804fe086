"""How a row lies in its table: one column for each field of its struct, under the same name.

SQLite keeps numbers, text and bytes. Where a field is something else, a `Codec` says how it is
kept: a bool as 0 or 1, names and filters as JSON text, a `Version` as three columns.

Rows are read and written by the million, so the two functions that translate them are compiled once
per table, at their first use, as `collections.namedtuple` does it. They are as fast as if they were
written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import apsw
import msgspec

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.filters import Filter
from holdfast.rules.order import Version

R = TypeVar("R", bound=msgspec.Struct)


class Codec(msgspec.Struct, frozen=True, eq=False):
    """How a field of one type is kept in its column."""

    encode: Callable[[Any], Any] | None
    """From the field to the column; None: as it is."""
    decode: Callable[..., Any]
    """From the column, or the columns, to the field."""


def _json(kind: Any) -> Codec:
    return Codec(
        lambda value: msgspec.json.encode(value).decode(), msgspec.json.Decoder(kind).decode
    )


FLAG: Final = Codec(None, bool)
TEXT: Final = Codec(bytes.decode, str.encode)
"""Bytes that hold UTF-8, such as JSON: kept as text, so that people can read them."""
NAMES: Final = _json(tuple[str, ...])
FILTER: Final = _json(Filter)
DOCUMENT: Final = _json(dict[str, Any])
WORDS: Final = Codec(lambda words: " ".join(sorted(words)), lambda text: frozenset(text.split()))
"""A set of words with blanks between them."""
VERSION: Final = Codec(
    lambda version: (None, None, None) if version is None else version,
    lambda lamport, peer, id: None if lamport is None else Version(lamport, peer, id),
)
"""A version, or None, in three columns: `<field>_lamport`, `<field>_peer` and `<field>_id`."""
OWN_VERSION: Final = Codec(VERSION.encode, VERSION.decode)
"""The version of the row itself: its three columns have no prefix."""


class RowColumns(Generic[R]):
    """The columns of one kind of row in its table, in the order of its fields."""

    def __init__(
        self, table: str, kind: type[R], *, without: Collection[str] = (), **codecs: Codec
    ) -> None:
        self.table, self._kind, self._codecs = table, kind, codecs
        self._columns = {
            name: _names(name, codecs.get(name))
            for name in kind.__struct_fields__
            if name not in without
        }
        self.names = tuple(column for names in self._columns.values() for column in names)
        self.sql = ", ".join(self.names)
        """As they stand in a statement."""
        self.marks = ", ".join("?" * len(self.names))
        self.insert = f"INSERT INTO {table} ({self.sql}) VALUES ({self.marks})"
        self.update = f"UPDATE {table} SET ({self.sql}) = ({self.marks})"
        """Changes all these columns; the caller adds which rows."""

    @cached_property
    def values(self) -> Callable[[R], tuple[Any, ...]]:
        """The values of a row's columns."""
        parts = ", ".join(self._encoded(name) for name in self._columns)
        values: Callable[[R], tuple[Any, ...]] = self._compiled(f"lambda row: ({parts},)")
        return values

    @cached_property
    def row(self) -> Callable[[Sequence[Any]], R]:
        """The row that these values of its columns make."""
        # By name, unless the struct takes its fields by place, which is faster.
        by_place = self._kind.__match_args__ == tuple(self._columns)
        fields = ", ".join(
            self._decoded(name) if by_place else f"{name}={self._decoded(name)}"
            for name in self._columns
        )
        row: Callable[[Sequence[Any]], R] = self._compiled(f"lambda values: kind({fields})")
        return row

    def select(self, connection: apsw.Connection, rest: str, values: Sequence[Any] = ()) -> list[R]:
        """The rows that a query finds; `rest` is what follows the name of the table."""
        return self.rows(connection.execute(f"SELECT {self.sql} FROM {self.table} {rest}", values))

    def find(self, connection: apsw.Connection, rest: str, values: Sequence[Any] = ()) -> R | None:
        """The first row that a query finds, or None."""
        found = connection.execute(f"SELECT {self.sql} FROM {self.table} {rest}", values).get
        return None if found is None else self.rows((found,))[0]

    def rows(self, found: Iterable[Sequence[Any]]) -> list[R]:
        """The rows that these values make, as a query of another shape gives them."""
        make = self.row
        try:
            return [make(values) for values in found]
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise  # of the query itself
            raise StoreCorrupt(f"a row of {self.table} cannot be read: {error}") from error

    def qualified(self, table: str) -> str:
        """The columns as they stand in a statement with several tables."""
        return ", ".join(f"{table}.{name}" for name in self.names)

    def upsert(self, key: str, *, keep: Collection[str] = ()) -> str:
        """Inserts a row, or changes that with the same key in all columns but those of `keep`."""
        changed = [name for name in self.names if name not in (*key.split(", "), *keep)]
        changes = ", ".join(f"{name} = excluded.{name}" for name in changed)
        return f"{self.insert} ON CONFLICT ({key}) DO UPDATE SET {changes}"

    def _encoded(self, name: str) -> str:
        if name not in self._codecs or self._codecs[name].encode is None:
            return f"row.{name}"
        several = "*" if len(self._columns[name]) > 1 else ""
        return f"{several}encode_{name}(row.{name})"

    def _decoded(self, name: str) -> str:
        at = self.names.index(self._columns[name][0])
        if name not in self._codecs:
            return f"values[{at}]"
        several = f"*values[{at}:{at + 3}]" if len(self._columns[name]) > 1 else f"values[{at}]"
        return f"decode_{name}({several})"

    def _compiled(self, source: str) -> Any:
        names: dict[str, Any] = {"kind": self._kind}
        for name, codec in self._codecs.items():
            names |= {f"encode_{name}": codec.encode, f"decode_{name}": codec.decode}
        return eval(source, names)


def _names(field: str, codec: Codec | None) -> tuple[str, ...]:
    if codec is OWN_VERSION:
        return Version._fields
    if codec is VERSION:
        return tuple(f"{field}_{part}" for part in Version._fields)
    return (field,)
