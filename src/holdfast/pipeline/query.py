"""SQL over the lake, read-only.

    answer = run_query(spark, lake, "SELECT mesh, count(*) AS n FROM state GROUP BY mesh", 100)

Every table of the lake is a view under its own name: `bronze`, `sightings`, `quarantine`, `reads`,
`commits`, the state as it is now (`state`, `memory`, …), and what the audits have found. Only the
views that a statement names are made.

A statement may only read. Spark runs a command as soon as it gets it, so `check` decides by the
words of the statement, before Spark sees it.

`ask_lake` answers without Spark what DuckDB understands in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline import history
from holdfast.pipeline.audits import gold
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.frames.duck import duck_rows, means_the_same
from holdfast.pipeline.frames.filters import Condition
from holdfast.pipeline.frames.frame import LakeFrame, LakeFrames
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import KEYS, SILVER
from holdfast.pipeline.spark.failures import spark_errors
from holdfast.rules.errors import BadInput, JobFailed, NoSpark, UnknownModel

AUTO: Final = "auto"
DUCKDB: Final = "duckdb"
SPARK: Final = "spark"
ENGINES: Final = (AUTO, DUCKDB, SPARK)
ROWS_MAX: Final = 100_000
"""All rows of a result are held in memory. For more, read the tables with Spark itself."""

_READS: Final = frozenset({"SELECT", "WITH", "VALUES", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
_CHANGES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
"""Words that change data; they may follow a WITH."""
_RUNS: Final = frozenset({"REFLECT", "JAVA_METHOD", "TRY_REFLECT"})
"""Functions that call any Java method."""
_LISTS: Final = frozenset({"SHOW", "DESCRIBE", "DESC"})
_NAMED_MAX: Final = 20
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_WORDS: Final = re.compile(
    r"""--[^\n]*                  # comments
      | /\*.*?\*/
      | r?'(?:[^'\\]|\\.|'')*'    # texts
      | r?"(?:[^"\\]|\\.|"")*"
      | `(?:[^`]|``)*`            # names in quotes, dealt with apart
    """,
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)
_JSON: Final = frozenset({"value", "object", "metadata", "meta", "fields"})
_QUOTED_NAME: Final = re.compile(r"`((?:[^`]|``)*)`")


class QueryResult(msgspec.Struct, frozen=True):
    """Rows of plain values, and whether there were more than the limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool

    def documents(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            yield dict(zip(self.columns, row, strict=True))


def run_query(spark: SparkSession, lake: Lake, sql: str, limit: int) -> QueryResult:
    """Runs one statement that only reads; returns at most `limit` rows."""
    named = check(sql)
    _check_limit(limit)
    made = views(lake)
    for name in made if named is None else named & made.keys():
        made[name](spark).createOrReplaceTempView(name)
    try:
        found = _limited(spark.sql(sql), limit)
    except ParseException as error:
        raise BadInput(f"this is not SQL: {_first_words(error)}") from None
    except AnalysisException as error:
        raise BadInput(_first_words(error), hint=f"there are: {', '.join(made)}") from None
    return _answer(found, limit)


def ask_lake(
    spark: Callable[[], SparkSession], lake: Lake, sql: str, limit: int, engine: str = AUTO
) -> QueryResult:
    """The same by the engine that is named. `auto`: by DuckDB if it is installed and reads the
    statement as Spark does, else by Spark; `spark` starts it and is called only then.
    """
    check(sql)
    if engine == DUCKDB:
        return _by_duckdb(lake, sql, limit)
    if engine == AUTO and means_the_same(sql):
        # What it does not understand, or cannot do here, Spark is asked for.
        with suppress(NoSpark, BadInput, JobFailed):
            return _by_duckdb(lake, sql, limit)
    return run_query(spark(), lake, sql, limit)


def _by_duckdb(lake: Lake, sql: str, limit: int) -> QueryResult:
    _check_limit(limit)
    return _answer(duck_rows(LakeFrames(lake), sql, limit), limit)


def _check_limit(limit: int) -> None:
    if not 0 < limit <= ROWS_MAX:
        raise BadInput(f"a query shows between 1 and {ROWS_MAX} rows")


def table_rows(
    spark: SparkSession | Callable[[], SparkSession],
    lake: Lake,
    name: str,
    mesh: str,
    *,
    key: str | None = None,
    key_column: str = "key",
    limit: int,
    **when: Any,
) -> QueryResult:
    """The live rows of a mesh in one table, now or at a point in the past (see `state_as_of`). Only
    the past needs Spark; `spark` may be a function that starts it.
    """
    known = {"mesh": mesh, **({} if key is None else {key_column: key})}
    if not when:
        return _rows_now(LakeFrames(lake)[name], known, limit)
    session = spark() if callable(spark) else spark
    frame = history.state_as_of(session, lake, name, mesh, **when)
    for column, value in known.items():
        frame = frame.where(F.col(column) == value)
    if "tombstone" in frame.columns:
        frame = frame.where(~F.col("tombstone"))
    return _answer(_limited(frame.orderBy(*KEYS[name]), limit), limit, _as_nodes_say)


def _rows_now(frame: LakeFrame, known: dict[str, str], limit: int) -> QueryResult:
    filters: list[Condition] = [(column, "=", value) for column, value in known.items()]
    if "tombstone" in frame.schema.names:
        filters.append(("tombstone", "=", False))
    rows = frame.arrow(filters=filters)
    order = [(column, "ascending") for column in KEYS[frame.name]]
    first = rows.take(pc.select_k_unstable(rows, k=min(limit + 1, len(rows)), sort_keys=order))
    return _answer(first, limit, _as_nodes_say)


def model_id(spark: SparkSession, lake: Lake, text: str) -> str:
    """The id of a model of which the lake has vectors, by its id or as provider:name[:version]."""
    provider, _, rest = text.partition(":")
    name, _, version = rest.rpartition(":")
    by_parts = (F.col("provider") == provider) & (
        (F.col("name") == rest) | ((F.col("name") == name) & (F.col("version") == version))
    )
    known = current(spark, lake, "models")
    found = known.where((F.col("id") == text) | by_parts).select("id").limit(_NAMED_MAX)
    with spark_errors("the query"):
        ids: list[str] = sorted(row.id for row in found.collect())
    if not ids:
        raise UnknownModel(
            f"the lake has no vectors of {text}",
            hint="see: holdfast pipeline query 'SHOW VIEWS', and the view models",
        )
    if len(ids) > 1:
        raise BadInput(f"{text} may be any of {', '.join(ids)}", hint="name one of them")
    return ids[0]


def _answer(
    found: pa.Table, limit: int, shown: Callable[[str, Any], Any] = lambda _, value: plain(value)
) -> QueryResult:
    columns = zip(found.column_names, found.columns, strict=True)
    cells = ([shown(name, value) for value in column.to_pylist()] for name, column in columns)
    rows = zip(*cells, strict=True)
    return QueryResult(_unique(found.column_names), tuple(rows)[:limit], found.num_rows > limit)


def _limited(frame: DataFrame, limit: int) -> pa.Table:
    with spark_errors("the query", passing=(AnalysisException,)):
        return frame.limit(limit + 1).toArrow()


def views(lake: Lake) -> dict[str, Callable[[SparkSession], DataFrame]]:
    """By name of each view: the function that reads it."""
    found: dict[str, Callable[[SparkSession], DataFrame]] = {
        "bronze": lake.bronze.read,
        "sightings": lake.sightings.read,
        "quarantine": lake.quarantine.read,
        "reads": lake.reads.read,
        "commits": lake.commits.read,
    }
    for name in SILVER:
        found[name] = partial(current, lake=lake, name=name)
    return found | {name: table.read for name, table in gold.gold_tables(lake).items()}


def check(sql: str) -> set[str] | None:
    """The names that occur in a statement; None for one that lists all views. BadInput if the
    statement does not only read.
    """
    quoted = {name.replace("``", "`").lower() for name in _QUOTED_NAME.findall(sql)}
    words = _WORD.findall(_NOT_WORDS.sub(" ", sql))
    first = words[0].upper() if words else ""
    if first not in _READS or not _NOT_WORDS.sub(" ", sql).lstrip(" \t\r\n(").startswith(words[0]):
        raise BadInput(
            f"a query only reads; it cannot begin with {first or 'nothing'}",
            hint=f"begin with one of: {', '.join(sorted(_READS))}",
        )
    for word in words:
        if word.upper() in _CHANGES | _RUNS:
            raise BadInput(
                f"a query only reads: {word} is not allowed",
                hint=f"if that is the name of a column, write it as `{word}`",
            )
    return None if first in _LISTS else {word.lower() for word in words} | quoted


def plain(value: Any) -> Any:
    """A value as JSON can hold it: bytes as hex, times as text in UTC."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        exact = "microseconds" if moment.microsecond % 1000 else "milliseconds"
        return moment.astimezone(UTC).isoformat(timespec=exact).replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, tuple):  # an entry of a map
        return [plain(inner) for inner in value]
    return value


def _as_nodes_say(name: str, value: Any) -> Any:
    """A value as the commands on a home show it: JSON parsed, times in milliseconds."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if name in _JSON and isinstance(value, str):
        return msgspec.json.decode(value)
    return plain(value)


def _unique(names: list[str]) -> tuple[str, ...]:
    """Column names without repeats, as documents need them: a second `n` becomes `n_2`."""
    taken: set[str] = set()
    unique: list[str] = []
    for name in names:
        number, free = 2, name
        while free in taken:
            number, free = number + 1, f"{name}_{number}"
        taken.add(free)
        unique.append(free)
    return tuple(unique)


def _first_words(error: PySparkException) -> str:
    """The first line of Spark's message, without error code, plan and statement."""
    text = (error.getMessage() or str(error)).strip().splitlines()[0]
    return re.sub(r"^\[[\w.]+\] ", "", re.sub(r" SQLSTATE: \w+.*$", "", text))
