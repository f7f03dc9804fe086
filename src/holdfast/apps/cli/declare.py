"""How a command is declared: its own parameters, plus those that every command takes.

    state_ = noun("state", "One value per key.")

    @verb(state_, "set", writes=True)
    @click.argument("key")
    def set_(session: CommandSession, key: str) -> None: ...

`verb` adds `--home` and `--json`, `--mesh` unless it says `mesh=False`, `--id` where it writes,
`--dry-run` and `--yes` where it removes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.apps.cli import output
from holdfast.apps.cli.session import CommandSession
from holdfast.node.core.metrics import COMMAND

if TYPE_CHECKING:
    from holdfast.apps.cli.lists.listing import Listing

FILTER = "filter"
"""The kind of `--mesh` that narrows a command down; without it the command looks at all meshes."""

F = TypeVar("F", bound=Callable[..., Any])

_MESH = "The mesh; else $HOLDFAST_MESH, else the only one of the home."
_FILTER = "Only this mesh; else all of them."
_HOME = "The home; else $HOLDFAST_HOME, else the context in use, else the platform's data folder."
_CONTEXT = "Work in this context (see: holdfast context)."
_SHARED = ("home", "context", "mesh", "as_json", "id")
_ID = "The id of this write (a UUIDv7), for a retry that is applied once at most."
_BATCH = "Names this batch (any text, or a UUID), for a retry that is applied once at most."
_KEY = "Names this message (any text, or a UUID), for a retry that is applied once at most."
_DRY_RUN = "Say what would go, and change nothing."
_YES = "Do not ask; else it asks on a terminal."
DRY = "dry"
"""For `removes`: what goes is one thing, and its history tells what it was."""
ASKS = "asks"
"""For `removes`: what goes does not come back."""
KEY = "key"
"""For `writes`: `--id` is any idempotency key."""
BATCH = "batch"
"""For `writes`: `--id` names a batch, and is any text."""


class SessionCommand(click.Command):
    """A command that gets a session in place of the shared options."""

    removes: str = ""
    """`DRY` if it has `--dry-run`, `ASKS` if it asks on a terminal too."""
    time: str | None = None
    """The field by which the rows of its list are chosen by time; empty if they have none, None if
    it prints no list."""
    list_options: tuple[str, ...] = ()
    """Which options of a list are obeyed for it; others of those names it obeys by itself."""

    def invoke(self, ctx: click.Context) -> Any:
        around: dict[str, Any] = ctx.find_object(dict) or {}
        COMMAND.set(ctx.command_path.partition(" ")[2])
        takes_id = "id" in ctx.params
        shared = (*_SHARED, "dry_run", "yes") if self.removes else _SHARED
        given = {name: ctx.params.pop(name, None) for name in shared}
        home = given["home"] or around.get("home")
        context = given["context"] or around.get("context")
        output.works_at(home, ctx.params.get("store"), ctx.params.get("lake"), context)
        as_json = bool(given["as_json"] or around.get("as_json"))
        ctx.params["session"] = CommandSession(
            home=home,
            mesh=given["mesh"] or around.get("mesh"),
            as_json=as_json,
            takes_id=takes_id,
            id=given["id"],
            dry_run=bool(given.get("dry_run")),
            yes=bool(given.get("yes")),
            listing=self._listing(ctx, as_json),
            context=context,
        )
        return super().invoke(ctx)

    def _listing(self, ctx: click.Context, as_json: bool) -> Listing | None:
        """What was asked of the list that this command prints, if it prints one."""
        if self.time is None:
            return None
        from holdfast.apps.cli.lists.listing import Listing

        given = {option: ctx.params.pop(option) for option in self.list_options}
        return Listing.of(given, as_json=as_json, time=self.time)


def noun(name: str, help: str) -> click.Group:
    return click.Group(name, help=help)


def verb(
    group: click.Group,
    name: str,
    *,
    mesh: bool | str = True,
    writes: bool | str = False,
    removes: str = "",
    lists: str | None = None,
    **settings: Any,
) -> Callable[[F], click.Command]:
    """A verb of a noun. `lists` says that it prints a list, and by which field its rows are chosen
    by time; empty if they have none.
    """

    def declare(function: F) -> click.Command:
        declared = command_of(
            name, mesh=mesh, writes=writes, removes=removes, lists=lists, **settings
        )
        command = declared(function)
        group.add_command(command)
        return command

    return declare


def command_of(
    name: str,
    *,
    mesh: bool | str = False,
    writes: bool | str = False,
    removes: str = "",
    lists: str | None = None,
    **settings: Any,
) -> Callable[[F], click.Command]:
    """A command that stands alone."""

    def declare(function: F) -> click.Command:
        kind: type[SessionCommand] = settings.pop("cls", SessionCommand)
        command: SessionCommand = click.command(name, cls=kind, **settings)(function)
        command.removes = removes
        if removes:
            command.params.append(click.Option(["--dry-run"], is_flag=True, help=_DRY_RUN))
        if removes == ASKS:
            command.params.append(click.Option(["--yes"], is_flag=True, help=_YES))
        if lists is not None:
            from holdfast.apps.cli.lists import listing

            added = listing.options(lists, (param.name or "" for param in command.params))
            command.params += added
            command.time, command.list_options = lists, tuple(one.name or "" for one in added)
        if writes:
            named = {KEY: ("KEY", _KEY), BATCH: ("KEY", _BATCH)}
            metavar, help = named.get(str(writes), ("UUID", _ID))
            command.params.append(click.Option(["--id"], metavar=metavar, help=help))
        if mesh:
            # A command that looks at all meshes does not obey $HOLDFAST_MESH, only its option.
            narrows = mesh == FILTER
            option = click.Option(
                ["--mesh"],
                metavar="NAME",
                envvar=None if narrows else "HOLDFAST_MESH",
                help=_FILTER if narrows else _MESH,
            )
            command.params.append(option)
        command.params.append(click.Option(["--home"], metavar="FOLDER", help=_HOME))
        command.params.append(click.Option(["--context"], metavar="NAME", help=_CONTEXT))
        command.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Answer in JSON, errors too.")
        )
        return command

    return declare
