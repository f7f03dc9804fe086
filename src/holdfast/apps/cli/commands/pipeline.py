"""`holdfast pipeline`: the logs of all nodes in one lake, on Spark. The verbs are in the modules
beside this one: `pipeline_run`, `pipeline_query`, `pipeline_catalog`, `pipeline_check`,
`pipeline_upkeep`, `pipeline_repair` and `pipeline_export`; `pipeline_job` has what they share."""

from __future__ import annotations

from holdfast.apps.cli.commands import (
    pipeline_catalog,
    pipeline_check,
    pipeline_export,
    pipeline_query,
    pipeline_repair,
    pipeline_run,
    pipeline_upkeep,
)
from holdfast.apps.cli.commands.pipeline_job import pipeline_

__all__ = [
    "pipeline_",
    "pipeline_catalog",
    "pipeline_check",
    "pipeline_export",
    "pipeline_query",
    "pipeline_repair",
    "pipeline_run",
    "pipeline_upkeep",
]
