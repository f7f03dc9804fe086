"""Runs commands of the pipeline in one process, on the Spark that the first of them starts.

    ran, verified = one_spark(("pipeline", "run", ...), ("pipeline", "verify", ...))

Starting a Java costs more than all of these commands do. So a session is not stopped before the
last of them has ended, and each takes the one that it finds, as in a notebook. The process is this
file: its argument is a list of commands, each must succeed, and the answer of each goes to stdout,
one line of JSON.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

PATIENCE_S = 480

SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For little data, looked at once: to plan and compile it well costs twice what it takes."""


def one_spark(*commands: Sequence[str], env: Mapping[str, str] | None = None) -> list[Any]:
    """The answers of several commands, run one after the other."""
    done = subprocess.run(
        [sys.executable, __file__, json.dumps([list(words) for words in commands])],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "HOLDFAST_STORE_SYNC": "normal", **(env or {})},
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(commands: list[list[str]]) -> None:
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder:
        conf = [f"--conf={key}={value}" for key, value in SMALL.items()]
        conf += [f"--conf=spark.local.dir={folder}", "--json"]
        with patch.object(SparkSession, "stop"):
            said = [_run([*words, *conf], Path(folder) / "answer") for words in commands]
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
    for answer in said:
        print(json.dumps(answer))


def _run(words: list[str], answer: Path) -> object:
    """One command as `python -m holdfast` runs it, with its stdout in a file."""
    sys.argv = ["holdfast", *words]
    code: object = 0
    stdout = os.dup(1)
    with answer.open("wb") as file:
        os.dup2(file.fileno(), 1)
        try:
            runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush()
            os.dup2(stdout, 1)
            os.close(stdout)
    text = answer.read_text(encoding="utf-8")
    if code:
        sys.exit(f"{words} ended with {code}: {text}")
    return json.loads(text)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
