"""The man pages are those of the commands, and what shows man pages can read them.

That they are current is looked at with the reference (tests/tidy/test_reference.py), that they are
in the wheel with its contents (tests/tidy/test_install_size.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from holdfast.apps.cli.app import root
from support.project import ROOT
from tools.man_pages import man_pages

PAGES = ROOT / "man" / "man1"


def test_every_command_has_a_page_and_there_are_no_others() -> None:
    listed = root.list_commands(click.Context(root))
    names = {f"holdfast-{name}.1" for name in listed} | {"holdfast.1"}
    assert set(man_pages()) == {path.name for path in PAGES.iterdir()} == names


def test_a_page_has_what_readers_look_for() -> None:
    pages = man_pages()
    for name, text in pages.items():
        assert re.search(r"^\.SH NAME\nholdfast[^ ]* \\- \S", text, re.M), name
        for heading in ("SYNOPSIS", "DESCRIPTION"):
            assert f"\n.SH {heading}\n" in text, (name, heading)
    assert "\n.SH EXIT STATUS\n" in pages["holdfast.1"]
    assert ".SS state set\n.B holdfast state set\n[OPTIONS] KEY VALUE" in pages["holdfast-state.1"]


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="no mandoc here")
def test_mandoc_finds_no_error_in_them() -> None:
    words = ("mandoc", "-T", "lint", "-W", "warning", *map(str, sorted(PAGES.iterdir())))
    found = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
    # A page has no date: it is the same whenever it is made.
    assert [line for line in found.splitlines() if "missing date" not in line] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_groff_shows_options_as_they_are_typed() -> None:
    words = ("groff", "-man", "-T", "utf8", "-P-c", "-ww", str(PAGES / "holdfast-state.1"))
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert shown.stderr == ""
    assert "--expect STAMP" in re.sub(r"\x1b\[[0-9;]*m|.\x08", "", shown.stdout)
