"""Contents that nothing at a broker names any more."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256
from pathlib import Path

import holdfast
from holdfast.broker.object_gc import collect_all
from holdfast.node.library.node import Node
from holdfast.node.snapshots.upload import upload_snapshot
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.trust.trust import Trust
from holdfast.rules.limits import DAY_MS, OBJECT_UNNAMED_MS
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home
from support.live_broker import MESH, LiveBroker, calls_of, share

LARGE = 100_000


def sync(node: Node) -> None:
    paths = HomePaths(node.home)
    assert wait_until_synced(node._engine, Trust(node._engine, paths), paths, MESH).done


def name_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def test_D7_content_goes_when_neither_a_change_nor_the_snapshot_names_it(tmp_path: Path) -> None:
    old, new, other = (bytes([n]) * LARGE for n in range(3))
    home = make_home(tmp_path / "ana")
    with LiveBroker(tmp_path / "hub") as broker:
        share(home, broker)
        store = broker.store

        def collect(at_ms: int) -> int:
            gone: int = broker.run(collect_all(store, at_ms))
            return gone

        def held() -> list[bool]:
            names = map(name_of, (old, new, other))
            return [broker.run(store.object_size(MESH, name)) is not None for name in names]

        with holdfast.open(home, sync="normal") as node, closing(calls_of(node, broker)) as calls:
            now = node._engine.ctx.now_ms()
            files = node.mesh(MESH).files
            files.share("a.bin", old)
            files.share("b.bin", other)
            sync(node)
            files.share("a.bin", new)
            sync(node)
            assert collect(now) + collect(now + 2 * DAY_MS) == 0, "changes that are held name them"

            upload_snapshot(node._engine, calls, MESH)
            late = now + 60 * DAY_MS
            assert broker.run(store.sweep(late, 1000)).messages == 3
            assert collect(late) == 0, "for now it is noted"
            assert held() == [True, True, True]
            assert calls.object_size(MESH, name_of(old)) == LARGE, (
                "somebody may be about to name it"
            )
            assert collect(late + OBJECT_UNNAMED_MS) == 0
            assert collect(late + 2 * OBJECT_UNNAMED_MS) == 1
            assert held() == [False, True, True], "the snapshot names the others"

            files.share("c.bin", old)
            sync(node)
            assert held() == [True, True, True]
            assert collect(late + 9 * DAY_MS) == 0
