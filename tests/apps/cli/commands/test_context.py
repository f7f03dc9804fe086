"""`holdfast context`: names for places, which of them counts, and commands that work far away."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import holdfast
from holdfast.node.settings import Settings
from holdfast.rules.errors import NeedsHome, NotGranted, UnknownContext
from holdfast.rules.limits import CONTEXT_FILE_BYTES_MAX
from holdfast.storage.files.contexts import Context, Contexts, in_force
from support.cli import Cli, Outcome
from support.daemon import UpInThread, make_home, running

SECRET = "hf_a-secret-that-nobody-shall-see"


class Far:
    """The command without a home of its own, and contexts in a folder."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self._cli, self.folder = cli, folder

    def __call__(
        self, *words: str, code: int | None = 0, env: Mapping[str, str] | None = None
    ) -> Outcome:
        given = {"HOLDFAST_HOME": "", "HOLDFAST_CONTEXTS": str(self.folder), **(env or {})}
        return self._cli(*words, code=code, env=given)


@pytest.fixture
def far(cli: Cli, tmp_path: Path) -> Far:
    return Far(cli, tmp_path / "contexts")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpInThread]:
    home = make_home(tmp_path / "plant", "plant")
    with running(home, Settings(listen="127.0.0.1:0")) as daemon:
        yield daemon


def test_U2_a_command_works_in_the_context_in_use(cli: Cli, far: Far) -> None:
    far("context", "add", "here", "--folder", str(cli.home), "--use")
    far("state", "set", "build", "green")
    assert cli("state", "get", "build").out == "green\n"
    shown = far("context", "show").out
    assert "holdfast context use" in shown
    assert str(cli.home) in shown
    assert far("context", "list", "--json").json[0]["in_use"] is True


def test_U2_the_option_goes_before_the_environment_and_that_before_the_one_in_use(
    cli: Cli, far: Far, tmp_path: Path
) -> None:
    other = make_home(tmp_path / "other", "bo")
    far("context", "add", "here", "--folder", str(cli.home))
    far("context", "add", "other", "--folder", str(other), "--use")
    assert far("status", "--json").json["peer"] == "bo"
    by_home = {"HOLDFAST_HOME": str(cli.home)}
    assert far("status", "--json", env=by_home).json["peer"] == "ana"
    assert far("status", "--json", "--context", "other", env=by_home).json["peer"] == "bo"
    assert far("status", "--json", env={"HOLDFAST_CONTEXT": "here"}).json["peer"] == "ana"
    assert far("--context", "here", "status", "--json").json["peer"] == "ana"
    both = far("status", "--home", str(other), "--context", "here", code=2)
    assert "two answers" in both.err
    used = far("context", "use", "here", env=by_home)
    assert "$HOLDFAST_HOME is set" in used.err
    far("context", "use", "--none")
    assert "no context is in use" in far("context", "show").out


def test_U2_hints_name_the_context_that_was_named(cli: Cli, far: Far) -> None:
    far("context", "add", "here", "--folder", str(cli.home))
    missing = far("state", "get", "nothing", "--context", "here", code=4)
    assert "holdfast state list --context here" in missing.err


def test_U4_family_verbs_work_on_a_daemon_elsewhere(far: Far, up: UpInThread) -> None:
    far("context", "add", "plant", "--daemon", up.unix, "--use")
    far("state", "set", "build", '{"ok":true}', "--json-value")
    assert far("state", "get", "build").out == '{"ok":true}\n'
    far("memory", "set", "note", "hello")
    assert far("memory", "get", "note").out == "hello\n"
    task = far("task", "create", "tidy up").out.strip()
    far("task", "claim", task[:20])
    assert far("task", "list", "--json").json[0]["claimed_by"] == "plant"
    far("file", "share", "a.txt", "--from", str(far.folder / "plant.json"))
    assert json.loads(far("file", "read", "a.txt").raw)["kind"] == "daemon"
    far("vector", "store", "v", "[1,0]", "--model", "test:m")
    ops = [row["op"] for row in far("log", "range", "--json").json]
    assert ops[:3] == ["state.set", "memory.set", "task.create"]
    assert far("mesh", "list", "--json").json[0]["mesh"] == "team"
    assert "nothing waits" in far("conflict", "list").err
    missing = far("state", "get", "biuld", code=4)
    assert "has no key" in missing.err
    with holdfast.open(up.home) as node:
        assert node.mesh("team").state.get("build") == {"ok": True}


