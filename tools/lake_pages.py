"""The pages about the tables of the lake, made of the schema that the code itself uses.

`tables_page` lists every table with its columns, `picture` draws how the tables hang together, and
`dbt_sources` tells dbt about them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from pyspark.sql.types import StructType

from holdfast.pipeline.audits import MEASURES
from holdfast.pipeline.audits.gold import FINDINGS_ABOUT
from holdfast.pipeline.audits.shape import FINDINGS
from holdfast.pipeline.lake import schema

PICTURE = "lake-tables.svg"
NOTE = "<!-- Written by `make docs` from src/holdfast/pipeline/lake/schema.py. Edit that file. -->"


@dataclass(frozen=True, slots=True)
class TablePage:
    """A table as a reader sees it."""

    name: str
    about: str
    schema: StructType
    key: tuple[str, ...] = ()


def read_tables() -> dict[str, list[TablePage]]:
    """By part of the lake: its tables."""
    stored = {
        "bronze": (schema.BRONZE, ("id",)),
        "sightings": (schema.SIGHTINGS, ("log", "epoch", "offset")),
        "quarantine": (schema.QUARANTINE, ("log", "epoch", "offset", "reason")),
        "commits": (schema.COMMITS, ("log", "mesh", "number")),
        "reads": (schema.READS, ("log", "epoch", "first", "batch")),
    }
    return {
        "bronze": [
            TablePage(name, schema.ABOUT[name], columns, key)
            for name, (columns, key) in stored.items()
        ],
        "silver": [
            TablePage(name, schema.ABOUT[name], columns, _key(name))
            for name, columns in schema.SILVER.items()
        ],
        "gold": [
            TablePage("findings", FINDINGS_ABOUT, FINDINGS),
            *(TablePage(m.name, sentence(m.about), m.schema) for m in MEASURES.values()),
        ],
    }


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _key(name: str) -> tuple[str, ...]:
    """The columns that tell the rows of a table apart. Where every version stays, its id does."""
    own = schema.KEYS[name]
    return (*own, "id") if name in ("vectors", "task_events") else own


# --- all columns ---------------------------------------------------------------------------------

_PARTS: Mapping[str, tuple[str, str]] = {
    "bronze": (
        "What was read",
        """
Every entry of every log is in one of these tables: new envelopes in `bronze`, known ones in
`sightings`, all others in `quarantine`.
""",
    ),
    "silver": (
        "The state",
        """
What a node would hold that has received everything. Each of these is two Delta tables:
`silver/NAME` as of the last compaction, and `increments/NAME` with what was folded since. Both have
one more column, `bucket` (int): the bucket of the key, by its hash. The ways to ask for the current
state that [the pipeline](pipeline.md) shows merge the two.
""",
    ),
    "gold": (
        "What audits found and measured",
        """
