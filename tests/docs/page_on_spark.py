"""Runs the page of the pipeline in a process of its own: python page_on_spark.py PAGE FOLDER.

The commands on the page find the session that its Python blocks have started. Spark resolves paths
where it was started, so it must not be a session that other tests have begun elsewhere.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from holdfast.pipeline.spark import session
from support.pages import Story

if __name__ == "__main__":
    page, folder = map(Path, sys.argv[1:])
    warnings.simplefilter("ignore")  # Spark's own, about itself
    spark = session.start(conf=session.SMALL)
    Story(page.name, folder).tell(page.read_text(encoding="utf-8"))
    spark.stop()
