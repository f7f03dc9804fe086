"""A node in two ways: its home opened here, and a daemon of it asked over a connection."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest

import holdfast
from holdfast.node.settings import Settings
from support.daemon import make_home, running

_numbers = count(1)


class Seen(NamedTuple):
    """One node, and its inside, for what only arrives from elsewhere."""

    node: holdfast.Node
    inside: holdfast.Node


@pytest.fixture(scope="package", params=["open", "connect", "connect tcp"])
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    """One for all tests: each has a mesh of its own."""
    home = make_home(tmp_path_factory.mktemp("both") / "home", "ana", "first")
    if request.param == "open":
        with holdfast.open(home, sync="normal") as node:
            yield Seen(node, node)
        return
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        token = None
        address = up.unix
        if request.param == "connect tcp":
            token, address = up.daemon.api.trust.add_token("own"), up.tcp
        with holdfast.connect(address, token=token) as node:
            yield Seen(node, up.daemon.api.node)


@pytest.fixture
def node(seen: Seen) -> holdfast.Node:
    return seen.node


@pytest.fixture
def slug() -> str:
    return f"mesh-{next(_numbers)}"


@pytest.fixture
def mesh(node: holdfast.Node, slug: str) -> holdfast.Mesh:
    """A mesh that no other test has."""
    return node.mesh(slug, create=True)
