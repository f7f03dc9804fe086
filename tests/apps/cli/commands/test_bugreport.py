"""`holdfast bugreport`: what is in it stands in tests/node/recovery/test_bug_report.py."""

from __future__ import annotations

import json
from pathlib import Path

from support.cli import Cli


def test_U2_the_command_writes_a_new_file_for_its_user(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    done = cli("bugreport", str(target))
    assert json.loads(target.read_text())["format"] == 1
    assert target.stat().st_mode & 0o777 == 0o600
    assert "read it before you send it" in done.err
    assert cli("bugreport", str(target), code=5).raw == b""
    assert cli("bugreport", str(cli.home / "x.json"), code=2).raw == b""
