"""The examples can be read by the tools that they are for, as far as these are here."""

from __future__ import annotations

import configparser
import re

import yaml  # type: ignore[import-untyped]

from holdfast.apps.cli.commands.help import EXIT_CODES
from holdfast.pipeline.lake.schema import BRONZE, SILVER
from support.project import ROOT

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*/*.py"))


def test_U7_the_programs_compile_and_use_our_exit_codes() -> None:
    """Airflow and Dagster are too heavy to be installed for this: they were tried by hand."""
    assert len(PROGRAMS) == 2
    for path in PROGRAMS:
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        found = re.search(r"^DONE, FAILED, USAGE, NOT_FOUND, BUSY = (.+)$", text, re.MULTILINE)
        assert found, path
        names = [EXIT_CODES[int(code)][0] for code in found[1].split(", ")]
        assert names == ["done", "failed", "usage", "not_found", "conflict"]


def test_U7_the_units_name_each_other() -> None:
    units = {}
    for path in (EXAMPLES / "systemd").iterdir():
        unit = units[path.suffix] = configparser.ConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[method-assign, assignment]
        unit.read(path)
    assert units[".timer"]["Install"]["WantedBy"] == "timers.target"
    assert units[".service"]["Service"]["SuccessExitStatus"] == "5"
    assert len({path.stem for path in (EXAMPLES / "systemd").iterdir()}) == 1


def test_P2_dbt_knows_every_table_and_column() -> None:
    (source,) = yaml.safe_load((EXAMPLES / "dbt" / "sources.yml").read_bytes())["sources"]
    tables = {table["name"]: table for table in source["tables"]}
    assert tables.keys() >= {"bronze", "sightings", "quarantine", "findings", *SILVER}
    for name, columns in {"bronze": BRONZE, **SILVER}.items():
        assert [column["name"] for column in tables[name]["columns"]] == columns.names
        assert all(column["description"] for column in tables[name]["columns"])
    (id,) = (column for column in tables["bronze"]["columns"] if column["name"] == "id")
    assert id["data_tests"] == ["not_null", "unique"]
