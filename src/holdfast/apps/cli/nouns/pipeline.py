"""`holdfast pipeline`: every log in one lake, on Spark. Its verbs by theme are in the modules
beside this one."""

from __future__ import annotations

from holdfast.apps.cli.nouns import (  # noqa: F401 - each adds its verbs
    pipeline_check,
    pipeline_give,
    pipeline_keep,
    pipeline_look,
    pipeline_run,
)
from holdfast.apps.cli.nouns.pipeline_job import pipeline_

__all__ = ["pipeline_"]
