"""The lake's digests are the nodes' digests, for whatever stands in the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from holdfast.node.log.digests import held_row
from holdfast.pipeline.lake.schema import BRONZE, SILVER, arrow_schema
from holdfast.pipeline.verify.digests import Searching, Tallying, values
from holdfast.rules import digests as rules
from holdfast.rules.digests import DigestTally
from support.held_rows import ROWS

ENTRY = StructType([BRONZE[name] for name in ("mesh", "id", "raw")])
BESIDE = {
    "memory": {"created_at"},
    "files": {"created_at"},
    "tasks": {"number"},
    "task_events": {"number"},
    "entities": {"id", "updated_at", "number"},
}
"""By table: what the lake knows by the commit, and a node does not keep in the row; and what nodes
may differ in: what was replaced before schema 22 has no time of its first version everywhere.
"""
SCHEMAS = {
    table: pa.schema(
        [
            field
            for field in arrow_schema(SILVER.get(table, ENTRY))
            if field.name not in BESIDE.get(table, ())
        ]
    )
    for table in rules.TABLES
}
MESHES = ("team", "ünï", "")
TABLES = st.fixed_dictionaries({table: st.lists(ROWS[table], max_size=6) for table in rules.TABLES})


def table_of(table: str, rows: Sequence[rules.Values]) -> pa.Table:
    """Rows as the lake has them: ids as UUID text, times as timestamps."""
    columns = []
    for at, (column, field) in enumerate(zip(rules.columns_of(table), SCHEMAS[table], strict=True)):
        assert column.name == field.name
        found: list[Any] = [row[at] for row in rows]
        if column.name == "mesh":
            found = [f"7/{mesh}" for mesh in found]
        elif column.kind == "id":
            found = [None if text is None else str(UUID(text)) for text in found]
        elif column.kind == "time":
            found = [None if ms is None else ms * 1000 for ms in found]
        columns.append(pa.array(found, field.type))
    return pa.table(columns, schema=SCHEMAS[table])


def drawn(rows: dict[str, list[Any]]) -> dict[str, list[rules.Values]]:
    """As values, each in one of a few meshes."""
    found: dict[str, list[rules.Values]] = {}
    for table, some in rows.items():
        plain = [rules.values_of(row)[1] for row in some]
        found[table] = [(MESHES[n % 3], *row[1:]) for n, row in enumerate(plain)]
    return found


@given(TABLES)
def test_P3_a_row_of_the_lake_has_the_values_of_the_nodes_row(rows: dict[str, list[Any]]) -> None:
    for table, some in drawn(rows).items():
        if some:
            back = list(zip(*values(table, table_of(table, some)), strict=True))
            assert [rules.row_bytes(table, row) for row in back] == [
                rules.row_bytes(table, row) for row in some
            ]


@given(TABLES, st.integers(0, 2**63 - 2))
def test_P3_tasks_and_the_node_make_the_same_digests(
    drawn_rows: dict[str, list[Any]], forgotten: int
) -> None:
    bounds = {"7/team": forgotten, "7/ünï": 0}
    rows = drawn(drawn_rows)
    expected: dict[tuple[str, str], DigestTally] = {}
    for table, some in rows.items():
        for row in some:
            tag = f"7/{row[0]}"
            if tag in bounds and rules.is_covered(table, row, bounds[tag]):
                tally = expected.setdefault((tag, table), DigestTally())
                tally.add(rules.bucket_of(table, row), rules.row_digest(table, row))
    # In two pieces, so that sums are made in parts.
    look = Tallying(bounds)
    for part in (0, 1):
        task = look.begun()
        for table, some in rows.items():
            if some[part::2]:
                task.add(table, table_of(table, some[part::2]))
        look.absorb(task)
    found = {place: tally for place, tally in look.found.items() if tally.rows}
    assert {place: tally.digests() for place, tally in found.items()} == {
        place: tally.digests() for place, tally in expected.items()
    }
    assert {place: tally.rows for place, tally in found.items()} == {
        place: tally.rows for place, tally in expected.items()
    }


def test_P3_the_rows_of_a_bucket_that_a_node_does_not_have_are_found() -> None:
    rows = [("team", f"k{n}", "1", n + 1, "ana", f"{n:032x}", 5, n % 5 == 0) for n in range(3000)]
    bucket = rules.bucket_of("state", rows[1])
    mine = [row for row in rows if rules.bucket_of("state", row) == bucket]
    assert len(mine) > 6
    known = {rules.row_digest("state", row).hex() for row in mine[2:]}
    found = searched(rows, Searching("state", bucket, 0, {*known, "00" * 32}, 100))
    assert found.matched == known
    assert found.apart == sorted(
        (held_row("state", row) for row in mine[:2]), key=lambda held: held.key
    )
    first = searched(rows, Searching("state", bucket, 3000, (), 1)).apart
    live = [held_row("state", row) for row in mine if not row[-1]]
    assert first == [min(live, key=lambda held: held.key)]


def searched(rows: Sequence[rules.Values], look: Searching) -> Searching:
    for part in (0, 1):
        task = look.begun()
        task.add("state", table_of("state", rows[part::2]))
        task.add("memory", table_of("memory", []))
        look.absorb(task)
    return look


@pytest.mark.parametrize("table", rules.TABLES)
def test_P3_every_column_of_a_node_is_in_the_digest(table: str) -> None:
    names = [column.name for column in rules.columns_of(table)]
    assert names == SCHEMAS[table].names
