"""What tests of faults have in common: a real disk, and a library that keeps quiet.

Many openings here follow a bad end and say so; a test that listens sets the level itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import memory_folder


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder on the disk, also where those of other tests are in memory."""
    if not tmp_path.is_relative_to(memory_folder.FOLDER):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _quiet_library() -> Iterator[None]:
    log = logging.getLogger("holdfast")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
