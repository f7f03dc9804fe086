"""Lists that become tables of pandas, Arrow and Polars.

    mesh.state.list("build/").to_pandas()

A verb that lists rows says of which struct they are: so a table has its columns, each with its
type, even where there is no row. Times are timestamps in UTC, ids are text. A version inside a row
becomes a column for each of its fields. What may be anything (the value of a key) is JSON text in
Arrow and Polars, whose columns have one type, and the Python value itself in pandas.

None of the three packages is needed for anything else, so each is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache, wraps
from importlib import import_module
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_type_hints,
)

from holdfast.rules.errors import NoPackage
from holdfast.rules.shown import id_shown, is_id, is_time, rows_html

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

P = ParamSpec("P")
T = TypeVar("T")


class _Tables(Generic[T]):
    """Rows that become tables."""

    _kind: type[T]

    def _each(self) -> Iterable[T]:
        """The rows that are left."""
        raise NotImplementedError

    def to_arrow(self) -> pyarrow.Table:
        """The rows that are left, as a table of pyarrow.

        >>> team.state.list().to_arrow().num_rows > 0
        True
        """
        pa = package("pyarrow")
        types = {
            "text": pa.string(),
            "int": pa.int64(),
            "float": pa.float64(),
            "bool": pa.bool_(),
            "time": pa.timestamp("ms", "UTC"),
            "bytes": pa.binary(),
            "texts": pa.list_(pa.string()),
            "any": pa.string(),
        }
        found = self._columns(_json)
        schema = pa.schema([(column.name, types[column.type]) for column, _ in found])
        arrays = [pa.array(values, types[column.type]) for column, values in found]
        return pa.Table.from_arrays(arrays, schema=schema)

    def to_polars(self) -> polars.DataFrame:
        """The rows that are left, as a frame of Polars.

        >>> team.state.list().to_polars()
        """
        pl = package("polars")
        types = {
            "text": pl.String,
            "int": pl.Int64,
            "float": pl.Float64,
            "bool": pl.Boolean,
            "time": pl.Int64,
            "bytes": pl.Binary,
            "texts": pl.List(pl.String),
            "any": pl.String,
        }
        made = []
        for column, values in self._columns(_json):
            series = pl.Series(column.name, values, dtype=types[column.type])
            if column.type == "time":
                series = series.cast(pl.Datetime("ms")).dt.replace_time_zone("UTC")
            made.append(series)
        frame: polars.DataFrame = pl.DataFrame(made)
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """The rows that are left, as a frame of pandas.

        >>> team.state.list().to_pandas()
        """
        pd = package("pandas")
        types = {"text": "string", "int": "int64", "float": "float64", "bool": "bool"}
        optional = {"int": "Int64", "float": "Float64", "bool": "boolean"}
        made = {}
        for column, values in self._columns(lambda value: value):
            if column.type == "time":
                made[column.name] = _pandas_times(pd, values)
                continue
            kind = types.get(column.type, "object")
            if column.optional:
                kind = optional.get(column.type, kind)
            made[column.name] = pd.Series(values, dtype=kind)
        return pd.DataFrame(made)

    def _columns(self, anything: Callable[[Any], Any]) -> list[tuple[TableColumn, list[Any]]]:
        """The values of each column; `anything` is what becomes of values that have no one type."""
        kind: Any = self._kind
        columns = _columns_of(kind)
        values: list[list[Any]] = [[] for _ in columns]
        for row in self._each():
            for column, into in zip(columns, values, strict=True):
                into.append(column.of(row, anything))
        return list(zip(columns, values, strict=True))


class Listed(_Tables[T], Iterator[T]):
    """Rows as they are read, page by page. Made into a table, it has read them all."""

    def __init__(self, rows: Iterator[T], kind: type[T]) -> None:
        self._rows, self._kind = rows, kind

    def __iter__(self) -> Iterator[T]:
        return self._rows

    def __next__(self) -> T:
        return next(self._rows)

    def __repr__(self) -> str:
        return f"<rows of {self._kind.__name__}: iterate over them, or take to_pandas()>"

    def _each(self) -> Iterable[T]:
        return self._rows


class ListedRows(_Tables[T], list[T]):
    """Rows that are all there: a list like any other, which becomes a table too."""

    def __init__(self, rows: Iterable[T], kind: type[T]) -> None:
        super().__init__(rows)
        self._kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self._kind)

    def _repr_html_(self) -> str:
        return rows_html(self)

    def _each(self) -> Iterable[T]:
        return self


def listed_rows(kind: type[T]) -> Callable[[Callable[P, list[T]]], Callable[P, ListedRows[T]]]:
    """Makes a verb that returns a list of structs return it as `ListedRows`."""

    def make(verb: Callable[P, list[T]]) -> Callable[P, ListedRows[T]]:
        @wraps(verb)
        def call(*args: P.args, **kwargs: P.kwargs) -> ListedRows[T]:
            return ListedRows(verb(*args, **kwargs), kind)

        vars(call)["rows_of"] = kind
        return call

    return make


def listed(kind: type[T]) -> Callable[[Callable[P, Iterator[T]]], Callable[P, Listed[T]]]:
    """Makes a verb that lists rows of a struct return them as `Listed`."""

    def make(verb: Callable[P, Iterator[T]]) -> Callable[P, Listed[T]]:
        @wraps(verb)
        def call(*args: P.args, **kwargs: P.kwargs) -> Listed[T]:
            return Listed(verb(*args, **kwargs), kind)

        vars(call)["listed"] = kind
        return call

    return make


def package(name: str) -> Any:
    """A package that only tables need; NoPackage, which names it, if it is not installed."""
    try:
        return import_module(name)
    except ImportError as missing:
        raise NoPackage(
            f"a table of {name} needs a package that is not here: {missing}",
            hint=f"pip install {name}",
        ) from None


class TableColumn(NamedTuple):
    """A column of a table: its name, its type, and where it is in a row."""

    name: str
    type: str
    optional: bool
    path: tuple[str, ...]

    def of(self, row: Any, anything: Callable[[Any], Any]) -> Any:
        value = row
        for name in self.path:
            if value is None:
                return None
            value = getattr(value, name)
        if self.type == "any":
            return anything(value)
        if value is None:
            return None
        if isinstance(value, bytes) and self.type == "text":
            return id_shown(value) if is_id(self.path[-1], value) else value.hex()
        if isinstance(value, Enum):
            return value.value
        return list(value) if self.type == "texts" else value


_PLAIN: Final = {int: "int", float: "float", bool: "bool", str: "text", bytes: "bytes"}


@lru_cache(maxsize=64)
def _columns_of(kind: Any) -> tuple[TableColumn, ...]:
    return tuple(_columns_below(kind, (), optional=False))


def _columns_below(kind: Any, path: tuple[str, ...], *, optional: bool) -> Iterator[TableColumn]:
    hints = get_type_hints(kind)
    names = getattr(kind, "__struct_fields__", None) or kind._fields
    for name in names:
        hint, here = hints[name], (*path, name)
        parts = [part for part in get_args(hint) if part is not NoneType]
        maybe = optional or NoneType in get_args(hint)
        if maybe and len(parts) == 1 and NoneType in get_args(hint):
            hint = parts[0]
        if hasattr(hint, "__struct_fields__") or hasattr(hint, "_fields"):
            yield from _columns_below(hint, here, optional=maybe)
        else:
            shown = "_".join((*path, name.removeprefix("raw_")))
            yield TableColumn(shown, _type(name, hint), maybe, here)


def _type(name: str, hint: Any) -> str:
    if hint is int and is_time(name):
        return "time"
    if hint is bytes and (name in ("id", "replaces") or name.endswith("_id")):
        return "text"
    if hint == tuple[str, ...]:
        return "texts"
    if isinstance(hint, type) and issubclass(hint, str):
        return "text"
    return _PLAIN.get(hint, "any")


def _json(value: Any) -> str:
    from msgspec import json

    return json.encode(value).decode()


def _pandas_times(pd: Any, values: list[int | None]) -> Any:
    """Made by numpy, which pandas brings: milliseconds reach further than nanoseconds."""
    np = import_module("numpy")
    nothing = np.iinfo(np.int64).min  # what numpy takes for no time
    numbers = np.array([nothing if value is None else value for value in values], dtype=np.int64)
    return pd.Series(numbers.view("datetime64[ms]")).dt.tz_localize("UTC")
