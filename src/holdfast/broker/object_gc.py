"""Removing content that nothing at a broker names any more.

Objects arrive before the change that names them. They stay while a change that the broker holds, or
the mesh's snapshot, names them. To find the others the broker reads all that a mesh holds, so it
does that rarely. It notes unnamed content, and removes it after it was unnamed for
`OBJECT_UNNAMED_MS`: a member that is about to name content asks for it first, and that removes the
note. The time is a month, because a message may name content in words that only people read, and
messages last as long.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.protocol.mesh_snapshot import unpack_part
from holdfast.rules import limits
from holdfast.rules.arrivals import objects_of, read_arrivals
from holdfast.rules.broker_rows import BrokerMesh
from holdfast.rules.errors import Truncated, UnknownMesh
from holdfast.storage.broker.port import BrokerStore

log = logging.getLogger("holdfast")


async def collect_all(store: BrokerStore, now_ms: int) -> int:
    """Removes the content that no mesh names any more; returns how many objects."""
    total = 0
    for mesh in await store.mesh_list():
        try:
            total += await _collect(store, mesh, now_ms)
        except (UnknownMesh, Truncated) as error:
            # The mesh was removed, or another broker of the same store swept it: the next time.
            log.info("the objects of mesh %r were not looked through: %s", mesh.slug, error.message)
    return total


async def _collect(store: BrokerStore, mesh: BrokerMesh, now_ms: int) -> int:
    page = await store.objects_after(mesh.slug, "", limits.OBJECT_PAGE_ROWS)
    if not page:
        return 0
    named = await _named(store, mesh)
    gone = 0
    while page:
        gone += await store.objects_settle(
            mesh.slug,
            [name for name in page if name in named],
            [name for name in page if name not in named],
            now_ms,
            now_ms - limits.OBJECT_UNNAMED_MS,
        )
        page = await store.objects_after(mesh.slug, page[-1], limits.OBJECT_PAGE_ROWS)
    return gone


async def _named(store: BrokerStore, mesh: BrokerMesh) -> set[str]:
    """The hashes that the held changes and the snapshot of a mesh name, and its committed state."""
    order = await store.commit_order(mesh.slug)
    named: set[str] = set() if order is None else {order.state_sha256}
    after = mesh.first - 1
    while True:
        page = await store.log_page(
            mesh.slug, after, limits.SEQ_MAX, limits.FEED_ROWS, limits.FEED_BYTES
        )
        named |= _names([row.raw for row in page.rows])
        if page.to >= page.last or page.to <= after:
            break
        after = page.to
        await asyncio.sleep(0)
    snapshot = await store.snapshot_get(mesh.slug)
    for number in range(0 if snapshot is None else snapshot.parts):
        assert snapshot is not None
        part = await store.snapshot_part(mesh.slug, snapshot.id, number)
        if part is None:
            # Another snapshot has replaced it: look at that one.
            return named | await _named(store, mesh)
        named |= _names(unpack_part(part, mesh.slug).raws)
        await asyncio.sleep(0)
    return named


def _names(raws: list[bytes]) -> set[str]:
    return {named.sha256 for named in objects_of(read_arrivals(raws))}
