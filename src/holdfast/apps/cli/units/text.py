"""The unit by which the systemd of a user serves a home.

What it says about restarts is what `packaging/systemd/holdfast.service` says; a test compares them.
It confines less: a manager without privileges cannot hide parts of the system everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Final

from holdfast.rules.errors import BadInput

MARK: Final = "# Made by: holdfast service install --user"
"""The first line of a unit that we may replace and remove."""
KEPT: Final = (
    "HOLDFAST_CONFIG",
    "HOLDFAST_STORE_SYNC",
    "HOLDFAST_LOG_LEVEL",
    "HOLDFAST_LOG_FORMAT",
)
"""Settings of the installing shell that the service gets too."""

_UNIT: Final = Template(
    f"""{MARK}
[Unit]
Description=Holdfast node in $home_text
# No home, no service: systemctl --user status then says which condition was not met.
ConditionPathExists=$database

[Service]
Type=notify
$environment
ExecStart=$program up
# Takes up changed settings and a renewed certificate.
ExecReload=$program reload
Restart=on-failure
RestartSec=1
# What a second try does not mend: see holdfast help exit-codes
RestartPreventExitStatus=2 4 5 7
TimeoutStopSec=15
WatchdogSec=60
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""
)


def unit_text(home: Path, program: Sequence[str], environ: Mapping[str, str]) -> str:
    """The unit that runs `program up` on this home, with the settings of this shell.

    BadInput if a path holds what a unit cannot hold.
    """
    kept = {name: environ[name] for name in KEPT if environ.get(name)}
    if "HOLDFAST_CONFIG" in kept:
        kept["HOLDFAST_CONFIG"] = str(Path(kept["HOLDFAST_CONFIG"]).absolute())
    said = {"HOLDFAST_HOME": str(home), **kept}
    return _UNIT.substitute(
        home_text=_plain(str(home)),
        # Here a quote or a blank belongs to the path: the line is one path to its end.
        database=_plain(str(home / "data.db")),
        environment="\n".join(f"Environment={quoted(f'{name}={said[name]}')}" for name in said),
        program=" ".join(quoted(word, in_command=True) for word in program),
    )


def quoted(text: str, *, in_command: bool = False) -> str:
    """A word as systemd reads it back. In a command a dollar sign would name a variable."""
    text = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text.replace("$", "$$") if in_command else text}"'


def _plain(text: str) -> str:
    """Percent signs doubled, because they begin specifiers; BadInput for what no unit can say."""
    if not text.isprintable() or text != text.strip() or text.endswith("\\"):
        raise BadInput(
            f"{text!r} cannot stand in a unit of systemd",
            hint="take a path without line breaks, and without a blank or backslash at its end",
        )
    return text.replace("%", "%%")
