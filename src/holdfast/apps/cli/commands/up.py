"""`holdfast up` and `down`: serve a home, and end that."""

from __future__ import annotations

import os
from functools import partial

import click
import msgspec

from holdfast.apps.cli import own_daemon, serving
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.storage.files.home import require_home


@command_of("up")
@click.option("--tcp", metavar="HOST:PORT", help="Also on loopback, for callers with a token.")
@click.option("--listen", metavar="HOST:PORT", help="Also for other machines, with TLS.")
@click.option("--no-socket", is_flag=True, help="Not on the Unix socket in the home.")
@click.option("--tls-cert", metavar="FILE", help="A certificate of your own, with --tls-key.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--disk-limit", metavar="SIZE", help="How much the home may hold, as 20GiB.")
@click.option("--detach", is_flag=True, help="Return when it is ready; print where it listens.")
def up_(session: CommandSession, no_socket: bool, detach: bool, **flags: str | None) -> int:
    """Serve the home: its API, its links, its upkeep. Port 0 takes a free one.

    Settings that are not given here are taken from the TOML file that $HOLDFAST_CONFIG names. Ends
    with SIGTERM or Ctrl-C; what is on its way is finished first.
    """
    from holdfast.node.settings import load

    read = partial(load, os.environ, {**flags, "socket": False if no_socket else None})
    settings = read()
    paths = require_home(session.check_home())
    if detach:
        words = ["up", f"--home={paths.root}", *(["--no-socket"] if no_socket else [])]
        return serving.detach(session, paths, words, flags, down="holdfast down")
    from holdfast.node.daemon.daemon import Daemon

    return serving.serve(
        session, lambda report: Daemon(paths.root, settings, on_event=report, load=read)
    )


@command_of("reload")
def reload_(session: CommandSession) -> None:
    """Let the daemon of the home read its settings again, without a restart.

    Nothing changes if one of them is no good. SIGHUP does the same. Where it listens (socket, tcp,
    listen) stays as it is until the next start.
    """
    from holdfast.node.settings import Reloaded

    paths = require_home(session.check_home())
    done = msgspec.json.decode(own_daemon.ask(paths.root, "POST", "/v1/reload"), type=Reloaded)
    session.talk(done.sentence)
    if session.as_json:
        session.show(msgspec.to_builtins(done))


@command_of("down")
def down_(session: CommandSession) -> None:
    """End the daemon of the home, and wait until it has ended."""
    serving.end_daemon(session, require_home(session.check_home()), "home")
