"""The unit of a user: what it runs, and how words stand in it."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest

from holdfast.apps.cli.units.text import KEPT, MARK, quoted, unit_text
from holdfast.rules.errors import BadInput
from support.project import ROOT

SYSTEM_UNIT = ROOT / "packaging" / "systemd" / "holdfast.service"
PROGRAM = ("/opt/my tools/bin/python", "-m", "holdfast")


def read_unit(text: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string(text)
    return unit


def as_systemd_reads(word: str, *, in_command: bool = False) -> str:
    """One quoted word, by systemd.syntax(7) and systemd.service(5)."""
    assert re.fullmatch(r'"([^"\\]|\\.)*"', word)
    assert "%" not in word.replace("%%", ""), "that would be a specifier"
    assert not in_command or "$" not in word.replace("$$", ""), "that would be a variable"
    text = re.sub(r"\\(.)", r"\1", word[1:-1]).replace("%%", "%")
    return text.replace("$$", "$") if in_command else text


@pytest.mark.parametrize(
    "text", ["/home/ana", "/a b", 'a"b', "a\\b", "100%h", "$HOME", "ä 漢", "'"]
)
def test_U7_a_word_comes_back_as_it_was(text: str) -> None:
    assert as_systemd_reads(quoted(text)) == text
    assert as_systemd_reads(quoted(text, in_command=True), in_command=True) == text


@pytest.mark.parametrize("text", ["a\nExecStart=/bin/x", "a\rb", "a\x00", " a", "a ", "a\\"])
def test_U7_what_no_unit_can_say_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="unit of systemd"):
        unit_text(Path(f"/home/{text}") if text != " a" else Path(" a"), PROGRAM, {})


def test_U7_the_unit_runs_this_program_on_this_home_with_these_settings() -> None:
    environ = {
        "HOLDFAST_CONFIG": "/etc/50% of it.toml",
        "HOLDFAST_LOG_LEVEL": "debug",
        "HOLDFAST_STORE_SYNC": "",
        "HOLDFAST_BROKER_TOKEN": "secret",
        "HOME": "/home/ana",
    }
    text = unit_text(Path("/srv/ana's home"), PROGRAM, environ)
    assert text.startswith(f"{MARK}\n[Unit]\n")
    said = dict(
        as_systemd_reads(word).split("=", 1) for word in re.findall(r"(?m)^Environment=(.*)$", text)
    )
    assert said == {
        "HOLDFAST_HOME": "/srv/ana's home",
        "HOLDFAST_CONFIG": "/etc/50% of it.toml",
        "HOLDFAST_LOG_LEVEL": "debug",
    }
    assert said.keys() - {"HOLDFAST_HOME"} <= set(KEPT)
    unit = read_unit(text)
    assert shlex.split(unit["Service"]["ExecStart"]) == [*PROGRAM, "up"]
    assert shlex.split(unit["Service"]["ExecReload"]) == [*PROGRAM, "reload"]
    assert unit["Unit"]["ConditionPathExists"] == "/srv/ana's home/data.db"


def test_U7_the_unit_of_a_user_restarts_as_that_of_the_system_does() -> None:
    ours = read_unit(unit_text(Path("/home"), PROGRAM, {}))["Service"]
    system = read_unit(SYSTEM_UNIT.read_text(encoding="utf-8"))["Service"]
    same = (
        *("Type", "Restart", "RestartSec", "RestartPreventExitStatus"),
        *("TimeoutStopSec", "WatchdogSec", "LimitNOFILE", "UMask", "NoNewPrivileges"),
    )
    assert {name: ours[name] for name in same} == {name: system[name] for name in same}
