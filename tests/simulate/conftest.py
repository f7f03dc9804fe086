"""Many openings here follow a bad end and say so; a test that listens sets the level itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet_library() -> Iterator[None]:
    log = logging.getLogger("holdfast")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
