"""`holdfast demo`, from beginning to end, and without what it may leave out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import Cli


@pytest.mark.timeout(360)
def test_U2_P10_the_demo_runs_with_spark_and_all(cli: Cli, tmp_path: Path) -> None:
    done = cli.process("demo", str(tmp_path / "demo"), patience=300)
    assert done.out == f"{tmp_path / 'demo'}\n", done.err
    assert "he is back, and has it, once: 'lunch?' from ana" in done.err
    assert "ana has beans: 'by bob'" in done.err
    for said in ("lag 0", "release = {'version': '2.0', 'by': 'bob'}", "audits: 0 findings"):
        assert said in done.err
    assert "WARN" not in done.err  # what Spark talks does not reach anybody


def test_U2_P10_without_spark_the_demo_leaves_its_act_out(tmp_path: Path) -> None:
    hidden = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['pyspark', 'deltalake', 'pyarrow']))\n"
        "from holdfast.apps.demo.pipeline import play\n"
        "print(play(None, [], 'team', print))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, check=True
    )
    assert "left out: the pipeline needs packages" in done.stdout
    assert "pip install 'holdfast[spark]'" in done.stdout
    assert done.stdout.endswith("False\n")
