"""`holdfast pipeline`: every log in one lake, on Spark. Its verbs by theme are in the modules
beside this one, and each adds its own."""

from __future__ import annotations

from holdfast.apps.cli.commands import (
    pipeline_check,
    pipeline_export,
    pipeline_query,
    pipeline_run,
    pipeline_upkeep,
)
from holdfast.apps.cli.commands.pipeline_job import pipeline_

__all__ = [
    "pipeline_",
    "pipeline_check",
    "pipeline_export",
    "pipeline_query",
    "pipeline_run",
    "pipeline_upkeep",
]
