"""Nodes of both kinds: over a store in memory, and over a real home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.library.node import Node
from support.nodes import KINDS, Nodes
from support.source import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Iterator[Nodes]:
    made = Nodes(request.param, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def node(nodes: Nodes) -> Node:
    return nodes.open("ana")
