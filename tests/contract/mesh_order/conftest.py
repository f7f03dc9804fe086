"""Every test here runs on every engine: what one order promises, all keep."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from support.order_worlds import ORDER_WORLDS, Told, bounded


@pytest.fixture(scope="module", params=list(ORDER_WORLDS))
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    """Runs a story in the world of this file: its nodes stay, and every test has names of its
    own. Between two stories the nodes stand still, as after a pause.
    """
    world = ORDER_WORLDS[request.param]()
    with asyncio.Runner() as runner:
        runner.run(bounded(world.start(tmp_path_factory.mktemp(request.param))))
        try:
            yield lambda story: runner.run(bounded(story(world)))
        finally:
            runner.run(bounded(world.close()))
