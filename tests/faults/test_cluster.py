"""A real cluster of processes: what its machines see, and what becomes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench._cluster import Cluster
from holdfast.pipeline.lake.lake import Lake
from support.histories import grow
from support.project import TESTS
from support.whole_lake import check_promises, check_whole

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

SCRIPT = TESTS / "faults" / "cluster_process.py"


def test_P10_P2_nothing_is_confirmed_that_the_lake_does_not_hold_on_any_machine(
    tmp_path: Path,
) -> None:
    histories = grow(7, tmp_path / "homes", nodes=3, meshes=2, ops=80)
    work = tmp_path / "driver"
    work.mkdir()
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        works = [str(cluster.work_dir(number)) for number in range(2)]
        done = subprocess.run(
            [
                *(sys.executable, str(SCRIPT), str(work), cluster.url),
                *(*works, "--", *map(str, histories.homes.values())),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(TESTS), "SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    steps = {line["step"]: line for line in map(json.loads, done.stdout.splitlines())}
    unseen = steps["no executor sees the lake"]
    assert set(unseen["errors"]) == {"lake_not_seen"}
    assert (unseen["read"], unseen["rows"]) == (0, 0)
    some = steps["one executor sees the lake"]
    # Spark may find the executor that sees it for every task, or give up; never half of it.
    assert some["errors"] or some["read"]
    everyone = steps["all executors see the lake"]
    assert not everyone["errors"]
    assert everyone["rows"] > 0
    assert "killed" in steps
    assert not steps["an executor dies"]["errors"]
    lake = Lake.open(work / "lake")
    check_promises(lake, histories)
    check_whole(lake, histories)
