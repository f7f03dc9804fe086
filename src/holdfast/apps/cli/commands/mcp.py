"""`holdfast mcp`: a server for agents on stdio; `mcp install`: its line in a client's settings."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from holdfast.apps.cli import output
from holdfast.apps.cli.declare import SessionCommand, command_of, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput, NoPackage
from holdfast.storage.files.home import require_home


class _Serving(SessionCommand, click.Group):
    """A command that works by itself, and has verbs beside that."""


@command_of("mcp", mesh=True, cls=_Serving, invoke_without_command=True)
def mcp_(session: CommandSession) -> None:
    """Serve agents over stdio: a client starts this, and you do not have to.

    It speaks the Model Context Protocol on its standard streams, works through the daemon of the
    home if there is one, and else on the home itself. Write it into the settings of a client with:
    holdfast mcp install CLIENT --write
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    home = place = None
    if session.far is None:
        home = require_home(session.check_home())
    else:
        from holdfast.node.remote.opening import context_place

        place = context_place(session.far)
    _require_package()
    from holdfast.apps.mcp.stdio import serve

    if sys.stdin.isatty():
        output.talk("agents speak here; to let a client start this: holdfast mcp install CLIENT")
    serve(home, place, session.named_mesh)


def _require_package() -> None:
    if find_spec("mcp") is None:
        raise NoPackage(
            "a server for agents needs the package mcp", hint="pip install 'holdfast[mcp]'"
        )


assert isinstance(mcp_, click.Group)


@verb(mcp_, "install")
@click.argument("client")
@click.option("--write", is_flag=True, help="Write it into the file of the client.")
def install_(session: CommandSession, client: str, write: bool) -> None:
    """Print what starts this server in CLIENT, or write it into its settings.

    CLIENT is one of: claude-code, claude-desktop, codex, cursor, gemini, vscode, windsurf. What the
    file has besides stays as it is.
    """
    from holdfast.apps.mcp.install import CLIENTS, install

    chosen = CLIENTS.get(client)
    if chosen is None:
        raise BadInput(f"no client {client!r} is known", hint=f"use one of: {', '.join(CLIENTS)}")
    done = install(chosen, _command(session), write=write)
    document = {
        "client": chosen.name,
        "path": str(done.path),
        "written": write,
        "entry": done.text,
    }
    session.show(document, f"wrote {done.path}\n" if write else done.text)
    if write:
        session.talk(f"restart {chosen.title}, or let it load its servers again")
    else:
        session.talk(f"put this into {done.path}, or add --write")


def _command(session: CommandSession) -> list[str]:
    """What starts a server on the home of this command, wherever a client starts it."""
    if session.far is None:
        place = ["--home", str(require_home(session.check_home()).root)]
    else:
        place = ["--context", _context(session)]
    mesh = [] if session.named_mesh is None else ["--mesh", session.named_mesh]
    return [*_program(), "mcp", *place, *mesh]


def _program() -> list[str]:
    """This program, wherever a client starts it."""
    started = os.path.abspath(sys.argv[0])
    if os.path.basename(started) == "__main__.py":
        return [sys.executable, "-m", "holdfast"]
    return [started]


def _context(session: CommandSession) -> str:
    """The name of the context in force."""
    from holdfast.storage.files.contexts import contexts_of, in_force

    found = in_force(session.named_context, contexts_of(os.environ), os.environ)
    assert found is not None, "the home is named by a context"
    return found.name
