"""`holdfast console`: the console of the home's daemon, in a browser."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.apps.cli import output, own_daemon
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import NoDaemon
from holdfast.rules.limits import CONSOLE_CODE_MS, SECOND_MS
from holdfast.storage.files.home import require_home

NO_BROWSER = click.option(
    "--no-browser", is_flag=True, help="Print the address, and open no browser."
)


@command_of("console")
@NO_BROWSER
def console_(session: CommandSession, no_browser: bool) -> None:
    """Open the console of the home in a browser, logged in.

    The home's daemon serves it, on a port of this machine; if it listens on none, it begins to. The
    address logs in once, within two minutes. From elsewhere, over --listen, log in with a token.
    """
    show(session, require_home(session.check_home()).root, no_browser=no_browser)


def show(session: CommandSession, root: Path, *, no_browser: bool, begin: str = "up") -> None:
    """Opens the console of whatever serves a folder."""
    try:
        answer = own_daemon.ask(root, "POST", "/login/code")
    except NoDaemon as error:
        raise NoDaemon(
            error.message, hint=output.pasteable(f"serve it first: holdfast {begin} --detach")
        ) from None
    found = msgspec.json.decode(answer)
    address = f"{found['addresses'][0]}/login#code={found['code']}"
    if session.as_json:
        session.show({"url": address, "expires_in_ms": CONSOLE_CODE_MS})
        return
    if not no_browser and _open(address):
        session.talk(f"opened {found['addresses'][0]} in the browser")
        return
    session.talk(f"it logs in once, within {CONSOLE_CODE_MS // SECOND_MS} s:")
    output.out(f"{address}\n")


def _open(address: str) -> bool:
    """Whether a browser was started. A browser for terminals would run no script, so it counts as
    none.
    """
    import os
    import webbrowser

    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and os.name == "posix":
        from sys import platform

        if platform != "darwin":
            return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
