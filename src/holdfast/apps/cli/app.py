"""The root of the command line: which commands there are, and what becomes of an error.

The module of a command is imported when the command is called or its help is asked for.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from holdfast import __version__
from holdfast.apps.cli import output
from holdfast.apps.cli.main import without_collecting
from holdfast.rules.errors import HoldfastError

PROGRAM = "holdfast"

_COMMANDS = (
    *("init", "status", "paths", "up", "reload", "down", "doctor", "check", "ping"),
    *(
        "mesh",
        "peer",
        "bus",
        "capability",
        "token",
        "memory",
        "state",
        "vector",
        "file",
        "task",
        "conflict",
        "entity",
        "lease",
        "writes",
        "quorum",
        "log",
    ),
    *("fact", "object", "audit", "telemetry", "consumer", "link", "send", "inbox", "outbox"),
    *("sweep", "batch", "backup", "restore", "export", "import", "queue", "broker", "pipeline"),
    *("console", "demo", "mcp", "bench", "service", "context", "bugreport", "completion", "help"),
)
_MODULES = {"down": "up", "reload": "up", "restore": "backup", "import": "export"}
"""A command lives in the module of its own name, but for those that undo what another one does."""


class Root(click.Group):
    """Knows its commands by name and loads each on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = _MODULES.get(cmd_name, cmd_name)
        with without_collecting():
            module = import_module(f"holdfast.apps.cli.commands.{name}")
        command = getattr(module, f"{cmd_name}_")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # click looks for similar names among the commands that are loaded: here, none.
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=_COMMANDS, ctx=ctx
            ) from None


@click.group(
    PROGRAM, cls=Root, invoke_without_command=True, context_settings={"max_content_width": 100}
)
@click.option("--home", metavar="FOLDER", help="The home; else $HOLDFAST_HOME, else the default.")
@click.option("--context", metavar="NAME", help="The context to work in.")
@click.option("--mesh", metavar="NAME", help="The mesh; else $HOLDFAST_MESH, else the only one.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, errors too.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def root(
    ctx: click.Context, home: str | None, context: str | None, mesh: str | None, as_json: bool
) -> None:
    """Shared state that stays alive on machines that come and go.

    Data goes to stdout, messages to stderr. The four options below may also stand after a command.
    Alone, `holdfast` says how things stand and what to do next.
    """
    ctx.obj = {"home": home, "context": context, "mesh": mesh, "as_json": as_json}
    if ctx.invoked_subcommand is None:
        from holdfast.apps.cli.commands.status import overview

        output.works_at(home, context=context)
        overview(home, context, as_json)


def run(words: list[str]) -> int:
    """Runs a full command; every error is printed in one shape and becomes an exit code."""
    output.works_at()
    output.typed[:] = words
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    try:
        return _dispatch(words)
    except click.exceptions.NoArgsIsHelpError as error:
        output.talk(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        output.failure("usage", _sentence(error), _usage_hint(error, words), as_json)
        return error.exit_code
    except Exception as error:
        return failed(error, as_json)


def failed(error: Exception, as_json: bool) -> int:
    """Tells what a command failed of, and returns its exit code. What is for `main` is raised."""
    if isinstance(error, HoldfastError):
        return output.error(error, as_json)
    if isinstance(error, OSError):
        if error.filename is None:
            raise error  # stdout or stderr failed: `main` deals with that
        what = f"{os.fsdecode(error.filename)}: {error.strerror}"
        output.failure("os_error", what, "check that it is there and that you may use it", as_json)
        return 1
    return _unexpected(error, as_json)


def _dispatch(words: list[str]) -> int:
    """What click's own `main` does, but for its way with closed pipes and interruptions."""
    try:
        with root.make_context(PROGRAM, list(words)) as ctx:
            code = root.invoke(ctx)
    except click.exceptions.Exit as done:
        return done.exit_code
    return code if isinstance(code, int) else 0


def _sentence(error: click.ClickException) -> str:
    message = error.format_message()
    return message[:1].lower() + message[1:].removesuffix(".")


def _usage_hint(error: click.ClickException, words: list[str]) -> str:
    from holdfast.apps.cli import suggest

    ctx: click.Context | None = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else PROGRAM
    wrong = getattr(error, "command_name", None) or getattr(error, "option_name", None)
    near = suggest.first_of(wrong, getattr(error, "possibilities", None))
    if wrong is not None and near is not None:
        anew = suggest.said_anew(words, wrong, near)
        if anew:
            return f"did you mean: {anew}; or see: {path} --help"
    if isinstance(error, click.exceptions.NoSuchOption):
        return f"see: {path} --help; write -- before a value that begins with a dash"
    return f"see: {path} --help"


def _unexpected(error: Exception, as_json: bool) -> int:
    """A fault of ours: the person who reports it needs the trace."""
    if not as_json:
        sys.excepthook(type(error), error, error.__traceback__)
    output.failure(
        "internal",
        f"{type(error).__name__}: {error}",
        "this is a fault of Holdfast: please report it, with the command and what stands above",
        as_json,
        type=type(error).__name__,
    )
    return 1
