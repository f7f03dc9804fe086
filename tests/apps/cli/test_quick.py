"""The quick path of `state get` and `memory get`: the same answers, at a fraction of the cost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.apps.cli import output, quick, tables
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite import quick_read as quick_sql
from support.cli import Cli, Outcome

NOT_NEEDED = (
    *("asyncio", "click", "msgspec", "rich", "ssl", "socket", "hashlib", "_hashlib", "dataclasses"),
    *("inspect", "logging", "threading", "tempfile", "subprocess", "datetime", "platformdirs"),
    *("uuid_utils", "sqlite_vec", "rfc8785", "importlib.resources", "pyspark", "starlette"),
    *("holdfast.node", "holdfast.apps.cli.app", "holdfast.storage.files.home"),
)


def both(cli: Cli, *words: str, env: dict[str, str] | None = None) -> Outcome:
    """What the two paths say, which must be the same; how quick it went is asserted elsewhere."""
    # The full one last: it may mend something, and what it tells once it would not tell twice.
    short = cli(*words, code=None, env=env)
    full = cli(*words, code=None, env=env, full=True)
    assert short == full
    return short


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every command, whether the quick path answered it."""
    answered: list[bool] = []
    run = quick.run

    def noting(argv: list[str]) -> int | None:
        code = run(argv)
        answered.append(code is not None)
        return code

    monkeypatch.setattr(quick, "run", noting)
    return answered


VALUES = ["text", "", "two\nlines\n", "żółw 🐢\u2028", '"', 0, -7, 2**70, 0.5, True, None, [], {}]
VALUES += [{"a": [1, {"b": "ż"}]}, [0.1, 1.0, -0.0], "\x01\x7f\u00ad"]
HARD = [1e16, 1e-7, {"x": 1.5e300}, {"note": "one+two"}, {"k e+y": "e-0"}]


@pytest.mark.parametrize("family", ["state", "memory"])
def test_U2_both_paths_print_the_same_bytes(cli: Cli, taken: list[bool], family: str) -> None:
    with holdfast.open(cli.home) as node:
        team = node.mesh("team")
        for number, value in enumerate(VALUES + HARD):
            (team.state if family == "state" else team.memory).set(f"key {number}", value)
        team.memory.set("tagged", 1, tags=["a", "ż"])
    for number, value in enumerate(VALUES + HARD):
        for more in ((), ("--json",), ("--mesh", "team", "--json"), (f"--home={cli.home}",)):
            found = both(cli, family, "get", f"key {number}", *more)
            assert found.code == 0
            assert found.err == ""
            if "--json" in more:
                assert found.json["value"] == value
    assert all(taken[: 4 * len(VALUES)])
    assert both(cli, "memory", "get", "tagged", "--json").json["tags"] == ["a", "ż"]


def test_U2_a_missing_key_is_told_the_same_on_both_paths(cli: Cli, taken: list[bool]) -> None:
    for family in ("state", "memory"):
        for more in ((), ("--json",), ("--mesh", "team")):
            assert both(cli, family, "get", "none ż", *more).code == 4
    with holdfast.open(cli.home) as node:
        node.mesh("team").state.set("dead", 1)
        node.mesh("team").state.delete("dead")
    assert both(cli, "state", "get", "dead").code == 4
    assert all(taken)


@pytest.mark.parametrize(
    "words",
    [
        ("state", "get"),
        ("state", "get", ""),
        ("state", "get", "a", "b"),
        ("state", "get", "x" * 1025),
        ("state", "get", "\udcff"),
        ("state", "get", "k", "--mesh", "none"),
        ("state", "get", "k", "--mesh", ""),
        ("state", "get", "k", "--mesh"),
        ("state", "get", "k", "--mesh", "Bad Name"),
        ("state", "get", "k", "--home", "~/nowhere"),
        ("state", "get", "k", "--home", "no/such/home"),
        ("state", "get", "k", "--home", ""),
        ("state", "get", "k", "--color"),
        ("state", "get", "k", "--as-of", "offset:0"),
        ("state", "get", "k", "--help"),
        ("state", "get", "k", "--id", "x"),
        ("state", "get", "--", "k"),
        ("memory", "get", "k", "--scope", "all"),
        ("memory", "get", "k", "--scope=self"),
        ("memory", "get", "k", "--tag", "x"),
    ],
)
def test_U2_what_is_not_plain_is_left_to_the_full_command(
    cli: Cli, taken: list[bool], words: tuple[str, ...]
) -> None:
    cli("state", "set", "k", "v")
    cli("memory", "set", "k", "v")
    taken.clear()
    both(cli, *words)
    both(cli, *words, "--json")
    assert not any(taken)


def test_U2_the_environment_means_the_same_to_both_paths(cli: Cli, taken: list[bool]) -> None:
    cli("state", "set", "k", "v")
    cli("mesh", "create", "lab")
    taken.clear()
    assert both(cli, "state", "get", "k", env={"HOLDFAST_MESH": "team"}).out == "v\n"
    assert both(cli, "state", "get", "k", "--mesh", "team", env={"HOLDFAST_MESH": "lab"}).code == 0
    assert (
        both(
            cli, "state", "get", "k", env={"HOLDFAST_STORE_SYNC": "normal", "HOLDFAST_MESH": "team"}
        ).code
        == 0
    )
    assert all(taken)
    taken.clear()
    assert both(cli, "state", "get", "k").code == 2
    assert both(cli, "state", "get", "k", env={"HOLDFAST_STORE_SYNC": "never"}).code == 2
    assert both(cli, "state", "get", "k", env={"HOLDFAST_HOME": ""}).code == 4
    assert not any(taken)


