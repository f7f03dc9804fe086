"""`holdfast mcp install`: the server in the settings of clients."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest

from holdfast.apps.mcp.install import CLIENTS, NAME
from support.cli import Cli


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, in a folder of a project."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return folder


@pytest.mark.parametrize("name", list(CLIENTS))
def test_U3_each_client_gets_an_entry_that_starts_the_server_on_this_home(
    cli: Cli, name: str
) -> None:
    shown = cli("mcp", "install", name)
    path = Path(json.loads(cli("mcp", "install", name, "--json").out)["path"])
    assert not path.exists(), "it only says what it would write"
    cli("mcp", "install", name, "--write")
    before = path.read_text()
    assert shown.out.strip() in before or json.loads(shown.out) == json.loads(before)
    cli("mcp", "install", name, "--write")
    assert path.read_text() == before, "once more is no more"
    client = CLIENTS[name]
    whole = tomllib.loads(before) if client.toml else json.loads(before)
    entry = whole[client.table][NAME]
    assert entry["args"] == ["mcp", "--home", str(cli.home)]
    assert Path(entry["command"]).is_absolute()


def test_U3_what_stands_in_the_settings_already_stays(cli: Cli, user: Path) -> None:
    path = user / ".cursor" / "mcp.json"
    path.parent.mkdir()
    kept = {"theme": "dark", "mcpServers": {"other": {"command": "x"}, NAME: {"command": "old"}}}
    path.write_text(json.dumps(kept))
    path.chmod(0o600)
    link = user / "dotfiles.json"
    path.rename(link)
    path.symlink_to(link)
    cli("mcp", "install", "cursor", "--write")
    found = json.loads(path.read_text())
    assert found["theme"] == "dark"
    assert found["mcpServers"]["other"] == {"command": "x"}
    assert found["mcpServers"][NAME]["command"] != "old"
    assert path.is_symlink()
    assert stat.S_IMODE(link.stat().st_mode) == 0o600, "it may hold secrets of others"
    codex = user / ".codex" / "config.toml"
    codex.parent.mkdir()
    codex.write_text('# mine\nmodel = "x"\n')
    cli("mcp", "install", "codex", "--write")
    assert codex.read_text().startswith('# mine\nmodel = "x"\n\n[mcp_servers.holdfast]')


@pytest.mark.parametrize(
    ("client", "place", "text"),
    [
        ("cursor", ".cursor/mcp.json", "{ // a comment\n}"),
        ("cursor", ".cursor/mcp.json", "[1]"),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": 7}'),
        ("codex", ".codex/config.toml", "= ="),
        ("codex", ".codex/config.toml", '[mcp_servers.holdfast]\ncommand = "other"\n'),
    ],
)
def test_U3_settings_that_cannot_be_read_are_left_alone(
    cli: Cli, user: Path, client: str, place: str, text: str
) -> None:
    path = user / place
    path.parent.mkdir()
    path.write_text(text)
    failed = cli("mcp", "install", client, "--write", code=2)
    assert "left as it is" in failed.err
    assert path.read_text() == text


def test_U3_an_unknown_client_is_refused_with_those_that_are_known(cli: Cli) -> None:
    failed = cli("mcp", "install", "emacs", code=2)
    assert all(name in failed.err for name in CLIENTS)
