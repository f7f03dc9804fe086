"""Every column says what it is, and the tables themselves say so too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import create_table_with_add_actions

from holdfast.pipeline.audits.gold import gold_tables
from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake


def every_table(lake: Lake) -> dict[str, Table]:
    stored = [lake.bronze, lake.sightings, lake.quarantine, *gold_tables(lake).values()]
    for name in schema.SILVER:
        stored += [lake.silver(name), lake.increments(name)]
    return {table.root.removeprefix(f"{lake.root}/"): table for table in stored}


def told(table: Table) -> tuple[str | None, dict[str, str]]:
    """What an outsider is told of a table and of its columns."""
    delta = DeltaTable(table.root)
    columns = {field.name: field.metadata.get("comment", "") for field in delta.schema().fields}
    return delta.metadata().description, columns


def test_P2_every_stored_column_and_table_has_a_comment(tmp_path: Path) -> None:
    tables = every_table(Lake.open(tmp_path / "lake", create=True))
    assert len(tables) > 20
    silent = [name for name, table in tables.items() if not table.about]
    silent += [
        f"{name}.{column}"
        for name, table in tables.items()
        for column, comment in schema.comments(table.schema).items()
        if not comment
    ]
    assert silent == []


def test_P2_a_new_table_tells_outsiders_what_its_columns_are(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    for table in every_table(lake).values():
        table.commit([])
        assert told(table) == (table.about, schema.comments(table.schema))
        assert table.describe() == 0
        assert table.fresh().version == 0
    about, columns = told(lake.silver("state"))
    assert about is not None
    assert about.startswith("Shared values")
    assert columns["tombstone"] == "whether this version deletes the key"


def test_P2_a_table_of_an_older_version_gets_its_comments_and_keeps_all_else(
    tmp_path: Path,
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    table = lake.increments("state")
    plain = schema.arrow_schema(table.schema).append(pa.field("of_a_later_version", pa.string()))
    create_table_with_add_actions(
        table.root, Schema.from_arrow(plain), [], configuration={"delta.appendOnly": "false"}
    )
    assert table.describe() == len(table.schema.fields) + 1
    about, columns = told(table)
    assert about == table.about
    assert columns == {**schema.comments(table.schema), "of_a_later_version": ""}
    assert DeltaTable(table.root).metadata().configuration == {"delta.appendOnly": "false"}
    assert table.describe() == 0


def test_P2_comments_are_not_part_of_what_arrow_compares() -> None:
    assert not any(field.metadata for field in schema.arrow_schema(schema.BRONZE))
    assert schema.commented(schema.BRONZE) == schema.arrow_schema(schema.BRONZE)
