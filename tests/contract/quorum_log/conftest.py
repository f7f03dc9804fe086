"""Every test here runs on every quorum log: what one promises, all keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.quorum_port import QuorumLog
from support.quorum_logs import QUORUM_LOGS


@pytest.fixture(params=list(QUORUM_LOGS))
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QuorumLog]:
    log = QUORUM_LOGS[request.param](tmp_path)
    yield log
    log.close()
