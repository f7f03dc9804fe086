"""The units for a whole system: what they say fits what our programs do, and systemd reads them."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.apps.cli.app import root
from holdfast.apps.cli.commands.broker import DSN, TOKEN, broker_
from holdfast.apps.cli.commands.help import EXIT_CODES
from holdfast.node.settings import Settings
from support.project import ROOT, expect_none

FOLDER = ROOT / "packaging" / "systemd"
LAKE = ROOT / "examples" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
NODE, BROKER, BACKUP = (
    FOLDER / f"{name}.service" for name in ("holdfast", "holdfast-broker", "holdfast-backup")
)
EXPOSURE_MAX = 2.5
"""What `systemd-analyze security` may say of a unit; 10 is no confinement at all."""


def unit_of(*paths: Path) -> configparser.ConfigParser:
    """A unit with its drop-ins. Where a name occurs twice, the last one counts."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read(paths)
    return unit


def test_U7_the_unit_of_a_node_is_not_started_again_when_that_mends_nothing(
    tmp_path: Path,
) -> None:
    """Settings that are missing, and a home that is: real daemons say by which codes they end."""
    unit = unit_of(NODE)
    assert unit["Service"]["Restart"] == "on-failure"
    final = set(map(int, unit["Service"]["RestartPreventExitStatus"].split()))
    # A unit as it is copied asks for no file that is not there.
    named = re.findall(r"(?m)^Environment=HOLDFAST_CONFIG=", NODE.read_text(encoding="utf-8"))
    assert named == []
    home = unit["Service"]["Environment"].partition("=")[2]
    assert unit["Unit"]["ConditionPathExists"] == f"{home}/data.db"
    assert _ends("up", "--home", str(tmp_path / "none")) == 4
    with holdfast.open(tmp_path / "home", peer="ana", create=True):
        pass
    bad = {"HOLDFAST_CONFIG": str(tmp_path / "none.toml")}
    assert _ends("up", "--home", str(tmp_path / "home"), **bad) == 2
    assert {2, 4} <= final <= EXIT_CODES.keys()
    assert not final & {0, 1, 124, 143}, "what a new start may mend"
    of_broker = unit_of(BROKER)["Service"]["RestartPreventExitStatus"]
    assert set(map(int, of_broker.split())) <= final


def _ends(*words: str, **more: str) -> int:
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(
        command, env={**os.environ, **more}, capture_output=True, check=False
    ).returncode


def test_U7_the_units_run_commands_that_are_there() -> None:
    said = {path: unit_of(path)["Service"]["ExecStart"].split() for path in UNITS}
    assert said[NODE][1:] == ["up"]
    assert unit_of(NODE)["Service"]["ExecReload"].split() == [said[NODE][0], "reload"]
    assert said[BROKER][1:] == ["broker", "serve", "$BROKER_OPTIONS"]
    assert "holdfast backup " in unit_of(BACKUP)["Service"]["ExecStart"]
    assert {"up", "reload", "backup", "broker"} <= set(root.list_commands(None))  # type: ignore[arg-type]


def test_U7_the_sample_settings_are_settings() -> None:
    raw = (FOLDER / "holdfast.toml").read_bytes()
    msgspec.convert(msgspec.toml.decode(raw), Settings).check()
    named = re.search(r"^BROKER_OPTIONS=(.*)$", (FOLDER / "broker.env").read_text(), re.MULTILINE)
    assert named
    words = named[1].split()
    serve = broker_.commands["serve"]
    serve.make_context("serve", ["--store", "x", *words])
    ours = {option for param in serve.params for option in param.opts}
    expect_none([word for word in words if word.startswith("--") and word not in ours], "misspelt")


def test_U7_secrets_come_as_credentials_under_names_that_our_programs_read() -> None:
    broker = [path for path in (FOLDER / "drop-ins").iterdir() if path.name.startswith("broker-")]
    for path in (FOLDER / "drop-ins").iterdir():
        text = path.read_text(encoding="utf-8")
        loaded = set(re.findall(r"(?m)^LoadCredential=([\w.]+):/etc/holdfast/", text))
        used = set(
            re.findall(r"(?:%d|\$\{CREDENTIALS_DIRECTORY\}|holdfast\.service)/([\w.]+)", text)
        )
        assert loaded, path
        assert loaded == used, path
        named = set(re.findall(r"(?m)^Environment=(\w+)=", text))
        assert named <= {f"{DSN}_FILE", f"{TOKEN}_FILE"}
    assert len(broker) == 3


def test_U7_the_folders_of_the_units_are_made_and_belong_to_their_user() -> None:
    made = (FOLDER / "tmpfiles.d" / "holdfast.conf").read_text(encoding="utf-8")
    folders = {line.split()[1]: line.split()[2:5] for line in made.splitlines() if line[:1] == "d"}
    user = (FOLDER / "sysusers.d" / "holdfast.conf").read_text(encoding="utf-8")
    assert re.search(r"(?m)^u holdfast ", user)
    for path in UNITS:
        service = unit_of(path)["Service"]
        assert (service["User"], service["Group"]) == ("holdfast", "holdfast")
    written = unit_of(BACKUP)["Service"]["ReadWritePaths"].split()
    assert {folder: folders[folder] for folder in written} == {
        folder: ["0700", "holdfast", "holdfast"] for folder in written
    }
    assert folders["/etc/holdfast/credentials"] == ["0700", "root", "root"]


def test_U7_a_unit_sees_of_the_kernel_what_our_programs_ask_it() -> None:
    """Without /proc/sys a copied home goes unnoticed, without netlink a network that changed."""
    for path in UNITS:
        service = unit_of(path)["Service"]
        assert "ProcSubset" not in service
        assert service["ProtectSystem"] == "strict"
    assert "AF_NETLINK" in unit_of(NODE)["Service"]["RestrictAddressFamilies"].split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_U7_systemd_finds_a_unit_well_confined(path: Path) -> None:
    said = _analyze("security", "--offline=true", "--no-pager", str(path)).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found, said
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_U7_systemd_understands_every_unit_and_drop_in(tmp_path: Path) -> None:
    program = tmp_path / "holdfast"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    placed = tmp_path / "units"
    placed.mkdir()
    for path in (*UNITS, *FOLDER.glob("*.timer"), *LAKE.iterdir()):
        text = path.read_text(encoding="utf-8").replace("/opt/holdfast/bin/holdfast", str(program))
        (placed / path.name).write_text(text)
    for drop_in in (FOLDER / "drop-ins").iterdir():
        kind, _, name = drop_in.name.partition("-")
        unit = {"node": "holdfast", "broker": "holdfast-broker"}[kind]
        folder = placed / f"{unit}.service.d"
        folder.mkdir(exist_ok=True)
        text = drop_in.read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("/opt/holdfast/bin/holdfast", str(program)))
    units = [str(path) for path in placed.iterdir() if path.is_file()]
    said = _analyze("verify", *units, SYSTEMD_UNIT_PATH=f"{placed}:")
    expect_none([line for line in said.stderr.splitlines() if "holdfast" in line], "mend the unit")


def _analyze(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_COLORS": "0", **more},
        check=False,
    )