def test_U4_what_needs_a_home_says_so(far: Far, up: UpInThread) -> None:
    far("context", "add", "plant", "--daemon", up.unix, "--use")
    for words in (("doctor",), ("paths",), ("backup", "x"), ("up",)):
        refused = far(*words, code=None)
        assert refused.code != 0
        assert "--home" in refused.err or "open the home" in refused.err, (words, refused.err)
    far("context", "add", "hub", "--broker", "https://127.0.0.1:1")
    assert "a broker holds no home" in far("state", "list", "--context", "hub", code=None).err


def test_U1_connect_takes_the_name_of_a_context(
    far: Far, up: UpInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONTEXTS", str(far.folder))
    far("context", "add", "plant", "--daemon", up.unix, "--card", up.card)
    with holdfast.connect("plant") as node:
        assert node.peer == "plant"
    mallory = up.card.replace("plant:", "mallory:")
    far("context", "add", "wrong", "--daemon", up.unix, "--card", mallory)
    with pytest.raises(NotGranted, match="not of 'mallory'"):
        holdfast.connect("wrong")
    far("context", "add", "hub", "--broker", "https://127.0.0.1:1")
    with pytest.raises(NeedsHome):
        holdfast.connect("hub")


def test_Q11_a_token_is_kept_for_its_user_alone_and_never_shown(
    far: Far, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    told = ["context", "add", "plant", "--daemon", "https://127.0.0.1:1"]
    made = far(*told, "--token-file", str(tmp_path / "token"), "--json")
    seen = [far(*words, "--json") for words in (("context", "list"), ("context", "show", "plant"))]
    for outcome in (made, *seen):
        assert SECRET not in outcome.out + outcome.err
    kept = far.folder / "plant.json"
    assert SECRET in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(far.folder.stat().st_mode) == 0o700
    kept.chmod(0o644)
    assert Contexts(far.folder).get("plant").token == SECRET
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "was open to others (644)" in caplog.text
    assert SECRET not in caplog.text
    (tmp_path / "token").write_text("two words")
    assert far(*told, "--replace", "--token-file", str(tmp_path / "token"), code=2).raw == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "x"), "names one place"),
        (("add", "x", "--folder", "a", "--daemon", "unix:/b"), "names one place"),
        (("add", "../x", "--folder", "a"), "no name for a context"),
        (("add", "x", "--daemon", "plant:80"), "not the address"),
        (("add", "x", "--daemon", "https://me:secret@plant:80"), "not the address"),
        (("add", "x", "--daemon", "https://plant:80/x"), "not the address"),
        (("add", "x", "--broker", "https://plant:80?token=secret"), "not the address"),
        (("add", "x", "--daemon", "https://"), "not the address"),
        (("add", "x", "--daemon", "unix:/b", "--card", "plant"), "not the card"),
        (("add", "x", "--folder", "a", "--card", "c"), "needs no token"),
        (("use", "nope"), "no context 'nope'"),
        (("use",), "name a context"),
        (("remove", "nope"), "no context 'nope'"),
        (("show", "nope"), "no context 'nope'"),
    ],
)
def test_U2_a_wrong_context_is_refused_in_words(
    far: Far, words: tuple[str, ...], said: str
) -> None:
    refused = far("context", *words, code=None)
    assert refused.code in (2, 4)
    assert said in refused.err
    assert "secret" not in refused.err
    assert Contexts(far.folder).names() == []


