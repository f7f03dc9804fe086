"""The server for agents in the settings of known clients.

Each client has a file of its own, and names the same three things: a name, a command and its
arguments. What is there already stays: an entry of ours is replaced, everything else is kept as it
is, and a file that cannot be read is left alone.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.rules.errors import BadInput, StoreFailed
from holdfast.storage.files.durable import disk_errors, durable_replace

NAME: Final = "holdfast"


@dataclass(frozen=True)
class AgentClient:
    """A client that is known here."""

    name: str
    title: str
    where: Callable[[Mapping[str, str]], Path]
    """Its file, for a user with this environment."""
    table: str
    """The object in it that has a member for each server."""
    toml: bool = False
    typed: bool = False
    """An entry says that it is a server on stdio."""


@dataclass(frozen=True)
class Installed:
    """What is, or is to be, written."""

    client: AgentClient
    path: Path
    text: str
    """The entry alone, as it stands in the file."""


def _home(*parts: str) -> Callable[[Mapping[str, str]], Path]:
    return lambda environ: Path(environ.get("HOME") or Path.home(), *parts)


def _here(*parts: str) -> Callable[[Mapping[str, str]], Path]:
    return lambda environ: Path.cwd().joinpath(*parts)


def _desktop(environ: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return _home("Library", "Application Support", "Claude", _DESKTOP)(environ)
    base = environ.get("XDG_CONFIG_HOME")
    return Path(base, "Claude", _DESKTOP) if base else _home(".config", "Claude", _DESKTOP)(environ)


_DESKTOP: Final = "claude_desktop_config.json"
CLIENTS: Final = {
    client.name: client
    for client in (
        AgentClient("claude-code", "Claude Code (this folder)", _here(".mcp.json"), "mcpServers"),
        AgentClient("claude-desktop", "Claude Desktop", _desktop, "mcpServers"),
        AgentClient("codex", "Codex", _home(".codex", "config.toml"), "mcp_servers", toml=True),
        AgentClient("cursor", "Cursor", _home(".cursor", "mcp.json"), "mcpServers"),
        AgentClient("gemini", "Gemini CLI", _home(".gemini", "settings.json"), "mcpServers"),
        AgentClient(
            "vscode",
            "VS Code (this folder)",
            _here(".vscode", "mcp.json"),
            "servers",
            typed=True,
        ),
        AgentClient(
            "windsurf",
            "Windsurf",
            _home(".codeium", "windsurf", "mcp_config.json"),
            "mcpServers",
        ),
    )
}


def install(client: AgentClient, command: list[str], *, write: bool) -> Installed:
    """Writes the entry, or only says what it would be."""
    path = client.where(os.environ).resolve()  # a link to it, as of dotfiles, stays one
    entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
    if client.typed:
        entry = {"type": "stdio", **entry}
    text = _as_toml(client, entry) if client.toml else _as_json({client.table: {NAME: entry}})
    if write:
        before = _read(path)
        whole = (
            _with_toml(client, path, before, text)
            if client.toml
            else _with_json(client, path, before, entry)
        )
        with disk_errors(f"create the folder {path.parent}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        # Such a file may hold secrets of others: who could not read it cannot afterwards.
        private = not path.exists() or path.stat().st_mode & 0o077 == 0
        durable_replace(path, whole.encode(), private=private)
    return Installed(client, path, text)


def _read(path: Path) -> str:
    try:
        with disk_errors(f"read {path}"):
            return path.read_text(encoding="utf-8")
    except StoreFailed:
        if not path.exists():
            return ""
        raise
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not UTF-8") from None


def _with_json(client: AgentClient, path: Path, before: str, entry: dict[str, Any]) -> str:
    try:
        whole = json.loads(before) if before.strip() else {}
    except ValueError as error:
        raise _unreadable(path, f"it is not plain JSON: {error}") from None
    servers = whole.setdefault(client.table, {}) if isinstance(whole, dict) else None
    if not isinstance(servers, dict):
        raise _unreadable(path, f"it has no object {client.table!r}")
    servers[NAME] = entry
    return _as_json(whole)


def _with_toml(client: AgentClient, path: Path, before: str, text: str) -> str:
    try:
        found = tomllib.loads(before)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, f"it is not TOML: {error}") from None
    servers = found.get(client.table, {})
    if isinstance(servers, dict) and NAME in servers:
        if servers[NAME] == tomllib.loads(text)[client.table][NAME]:
            return before
        raise _unreadable(path, f"it has another [{client.table}.{NAME}]")
    return f"{before.rstrip()}\n\n{text}".lstrip()


def _as_json(whole: Any) -> str:
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _as_toml(client: AgentClient, entry: dict[str, Any]) -> str:
    # A text in JSON is a text in TOML, for all that a path may have.
    words = ", ".join(json.dumps(word, ensure_ascii=False) for word in entry["args"])
    command = json.dumps(entry["command"], ensure_ascii=False)
    return f"[{client.table}.{NAME}]\ncommand = {command}\nargs = [{words}]\n"


def _unreadable(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} is left as it is: {why}",
        hint="leave --write out, and put the entry there yourself",
    )
