"""`holdfast up` and `down`: serve a home, and end that."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import click
import msgspec

from holdfast.apps.cli import own_daemon, serving
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.serving_log import log_options
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import parse_span
from holdfast.rules import limits
from holdfast.rules.errors import BadInput
from holdfast.storage.files.home import HomePaths, require_home

if TYPE_CHECKING:
    from holdfast.service.lifecycle import OnEvent

_SCRATCH: Final = "scratch"
"""The mesh of an ephemeral home."""


@command_of("up")
@click.option("--tcp", metavar="HOST:PORT", help="Also on loopback, for callers with a token.")
@click.option("--listen", metavar="HOST:PORT", help="Also for other machines, with TLS.")
@click.option("--bus-listen", metavar="HOST:PORT", help="Let peers reach the bus here; commas.")
@click.option(
    "--bus-discovery",
    type=click.Choice(["auto", "mdns", "off"]),
    help="Whether peers of the LAN find each other; auto: unless the bus is on loopback only.",
)
@click.option("--no-socket", is_flag=True, help="Not on the Unix socket in the home.")
@click.option("--tls-cert", metavar="FILE", help="A certificate of your own, with --tls-key.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--allowed-hosts", metavar="NAMES", help="Names for --tcp besides localhost; commas.")
@click.option("--allowed-origins", metavar="URLS", help="Web pages that may call; commas between.")
@click.option("--disk-limit", metavar="SIZE", help="How much the home may hold, as 20GiB.")
@click.option("--moved", is_flag=True, help="The home was moved here; no original goes on.")
@click.option("--ephemeral", is_flag=True, help="Serve a new home, and remove it afterwards.")
@click.option("--ttl", metavar="SPAN", help="End after this time, as 90s or 12h.")
@click.option("--peer", help="The name of the peer of an ephemeral home.")
@log_options
@click.option("--detach", is_flag=True, help="Return when it is ready; print where it listens.")
def up_(
    session: CommandSession,
    no_socket: bool,
    detach: bool,
    moved: bool,
    ephemeral: bool,
    ttl: str | None,
    peer: str | None,
    log_level: str,
    log_format: str | None,
    **flags: str | None,
) -> int:
    """Serve the home: its API, its links, its upkeep. Port 0 takes a free one.

    Settings that are not given here are taken from the TOML file that $HOLDFAST_CONFIG names. Ends
    with SIGTERM or Ctrl-C; what is on its way is finished first.

    With --ephemeral the home is a new one in a temporary folder, with a mesh of the name scratch.
    It is removed at the end, unless it still owes something to a broker.
    """
    ttl_ms = None if ttl is None else parse_span(ttl)
    if ttl_ms is not None and not 0 < ttl_ms <= limits.TTL_MS_MAX:
        raise BadInput(f"a daemon cannot end after {ttl}", hint="write it as 90s, 12h or 7d")
    from holdfast.node.settings import load

    read = partial(load, os.environ, {**flags, "socket": False if no_socket else None})
    settings = read()
    if ephemeral:
        paths = _throw_away_home(session, peer)
    elif peer is not None:
        raise BadInput("a home has its peer already", hint="--peer goes with --ephemeral")
    else:
        paths = require_home(session.check_home())
    if detach:
        words = ["up", f"--home={paths.root}", *(["--no-socket"] if no_socket else [])]
        words += ["--moved"] if moved else []
        logged = {"log_level": log_level, "log_format": log_format}
        down = f"holdfast down --home {paths.root}" if ephemeral else "holdfast down"
        return serving.detach(session, paths, words, logged | {**flags, "ttl": ttl}, down=down)
    from holdfast.apps.mcp.mounted import agents
    from holdfast.apps.web.part import node_console
    from holdfast.node.daemon.daemon import Daemon

    def daemon(report: OnEvent) -> Daemon:
        return Daemon(
            paths.root,
            settings,
            on_event=report,
            load=read,
            moved=moved,
            ttl_ms=ttl_ms,
            parts=lambda api, app: (agents(api, app), *node_console(api, app)),
        )

    code = serving.serve(session, daemon, log_level=log_level, log_format=log_format)
    if paths.ephemeral.exists():
        _throw_away(session, paths)
    return code


def _throw_away_home(session: CommandSession, peer: str | None) -> HomePaths:
    from holdfast.node.home import ephemeral

    if session.home is not None:
        raise BadInput("an ephemeral home is a new one", hint="leave --home out")
    return ephemeral.make(os.environ, peer, _SCRATCH)


def _throw_away(session: CommandSession, paths: HomePaths) -> None:
    from holdfast.node.home import ephemeral

    owed = ephemeral.remove(paths)
    if owed:
        session.talk(
            f"{paths.root} stays: it has {owed} envelopes that its broker has not got; "
            f"bring them: holdfast mesh sync --home {paths.root}"
        )


@command_of("reload")
def reload_(session: CommandSession) -> None:
    """Let the daemon of the home read its settings again, without a restart.

    Nothing changes if one of them is no good. SIGHUP does the same. Where it listens (socket, tcp,
    listen, allowed_hosts, allowed_origins) stays as it is until the next start.
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