def test_U2_before_a_token_goes_a_person_at_a_terminal_is_asked(
    cli: Cli, far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(SECRET)
    plant = ("context", "add", "plant", "--daemon", "https://127.0.0.1:1")
    far(*plant, "--token-file", str(tmp_path / "token"))
    assert far("context", "remove", "plant", "--dry-run", "--json").json["has_token"] is True
    monkeypatch.setenv("HOLDFAST_CONTEXTS", str(far.folder))
    asked = cli.on_a_terminal("context", "remove", "plant", typed="n\n", code=1)
    assert "Forget the name plant and its token? [y/N]: " in asked.out
    assert Contexts(far.folder).names() == ["plant"]
    cli.on_a_terminal("context", "remove", "plant", typed="y\n")
    far("context", "add", "here", "--folder", "a")
    assert "[y/N]" not in cli.on_a_terminal("context", "remove", "here").out
    assert Contexts(far.folder).names() == []


def test_U2_a_name_is_taken_once_and_can_be_replaced(far: Far) -> None:
    far("context", "add", "x", "--folder", "a")
    assert far("context", "add", "x", "--folder", "b", code=5).raw == b""
    far("context", "add", "x", "--folder", "b", "--replace")
    assert far("context", "show", "x", "--json").json["place"].endswith("/b")


def test_U2_one_that_is_gone_or_damaged_can_be_removed(far: Far) -> None:
    far("context", "add", "x", "--folder", "a", "--use")
    (far.folder / "x.json").write_text("{")
    assert "cannot be read" in far("status", code=None).err
    assert far("context", "list", "--json").json[0]["place"] == "(damaged)"
    far("context", "remove", "x")
    assert Contexts(far.folder).in_use() is None
    (far.folder / "in-use").write_text("gone\n")
    gone = far("status", code=4)
    assert "no context 'gone' (holdfast context use)" in gone.err
    with pytest.raises(UnknownContext):
        Contexts(far.folder).get("gone")


def test_U2_what_is_no_file_in_the_folder_of_contexts_blocks_no_command(cli: Cli, far: Far) -> None:
    """A pipe, folders, a link to nowhere, one without end, and one as long as we would write."""
    far("context", "add", "here", "--folder", str(cli.home), "--use")
    far("context", "add", "full", "--folder", "a")
    os.mkfifo(far.folder / "pipe.json")
    (far.folder / "folder.json").mkdir()
    (far.folder / "endless.json").symlink_to("/dev/zero")
    (far.folder / "nowhere.json").symlink_to("/nowhere")
    with (far.folder / "full.json").open("ab") as file:
        file.write(b" " * (CONTEXT_FILE_BYTES_MAX - file.tell()))
    (far.folder / "long.json").write_bytes((far.folder / "full.json").read_bytes() + b" ")
    listed = {row["context"]: row["place"] for row in far("context", "list", "--json").json}
    assert listed.pop("full").endswith("/a")
    assert listed.pop("here") == str(cli.home)
    assert set(listed.values()) == {"(damaged)"}
    assert listed.keys() == {"pipe", "folder", "endless", "long", "nowhere"}
    assert far("status", "--json").json["peer"] == "ana"
    for name, said in (
        ("pipe", "neither a file"),
        ("folder", "Is a directory"),
        ("long", "longer"),
    ):
        refused = far("status", "--context", name, code=None)
        assert refused.code == 1
        assert said in refused.err
        assert f"holdfast context remove {name}" in refused.err
    for words in (("add", "folder", "--folder", "a", "--replace"), ("remove", "folder")):
        folder = far("context", *words, code=None)
        assert f"rm -r {far.folder / 'folder.json'}" in folder.err
    for name in ("pipe", "endless", "long", "nowhere"):
        far("context", "remove", name)
    assert Contexts(far.folder).names() == ["folder", "full", "here"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_U2_a_strange_file_in_place_of_the_one_in_use_is_named(
    cli: Cli, far: Far, make: Callable[[Path], None]
) -> None:
    far("context", "add", "here", "--folder", str(cli.home))
    make(far.folder / "in-use")
    assert f"rm -r {far.folder / 'in-use'}" in far("status", code=1).err
    assert far("status", "--json", "--context", "here").json["peer"] == "ana"


def test_U2_a_home_in_the_environment_goes_before_a_context_in_use(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path / "contexts")
    contexts.add("one", Context(kind="home", place="/a"))
    contexts.use("one")
    assert in_force(None, contexts, {"HOLDFAST_HOME": "/b"}) is None
    assert in_force(None, contexts, {"HOLDFAST_HOME": "/b", "HOLDFAST_CONTEXT": "two"}) is None
    found = in_force("two", contexts, {"HOLDFAST_HOME": "/b"})
    assert found is not None
    assert found.name == "two"
