"""`holdfast service`: let the systemd of this user serve the home, also after restarts."""

from __future__ import annotations

import os
import sys

import click

from holdfast.apps.cli import output
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.units.text import unit_text
from holdfast.apps.cli.units.user_units import UserUnit, systemctl
from holdfast.rules.errors import BadInput, Unreachable
from holdfast.storage.files.home import require_home

service_ = noun("service", "Let systemd serve the home, from now on and after every restart.")

USER = click.option("--user", is_flag=True, help="A service of this user; the only kind so far.")
NAME = click.option("--name", help="Of several homes: the service is called holdfast-NAME.")


@verb(service_, "install", mesh=False)
@USER
@NAME
@click.option("--no-start", is_flag=True, help="Only write the unit; do not ask systemd.")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def install(
    session: CommandSession, user: bool, name: str | None, no_start: bool, only_print: bool
) -> None:
    """Write a unit for the home, and start it. Again, it takes up what has changed.

    The service runs this very program, on this home, with $HOLDFAST_CONFIG, $HOLDFAST_STORE_SYNC,
    $HOLDFAST_LOG_LEVEL and $HOLDFAST_LOG_FORMAT as they are now. It runs while the user is logged
    in; always, after: loginctl enable-linger
    """
    _only_users(user)
    paths = require_home(session.check_home())
    text = unit_text(paths.root.absolute(), (sys.executable, "-m", "holdfast"), os.environ)
    unit = UserUnit(os.environ, name)
    if only_print:
        session.show({"unit": unit.name, "path": str(unit.path), "text": text}, text)
        return
    unit.write(text)
    session.talk(f"wrote {unit.path}")
    started = not no_start
    if started:
        systemctl("daemon-reload")
        systemctl("enable", unit.name)
        # `restart` starts what does not run; and what runs goes on with the unit as it is now.
        systemctl("restart", unit.name)
        session.talk(f"{unit.name} serves {paths.root}")
        session.talk("it ends with your last login, unless: loginctl enable-linger")
    else:
        session.talk(f"start it: systemctl --user daemon-reload && {_start(unit.name)}")
    session.show(
        {"unit": unit.name, "path": str(unit.path), "started": started},
        output.value_line(str(unit.path)),
    )


@verb(service_, "status", mesh=False)
@USER
@NAME
def status(session: CommandSession, user: bool, name: str | None) -> int:
    """Say whether the service is installed and runs. Exit 0 if it runs, else 3."""
    _only_users(user)
    unit = UserUnit(os.environ, name)
    installed = unit.read() is not None
    found = unit.standing() if installed else {}
    document = {
        "unit": unit.name,
        "path": str(unit.path),
        "installed": installed,
        "enabled": found.get("UnitFileState") == "enabled",
        "state": found.get("ActiveState", "absent"),
        "pid": int(found.get("MainPID", "0")) or None,
        "result": found.get("Result"),
    }
    session.show(document, fields="unit path installed enabled state pid result")
    if not installed:
        session.talk("install it: holdfast service install --user")
    elif document["state"] != "active":
        session.talk(f"see why: journalctl --user -u {unit.name} -n 20")
    return 0 if document["state"] == "active" else 3


@verb(service_, "uninstall", mesh=False, removes=DRY)
@USER
@NAME
def uninstall(session: CommandSession, user: bool, name: str | None) -> None:
    """End the service and remove its unit. The home stays as it is."""
    _only_users(user)
    unit = UserUnit(os.environ, name)
    if session.dry_run:
        there = unit.read() is not None
        document = {"unit": unit.name, "path": str(unit.path), "installed": there, "dry_run": True}
        session.show(document, fields="unit path installed")
        return
    asked = True
    if unit.read() is not None:
        try:
            systemctl("disable", "--now", unit.name)
        except Unreachable as error:
            # Where no systemd runs, nothing of it serves the home: the file can go.
            session.talk(f"{error.message}; only the files go")
            asked = False
    unit.remove()
    if asked:
        systemctl("daemon-reload")
    session.talk(f"removed {unit.path}; the home stays")
    session.show({"unit": unit.name, "removed": str(unit.path)}, "")


def _start(unit: str) -> str:
    return f"systemctl --user enable --now {unit}"


def _only_users(user: bool) -> None:
    if not user:
        raise BadInput(
            "say --user: this command makes services of a user",
            hint="units for the whole system are in packaging/systemd of the project",
        )
