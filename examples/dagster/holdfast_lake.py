"""A Dagster definition: the lake as an asset that knows its figures, a check by audits, a schedule.

    HOLDFAST_LAKE=/srv/lake dagster dev -f holdfast_lake.py

The logs that the lake reads were named once, by hand: `holdfast pipeline run LOG... --lake LAKE`.
"""

import json
import os
import subprocess
from typing import Any

import dagster

DONE, FAILED, USAGE, NOT_FOUND, BUSY = 0, 1, 2, 4, 5


def holdfast(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a command of Holdfast, and what it prints as JSON."""
    command = ["holdfast", "pipeline", *words, "--lake", os.environ["HOLDFAST_LAKE"], "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == BUSY:
        raise dagster.RetryRequested(max_retries=10, seconds_to_wait=30)
    if ended.returncode in (USAGE, NOT_FOUND):
        raise dagster.Failure(ended.stderr, allow_retries=False)
    if not ended.stdout:
        raise dagster.Failure(ended.stderr)
    return ended.returncode, json.loads(ended.stdout)


@dagster.asset(retry_policy=dagster.RetryPolicy(max_retries=3, delay=60))
def lake() -> dagster.MaterializeResult:
    """Every envelope of all logs, and the state that they make."""
    code, told = holdfast("run")
    if code != DONE:
        lost = [f"{one['log'] or one['location']}: {one['message']}" for one in told["failures"]]
        raise dagster.Failure("; ".join(lost), metadata={"rows": told["rows"]})
    return dagster.MaterializeResult(
        metadata={
            "dagster/row_count": told["tables"].get("bronze", 0),
            "new": told["rows"]["new"],
            "quarantined": told["rows"]["quarantined"],
            "lag": told["lag"],
            "seconds": told["seconds"],
            "versions": told["versions"],
        }
    )


@dagster.asset_check(asset=lake)
def audits() -> dagster.AssetCheckResult:
    """What the rules of Holdfast exclude is not in the lake."""
    code, told = holdfast("audit")
    found = {one["name"]: one["findings"] for one in told["audits"] if one["findings"]}
    return dagster.AssetCheckResult(passed=code == DONE, metadata={"findings": found})


job = dagster.define_asset_job("lake_job", selection=[lake])

definitions = dagster.Definitions(
    assets=[lake],
    asset_checks=[audits],
    jobs=[job],
    schedules=[dagster.ScheduleDefinition(job=job, cron_schedule="*/10 * * * *")],
)
