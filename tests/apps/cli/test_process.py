"""The command as a process: pipes, terminals, interruptions, and how it is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.node.library.families import State
from holdfast.rules.errors import OutcomeUnknown
from support.cli import Cli


def test_U2_python_m_holdfast_is_the_command(cli: Cli) -> None:
    assert cli.process("--version").out == f"holdfast, version {holdfast.__version__}\n"
    assert cli.process("state", "set", "k", "v").code == 0
    assert cli.process("state", "get", "k").out == "v\n"
    assert cli.process("state", "get", "none").code == 4


def test_U2_the_installed_script_is_the_command(cli: Cli) -> None:
    script = Path(sys.executable).with_name("holdfast")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"holdfast, version {holdfast.__version__}\n"


def test_U2_a_closed_pipe_ends_it_quietly(cli: Cli) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        team = node.mesh("team")
        for number in range(300):
            team.state.set(f"key-{number}", "x" * 1000)
    for words in (("state", "list"), ("state", "list", "--json"), ("export",), ("log", "range")):
        # A pipe that cannot hold the whole answer: or it may be written before the reader is gone.
        with cli.start(*words, pipesize=4096) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.read(10)
            running.stdout.close()
            assert running.stderr.read() == b""
            assert running.wait(60) == 141
    # And before the first byte: the reader is gone when the answer comes.
    with cli.start("state", "get", "key-1") as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == b""
        assert running.wait(60) in (0, 141)


def test_U2_an_answer_that_cannot_be_written_is_no_success(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    for words in (("state", "get", "k"), ("state", "list"), ("export",), ("paths",)):
        with open("/dev/full", "wb") as full:
            failed = cli.process(*words, stdout=full)
        assert failed.code == 1
        assert failed.err.splitlines()[-2] == (
            "error: the answer could not be written: No space left on device"
        )


def test_U2_closed_streams_are_no_reason_to_fail(cli: Cli) -> None:
    command = f"{sys.executable} -m holdfast state set k v --home {cli.home} >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0
    assert cli("state", "get", "k").out == "v\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_U2_ctrl_c_and_sigterm_end_it_and_leave_the_home_clean(
    cli: Cli, number: signal.Signals, code: int
) -> None:
    cli("state", "set", "k", "v")
    with cli.start("log", "tail", "--follow", "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert json.loads(running.stdout.readline())["offset"] == 1
        running.send_signal(number)
        assert running.wait(60) == code
        # Where to go on is said to programs as to people.
        assert json.loads(running.stderr.read()) == {"stopped": {"since": "1:1"}}
    assert cli("status").err == "next: holdfast log tail\n"


def test_U2_following_the_log_shows_what_comes(cli: Cli) -> None:
    with holdfast.open(cli.home) as node:
        team = node.mesh("team")
        with cli.start("log", "tail", "--follow", "--json") as running:
            assert running.stdout is not None
            for number in range(1, 4):
                team.state.set("k", number)
                entry = json.loads(running.stdout.readline())
                assert (entry["offset"], entry["body"]) == (number, {"value": number})
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 130
        with cli.start("log", "tail", "-f", "-n", "1") as running:
            assert running.stdout is not None
            assert running.stdout.readline().startswith(b"OFFSET")
            assert running.stdout.readline().startswith(b"3 ")
            running.send_signal(signal.SIGINT)
            running.wait(60)


@pytest.mark.parametrize(
    ("env", "drawn"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_U2_a_terminal_gets_a_drawn_table_unless_it_is_told_not_to(
    cli: Cli, env: dict[str, str], drawn: bool
) -> None:
    cli("state", "set", "k", "[bold]not markup[/bold] \x1b[31m")
    shown = cli.on_a_terminal("state", "list", columns=100, env=env).out
    assert ("\x1b[1m" in shown) is drawn
    assert "[bold]not markup[/bold]" in shown
    assert "\x1b[31m" not in shown
    assert r"\x1b[31m" in shown
    # JSON is JSON, wherever it goes.
    document = cli.on_a_terminal("state", "list", "--json", env=env).out
    assert json.loads(document)[0]["key"] == "k"


def test_U2_bytes_are_utf_8_whatever_the_locale(cli: Cli) -> None:
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    assert cli.process("state", "set", "klucz", "żółw", env=env).code == 0
    for words in (("get", "klucz"), ("get", "klucz", "--json"), ("list",)):
        assert "żółw" in cli.process("state", *words, env=env).out
    missing = cli.process("state", "get", "żaba", env=env)
    assert "żaba" in missing.err


def test_U2_an_unknown_outcome_exits_with_124_and_names_the_id(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OutcomeUnknown("the disk failed while committing")

    # The store itself is on trial elsewhere; here only what the command makes of its answer.
    monkeypatch.setattr(State, "set", fail)
    id = "01890a5d-ac96-774b-bcce-b302099a8057"
    failed = cli("state", "set", "k", "v", "--id", id, "--json", code=124)
    assert (failed.error["code"], id in failed.error["hint"]) == ("outcome_unknown", True)
    assert "retry with --id " in cli("state", "set", "k", "v", code=124, full=True).err


def test_U2_a_fault_of_ours_is_told_as_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(State, "set", fail)
    said = cli("state", "set", "k", "v", code=1, full=True)
    assert "Traceback" in said.err
    assert "please report it" in said.err
    told = cli("state", "set", "k", "v", "--json", code=1, full=True)
    assert told.error["code"] == "internal"


@pytest.mark.parametrize(
    "words",
    ["backup @", "broker serve --store @", "pipeline status --lake @", "status --home @"],
)
def test_U2_a_folder_whose_name_is_not_utf8_is_refused_before_anything_is_made(
    cli: Cli, tmp_path: Path, words: str
) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    there = sorted(os.listdir(tmp_path))
    said = cli(*(folder if word == "@" else word for word in words.split()), code=2)
    assert "is not UTF-8" in said.err
    assert sorted(os.listdir(tmp_path)) == there
