"""Every test here runs on every store: what one promises, all keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.ports import Store
from support.nodes import KINDS
from support.stores import make_store


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = make_store(request.param, tmp_path)
    yield made
    made.stop()