@pytest.mark.parametrize(
    "stored", ['{ "a":1}', '"\\u0061"', "1e+16", "1E5", '{"a":1,"a":2}', "[1.50]", "1e-07"]
)
def test_U2_json_that_others_wrote_differently_is_printed_the_same(
    cli: Cli, taken: list[bool], stored: str
) -> None:
    cli("state", "set", "k", "v")
    connection = apsw.Connection(str(cli.home / "data.db"))
    connection.execute("UPDATE state SET value = ?", (stored,))
    connection.close()
    taken.clear()
    both(cli, "state", "get", "k")
    both(cli, "state", "get", "k", "--json")
    assert not any(taken)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(JSON)
def test_U2_what_passes_for_plain_is_what_the_encoder_writes(value: Any) -> None:
    try:
        text = tables.encode(value).decode()
    except UnicodeEncodeError:
        return
    if quick._is_plain(text):
        import msgspec

        assert tables.encode(msgspec.json.decode(text)).decode() == text


@given(st.text())
def test_U2_text_is_escaped_as_the_encoder_does(text: str) -> None:
    assert output.quote(text) == tables.encode(text).decode()


def test_U2_both_paths_know_the_same_home() -> None:
    paths = HomePaths(Path("home"))
    assert {f"home/{name}" for name in quick_sql.FILES} == {str(path) for path in paths.files}
    assert {f"home/{name}" for name in quick_sql.FOLDERS} == {str(path) for path in paths.folders}
    assert quick_sql.SCHEMA == migrations.LATEST


def test_U2_a_look_writes_nothing(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    cli("state", "get", "k")
    before = _snapshot(cli.home)
    with holdfast.open(cli.home) as node:
        # While a writer has its changes in the WAL, looking must not move them.
        node.mesh("team").state.set("k", "w")
        wal = (cli.home / "data.db-wal").read_bytes()
        assert cli.process("state", "get", "k").out == "w\n"
        assert (cli.home / "data.db-wal").read_bytes() == wal
    for _ in range(3):
        assert cli("state", "get", "k").out == "w\n"
    assert set(_snapshot(cli.home)) == set(before)
    assert (cli.home / "data.db-wal").stat().st_size == 0


def test_S12_a_wal_that_nobody_works_on_is_left_to_the_full_command(
    cli: Cli, taken: list[bool], tmp_path: Path
) -> None:
    cli("state", "set", "k", "v")
    with holdfast.open(cli.home) as node:
        node.mesh("team").state.set("k", "in the wal")
        copied = tmp_path / "copied"
        shutil.copytree(cli.home, copied, ignore=shutil.ignore_patterns("*-shm"))
    for sign in (copied / "processes").iterdir():
        sign.unlink()
    taken.clear()
    copy = Cli(copied)
    assert copy("state", "get", "k").out == "in the wal\n"
    assert taken == [False]
    assert copy("state", "get", "k").out == "in the wal\n"
    assert taken == [False, True]


def test_S1_while_others_work_on_the_home_it_stays_quick(cli: Cli, taken: list[bool]) -> None:
    cli("state", "set", "k", "v")
    code = (
        "import sys, holdfast\n"
        "with holdfast.open(sys.argv[1]) as node:\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cli.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        taken.clear()
        assert cli("state", "get", "k").out == "v\n"
        assert taken == [True]
        other.kill()
    taken.clear()
    assert "not closed cleanly" in cli("state", "get", "k").err
    assert cli("state", "get", "k").err == ""
    assert taken == [False, True]


def test_U2_a_home_that_is_linked_into_elsewhere_is_refused_on_both_paths(
    cli: Cli, tmp_path: Path
) -> None:
    cli("state", "set", "k", "v")
    (cli.home / "data.db").rename(tmp_path / "moved.db")
    (cli.home / "data.db").symlink_to(tmp_path / "moved.db")
    assert both(cli, "state", "get", "k", "--json").error["code"] == "not_ours"


def test_U2_a_quick_command_imports_next_to_nothing(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    cli("memory", "set", "k", "v")
    code = (
        "import sys\n"
        "from holdfast.apps.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print(*sys.modules, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    for family in ("state", "memory"):
        for words in (("k",), ("k", "--json"), ("none",), ("none", "--json")):
            done = subprocess.run(
                [sys.executable, "-c", code, family, "get", *words],
                env={**os.environ, "HOLDFAST_HOME": str(cli.home)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == (0 if words[0] == "k" else 4)
            loaded = set(done.stderr.splitlines()[-1].split())
            assert "apsw" in loaded
            assert loaded.isdisjoint(NOT_NEEDED), loaded & set(NOT_NEEDED)


def _snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mode for path in folder.rglob("*")}
