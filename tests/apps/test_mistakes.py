"""Mistakes that people make: each time it is said what happened, and what to type next.

Where a hint names a command, that command is run as it stands there, and must do what it promises.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import holdfast
from support import small_disk
from support.cli import Cli, Outcome

TASK = "01890a5d-a196-774b-bcce-b302099a8057"


def hint(said: Outcome) -> str:
    """The last line on stderr, which must be a hint."""
    line = (said.err or said.out).splitlines()[-1]
    assert line.startswith("hint: "), said
    return line.removeprefix("hint: ")


def next_words(said: Outcome, **names: str) -> list[str]:
    """The first command of the hint as words, with the placeholders that a person would fill in."""
    text = hint(said)
    command = text[text.index("holdfast ") :]
    for end in ("; ", ", holdfast ", " ("):
        command = command.partition(end)[0]
    return [names.get(word, word) for word in shlex.split(command)[1:]]


def mistaken(cli: Cli, *words: str, code: int, says: str, **settings: object) -> Outcome:
    """Runs what was mistyped; nothing comes on stdout, and the reason stands on stderr."""
    said = cli(*words, code=code, **settings)  # type: ignore[arg-type]
    assert said.out == ""
    error = next(line for line in said.err.splitlines() if line.startswith("error: "))
    assert says in error
    # The same for programs: the same code and words, in one line of JSON.
    document = cli(*words, "--json", code=code, **settings)  # type: ignore[arg-type]
    assert document.error["message"] in error
    return said


# --- words that are mistyped ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "code", "says"),
    [
        ("stae list", 2, "no such command 'stae'"),
        ("state lst", 2, "no such command 'lst'"),
        ("state list --prefx=b", 2, "no such option '--prefx'"),
        ("state get biuld", 4, "state of 'team' has no key 'biuld'"),
        ("memory get nam", 4, "ana remembers nothing under 'nam' in 'team'"),
        ("state list --mesh taem", 4, "there is no mesh 'taem'"),
        ("file read nots.txt", 4, "ana shares no file 'nots.txt'"),
        ("help stat", 2, "there is no command 'stat'"),
        ("fact fetch laek", 4, "there is no consumer 'laek'"),
        ("token revoke metrisc", 4, "there is no token 'metrisc'"),
    ],
)
def test_U2_a_slip_of_the_hand_gets_the_command_that_was_meant(
    cli: Cli, typed: str, code: int, says: str
) -> None:
    cli("state", "set", "build", "green")
    cli("memory", "set", "name", "Ana")
    cli("file", "share", "notes.txt", "--from", "-", stdin="x")
    cli("consumer", "add", "lake")
    cli("token", "add", "metrics")
    said = mistaken(cli, *typed.split(), code=code, says=says)
    assert hint(said).startswith("did you mean: holdfast ")
    cli(*next_words(said))


def test_U2_an_id_that_is_too_short_or_of_another_family(cli: Cli) -> None:
    cli("task", "create", "one", "--id", TASK)
    cli("task", "create", "two", "--id", TASK.replace("a196", "a296"))
    said = mistaken(cli, "task", "claim", "0189", code=2, says="is the beginning of 2 ids")
    begin = hint(said).removeprefix("write as much as tells them apart, as ").split(" or ")[0]
    assert cli("task", "claim", begin).err == "claimed 'one'\n"
    said = mistaken(cli, "inbox", "read", TASK[:12], code=4, says="no message '01890a5d-a19'")
    cli(*next_words(said))
    said = mistaken(cli, "outbox", "show", "7", code=4, says="nothing with the id '7'")
    cli(*next_words(said))


def test_U2_a_value_that_is_no_json_and_one_that_begins_with_a_dash(cli: Cli) -> None:
    said = mistaken(
        cli, *("state", "set", "k", "hello", "--json-value"), code=2, says="is not JSON"
    )
    quoted = hint(said).split("'")[1]
    assert quoted == '"text"'
    cli("state", "set", "k", '"hello"', "--json-value")
    twice = mistaken(
        cli, *("state", "set", "k", '{"a":1,"a":2}', "--json-value"), code=2, says="stands twice"
    )
    assert "one value" in hint(twice)
    assert cli("state", "get", "k").out == "hello\n"
    said = mistaken(cli, "state", "set", "k", "-5", code=2, says="no such option '-5'")
    assert "write -- before a value" in hint(said)
    cli("state", "set", "k", "--", "-5")


def test_U2_a_path_where_a_name_is_meant(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "todo.txt").write_text("paint")
    path = str(tmp_path / "todo.txt")
    said = mistaken(cli, "file", "share", path, code=2, says="is absolute")
    cli(*next_words(said))
    assert cli("file", "read", "todo.txt").out == "paint"


# --- another place than was meant ----------------------------------------------------------------


def test_S1_a_wrong_home(cli: Cli, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    said = mistaken(
        cli, "state", "list", "--home", elsewhere, code=4, says=f"no Holdfast home in {elsewhere}"
    )
    words = next_words(said, NAME="bo")
    assert words == ["init", "--home", elsewhere, "--peer", "bo"]
    cli(*words)
    assert cli("status", "--home", elsewhere).code == 0
    # Nothing was made by looking.
    assert not (tmp_path / "other").exists()


def test_S1_a_file_or_a_folder_that_is_no_home(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    mistaken(cli, "status", "--home", str(tmp_path / "file"), code=4, says="no Holdfast home in")
    said = mistaken(
        cli, *("init", "--peer", "x", "--home", str(tmp_path / "file")), code=5, says="is a file"
    )
    cli(*next_words(said, FOLDER=str(tmp_path / "new")))
    junk = tmp_path / "junk"
    junk.mkdir(0o700)
    (junk / "data.db").write_text("no database")
    (junk / "data.db").chmod(0o600)
    said = mistaken(cli, "status", "--home", str(junk), code=1, says="is not a database")
    assert next_words(said)[:2] == ["doctor", "--home"]
    unnamed = cli(*next_words(said), code=1)
    assert "Traceback" not in unnamed.err
    cli(*next_words(unnamed, NAME="zed"))
    assert cli("status", "--home", str(junk), "--json").json["peer"] == "zed"
    assert any("corrupt" in name for name in os.listdir(junk)), "the file that was there is kept"


def test_S1_another_peer_than_that_of_the_home_and_a_second_home(cli: Cli, tmp_path: Path) -> None:
    mistaken(cli, "init", "--peer", "bob", code=5, says="belongs to peer 'ana', not 'bob'")
    other = str(tmp_path / "bob")
    made = cli("init", "--peer", "bob", "--mesh", "team", "--home", other)
    # Two homes: what is said of one names that one.
    assert made.err.splitlines()[-1] == f"next: holdfast state set --home {other} KEY VALUE"
    said = mistaken(cli, *("state", "get", "k", "--home", other), code=4, says="has no key 'k'")
    assert next_words(said)[:4] == ["state", "list", "--home", other]
    cli(*next_words(said))


def test_U2_no_mesh_and_several(cli: Cli, tmp_path: Path) -> None:
    cli("mesh", "create", "office")
    said = mistaken(cli, "state", "list", code=2, says="several meshes: office, team")
    assert "--mesh NAME" in hint(said)
    bare = str(tmp_path / "bare")
    cli("init", "--peer", "bo", "--home", bare)
    said = mistaken(cli, "state", "list", "--home", bare, code=4, says="has no mesh yet")
    cli(*next_words(said, NAME="first"))
    assert cli("state", "list", "--home", bare).code == 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HOLDFAST_MESH", "nowhere", "there is no mesh 'nowhere'"),
        ("HOLDFAST_STORE_SYNC", "fast", "'fast' is neither full nor normal"),
    ],
)
def test_U2_a_variable_with_a_wrong_value(cli: Cli, name: str, value: str, says: str) -> None:
    said = mistaken(
        cli, "state", "list", code=4 if "MESH" in name else 2, says=says, env={name: value}
    )
    assert name in hint(said) or next_words(said)[:2] == ["mesh", "list"]


def test_U2_a_broken_settings_file(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "holdfast.toml"
    env = {"HOLDFAST_CONFIG": str(settings)}
    said = mistaken(cli, "up", code=2, says=str(settings), env=env)
    assert "HOLDFAST_CONFIG" in said.err
    for text in ("[outbox", "[outbox]\npolcy = 'halt'\n", "[outbox]\npolicy = 'halte'\n"):
        settings.write_text(text)
        said = mistaken(cli, "up", code=2, says="", env=env)
        assert str(settings) in said.err or "outbox" in said.err
        assert hint(said)


def test_S1_an_output_is_not_written_over_a_home(cli: Cli) -> None:
    before = (cli.home / "data.db").read_bytes()
    for target in ("data.db", "new.jsonl", "blobs/x"):
        said = mistaken(cli, "export", str(cli.home / target), code=2, says="lies inside the home")
        assert "another folder" in hint(said)
    assert (cli.home / "data.db").read_bytes() == before
    assert not (cli.home / "new.jsonl").exists()


# --- daemons -------------------------------------------------------------------------------------


def test_U2_no_daemon(cli: Cli) -> None:
    said = mistaken(cli, "down", code=3, says="no daemon serves")
    cli(*next_words(said))
    for words in (("reload",), ("quorum", "status"), ("lease", "list")):
        said = mistaken(cli, *words, code=3, says="no daemon serves")
        assert next_words(said)[0] == "up"


def test_D10_a_port_that_is_taken_and_a_daemon_that_runs(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        said = cli.process("up", "--tcp", place)
        assert (said.code, said.raw) == (5, b"")
        assert f"another process listens on {place}" in said.err
        assert hint(said) == "choose another port, or 0 for a free one"
    assert cli.process("up", "--detach", "--tcp", "127.0.0.1:0").code == 0
    try:
        again = cli.process("up")
        assert again.code == 5
        assert "a daemon serves" in again.err
    finally:
        cli(*next_words(again))  # `holdfast down`
    assert "no daemon serves" in cli("down", code=3).err


def test_S11_a_home_of_a_newer_version(cli: Cli) -> None:
    database = apsw.Connection(str(cli.home / "data.db"))
    database.pragma("user_version", 9999)
    database.close()
    said = mistaken(cli, "state", "get", "k", code=1, says="9999")
    assert hint(said).startswith("upgrade Holdfast on this machine")


# --- what the machine does not allow -------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_S1_no_permission(cli: Cli, tmp_path: Path) -> None:
    cli.home.chmod(0o700)
    os.chown(cli.home, 65534, -1)
    said = mistaken(cli, "state", "list", code=7, says="belongs to user 65534")
    command = hint(said).partition("give it back: ")[2]
    assert command == "chown -R 0 on the home"
    # What it says to do, done:
    for folder, _, files in os.walk(cli.home):
        for name in (".", *files):
            os.chown(Path(folder) / name, 0, -1)
    cli("state", "list")


def test_S3_a_full_disk(cli: Cli, tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path, 4096) as disk:
        home = disk / "home"
        shutil.copytree(cli.home, home)
        home.chmod(0o700)
        small_disk.fill(disk)
        said = cli.process("state", "set", "k", "x" * 50_000, "--home", str(home))
        assert said.code == 1
        assert "error: " in said.err
        assert "Traceback" not in said.err
        assert "disk" in said.err
        assert hint(said)
        (disk / "filler").unlink()
        assert cli.process("state", "set", "k", "v", "--home", str(home)).code == 0


def test_U2_nobody_reads_to_the_end_and_an_answer_that_cannot_be_written(cli: Cli) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        for at in range(300):
            node.mesh("team").state.set(f"k{at}", "x" * 1000)
    line = f"{sys.executable} -m holdfast state list --home {cli.home} | head -2"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""
    with open("/dev/full", "wb") as full:
        failed = cli.process("state", "get", "k1", stdout=full)
    assert failed.code == 1
    assert "No space left on device" in failed.err


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_U2_a_narrow_terminal_with_colours_or_without(
    cli: Cli, columns: int, env: dict[str, str]
) -> None:
    cli("task", "create", "a title that is much too long for such a terminal", "--id", TASK)
    shown = cli.on_a_terminal("task", "list", columns=columns, env=env).out
    assert TASK in shown.replace("\x1b[0m", "").split()
    assert ("\x1b[" in shown) is (not env)
    wrong = cli.on_a_terminal("task", "claim", "zz", columns=columns, env=env, code=4).out
    assert "\x1b[" not in wrong
    assert cli(*next_words(Outcome(4, b"", wrong))).code == 0


def test_U2_ctrl_c_in_the_middle_leaves_nothing_half_done(cli: Cli) -> None:
    with holdfast.open(cli.home, sync="normal") as node:
        for at in range(50):
            node.mesh("team").files.share(f"f{at}", os.urandom(100_000))
    # It is in the middle when its first bytes come, and cannot end: nobody reads the rest.
    with cli.start("export", pipesize=4096) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.read(10)
        running.send_signal(signal.SIGINT)
        running.stdout.close()
        assert running.wait(60) in (130, 141)
        said = running.stderr.read()
        assert said in (
            b"",
            b"interrupted: what was written is a part of the export; begin again\n",
        )
    assert cli("status", "--json").json["peer"] == "ana"
    assert len(cli("file", "list", "--json").json) == 50


# --- secrets, questions --------------------------------------------------------------------------


def test_S1_a_secret_on_the_command_line_is_not_repeated(cli: Cli) -> None:
    secret = cli("token", "add", "metrics").out.strip()
    for words in (
        ("token", "revok", secret),
        ("token", "revoke", secret),
        ("mesh", "join", f"holdfast://join/{secret}"),
        ("mesh", "jion", f"holdfast://join/{secret}"),
    ):
        said = cli(*words, code=None)
        assert said.code
        lines = [line for line in said.err.splitlines() if line.startswith("hint: ")]
        assert secret not in "".join(lines), words
        assert lines
    logged = [path.read_text(errors="replace") for path in (cli.home / "logs").iterdir()]
    assert secret not in "".join(logged)


def test_U2_what_cannot_be_undone_is_not_done_by_a_slip(cli: Cli) -> None:
    cli("mesh", "create", "old")
    said = cli("mesh", "delete", "old", code=2)
    assert "nobody is here to answer" in said.err
    assert "old" in cli("mesh", "list").out
    cli(*next_words(said))
    assert "old" not in cli("mesh", "list").out


def test_U2_the_word_of_another_tool(cli: Cli) -> None:
    for word in ("put", "ls", "rm"):
        said = mistaken(cli, "state", word, "k", code=2, says=f"no such command '{word}'")
        assert "holdfast state --help" in hint(said)
    assert json.loads(cli("state", "list", "--json").out) == []
