"""Pages of a mesh that arrive over the bus on a disk that fails: a story, and what must be left.

A page and what it covers are one: whatever the disk has kept, a number is covered exactly if its
entry is in the log, or if the page said that there is none for us.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.node.bus.meshes import mesh_receive
from holdfast.node.bus.meshes.backfill import count_next, switch_on
from holdfast.node.bus.meshes.grants import MeshPeer, TrustGrants
from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.meshes.coverage import StreamName, ranges_of
from holdfast.rules.bus.meshes.streams import place_of
from holdfast.rules.rows import ZoneKey, ZoneRow
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.simulate.world.world import World
from holdfast.storage.ports import Reader
from support import power
from support.envelopes import MESH, fact_append, make_id
from support.faults import HOME, new_node
from support.mesh_links import key_of

BOB = MeshPeer("bob", key_of("bob"))
STREAM = StreamName(MESH, "bob", 1)
PAGES = ((1, 4, (1, 2, 3)), (4, 8, (4, 6)))
"""Start and end of each page, and the numbers that have an entry for us."""
HOLES = (5, 7)


def prepare(directory: Path) -> None:
    """A home that shares its mesh over the bus with bob."""
    node = new_node(directory / HOME)
    zone = ZoneRow(
        name=BOB.name, keys=(ZoneKey(key=BOB.key, added_at=1),), reads=(MESH,), added_at=1
    )
    node._engine.write("test", lambda tx: tx.zone_put(zone))
    switch_on(node._engine, MESH)
    while count_next(node._engine, MESH):
        pass
    node.close()


def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
    node = power.start(directory, vfs, World(0))
    for page in PAGES:
        receive(node._engine, page)
        acknowledge(page)
        acknowledge(node.mesh(MESH).state.set("mine", page[0]).raw_id)
    power.leave(node)


def receive(engine: NodeEngine, page: tuple[int, int, tuple[int, ...]]) -> None:
    start, end, numbers = page
    raws = [
        fact_append("s", "p", n, lamport=n, seq=n, id=make_id(500 + n), origin=BOB.name)
        for n in numbers
    ]
    decoded = mesh_receive.decode_mesh_page(STREAM, start, end, 0, BOB.key, list(numbers), raws)
    mesh_receive.receive_mesh_page(engine, TrustGrants(), BOB, decoded, set())


def check(directory: Path, acknowledged: tuple[object, ...]) -> None:
    """What every home must hold to, and that log and coverage of bob's stream agree."""
    power.check(directory, acknowledged)
    with power.opened(directory) as node:
        problem = node._engine.read("test", lambda tx: _problem(tx, acknowledged))
    assert not problem, problem


def _problem(tx: Reader, acknowledged: tuple[object, ...]) -> str:
    row = tx.stream_get(STREAM)
    covered = (
        []
        if row is None
        else [n for part in ranges_of(row.covered) for n in range(part[0], part[1])]
    )
    logged = [place_of(entry.raw).seq for entry in tx.log_range(1, 1 << 40, 1 << 20)
              if entry.origin == BOB.name]  # fmt: skip
    placed = [] if row is None else tx.stream_page(row.number, 1, 1 << 40, 100, 1 << 30).seqs
    if [n for n in covered if n not in HOLES] != sorted(logged):
        return f"it covers {covered} and holds {logged}"
    if placed != sorted(logged):
        return f"it holds {logged} and can send {placed}"
    promised = [page[1] - 1 for page in acknowledged if isinstance(page, tuple)]
    if promised and promised[-1] not in covered:
        return f"{promised[-1]} was stored, and it covers {covered}"
    return ""
