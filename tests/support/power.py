"""Power cuts for a home: what must be left of it, and a story in which a sync fails beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Node
from holdfast.rules.errors import HoldfastError, Unknown
from holdfast.rules.ids import id_text
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.disk.workload import Acknowledge, Workload
from holdfast.simulate.world.invariants import audit
from holdfast.simulate.world.machine import MachineClock
from holdfast.simulate.world.world import World
from holdfast.storage.ports import Reader
from holdfast.storage.sqlite.integrity import check as check_database
from support.envelopes import MESH
from support.faults import HOME, new_node


def prepare(directory: Path) -> None:
    new_node(directory / HOME).close()


def start(directory: Path, vfs: str, world: World) -> Node:
    return Node(open_home(directory / HOME, vfs=vfs, source=MachineClock(world), environ={}))


def leave(node: Node) -> None:
    """The story ends here; its files are cut off as if its process had been killed."""
    node._opened._presence.vanish()


def check(directory: Path, acknowledged: tuple[object, ...]) -> None:
    """Opens what is left as the next start would, and asks for every id that was acknowledged."""
    with opened(directory) as node:
        problems = check_database(node._opened.store._con, ours=True)
        assert not problems, f"damaged: {problems[0]}"
        problems = audit(node)
        assert not problems, f"wrong: {problems[0]}"
        lost = node._engine.read("promises", lambda tx: _lost(tx, acknowledged))
        assert not lost, f"lost {len(lost)} of {len(acknowledged)}"


@contextmanager
def opened(directory: Path) -> Iterator[Node]:
    """What is left, for somebody who looks."""
    node = Node(open_home(directory / HOME, sync="full", environ={}))
    try:
        yield node
    finally:
        # Thrown away anyway, so nothing is tidied up.
        node._opened.abandon()


def _lost(tx: Reader, acknowledged: tuple[object, ...]) -> list[bytes]:
    ids = [id for id in acknowledged if isinstance(id, bytes)]
    return [id for id in ids if tx.log_find(id) is None and tx.forgotten(id) is None]


class FailedSync:
    """The n-th sync of the log fails, and so does the checkpoint of the close after it.

    Without that, closing would bring the log into the database, and all would be well.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self._closing = False

    def __call__(self, call: DiskCall) -> Kind | None:
        if call.op == "sync" and call.file.endswith("-wal"):
            self._left -= 1
            if self._left == 0:
                self._closing = True
                return "ioerr"
        if self._closing and call.op == "open":
            self._closing = False  # the next life begins
        return "ioerr" if self._closing and call.file.startswith("data.db") else None


def stubborn(seed: int, writes: int = 8) -> Workload:
    """Writes one key after another; after an unknown outcome it reopens the home and asks again."""

    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        world = World(seed)
        node = start(directory, vfs, world)
        unknown = 0
        for number in range(writes):
            id = id_text(world.new_id())
            while True:
                try:
                    receipt = node.mesh(MESH).state.set(f"key {number % 5}", number, id=id)
                except HoldfastError as error:
                    unknown += isinstance(error, Unknown)
                    node.close()
                    node = start(directory, vfs, world)
                else:
                    acknowledge(receipt.raw_id)
                    break
        assert unknown == 1, "the sync was to fail once"
        leave(node)

    return workload
