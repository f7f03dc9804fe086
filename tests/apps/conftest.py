"""A home with one mesh, and the command on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import holdfast
from support.cli import Cli


@pytest.fixture(scope="session")
def _made_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once and copied: making one costs more than most commands."""
    home = tmp_path_factory.mktemp("made") / "home"
    with holdfast.open(home, peer="ana", create=True) as node:
        node.create_mesh("team")
    return home


@pytest.fixture
def cli(_made_home: Path, tmp_path: Path) -> Cli:
    """The command on the home of ana, with the mesh `team`."""
    home = tmp_path / "home"
    shutil.copytree(_made_home, home)
    home.chmod(0o700)
    return Cli(home)
