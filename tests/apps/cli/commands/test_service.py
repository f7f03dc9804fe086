"""`holdfast service`: the unit is written, started, told about and removed.

A systemd of a user needs a login, which a test has not: a program of its name writes down what it
was asked, and answers as it is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.apps.cli.units import user_units
from support.cli import Cli

PLACE = Path("systemd") / "user" / "holdfast.service"


class Systemctl:
    """A `systemctl` on the path, and the settings folder of a user."""

    def __init__(self, folder: Path) -> None:
        self.settings = folder / "settings"
        self._asked = folder / "asked"
        self.program = folder / "bin" / "systemctl"
        self.program.parent.mkdir()
        self.env = {"PATH": f"{self.program.parent}:/usr/bin:/bin"}
        self.env["XDG_CONFIG_HOME"] = str(self.settings)
        self.answers("exit 0")

    def answers(self, script: str) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$*" >> {self._asked}\n{script}\n')
        self.program.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        self._asked.unlink(missing_ok=True)
        return [line.removeprefix("--user --no-pager ") for line in lines]

    @property
    def unit(self) -> Path:
        return self.settings / PLACE


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    made = Systemctl(tmp_path)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


def test_U7_a_service_is_installed_told_about_and_removed(cli: Cli, systemctl: Systemctl) -> None:
    done = cli("service", "install", "--user", "--json")
    assert done.json == {
        "unit": "holdfast.service",
        "path": str(systemctl.unit),
        "started": True,
    }
    assert systemctl.asked == [
        "daemon-reload",
        "enable holdfast.service",
        "restart holdfast.service",
    ]
    text = systemctl.unit.read_text()
    assert f'"HOLDFAST_HOME={cli.home}"' in text
    assert f'ExecStart="{sys.executable}" "-m" "holdfast" up' in text
    cli("service", "install", "--user")
    assert systemctl.unit.read_text() == text

    systemctl.answers("printf 'ActiveState=active\\nMainPID=123\\nUnitFileState=enabled\\n'")
    told = cli("service", "status", "--user", "--json").json
    assert (told["installed"], told["enabled"], told["state"], told["pid"]) == (
        *(True, True, "active", 123),
    )
    systemctl.answers("printf 'ActiveState=failed\\nMainPID=0\\nResult=exit-code\\n'")
    failed = cli("service", "status", "--user", code=3)
    assert "exit-code" in failed.out
    assert "journalctl --user -u holdfast.service" in failed.err

    assert systemctl.asked
    cli("service", "uninstall", "--user", "--dry-run")
    assert systemctl.unit.exists()
    assert systemctl.asked == []
    cli("service", "uninstall", "--user")
    assert systemctl.asked == ["disable --now holdfast.service", "daemon-reload"]
    assert not systemctl.unit.exists()
    assert (cli.home / "data.db").exists()
    assert cli("service", "uninstall", "--user", "--json", code=4).error["code"] == "not_found"
    assert cli("service", "status", "--user", "--json", code=3).json["state"] == "absent"


def test_U7_printing_a_unit_writes_none_and_asks_nobody(cli: Cli, systemctl: Systemctl) -> None:
    shown = cli("service", "install", "--user", "--print", "--name", "lab")
    assert shown.out.startswith("# Made by: ")
    assert not systemctl.settings.exists()
    written = cli("service", "install", "--user", "--no-start", "--name", "lab")
    assert Path(written.out.strip()).read_text() == shown.out
    assert written.out.strip().endswith("/holdfast-lab.service")
    assert systemctl.asked == []


def test_U7_a_unit_of_somebody_else_is_neither_replaced_nor_removed(
    cli: Cli, systemctl: Systemctl
) -> None:
    systemctl.unit.parent.mkdir(parents=True)
    systemctl.unit.write_text("[Service]\nExecStart=/bin/true\n")
    for verb in ("install", "uninstall", "status"):
        assert cli("service", verb, "--user", "--json", code=5).error["code"] == "conflict"
    assert systemctl.asked == []
    assert systemctl.unit.read_text().endswith("/bin/true\n")


def test_U7_without_a_systemd_the_unit_is_written_and_the_error_says_so(
    cli: Cli, systemctl: Systemctl
) -> None:
    systemctl.answers("echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    refused = cli("service", "install", "--user", "--json", code=1).error
    assert refused["code"] == "unreachable"
    assert "No medium found" in refused["message"]
    wants = systemctl.unit.parent / "default.target.wants" / systemctl.unit.name
    wants.parent.mkdir()
    wants.symlink_to(systemctl.unit)
    removed = cli("service", "uninstall", "--user")
    assert "only the files go" in removed.err
    assert not systemctl.unit.exists()
    assert not wants.is_symlink()


def test_U7_nobody_waits_for_a_systemctl_that_does_not_end(
    cli: Cli, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_units, "SYSTEMCTL_S_MAX", 0.2)
    systemctl.answers("exec sleep 600")
    refused = cli("service", "install", "--user", "--json", code=1).error
    assert "took over" in refused["message"]


def test_U7_bad_names_and_no_user_are_usage(cli: Cli, systemctl: Systemctl) -> None:
    for words in (("install",), ("status", "--user", "--name", "../x"), ("uninstall",)):
        assert cli("service", *words, code=2).err.startswith("error: ")
    nobody = cli("service", "install", "--user", "--home", "/nowhere/at/all", "--json", code=4)
    assert nobody.error["code"] == "no_home"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_U7_systemd_understands_the_unit_of_a_user(cli: Cli, systemctl: Systemctl) -> None:
    odd = cli.home.with_name('50% of "it" $HOME')
    cli.home.rename(odd)
    cli("service", "install", "--user", "--no-start", "--home", str(odd))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(systemctl.unit)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(systemctl.settings)},
    )
    assert [line for line in done.stderr.splitlines() if "holdfast" in line] == []
