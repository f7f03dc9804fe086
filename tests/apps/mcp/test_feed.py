"""The feed of resources: what agents are told, and that nothing falls between two looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast
from holdfast.apps.mcp.feed import ResourceFeed
from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Node
from holdfast.rules.errors import Unreachable
from support.daemon import make_home

TASKS = "holdfast://team/tasks"


def test_U3_after_a_restore_agents_are_told_when_all_that_follows_is_seen(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    told: asyncio.Queue[str] = asyncio.Queue()
    early: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()

        @contextmanager
        def first() -> Iterator[Node]:
            with holdfast.open(home) as node:
                yield node
            raise Unreachable("the daemon has ended")

        @contextmanager
        def restored() -> Iterator[Node]:
            open_home(home, new_epoch=True).close()
            opens.append(beginning_anew)
            with holdfast.open(home) as node:
                yield node

        @contextmanager
        def beginning_anew() -> Iterator[Node]:
            # Whatever was told by now, the agent has heard of it, and has looked.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
            early.extend(told.get_nowait() for _ in range(told.qsize()))
            opens.append(beginning_anew)
            with holdfast.open(home) as node:
                yield node

        opens = [restored, first]
        feed = ResourceFeed(lambda: opens.pop()())
        await feed.follow([TASKS], told.put_nowait)
        with holdfast.open(home) as node:
            node.mesh("team").tasks.create("dig")
        assert await told.get() == TASKS
        reading = feed._reading
        assert reading is not None
        reading._close()  # as when the daemon ends
        assert await told.get() == TASKS, "nobody knows what changed, so all of it may"
        with holdfast.open(home) as node:
            node.mesh("team").tasks.create("paint")
        assert await told.get() == TASKS
        feed.close()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert early == []
