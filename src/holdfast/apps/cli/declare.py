"""How a command is declared: its own parameters, plus those that every command takes.

    state_ = noun("state", "One value per key.")

    @verb(state_, "set", writes=True)
    @click.argument("key")
    def set_(session: CommandSession, key: str) -> None: ...

`verb` adds `--home` and `--json`, `--mesh` unless it says `mesh=False`, `--id` where it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.apps.cli import output
from holdfast.apps.cli.session import CommandSession

FILTER = "filter"
"""The kind of `--mesh` that narrows a command down; without it the command looks at all meshes."""

F = TypeVar("F", bound=Callable[..., Any])

_MESH = "The mesh; else $HOLDFAST_MESH, else the only one of the home."
_FILTER = "Only this mesh; else all of them."
_HOME = "The home; else $HOLDFAST_HOME, else the platform's data folder."
_ID = "The id of this write (a UUIDv7), for a retry that is applied once at most."
_KEY = "Names this message (any text, or a UUID), for a retry that is applied once at most."
KEY = "key"
"""For `writes`: `--id` is any idempotency key."""


class SessionCommand(click.Command):
    """A command that gets a session in place of the shared options."""

    def invoke(self, ctx: click.Context) -> Any:
        around: dict[str, Any] = ctx.find_object(dict) or {}
        takes_id = "id" in ctx.params
        given = {name: ctx.params.pop(name, None) for name in ("home", "mesh", "as_json", "id")}
        home = given["home"] or around.get("home")
        output.works_at(home, ctx.params.get("store"), ctx.params.get("lake"))
        ctx.params["session"] = CommandSession(
            home=home,
            mesh=given["mesh"] or around.get("mesh"),
            as_json=bool(given["as_json"] or around.get("as_json")),
            takes_id=takes_id,
            id=given["id"],
        )
        return super().invoke(ctx)


def noun(name: str, help: str) -> click.Group:
    return click.Group(name, help=help)


def verb(
    group: click.Group,
    name: str,
    *,
    mesh: bool | str = True,
    writes: bool | str = False,
    **settings: Any,
) -> Callable[[F], click.Command]:
    """A verb of a noun."""

    def declare(function: F) -> click.Command:
        command = command_of(name, mesh=mesh, writes=writes, **settings)(function)
        group.add_command(command)
        return command

    return declare


def command_of(
    name: str, *, mesh: bool | str = False, writes: bool | str = False, **settings: Any
) -> Callable[[F], click.Command]:
    """A command that stands alone."""

    def declare(function: F) -> click.Command:
        command: click.Command = click.command(name, cls=SessionCommand, **settings)(function)
        if writes:
            metavar, help = ("KEY", _KEY) if writes == KEY else ("UUID", _ID)
            command.params.append(click.Option(["--id"], metavar=metavar, help=help))
        if mesh:
            # A command that looks at all meshes does not obey $HOLDFAST_MESH, only its option.
            named = mesh == FILTER
            option = click.Option(
                ["--mesh"],
                metavar="NAME",
                envvar=None if named else "HOLDFAST_MESH",
                help=_FILTER if named else _MESH,
            )
            command.params.append(option)
        command.params.append(click.Option(["--home"], metavar="FOLDER", help=_HOME))
        command.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON, errors too.")
        )
        return command

    return declare
