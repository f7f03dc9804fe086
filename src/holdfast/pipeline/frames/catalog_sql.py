"""SQL that makes the tables of a lake known to an engine, with the state as views that are current.

For engines that read Delta by themselves. Each table of the state becomes two tables, `NAME__base`
and `NAME__since`, and a view `NAME` that merges them by the rules of the nodes:

    keys of the base without anything newer, as they are
    and, of all other keys, what the merge of the family makes of both

Only keys that changed since the last compaction are sorted. Texts are compared by their bytes, as
Spark, Trino and DuckDB all do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from pyspark.sql.types import StructType

from holdfast.pipeline.audits.gold import gold_tables
from holdfast.pipeline.frames.frame import LakeFrames
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, MADE_OF, SILVER, comments
from holdfast.rules.errors import UnknownKey
from holdfast.rules.merge import MERGES, Merge
from holdfast.rules.order import ORDER_COLUMNS

_TURN: Final = {"task_events": ("peer",), "entity_revisions": ("type", "entity")}
"""By table in which one envelope may make several rows: what tells them apart, beside its id."""
BASE: Final = "__base"
SINCE: Final = "__since"


class Dialect(StrEnum):
    """Whose SQL it is."""

    DELTA = "delta"
    """Spark with the Delta jars, Databricks, Unity."""
    TRINO = "trino"
    DUCKDB = "duckdb"


def make_missing(lake: Lake) -> int:
    """Makes the tables that nothing was written to yet, empty; returns how many. An engine could
    not read them otherwise, and would not see what is written to them later.
    """
    with lake.working("register"):
        tables = [lake.bronze, lake.sightings, lake.quarantine, lake.reads, lake.commits]
        tables += gold_tables(lake).values()
        for name in SILVER:
            tables.append(lake.silver(name))
            if name not in MADE_OF:
                tables.append(lake.increments(name))
        missing = [table for table in map(Table.fresh, tables) if not table.exists]
        for table in missing:
            table.commit([])
    return len(missing)


def statements(
    lake: Lake, dialect: Dialect, schema: str, tables: Sequence[str] = ()
) -> Iterator[str]:
    """The statements for these tables, or for all, in order. All must be there: `make_missing`."""
    frames = LakeFrames(lake)
    quote = quoting(dialect)
    yield f"CREATE SCHEMA IF NOT EXISTS {_qualified(schema, quote)}"
    for name in chosen_tables(lake, tables):
        if name not in SILVER:
            about = frames[name].about
            yield _table(dialect, schema, name, _place(lake, name), about)
            continue
        yield _table(dialect, schema, name + BASE, f"{lake.root}/silver/{name}", "")
        if name not in MADE_OF:
            yield _table(dialect, schema, name + SINCE, f"{lake.root}/increments/{name}", "")
        yield _view(dialect, schema, name, frames[name].columns, frames[name].about)


def chosen_tables(lake: Lake, tables: Sequence[str]) -> list[str]:
    """These tables, or all without any; UnknownKey if one is not there."""
    known = LakeFrames(lake).tables
    if strange := set(tables) - set(known):
        raise UnknownKey(f"a lake has no table {min(strange)!r}", hint=f"use: {', '.join(known)}")
    return list(tables or known)


def quoting(dialect: Dialect) -> Callable[[str], str]:
    """How the dialect writes the name of a column or table."""
    mark = "`" if dialect is Dialect.DELTA else '"'
    return lambda name: mark + name.replace(mark, mark * 2) + mark


def text(value: str) -> str:
    """A text as SQL writes it. Spark reads backslashes, the others do not; paths have none."""
    return "'" + value.replace("'", "''") + "'"


def merged(name: str, base: str, since: str, quote: Callable[[str], str]) -> str:
    """The query for the current rows of a table of the state. `base` and `since` are the tables, as
    the dialect names them.
    """
    columns = ", ".join(quote(column) for column in SILVER[name].names)
    if name in MADE_OF:  # made of their turns, which only Python can judge
        return f"SELECT {columns} FROM {base}"
    keys = [quote(column) for column in KEYS[name]]
    same = " AND ".join(f"b.{key} = s.{key}" for key in keys)
    met = f"EXISTS (SELECT 1 FROM {since} s WHERE {same})"
    both = f"SELECT {columns} FROM {base} b WHERE {met} UNION ALL SELECT {columns} FROM {since}"
    left = f"SELECT {columns} FROM {base} b WHERE NOT {met}"
    return f"{left}\nUNION ALL\n{_winners(name, columns, keys, both, quote)}"


def _winners(
    name: str, columns: str, keys: Sequence[str], both: str, quote: Callable[[str], str]
) -> str:
    """What the merge of the family makes of rows of a few keys."""
    newest = ", ".join(f"{quote(column)} DESC" for column in ORDER_COLUMNS)
    id, key = quote("id"), ", ".join(keys)
    match MERGES[FAMILY_OF[name]]:
        case Merge.LAST_WRITER:
            place = f"row_number() OVER (PARTITION BY {key} ORDER BY {newest})"
            ranked = f"SELECT *, {place} AS place FROM ({both}) t"
            return f"SELECT {columns} FROM ({ranked}) r WHERE place = 1"
        case Merge.NEWEST_LIVES if name == "vectors":
            # Copies of the newest row have the same rank, and one of them is left.
            rank = f"rank() OVER (PARTITION BY {key} ORDER BY {newest})"
            copy = f"row_number() OVER (PARTITION BY {key}, {id} ORDER BY {id})"
            shown = columns.replace(
                quote("live"), f"(age = 1 AND NOT {quote('tombstone')}) AS {quote('live')}"
            )
            ranked = f"SELECT *, {rank} AS age, {copy} AS copy FROM ({both}) t"
            return f"SELECT {shown} FROM ({ranked}) r WHERE copy = 1"
        case _:
            # Every row once; also turns, as far as SQL can tell what came of them.
            each = ", ".join([id, *(quote(column) for column in _TURN.get(name, ()))])
            copy = f"row_number() OVER (PARTITION BY {each} ORDER BY {id})"
            counted = f"SELECT *, {copy} AS copy FROM ({both}) t"
            return f"SELECT {columns} FROM ({counted}) r WHERE copy = 1"


# --- what each engine calls it -------------------------------------------------------------------


def _place(lake: Lake, name: str) -> str:
    plain = name in ("bronze", "sightings", "quarantine", "reads", "commits")
    return f"{lake.root}/{name}" if plain else f"{lake.root}/gold/{name}"


def _table(dialect: Dialect, schema: str, name: str, place: str, about: str) -> str:
    where = _qualified(f"{schema}.{name}", quoting(dialect))
    match dialect:
        case Dialect.DELTA:
            # The columns and their comments stand in the Delta table.
            comment = f" COMMENT {text(about)}" if about else ""
            return f"CREATE TABLE IF NOT EXISTS {where} USING delta LOCATION {text(place)}{comment}"
        case Dialect.TRINO:
            catalog, _, inner = schema.rpartition(".")
            into = f"{catalog}.system" if catalog else "system"
            given = ", ".join(map(text, (inner, name, place)))
            return f"CALL {into}.register_table({given})"
        case Dialect.DUCKDB:
            return f"CREATE OR REPLACE VIEW {where} AS SELECT * FROM delta_scan({text(place)})"


def _view(dialect: Dialect, schema: str, name: str, columns: StructType, about: str) -> str:
    quote = quoting(dialect)
    where = _qualified(f"{schema}.{name}", quote)
    base, since = (_qualified(f"{schema}.{name}{end}", quote) for end in (BASE, SINCE))
    query = merged(name, base, since, quote)
    if dialect is not Dialect.DELTA:
        return f"CREATE OR REPLACE VIEW {where} AS\n{query}"
    return f"{described_view(where, columns, about)} AS\n{query}"


def described_view(where: str, columns: StructType, about: str) -> str:
    """The head of a view of Spark, with comments."""
    quote = quoting(Dialect.DELTA)
    described = ", ".join(
        f"{quote(column)} COMMENT {text(comment)}" for column, comment in comments(columns).items()
    )
    return f"CREATE OR REPLACE VIEW {where} ({described}) COMMENT {text(about)}"


def _qualified(name: str, quote: Callable[[str], str]) -> str:
    return ".".join(map(quote, name.split(".")))
