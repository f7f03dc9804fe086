"""The units of this user: where they lie, and what systemd says about them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.apps.cli.units.text import MARK
from holdfast.rules.errors import BadInput, Conflict, NotFound, Unreachable
from holdfast.rules.limits import SYSTEMCTL_S_MAX
from holdfast.storage.files.durable import disk_errors, durable_replace

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_ASKED: Final = ("LoadState", "ActiveState", "SubState", "MainPID", "UnitFileState", "Result")


class UserUnit:
    """The unit of one home of this user: `holdfast.service`, or `holdfast-NAME.service`."""

    def __init__(self, environ: Mapping[str, str], name: str | None) -> None:
        if name is not None and not _NAME.fullmatch(name):
            raise BadInput(
                f"{name!r} cannot be the name of a service",
                hint="take up to 64 letters, digits, dashes and underscores",
            )
        settings = environ.get("XDG_CONFIG_HOME", "")
        home = Path(environ.get("HOME") or Path.home())
        folder = Path(settings) if os.path.isabs(settings) else home / ".config"
        self.name: Final = "holdfast.service" if name is None else f"holdfast-{name}.service"
        self.path: Final = folder / "systemd" / "user" / self.name

    def read(self) -> str | None:
        """What is in it; None if it is not there. Conflict if it is not one of ours."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        if text.partition("\n")[0] != MARK:
            raise Conflict(
                f"{self.path} was not made by this command",
                hint="move it away, or name another service with --name",
            )
        return text

    def write(self, text: str) -> None:
        self.read()
        with disk_errors(f"write {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            durable_replace(self.path, text.encode(), private=False)

    def remove(self) -> None:
        if self.read() is None:
            raise NotFound(f"there is no {self.path}", hint="nothing is to be removed")
        with disk_errors(f"remove {self.path}"):
            self.path.unlink()
            # What `systemctl enable` makes; it is there still if systemd could not be asked.
            (self.path.parent / "default.target.wants" / self.name).unlink(missing_ok=True)

    def standing(self) -> dict[str, str]:
        """How systemd sees it: LoadState, ActiveState, MainPID and so on."""
        said = systemctl("show", self.name, f"--property={','.join(_ASKED)}")
        pairs = (line.partition("=") for line in said.splitlines())
        return {name: value for name, _, value in pairs if name in _ASKED}


def systemctl(*words: str) -> str:
    """What the systemd of this user answers. Unreachable if it does not run, or refuses."""
    program = shutil.which("systemctl")
    if program is None:
        raise Unreachable(
            "there is no systemctl on this machine", hint="serve the home by: holdfast up --detach"
        )
    command = [program, "--user", "--no-pager", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SYSTEMCTL_S_MAX
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"systemctl {' '.join(words)} took over {SYSTEMCTL_S_MAX} s",
            hint="look: systemctl --user status",
        ) from None
    if done.returncode:
        raise Unreachable(
            f"systemctl {words[0]} failed: {_last_line(done.stderr)}",
            hint="it needs a login of this user with systemd; without: holdfast up --detach",
        )
    return done.stdout


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it says nothing")
