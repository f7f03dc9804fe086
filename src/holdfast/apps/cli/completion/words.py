"""What `words.json` says of each command, read off the commands themselves.

    {"verbs": {"state": {"verbs": {"get": {"arguments": ["state"], "options": {…}}}}}}

An option has what its value is: empty if it takes none, `value` if nothing can be offered, a list
of choices, or a kind of name.
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from holdfast.apps.cli.declare import SessionCommand

_ARGUMENTS: Final = {
    ("state", "key"): "state",
    ("memory", "key"): "memory",
    ("file", "path"): "path",
    ("vector", "key"): "vector",
    ("task", "task"): "task",
    ("link", "name"): "link",
    ("mesh", "name"): "mesh",
    ("mesh", "member"): "peer",
    ("peer", "name"): "peer",
    ("bus", "to"): "peer",
    ("quorum", "peer"): "peer",
    ("quorum", "mesh_name"): "mesh",
    ("token", "name"): "token",
    ("consumer", "name"): "consumer",
    ("fact", "consumer"): "consumer",
    ("audit", "stream"): "stream",
    ("context", "name"): "context",
    ("conflict", "number"): "conflict",
    ("entity", "type_"): "entity_type",
    ("entity", "id_"): "entity",
    ("lease", "name"): "lease",
    ("telemetry", "kind"): "telemetry_kind",
    ("batch", "file"): "file",
    ("bugreport", "file"): "file",
    ("export", "file"): "file",
    ("import", "file"): "file",
    ("backup", "folder"): "folder",
    ("restore", "folder"): "folder",
}
"""By noun and argument: what is offered for it."""
_NEW: Final = frozenset(
    {
        *("mesh create", "token add", "context add", "consumer add", "link add", "task create"),
        *("peer trust", "mesh topic", "mesh queue", "file share"),
    }
)
"""Verbs whose first argument is a name that is not there yet."""
_OPTIONS: Final = {
    "--home": "folder",
    "--context": "context",
    "--mesh": "mesh",
    "--peer": "peer",
    "--from": "value",
    "--store": "folder",
    "--lake": "folder",
}
_SHARED: Final = ("--home", "--context", "--mesh", "--json", "--help")


def words(root: click.Group) -> str:
    """The text of `words.json`, a line for each command."""
    shared = {name: _OPTIONS.get(name, "") for name in _SHARED}
    lines = ['{"shared":' + _json(shared) + ",", '"verbs":{']
    context = click.Context(root)
    nouns = [(name, root.get_command(context, name)) for name in root.list_commands(context)]
    for name, command in nouns:
        assert command is not None
        end = "," if name != nouns[-1][0] else ""
        if isinstance(command, click.Group):
            inner = [
                (verb, command.get_command(context, verb)) for verb in sorted(command.commands)
            ]
            lines.append(f'{_json(name)}:{{"verbs":{{')
            for verb, one in inner:
                assert one is not None
                last = "" if verb == inner[-1][0] else ","
                lines.append(f" {_json(verb)}:{_json(_said(name, f'{name} {verb}', one))}{last}")
            lines.append(f"}}}}{end}")
        else:
            lines.append(f"{_json(name)}:{_json(_said(name, name, command))}{end}")
    return "\n".join([*lines, "}}", ""])


def _said(noun: str, path: str, command: click.Command) -> dict[str, Any]:
    options: dict[str, Any] = {}
    arguments: list[Any] = []
    repeats = False
    for param in command.params:
        if isinstance(param, click.Argument):
            known = "value" if path in _NEW else _ARGUMENTS.get((noun, param.name or ""), "value")
            arguments.append(_choices(param) or known)
            repeats = param.nargs == -1
        elif isinstance(param, click.Option) and not param.hidden:
            flag = param.is_flag or param.count
            for name in (*param.opts, *param.secondary_opts):
                if name not in _SHARED:
                    options[name] = "" if flag else _choices(param) or _kind(path, name, param)
    assert isinstance(command, SessionCommand | click.Command)
    said: dict[str, Any] = {"options": options}
    if arguments:
        said["arguments"] = arguments
    if repeats:
        said["repeats"] = True
    return said


def _kind(path: str, name: str, param: click.Option) -> str:
    if name in _OPTIONS and (path, name) != ("file share", "--from"):
        return _OPTIONS[name]
    return {"FILE": "file", "FOLDER": "folder"}.get(param.metavar or "", "value")


def _choices(param: click.Parameter) -> list[str]:
    return [str(one) for one in param.type.choices] if isinstance(param.type, click.Choice) else []


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
