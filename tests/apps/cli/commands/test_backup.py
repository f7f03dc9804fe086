"""`holdfast backup`, `restore`, `export`, `import`: the same home, elsewhere or again."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.storage.sqlite import migrations
from support.cli import Cli

BLOB = os.urandom(200_000)


@pytest.fixture
def filled(cli: Cli) -> Cli:
    cli("state", "set", "k", "v")
    cli("memory", "set", "m", "[1, 2]", "--json-value", "--tag", "t")
    cli("vector", "store", "e", "[1, 0]", "--model", "acme:tiny", "--content", "c")
    cli("file", "share", "big", "--from", "-", stdin=BLOB)
    cli("task", "create", "Fix")
    cli("fact", "append", "s", "p", "o")
    return cli


def _rows(cli: Cli, *mesh: str) -> dict[str, object]:
    """What a mesh holds, without stamps and times."""
    return {
        "state": [(row["key"], row["value"]) for row in cli("state", "list", *mesh, "--json").json],
        "memory": [
            (row["key"], row["value"], row["tags"])
            for row in cli("memory", "list", "--scope", "all", *mesh, "--json").json
        ],
        "vectors": [
            (hit["key"], hit["content"])
            for hit in cli(
                "vector", "search", "[1, 0]", "--model", "acme:tiny", *mesh, "--json"
            ).json
        ],
        "big": cli("file", "read", "big", "--peer", "ana", *mesh).raw,
        "tasks": [row["title"] for row in cli("task", "list", *mesh, "--json").json],
    }


def test_S13_a_backup_is_restored_as_it_was(filled: Cli, tmp_path: Path) -> None:
    before = _rows(filled)
    target = tmp_path / "backup"
    done = filled("backup", str(target))
    assert done.out == f"{target}\n"
    assert "up to offset 6" in done.err
    filled("state", "set", "k", "after the backup")
    elsewhere = Cli(tmp_path / "elsewhere")
    restored = elsewhere("restore", str(target), "--json").json
    assert (restored["peer"], restored["head"], restored["blobs"]) == ("ana", 6, 1)
    assert _rows(elsewhere) == before
    status = elsewhere("status", "--json").json
    assert status["log"]["epoch"] == 2


def test_S13_a_home_that_is_there_is_replaced_only_by_force_and_kept(
    filled: Cli, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    assert filled("backup", str(target), "--json").json["missing"] == []
    filled("state", "set", "k", "after the backup")
    refused = filled("restore", str(target), "--json", code=5)
    assert refused.error["code"] == "already_exists"
    assert "--force" in refused.error["hint"]
    done = filled("restore", str(target), "--force")
    assert "kept aside: " in done.err
    assert filled("state", "get", "k").out == "v\n"


def test_S13_a_backup_that_cannot_be_made_or_read_is_told(filled: Cli, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "something").write_text("else")
    assert filled("backup", str(used), "--json", code=5).error["code"] == "already_exists"
    inside = filled("backup", str(filled.home / "inside"), "--json", code=2)
    assert inside.error["code"] == "bad_path"
    other = Cli(tmp_path / "other")
    assert other("restore", str(used), "--json", code=None).code != 0
    assert other("restore", str(tmp_path / "none"), "--json", code=None).code != 0
    assert not other.home.exists()


def test_S13_check_backup_knows_how_old_the_last_one_is(filled: Cli, tmp_path: Path) -> None:
    assert filled("check", "backup", code=2).out == "critical: no backup was ever made\n"
    filled("backup", str(tmp_path / "backup"))
    assert filled("check", "backup").out.startswith("ok: the last backup is ")
    assert filled("check", "backup", "--warn", "0s", code=1).out.startswith("warning: ")
    found = filled("check", "backup", "--warn", "0s", "--critical", "0s", "--json", code=2).json
    assert (found["status"], found["unit"]) == ("critical", "s")
    assert (
        filled("check", "backup", "--warn", "soon", "--json", code=2).error["code"] == "bad_input"
    )


def test_S13_an_export_is_json_lines_on_stdout_or_in_a_file(filled: Cli, tmp_path: Path) -> None:
    piped = filled("export")
    lines = [json.loads(line) for line in piped.out.splitlines()]
    assert lines[0]["holdfast"] == "export"
    assert lines[-1]["holdfast"] == "end"
    assert {line.get("kind") for line in lines} >= {"state", "memory", "vector", "blob", "log"}
    assert "exported" in piped.err
    target = tmp_path / "export.jsonl"
    done = filled("export", str(target), "--no-log", "--no-blobs", "--json").json
    assert done["counts"]["state"] == 1
    kinds = {json.loads(line).get("kind") for line in target.read_text().splitlines()}
    assert kinds.isdisjoint({"log", "blob"})
    filled("export", str(tmp_path / "no" / "folder"), code=2)


def test_S13_rows_are_imported_as_new_changes(filled: Cli, tmp_path: Path) -> None:
    exported = filled("export").raw
    other = Cli(tmp_path / "other")
    other("init", "--peer", "bo")
    done = other("import", "-", stdin=exported)
    assert done.out.startswith("imported ")
    assert _rows(other) == _rows(filled)
    assert other("state", "get", "k", "--json").json["peer"] == "bo"
    source = tmp_path / "export.jsonl"
    source.write_bytes(exported)
    report = other("import", str(source), "--map", "team=second", "--json").json
    assert report["counts"]["state"] == 1
    assert other("state", "get", "k", "--mesh", "second").out == "v\n"
    assert (
        other("import", str(source), "--map", "team", "--json", code=2).error["code"] == "bad_input"
    )


def test_S13_a_log_is_merged_with_its_own_stamps(filled: Cli, tmp_path: Path) -> None:
    other = Cli(tmp_path / "other")
    other("init", "--peer", "bo")
    exported = filled("export").raw
    first = other("import", "-", "--log", "--json", stdin=exported).json
    assert (first["counts"]["applied"], first["bad"]) == (6, [])
    assert other("state", "get", "k", "--json").json["peer"] == "ana"
    assert _rows(other) == _rows(filled)
    again = other("import", "-", "--log", "--json", stdin=exported).json
    assert "applied" not in again["counts"]
    assert (
        other("import", "-", "--log", "--skip-bad", "--json", code=2).error["code"] == "bad_input"
    )


def test_S13_bad_lines_fail_the_import_or_are_reported(filled: Cli, tmp_path: Path) -> None:
    lines = filled("export", "--no-log").out.splitlines()
    other = Cli(tmp_path / "other")
    other("init", "--peer", "bo")
    cut = "\n".join(lines[:-1])
    assert other("import", "-", "--json", stdin=cut, code=2).error["code"] == "bad_value"
    with holdfast.open(other.home) as node:
        assert node.log.head().offset == 0


# --- doctor --------------------------------------------------------------------------------------


def test_S12_doctor_looks_at_everything(filled: Cli) -> None:
    said = filled("doctor")
    lines = said.out.splitlines()
    assert [line for line in lines if line.startswith("[OK]   database: ")]
    assert [line for line in lines if line.startswith("[WARN] backup: no backup was ever made")]
    assert "       fix: " in said.out
    assert "[FAIL]" not in said.out
    report = filled("doctor", "--full", "--json").json
    assert report["status"] == "warn"
    assert report["home"] == str(filled.home)
    assert {"name", "status", "message", "fix"} == set(report["checks"][0])
    assert report["metrics"]["launches"] > 0


def test_S12_doctor_exits_with_1_where_something_is_wrong(filled: Cli, tmp_path: Path) -> None:
    nowhere = Cli(tmp_path / "none")
    assert "[FAIL] home: there is no folder" in nowhere("doctor", code=1).out
    assert nowhere("doctor", "--json", code=1).json["status"] == "fail"
    _damage(filled.home / "data.db")
    report = filled("doctor", "--json", code=1).json
    assert [check for check in report["checks"] if check["status"] == "fail"]


def test_S12_doctor_repairs_and_keeps_the_damaged_file(filled: Cli) -> None:
    _damage(filled.home / "data.db")
    report = filled("doctor", "--repair", "--peer", "ana", "--json").json
    assert (report["peer"], report["epoch"]) == ("ana", 2)
    assert [Path(path).exists() for path in report["kept"]] == [True] * len(report["kept"])
    assert ".corrupt-" in report["kept"][0]
    assert filled("doctor", code=None).out.count("[FAIL] database") == 0
    again = filled("doctor", "--repair")
    assert again.out == f"{filled.home}\n"
    assert "kept: " in again.err


def test_S12_doctor_mends_a_flipped_byte_of_the_log_in_its_place(filled: Cli) -> None:
    with closing(apsw.Connection(str(filled.home / "data.db"))) as connection:
        connection.execute(
            "UPDATE log SET raw = CAST(x'00' || substr(raw, 2) AS BLOB) WHERE offset = 2"
        )
    assert filled("log", "tail", "--json", code=1).error["code"] == "entry_damaged"
    assert "[FAIL] entries: 1 entry" in filled("doctor", "--full", code=1).out
    said = filled("doctor", "--repair")
    assert "damaged entries that are whole again: 1, at 2" in said.err
    assert not list(filled.home.glob("data.db.corrupt-*")), "no new database was needed"
    assert "[FAIL]" not in filled("doctor", "--full").out
    assert filled("doctor", "--lake", "x", "--json", code=2).error["code"] == "bad_input"


def test_S11_doctor_goes_back_a_schema_version(filled: Cli) -> None:
    latest = migrations.LATEST
    done = filled("doctor", "--rollback-migration", str(latest), "--json").json
    assert (done["undone"], done["schema"]) == ([latest], latest - 1)
    assert Path(done["kept"]).exists()
    # The next opening goes on from there, and the quick path leaves it to that.
    assert filled("state", "get", "k").out == "v\n"
    assert filled("doctor", "--json").json["status"] == "warn"
    refused = filled("doctor", "--rollback-migration", "99", "--json", code=2)
    assert refused.error["code"] == "bad_input"


def test_S13_doctor_makes_a_backup(filled: Cli, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    assert filled("doctor", "--backup", str(target), "--json").json["target"] == str(target)
    assert "[OK]   backup: " in filled("doctor").out
    for cures in (("--repair", "--backup", "x"), ("--repair", "--rollback-migration", "1")):
        assert filled("doctor", *cures, "--json", code=2).error["code"] == "bad_input"


def test_S12_doctor_refuses_to_mend_what_others_have_open(filled: Cli) -> None:
    with holdfast.open(filled.home):
        for cure in (("--repair",), ("--rollback-migration", "1")):
            refused = filled.process("doctor", *cure, "--json")
            assert (refused.code, refused.error["code"]) == (1, "store_busy")
            assert f"process {os.getpid()}" in refused.error["message"]


def _damage(database: Path) -> None:
    """Pages in the middle are lost, as by a bad block of the disk."""
    content = bytearray(database.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 3 * 4096] = bytes(3 * 4096)
    database.write_bytes(content)


def test_S17_a_sweep_forgets_what_no_reader_needs(filled: Cli) -> None:
    filled("consumer", "add", "lake")
    filled("state", "delete", "k")
    kept = filled("sweep", "--log-days", "0", "--tombstone-days", "0", "--json").json
    assert (kept["log_entries"], kept["tombstones"]) == (0, 0)
    assert {"consumers", "spool_rows", "heard_rows"} < kept.keys(), "programs know these names"
    filled("fact", "confirm", "lake", "7")
    swept = filled("sweep", "--log-days", "0", "--tombstone-days", "0").out
    assert "tombstones" in swept
    assert re.search(r"(?m)^outbox rows +0$", swept), swept
    assert filled("status", "--json").json["log"]["first"] == 7
