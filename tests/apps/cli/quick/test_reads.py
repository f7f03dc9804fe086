"""The quick path of `state get`, `memory get` and `state list`: the same answers, at a fraction of
the cost.
"""

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
from holdfast.apps.cli import output, tables
from holdfast.apps.cli.quick import reads
from holdfast.rules.limits import QUICK_LIST_CHARS_MAX, QUICK_LIST_ROWS_MAX
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

FOR_HARD_VALUES = ("typing", "json", "re", "enum")
"""What a simple text takes no part of, and what costs as much as all the rest."""
LIST_MODULES_MAX = 22
SET_MODULES_MAX = 77
"""What one write takes of ours: the rules of an envelope and its merge, the opening of a home, and
the store with the tables that every write touches."""
NOT_FOR_WRITING = (
    *("asyncio", "click", "nacl", "ssl", "csv", "tempfile", "subprocess", "importlib.resources"),
    *("typing_extensions", "inspect", "dataclasses", "json", "blake3", "zlib"),
    *("holdfast.node.library", "holdfast.node.messages", "holdfast.node.upkeep"),
    *("holdfast.node.sharing", "holdfast.node.links", "holdfast.node.log", "holdfast.node.sync"),
    *(
        "holdfast.node.core.operations",
        "holdfast.node.core.intake",
        "holdfast.node.core.fold_tasks",
    ),
    *("holdfast.rules.bus", "holdfast.rules.quorum", "holdfast.rules.vectors"),
    "holdfast.rules.fact_columns",
    *("holdfast.rules.outbox", "holdfast.storage.ports", "holdfast.storage.sqlite.tables.others"),
    *("holdfast.storage.sqlite.recovery", "holdfast.storage.sqlite.integrity"),
)
"""What a lone write must not load: each of these brought others, and together they were three times
its cost. To let one in again is to undo that."""


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
    run = reads.run

    def noting(argv: list[str]) -> int | None:
        code = run(argv)
        answered.append(code is not None)
        return code

    monkeypatch.setattr(reads, "run", noting)
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


LISTS = ((), ("--json",), ("--limit", "3"), ("--limit=3", "--json"), ("--limit", "500"))


def test_U2_both_paths_print_the_same_list(cli: Cli, taken: list[bool]) -> None:
    assert both(cli, "state", "list").err == "team has no state here\n"
    assert both(cli, "state", "list", "--json").json == []
    with holdfast.open(cli.home) as node:
        state = node.mesh("team").state
        for number, value in enumerate([*VALUES, ["a", "b"], {"lamport": 1, "peer": "ż"}]):
            state.set(f"{'żółw' * (number % 3)} key {number}", value)
        state.set("dead", 1)
        state.delete("dead")
    for more in (*LISTS, ("--mesh", "team", "--no-pager"), (f"--home={cli.home}",)):
        found = both(cli, "state", "list", *more)
        assert found.code == 0
        assert "dead" not in found.out
        cut = "--json" not in more and "3" in more
        assert found.err == ("the first 3; there are more\n" if cut else "")
    assert all(taken)
    taken.clear()
    for more in (
        *(("--prefix", "k"), ("--limit", "0"), ("--limit", "501"), ("--limit", "x"), ("k",)),
        *(("-o", "csv"), ("--fields", "key"), ("--since", "2h"), ("--mesh", "none"), ("--help",)),
    ):
        both(cli, "state", "list", *more)
    assert not any(taken)
    with holdfast.open(cli.home) as node:
        node.mesh("team").state.set("z last", 1e300)
    taken.clear()
    for more in LISTS[:2]:
        assert both(cli, "state", "list", *more).code == 0
    assert not any(taken)


@pytest.mark.parametrize("limit", ["QUICK_LIST_ROWS_MAX", "QUICK_LIST_CHARS_MAX"])
def test_U2_a_list_beyond_its_limit_is_left_to_the_full_command(
    cli: Cli, taken: list[bool], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    assert (QUICK_LIST_ROWS_MAX, QUICK_LIST_CHARS_MAX) == (500, 2**20)
    with holdfast.open(cli.home) as node:
        for number in range(4):
            node.mesh("team").state.set(f"key {number}", 7)
    for most, quickly in ((4, True), (3, False)):
        taken.clear()
        monkeypatch.setattr(reads, limit, most)
        assert len(both(cli, "state", "list", "--json").json) == 4
        assert taken == [quickly]


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
    if reads._is_plain(text):
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


def loaded_by(cli: Cli, *words: str, code: int = 0) -> set[str]:
    """The modules that a command has imported by its end."""
    done = subprocess.run(
        [sys.executable, "-c", _TELLS_MODULES, *words],
        env={**os.environ, "HOLDFAST_HOME": str(cli.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    return set(done.stderr.splitlines()[-1].split())


_TELLS_MODULES = """
import gc, sys
from holdfast.apps.cli.main import main
code = main(sys.argv[1:])
assert gc.isenabled(), "only imports go without the collector"
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


def test_U2_a_quick_command_imports_next_to_nothing(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    cli("memory", "set", "k", "v")
    for family in ("state", "memory"):
        for words in (("k",), ("k", "--json"), ("none",), ("none", "--json")):
            found = words[0] == "k"
            loaded = loaded_by(cli, family, "get", *words, code=0 if found else 4)
            assert "apsw" in loaded
            not_needed = {*NOT_NEEDED, *(FOR_HARD_VALUES if found else ())}
            assert loaded.isdisjoint(not_needed), loaded & not_needed


def test_U2_a_quick_list_imports_little(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    for words in (("--json",), ("--limit", "10")):
        loaded = loaded_by(cli, "state", "list", *words)
        not_needed = {*NOT_NEEDED, "shutil"} - {"datetime"}
        assert loaded.isdisjoint(not_needed), loaded & not_needed
        assert len(ours(loaded)) <= LIST_MODULES_MAX, sorted(ours(loaded))


def test_U2_a_write_imports_only_what_writing_needs(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    loaded = loaded_by(cli, "state", "set", "k", "w")
    assert loaded.isdisjoint(NOT_FOR_WRITING), loaded & set(NOT_FOR_WRITING)
    assert len(ours(loaded)) <= SET_MODULES_MAX, sorted(ours(loaded))


def ours(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.partition(".")[0] == "holdfast"}


def _snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mode for path in folder.rglob("*")}
