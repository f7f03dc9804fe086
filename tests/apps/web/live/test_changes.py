"""What happens is counted in the loop, whichever thread tells of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.apps.web.live.changes import Changes, follow_node
from holdfast.storage.sqlite.store import SqliteStore
from support.stores import with_mesh

PATIENCE_S = 30


class Noting(Changes):
    """Notes in which threads it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    def note(self, kind: str) -> None:
        self.threads.add(threading.current_thread())
        super().note(kind)


class Silent:
    """A log watch that nothing wakes."""

    closing, head, last_notice = False, 0, 0

    async def wait(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.Event().wait()


def test_U5_a_commit_in_another_thread_is_counted_in_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        store, changes = SqliteStore(tmp_path / "data.db", sync="normal"), Noting()
        api = SimpleNamespace(engine=SimpleNamespace(store=store), log_watch=Silent())
        following = asyncio.create_task(follow_node(cast(Any, api), changes))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(with_mesh, store)
            await changes.wait(("store",), 0)
        assert changes.threads == {threading.current_thread()}
        following.cancel()
        store.stop()

    asyncio.run(main())
