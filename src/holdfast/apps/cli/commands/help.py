"""`holdfast help`: the help of a command, and what the exit codes mean."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import click

import holdfast
from holdfast import __version__
from holdfast.apps.cli import output
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.lists.pager import paged
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput, NotFound
from holdfast.rules.nearest import nearest

EXIT_CODES = {
    0: ("done", "it is done, and on the disk"),
    1: ("failed", "it was refused or something is broken; the message says which"),
    2: ("usage", "the command or its input is not right; nothing happened"),
    3: ("no_daemon", "no daemon answers"),
    4: ("not_found", "there is no such home, mesh, key, file, task, consumer or conflict"),
    5: ("conflict", "another write was first, or the id belongs to another request"),
    6: ("no_quorum", "too few voters answer"),
    7: ("not_allowed", "this node or caller may not do it"),
    124: ("unknown", "it may have happened: retry with the same --id"),
    130: ("interrupted", "stopped by Ctrl-C"),
    141: ("no_reader", "nobody reads the output any more"),
    143: ("terminated", "ended by SIGTERM"),
}
CHECK_CODES = {0: "ok", 1: "warning", 2: "critical", 3: "unknown"}
_TOPIC = "exit-codes"
_CHANGES = "changelog"
_TOPICS = (_TOPIC, _CHANGES)
_INSTALLED = "share/doc/holdfast/CHANGELOG.md"


@command_of("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(ctx: click.Context, session: CommandSession, words: tuple[str, ...]) -> None:
    """Show the help of a command, or of exit-codes; or the changelog of this version."""
    if words == (_CHANGES,):
        text = changelog()
        if session.as_json:
            session.show({"version": __version__, "changelog": text})
        else:
            with paged():
                output.out(text)
        return
    if words == (_TOPIC,):
        documents = [
            {"exit_code": code, "name": name, "meaning": meaning}
            for code, (name, meaning) in EXIT_CODES.items()
        ]
        session.rows(documents, "exit_code name meaning", empty="")
        checks = ", ".join(f"{code} {word}" for code, word in CHECK_CODES.items())
        session.talk(f"the verbs of check have their own, as monitoring tools expect: {checks}")
        return
    command, where = _find(ctx, words)
    text = command.get_help(where)
    if session.as_json:
        session.show({"command": where.command_path, "help": text})
        return
    output.out(f"{text}\n")
    if not words:
        session.talk("see also: holdfast help exit-codes, holdfast help changelog")


def changelog() -> str:
    """The changelog that came with this version: from the source tree, else where the wheel put
    it.
    """
    tree = Path(holdfast.__file__).parents[2]
    here = tree / "CHANGELOG.md"
    if not (tree / "pyproject.toml").exists():
        files = distribution("holdfast").files or ()
        found = [file for file in files if file.as_posix().endswith(_INSTALLED)]
        here = Path(str(found[0].locate())) if found else here
    try:
        return here.read_text(encoding="utf-8")
    except (FileNotFoundError, PermissionError) as error:
        raise NotFound(
            f"the changelog of this installation cannot be read: {error.strerror}",
            hint="it is in the wheel, as share/doc/holdfast/CHANGELOG.md",
        ) from None


def _find(ctx: click.Context, words: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    where = ctx.find_root()
    command = where.command
    for word in words:
        inner = command.get_command(where, word) if isinstance(command, click.Group) else None
        if inner is None:
            known = command.list_commands(where) if isinstance(command, click.Group) else []
            near = nearest(word, [*known, *(_TOPICS if where.parent is None else ())])
            path = where.command_path.replace(" ", " help ", 1)
            path = path if " " in path else f"{path} help"
            raise BadInput(
                f"there is no command {' '.join(words)!r}",
                hint=f"see: {where.command_path} --help"
                if near is None
                else f"did you mean: {path} {near}",
            )
        where = click.Context(inner, parent=where, info_name=word)
        command = inner
    return command, where
