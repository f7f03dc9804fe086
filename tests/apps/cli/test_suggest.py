"""A name that is not known here gets the nearest one that is, and a command that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import holdfast
from holdfast.rules.limits import NEAREST_KEYS
from holdfast.storage.ports import Transaction
from support.cli import Cli, Outcome
from support.nodes import share
from support.stores import known_member, link_row, zone_row


def typed_next(said: Outcome) -> list[str]:
    """The first command that the hint names, as a person would paste it."""
    hint = said.err.splitlines()[-1]
    command = hint[hint.index("holdfast ") :].partition(";")[0]
    return shlex.split(command)[1:]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("family", "key"), [("state", "biuld"), ("memory", "Build")])
def test_U2_a_mistyped_key_gets_the_command_for_the_nearest_one(
    cli: Cli, family: str, key: str, full: bool
) -> None:
    cli(family, "set", "build", "green")
    cli(family, "set", "other", "x")
    said = cli(family, "get", key, code=4, full=full)
    assert f"did you mean: holdfast {family} get --mesh team build; or see: " in said.err
    assert cli(*typed_next(said)).out == "green\n"
    assert "did you mean" not in cli(family, "get", "something", code=4, full=full).err
    deletes = {"state": "delete", "memory": "forget"}[family]
    assert "team build; or see" in cli(family, deletes, key, code=4).err
    # A key that was deleted is not proposed.
    cli(family, deletes, "build")
    assert "did you mean" not in cli(family, "get", key, code=4, full=full).err


def test_U2_what_is_proposed_is_quoted(cli: Cli) -> None:
    cli("state", "set", "--", "-my key", "1")
    said = cli("state", "get", "--", "-my kye", code=4)
    assert cli(*typed_next(said)).out == "1\n"


def test_U2_the_nearest_key_is_found_among_very_many(cli: Cli) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        team = node.mesh("team")
        for at in range(NEAREST_KEYS + 50):
            team.state.set(f"a{at:05}", at)
            team.state.set(f"z{at:05}", at)
        team.state.set("median", 1)
    assert "team median; or" in cli("state", "get", "meidan", code=4).err


def zones(cli: Cli) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        share(node)
        member = known_member("c", name="carol")

        def fill(tx: Transaction) -> None:
            tx.zone_put(zone_row("bob"))
            tx.link_put(link_row("bobs", zone="bob"))
            tx.known_members_put("team", [member])

        node._engine.store.write(fill)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("state list --mesh tema", "team"),
        ("link show bosb", "bobs"),
        ("link pause Bobs", "bobs"),
        ("peer block bbo", "bob"),
        ("token revoke metrisc", "metrics"),
        ("fact fetch lakee", "lake"),
        ("consumer retire laek", "lake"),
        ("file read nots.txt", "notes.txt"),
        ("send hi --dm carl", "carol"),
        ("peer ping bbo", "bob"),
        ("bus send carlo hi", "carol"),
    ],
)
def test_U2_a_mistyped_name_gets_the_nearest_one(cli: Cli, words: str, near: str) -> None:
    zones(cli)
    cli("token", "add", "metrics")
    cli("consumer", "add", "lake")
    cli("file", "share", "notes.txt", "--from", "-", stdin="x")
    said = cli(*words.split(), code=None)
    assert said.code in (4, 5)
    hint = said.err.splitlines()[-1]
    assert hint.startswith("hint: did you mean: holdfast ")
    assert near in typed_next(said)
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "pasted"),
    [
        ("help stat", "holdfast help state"),
        ("help exit-code", "holdfast help exit-codes"),
        ("help state gte", "holdfast help state get"),
        ("help task clam", "holdfast help task claim"),
    ],
)
def test_U2_help_for_what_is_not_there_proposes_what_is(cli: Cli, words: str, pasted: str) -> None:
    said = cli(*words.split(), code=2)
    assert said.err.splitlines()[-1] == f"hint: did you mean: {pasted}"
    assert cli(*typed_next(said)).out


@pytest.mark.parametrize("family", ["state", "memory"])
def test_S19_a_look_before_a_key_began_says_when_that_was(cli: Cli, family: str) -> None:
    cli("state", "set", "first", "0")
    cli(family, "set", "k", "old")
    cli(family, {"state": "delete", "memory": "forget"}[family], "k")
    for point in ("offset:1", "lamport:1", "2020-01-01"):
        said = cli(family, "get", "k", "--as-of", point, code=4)
        assert f"'k' did not exist at {point}: it was first set at offset 2 (lamport 2, 20" in (
            said.err
        )
        assert cli(*typed_next(said)).out == "old\n"
    gone = cli(family, "get", "k", "--as-of", "offset:3", code=4)
    assert "'k' had been deleted by offset:3; it was first set at offset 2" in gone.err
    assert cli(*typed_next(gone)).out == "old\n"
    never = cli(family, "get", "kk", "--as-of", "offset:3", code=4)
    assert "first set" not in never.err


# --- names of files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["./todo.txt", "../here/todo.txt", "@/todo.txt", "Ablage/../todo.txt"]
)
def test_S9_whoever_names_a_file_of_this_machine_gets_the_whole_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    here = tmp_path / "here"
    (here / "Ablage").mkdir(parents=True)
    (here / "todo.txt").write_text("paint")
    monkeypatch.chdir(here)
    said = cli("file", "share", path.replace("@", str(here)), code=2)
    assert typed_next(said)[:3] == ["file", "share", "todo.txt"]
    cli(*typed_next(said))
    assert cli("file", "read", "todo.txt").out == "paint"
    # Where there is no such file the hint is about names.
    assert "--from" not in cli("file", "share", "./none.txt", code=2).err.splitlines()[-1]


def test_S9_a_file_may_be_called_what_its_owner_calls_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "Größe.txt").write_text("1.80")
    for apart, name in (
        ("Größe.txt", "Größe.txt"),
        ("U\u0308bersicht/文書.txt", "Übersicht/文書.txt"),
    ):
        done = cli("file", "share", apart, "--from", str(tmp_path / "Größe.txt"), "--json").json
        assert done["path"] == name
        assert cli("file", "read", apart).out == cli("file", "read", name).out == "1.80"
    assert {row["path"] for row in cli("file", "list", "--json").json} == {
        "Größe.txt",
        "Übersicht/文書.txt",
    }
    exported = cli("export").raw
    other = Cli(tmp_path / "other")
    other("init", "--peer", "bo", "--mesh", "team")
    other("import", "-", stdin=exported)
    there = {row["path"]: row["size"] for row in other("file", "list", "--json").json}
    assert there == {"Größe.txt": 4, "Übersicht/文書.txt": 4}
    cli("file", "delete", "U\u0308bersicht/文書.txt")
    assert cli("file", "read", "Übersicht/文書.txt", code=4).out == ""
