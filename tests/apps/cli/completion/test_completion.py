"""What Tab offers: words of the command line, names from the home, quoted as the shell needs it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.apps.cli.completion.shells import Typed, as_typed, read_line
from holdfast.storage.sqlite import quick_read
from support.cli import Cli
from support.project import SOURCE
from support.waiting import PATIENCE_S

QUOTES = ("", '"', "'")
WORDS = (SOURCE / "apps/cli/completion/words.json").read_text()


def offers(cli: Cli, *typed: str, **environ: str) -> list[str]:
    """What zsh and fish are told for these words; the last one is being typed."""
    env = {"_HOLDFAST_COMPLETE": "zsh_complete", "COMP_WORDS": "\n".join(typed), **environ}
    done = cli(env=env)
    assert done.err == ""
    return [line.removeprefix("=") for line in done.out.splitlines()]


@pytest.fixture
def full(cli: Cli) -> Cli:
    with holdfast.open(cli.home) as node:
        team = node.mesh("team")
        for key in ("build", "build time", "deploy", 'it\'s "this"', "äpfel"):
            team.state.set(key, 1)
        team.memory.set("note", 1)
        team.tasks.create("tidy up")
        team.files.share("notes/a.txt", b"a")
        team.state.set("gone", 1)
        team.state.delete("gone")
        node.create_mesh("other")
    return cli


def test_U2_nouns_verbs_and_options_are_offered(cli: Cli) -> None:
    assert offers(cli, "sta") == ["status", "state"]
    assert {"delete", "get", "list", "set"} <= set(offers(cli, "state", ""))
    assert "--as-of" in offers(cli, "state", "get", "--")
    assert "--mesh" in offers(cli, "state", "get", "k", "--m")
    assert offers(cli, "state", "list", "-o", "") == ["table", "json", "jsonl", "csv"]
    assert offers(cli, "state", "list", "--output=js") == ["--output=json", "--output=jsonl"]
    assert offers(cli, "completion", "") == ["bash", "zsh", "fish"]
    assert offers(cli, "nothing", "") == offers(cli, "") == offers(cli, "--json", "")
    assert offers(cli, "--home", "state", "sta") == ["status", "state"], "a value is no noun"


def test_U2_names_come_from_the_home(full: Cli) -> None:
    assert offers(full, "--mesh", "team", "state", "get", "bui") == ["build", "build time"]
    assert offers(full, "state", "get", "--mesh=team", "g") == [], "it was deleted"
    assert offers(full, "state", "get", "b") == [], "two meshes, and none was named"
    assert offers(full, "state", "get", "ä", HOLDFAST_MESH="team") == ["äpfel"]
    assert offers(full, "state", "list", "--mesh", "") == ["other", "team"]
    assert offers(full, "memory", "get", "--mesh", "team", "") == ["note"]
    assert offers(full, "file", "read", "--mesh", "team", "notes/") == ["notes/a.txt"]
    (task,) = offers(full, "task", "claim", "--mesh", "team", "0")
    assert task == full("task", "list", "--mesh", "team", "--json").json[0]["task"]
    assert offers(full, "state", "get", "key", "more") == [], "it takes one key"
    assert offers(full, "mesh", "create", "") == [], "that is a new name"
    assert offers(full, "backup", "") == ["folder"]
    full("state", "set", "--mesh", "team", "--", "-dash", "1")
    assert offers(full, "state", "get", "--mesh", "team", "--", "-d") == ["-dash"]


def test_U2_where_there_is_no_home_nothing_is_offered_and_nothing_said(
    cli: Cli, tmp_path: Path
) -> None:
    nowhere = {"HOLDFAST_HOME": str(tmp_path / "none")}
    assert offers(cli, "state", "get", "b", **nowhere) == []
    lost = {"HOLDFAST_HOME": "", "HOLDFAST_CONTEXTS": str(tmp_path / "c")}
    assert offers(cli, "state", "get", "--context", "lost", "b", **lost) == []
    assert offers(cli, "context", "use", "", **lost) == []
    cli("context", "add", "here", "--folder", str(cli.home), env=lost)
    cli("state", "set", "build", "1")
    assert offers(cli, "state", "get", "--context", "here", "b", **lost) == ["build"]
    assert offers(cli, "context", "use", "h", **lost) == ["here"]


def test_U2_every_kind_of_name_can_be_looked_up(full: Cli) -> None:
    known = set(re.findall(r'"([a-z_]+)"', WORDS))
    assert known >= quick_read.NAMES, "each of them is offered somewhere"
    with quick_read.open_read_only(str(full.home)) as connection:
        for kind in sorted(quick_read.NAMES):
            assert isinstance(list(quick_read.names(connection, kind, "team", "")), list)


def test_U2_an_answer_imports_no_command(full: Cli) -> None:
    code = (
        "import sys; from holdfast.apps.cli.main import main; main([]); "
        "print([name for name in ('click', 'asyncio', 'msgspec') if name in sys.modules])"
    )
    env = {
        **os.environ,
        "HOLDFAST_HOME": str(full.home),
        "HOLDFAST_MESH": "team",
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_LINE": "holdfast state get bui",
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert done.stdout.decode() == "=build\n=build\\ time\n[]\n"


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("holdfast state get bui", ["build", "build\\ time"]),
        ("holdfast state get build\\ ", ["build\\ time"]),
        ('holdfast state get "build t', ["build time"]),
        ("holdfast state get it", ['it\\\'s\\ \\"this\\"']),
        ("holdfast state get 'bui", ["build", "build time"]),
        ("holdfast state get --output=js", []),
        ("holdfast state list --output=js", ["json", "jsonl"]),
    ],
)
def test_U2_a_real_bash_is_given_what_it_can_insert(
    full: Cli, tmp_path: Path, line: str, replies: list[str]
) -> None:
    full("task", "list", "--mesh", "team")
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o700)
    script = full("completion", "bash").out
    story = (
        f"{script}\nCOMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}\n"
        '_holdfast_complete holdfast; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOLDFAST_HOME": str(full.home),
        "HOLDFAST_MESH": "team",
    }
    done = subprocess.run(["bash", "-c", story], env=env, capture_output=True, check=True)
    assert done.stderr == b""
    assert list(filter(None, done.stdout.decode().splitlines())) == replies


TYPED = [
    ("holdfast|sta", ["status", "state"]),
    ("holdfast|state|get|bui", ["build", "build time"]),
    ('holdfast|state|get|"build t', ["build time"]),
    ("holdfast|state|get|build\\ ", ["build time"]),
    ("holdfast|state|get|it", ['it\'s "this"']),
    ("holdfast|state|get|'it", ['it\'s "this"']),
    ("holdfast|--mesh|team|state|get|bui", ["build", "build time"]),
    ("holdfast|state|list|--output=js", ["--output=json", "--output=jsonl"]),
    ("holdfast|state|list|--mesh|", ["other", "team"]),
]
"""Words as they stand on the line, with what is offered for the last of them."""


@pytest.fixture
def shell(full: Cli, tmp_path: Path) -> dict[str, str]:
    """What a shell is started with: our program on its path, and the home with names."""
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o700)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "HOLDFAST_HOME": str(full.home),
        "HOLDFAST_MESH": "team",
        "LC_ALL": "C.UTF-8",
    }


def said_by(shell: dict[str, str], *words: str, **more: str) -> list[str]:
    done = subprocess.run(
        words, env={**shell, **more}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_U2_a_real_fish_offers_what_fits(full: Cli, shell: dict[str, str]) -> None:
    story = [full("completion", "fish").out]
    story += [
        "complete -C $argv[1]",
        "for line in $argv[2..-1]",
        "echo NEXT",
        "complete -C $line",
        "end",
    ]
    lines = [line.replace("|", " ") for line, _ in TYPED]
    said = said_by(shell, "fish", "-N", "-c", "\n".join(story), "holdfast ", *lines)
    answers = "\n".join(said).split("NEXT\n")[1:]
    for (line, wanted), answer in zip(TYPED, answers, strict=True):
        assert sorted(answer.splitlines()) == sorted(wanted), line


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_U2_a_real_zsh_offers_what_fits(full: Cli, shell: dict[str, str]) -> None:
    """zsh gives words as they stand on the line, and the last one without the quote that it begins
    with; it quotes offers by itself.
    """
    story = [
        "compdef() { }",
        'compadd() { print -rl -- "${offers[@]}" }',
        full("completion", "zsh").out,
        'for line in "$@"; do',
        '  words=("${(@s:|:)line}"); CURRENT=$#words; PREFIX=${words[-1]#[\\\'\\"]}',
        "  print NEXT; _holdfast_complete",
        "done",
    ]
    lines = [line for line, _ in TYPED]
    said = said_by(shell, "zsh", "-f", "-c", "\n".join(story), "zsh", *lines)
    answers = "\n".join(said).split("NEXT\n")[1:]
    for (line, wanted), answer in zip(TYPED, answers, strict=True):
        assert sorted(answer.splitlines()) == sorted(wanted), line


@given(st.lists(st.text(st.characters(exclude_categories=["C"]), min_size=1), max_size=4))
def test_U2_words_are_read_as_the_shell_reads_them(words: list[str]) -> None:
    line = " ".join(map(shlex.quote, ["holdfast", *words]))
    assert read_line(line).words == ["holdfast", *words]
    assert read_line(f"{line} ").words == ["holdfast", *words, ""]


@given(
    st.text(st.characters(exclude_categories=["C"]), min_size=1), st.sampled_from(["", '"', "'"])
)
def test_U2_an_offer_that_was_inserted_is_that_name(name: str, quote: str) -> None:
    inserted = as_typed(name, Typed([""], quote, ""))
    assert read_line(f"x {quote}{inserted}{quote}").words == ["x", name]


@pytest.mark.parametrize("quote", QUOTES)
def test_U2_a_key_with_an_exclamation_mark_does_not_bring_back_an_older_command(quote: str) -> None:
    """Within double quotes an interactive bash puts its last command in place of `!!`, and takes
    the backslash before it for a letter.
    """
    inserted = as_typed("a!!b", Typed([""], quote, ""))
    typed = f"true older\nprintf '<%s>' {quote}{inserted}{quote}\n"
    bash = ["bash", "--norc", "--noprofile", "-i"]
    env = {**os.environ, "HISTFILE": "/dev/null"}
    ran = subprocess.run(bash, input=typed, env=env, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "<a!!b>"


@given(st.text())
def test_U2_any_line_is_read(line: str) -> None:
    assert read_line(line).words