Each lies in `gold/NAME`. An audit replaces what the audit before has found.
""",
    ),
}
_INTRODUCTION = """
All are Delta tables, and they hold these descriptions themselves: a catalog or `DESCRIBE TABLE`
shows them. Ids are UUID text in lower case. Times are in UTC, to the millisecond. A key is the
columns that tell the rows of a table apart.
"""


def tables_page() -> str:
    lines = [NOTE, "# The tables of a lake", "", f"![how the tables hang together]({PICTURE})"]
    lines += ["", _INTRODUCTION.strip()]
    for part, tables in read_tables().items():
        title, about = _PARTS[part]
        lines += ["", f"## {title}", "", about.strip()]
        for table in tables:
            lines += ["", *_table_lines(table)]
    return "\n".join(lines) + "\n"


def _table_lines(table: TablePage) -> Iterator[str]:
    key = f" Key: {', '.join(f'`{column}`' for column in table.key)}." if table.key else ""
    yield f"### {table.name}"
    yield ""
    yield f"{table.about}.{key}"
    yield ""
    yield "| column | type | |"
    yield "| --- | --- | --- |"
    for field in table.schema.fields:
        comment = schema.comments(table.schema)[field.name]
        yield f"| `{field.name}` | {field.dataType.simpleString()} | {comment} |"


# --- the picture ---------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _GAP, _LEFT, _TOP = 218, 44, 12, (16, 190, 470, 750), 40
_ARROW = 'stroke="#57606a" stroke-width="1.4" fill="none" marker-end="url(#head)"'


def picture() -> str:
    """Logs, then what was read, then the state, then what audits make of both, left to right."""
    parts = read_tables()
    rows = max(len(tables) for tables in parts.values())
    height = _TOP + rows * (_HEIGHT + _GAP) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 990 {height}" '
        f'width="990" height="{height}" font-family="sans-serif" font-size="13">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#57606a"/></marker></defs>',
        f'<rect width="990" height="{height}" fill="#ffffff"/>',
    ]
    places = _places(parts, rows)
    for left, head in zip(_LEFT, ("logs", "read", "silver: the state", "gold"), strict=True):
        lines.append(f'<text x="{left}" y="24" font-weight="bold" fill="#24292f">{head}</text>')
    lines += _box(_LEFT[0], places["bronze"], "a log", "epoch, offset", width=130)
    for left, tables in zip(_LEFT[1:], parts.values(), strict=True):
        for table in tables:
            key = ", ".join(table.key) or "no key"
            lines += _box(left, places[table.name], table.name, key)
    lines += _arrows(parts, places)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _places(parts: Mapping[str, list[TablePage]], rows: int) -> dict[str, int]:
    """By table: the upper edge of its box. Shorter columns stand in the middle of the picture."""
    places = {}
    for tables in parts.values():
        first = (rows - len(tables)) * (_HEIGHT + _GAP) // 2
        for number, table in enumerate(tables):
            places[table.name] = _TOP + first + number * (_HEIGHT + _GAP)
    return places


def _box(left: int, top: int, name: str, key: str, *, width: int = _WIDTH) -> Iterator[str]:
    yield (
        f'<rect x="{left}" y="{top}" width="{width}" height="{_HEIGHT}" rx="6" '
        'fill="#f6f8fa" stroke="#8c959f"/>'
    )
    yield (
        f'<text x="{left + 10}" y="{top + 18}" font-weight="bold" fill="#0a3069">'
        f"{escape(name)}</text>"
    )
    yield f'<text x="{left + 10}" y="{top + 35}" font-size="11" fill="#57606a">{escape(key)}</text>'


def _arrows(parts: Mapping[str, list[TablePage]], places: Mapping[str, int]) -> Iterator[str]:
    logs, read, state, gold = _LEFT
    middle = _HEIGHT // 2
    for table in parts["bronze"]:
        yield _line(logs + 130, places["bronze"] + middle, read, places[table.name] + middle)
    for table in parts["silver"]:
        if table.name != "tasks":  # made of their events
            yield _line(
                read + _WIDTH, places["bronze"] + middle, state, places[table.name] + middle
            )
    yield _up(read + 30, places["sightings"], places["bronze"] + _HEIGHT, "id")
    yield _up(state + 40, places["task_events"], places["tasks"] + _HEIGHT, "turns")
    yield _up(state + 40, places["vectors"] + _HEIGHT, places["models"], "model")
    yield _line(state + _WIDTH, places["tasks"] + middle, gold, places["findings"] + middle)
    last = places[parts["gold"][-1].name] + _HEIGHT
    yield (
        f'<text x="{gold}" y="{last + 24}" font-size="11" fill="#57606a">'
        "made by audits of what was read and of tasks</text>"
    )


def _line(x1: int, y1: int, x2: int, y2: int) -> str:
    half = (x1 + x2) // 2
    return f'<path d="M{x1} {y1}C{half} {y1} {half} {y2} {x2 - 2} {y2}" {_ARROW}/>'


def _up(x: int, y1: int, y2: int, label: str) -> str:
    text = (
        f'<text x="{x + 6}" y="{(y1 + y2) // 2 + 4}" font-size="10" fill="#57606a">{label}</text>'
    )
    return f'<path d="M{x} {y1}L{x} {y2}" {_ARROW}/>{text}'


# --- for dbt -------------------------------------------------------------------------------------

SOURCES = "examples/dbt/sources.yml"


def dbt_sources() -> str:
    """Every table as a source of dbt, under the names that `holdfast pipeline register` gives."""
    lines = [
        "# Written by `make docs` from src/holdfast/pipeline/lake/schema.py. Edit that file.",
        "# The schema is the one that the lake was registered in: holdfast pipeline register.",
        "version: 2",
        "",
        "sources:",
        "  - name: holdfast",
        f"    description: {_quoted('The logs of all nodes, and the state that they make.')}",
        "    schema: \"{{ var('holdfast_schema', 'holdfast') }}\"",
        "    tables:",
    ]
    for tables in read_tables().values():
        for table in tables:
            lines += _dbt_table(table)
    return "\n".join(lines) + "\n"


def _dbt_table(table: TablePage) -> Iterator[str]:
    yield f"      - name: {table.name}"
    yield f"        description: {_quoted(table.about + '.')}"
    if table.name == "bronze":
        yield "        loaded_at_field: recorded_at"
    yield "        columns:"
    for field in table.schema.fields:
        yield f"          - name: {field.name}"
        yield f"            data_type: {field.dataType.simpleString()}"
        yield f"            description: {_quoted(schema.comments(table.schema)[field.name])}"
        if field.name in table.key:
            tests = "not_null, unique" if table.key == (field.name,) else "not_null"
            yield f"            data_tests: [{tests}]"


def _quoted(text: str) -> str:
    """A text as YAML, of which JSON is a part."""
    return json.dumps(text, ensure_ascii=False)
