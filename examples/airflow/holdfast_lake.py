"""Airflow DAGs: bring the lake up to date every ten minutes, audit it each hour, compact at night.

Set the Airflow variable `holdfast_lake` to the lake's place. The logs that the lake reads were
named once, by hand: `holdfast pipeline run LOG... --lake LAKE`.
"""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta
from typing import Any

from airflow.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk import Variable, dag, task

DONE, FAILED, USAGE, NOT_FOUND, BUSY = 0, 1, 2, 4, 5


def holdfast(*words: str) -> dict[str, Any]:
    """What a command of Holdfast prints as JSON, or how the task ends instead of it."""
    lake = Variable.get("holdfast_lake")
    command = ["holdfast", "pipeline", *words, "--lake", lake, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == BUSY:
        # Another run is at work. It reads what this one would have read.
        raise AirflowSkipException(ended.stderr)
    if ended.returncode in (USAGE, NOT_FOUND):
        raise AirflowFailException(ended.stderr)  # trying again would not help
    if ended.returncode != DONE:
        # What was committed stays, and the retry goes on from there.
        raise RuntimeError(ended.stderr or ended.stdout)
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


@task(retries=3, retry_delay=timedelta(minutes=2))
def run() -> dict[str, Any]:
    told = holdfast("run")
    return {name: told[name] for name in ("rows", "lag", "seconds", "versions")}


@task
def audit() -> int:
    return int(holdfast("audit")["notices"])


@task(retries=3, retry_delay=timedelta(minutes=10))
def compact() -> dict[str, Any]:
    return holdfast("compact")


@dag(schedule="*/10 * * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)
def holdfast_lake() -> None:
    run()


@dag(schedule="30 * * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)
def holdfast_audit() -> None:
    audit()


@dag(schedule="0 3 * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)
def holdfast_compact() -> None:
    compact()


holdfast_lake()
holdfast_audit()
holdfast_compact()
