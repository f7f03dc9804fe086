"""SQL over the frames of a lake by DuckDB, which can reach nothing else.

The connection has the tables that a statement names and no way out: no files, no network, no
extensions, no variables of this program, and settings that can no longer be changed. It takes one
statement that reads.

`means_the_same` says whether Spark would answer a statement alike. DuckDB and Spark agree on most
of SQL, and where they do not, they often answer differently without a word: `log` has another base,
lists begin with another number, a cast rounds or cuts. So only functions and signs that were
compared count as the same.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from holdfast.pipeline.frames.frame import LakeFrames, package
from holdfast.pipeline.spark.session import memory_bytes
from holdfast.rules.errors import BadInput, JobFailed
from holdfast.rules.limits import MIB

_SETTINGS: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    # As Spark sorts.
    "default_null_order": "nulls_first_on_asc_last_on_desc",
}
_LAST_SETTINGS: Final = ("SET TimeZone = 'UTC'", "SET lock_configuration = true")
_MEMORY_SHARE: Final = 3
"""DuckDB may use this part of the memory, one third, as Spark does."""
_WIDE: Final = ("HUGEINT", "UHUGEINT")
"""Types of sums of whole numbers, which Arrow has as decimals."""

_READS: Final = frozenset({"select", "with"})
_STRANGE: Final = re.compile(r"""["`\\\[\]{}/%@#:?^~&]|->|//""")
"""Signs that one of the two reads in its own way, or not at all."""
_CALL: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*\(")
_TEXTS: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTIONS: Final = """
    abs avg coalesce concat count length lower max min nullif sum trim upper
    dense_rank first_value lag last_value lead rank row_number
"""
"""Functions that were compared."""
_WORDS: Final = """
    all and any as between by case distinct else except exists filter from group having in intersect
    is join like not on or order over select then union using when where with
"""
"""Words of SQL that may stand before a parenthesis."""
_SAME: Final = frozenset((_FUNCTIONS + _WORDS).split())
_OFFSET: Final = re.compile(rf"({_TEXTS.pattern})|\boffset\b(?!\s+\d)", re.DOTALL | re.IGNORECASE)
"""A text or a comment, or the name of a column that DuckDB would take for the word after LIMIT."""
_UNLIKE: Final = frozenset({"lateral", "pivot", "unpivot", "tablesample", "sample", "qualify"})


def means_the_same(sql: str) -> bool:
    """Whether DuckDB and Spark read a statement alike, as far as that is known."""
    if "\\" in sql:
        return False  # inside a text it is a sign for Spark only
    words = _TEXTS.sub(" ' ", sql)
    first = re.findall(r"[A-Za-z_]+", words)[:1]
    if not first or first[0].lower() not in _READS or _STRANGE.search(words):
        return False
    if any(word.lower() in _UNLIKE for word in re.findall(r"\w+", words)):
        return False
    # A name that WITH gives to a table may have its columns behind it.
    given = {name.lower() for name in re.findall(r"(\w+)\s*\([\w\s,]*\)\s+as\s*\(", words.lower())}
    return all(name.lower() in _SAME | given for name in _CALL.findall(words))


def duck_rows(frames: LakeFrames, sql: str, limit: int) -> pa.Table:
    """The first rows that a statement gives, one more than `limit` if there are more. BadInput if
    it does more than read, or if DuckDB does not understand it.
    """
    named = [name for name in frames.tables if re.search(rf"\b{name}\b", sql.lower())]
    sql = _OFFSET.sub(lambda found: found[1] or '"offset"', sql)
    engine = package("duckdb")
    try:
        statements = engine.extract_statements(sql)
    except engine.Error as error:
        raise BadInput(f"this is not SQL for DuckDB: {_first_line(error)}") from None
    if [one.type for one in statements] != [engine.StatementType.SELECT]:
        raise BadInput("DuckDB takes one statement that begins with SELECT, WITH or VALUES")
    memory = {"memory_limit": f"{memory_bytes() // _MEMORY_SHARE // MIB}MiB"}
    with engine.connect(":memory:", config={**_SETTINGS, **memory}) as connection:
        for name in named:
            frames[name].duckdb(connection).create_view(name)
        for setting in _LAST_SETTINGS:
            connection.execute(setting)
        try:
            found = connection.sql(sql)
            kinds = [str(kind) for kind in found.types]
            return _as_spark_has_it(found.limit(limit + 1).to_arrow_table(), kinds)
        except (engine.ParserException, engine.BinderException, engine.CatalogException) as error:
            there = ", ".join(frames.tables)
            raise BadInput(_first_line(error), hint=f"there are: {there}") from None
        except engine.PermissionException as error:
            raise BadInput(
                f"a query reads the tables of the lake and nothing else: {_first_line(error)}"
            ) from None
        except engine.OutOfMemoryException as error:
            raise JobFailed(
                f"the query needs more memory than there is: {_first_line(error)}",
                hint="ask Spark: --engine spark",
            ) from None
        except engine.Error as error:
            raise BadInput(_first_line(error)) from None


def _as_spark_has_it(rows: pa.Table, kinds: list[str]) -> pa.Table:
    """Sums of whole numbers as whole numbers, where they fit into 64 bits; and a count that has no
    name under the name that Spark gives it.
    """
    names = ["count(1)" if name == "count_star()" else name for name in rows.column_names]
    rows = rows.rename_columns(names)
    for at, kind in enumerate(kinds):
        if kind in _WIDE:
            try:
                rows = rows.set_column(at, rows.column_names[at], rows.column(at).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue
    return rows


def _first_line(error: Any) -> str:
    text = str(error).strip().splitlines()[0]
    return text.partition("Error: ")[2] or text
