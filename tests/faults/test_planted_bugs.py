"""Every harness finds the bugs that it is there for: they are planted, one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from faults.planted import BUGS, Bug
from holdfast.node.library.node import open_node
from holdfast.rules.errors import HoldfastError
from holdfast.simulate.bus import bus
from holdfast.simulate.delivery import delivery
from holdfast.simulate.disk.powerloss import Check, Recording, cut_power, record
from holdfast.simulate.disk.workload import Acknowledge, describe
from holdfast.simulate.nodes.nodes import NodeWorld
from holdfast.simulate.world.world import World
from holdfast.simulate.zones import zones
from support import mesh_page_disk
from support.bad_capabilities import accepted_though_bad
from support.envelopes import MESH
from support.faults import ID, Operation, sweep_operation
from support.interrupts import interrupted_writes
from support.power import FailedSync, check, leave, prepare, start, stubborn

pytestmark = [pytest.mark.faults, pytest.mark.sim, pytest.mark.timeout(900)]

WORLDS_MAX = 60
TELLING = (15, 7, 3, 31)
"""Worlds of the bus in which rare things happen; they come first, to save time."""
TELLING_HOMES = (16, 6)
"""The same, of those with homes."""
LARGE = b"large content " * 6000


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.name} ({bug.finder})")
def test_R1_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    found = FINDERS[bug.finder]()
    print(f"{bug.name}: {found}")
    assert found, f"{bug.finder} does not see it"


def _in_a_world() -> str:
    for seed in range(WORLDS_MAX):
        try:
            with NodeWorld(seed, peers=("ana", "bob", "cai")) as world:
                world.storm()
                world.calm()
        except (AssertionError, HoldfastError, apsw.Error) as error:
            return f"in world {seed}: {describe(error)}"
    return ""


def _in_a_world_of_zones() -> str:
    for seed in range(WORLDS_MAX):
        try:
            zones.tell(seed)
        except (AssertionError, HoldfastError, apsw.Error) as error:
            return f"in world {seed}: {describe(error)}"
    return ""


def _in_a_world_of_delivery() -> str:
    for seed in range(WORLDS_MAX):
        try:
            delivery.tell(seed)
        except (AssertionError, HoldfastError, apsw.Error) as error:
            return f"in world {seed}: {describe(error)}"
    return ""


def _in_a_world_of_the_bus() -> str:
    return _in_worlds_of_the_bus(dict.fromkeys((*TELLING, *range(1, WORLDS_MAX, 2))))


def _in_a_world_of_homes() -> str:
    return _in_worlds_of_the_bus(dict.fromkeys((*TELLING_HOMES, *range(0, WORLDS_MAX, 2))))


def _in_worlds_of_the_bus(worlds: Iterable[int]) -> str:
    for seed in worlds:
        try:
            bus.tell(seed)
        except (AssertionError, HoldfastError, apsw.Error) as error:
            return f"in world {seed}: {describe(error)}"
    return ""


def _by_a_sweep() -> str:
    operation = Operation(
        name="state.set",
        act=lambda node: node.mesh(MESH).state.set("new", 1, id=ID),
        happened=lambda node: node.mesh(MESH).state.get("new") == 1,
    )
    return next(iter(sweep_operation(operation).failures), "")


def _by_a_power_cut() -> str:
    def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        node = start(directory, vfs, World(0))
        mesh = node.mesh(MESH)
        for number in range(4):
            acknowledge(mesh.state.set("key", number).raw_id)
            acknowledge(mesh.files.share(f"{number}.bin", LARGE + bytes([number])).raw_id)
        leave(node)

    return _first_loss(record(workload, prepare=prepare))


def _by_a_power_cut_of_pages() -> str:
    pages = mesh_page_disk
    return _first_loss(record(pages.workload, prepare=pages.prepare), pages.check)


def _after_a_failed_sync() -> str:
    return _first_loss(record(stubborn(0), prepare=prepare, plan=FailedSync(2)))


def _first_loss(recording: Recording, look: Check = check) -> str:
    points = range(recording.start, len(recording.entries) + 1, 2)
    report = cut_power(recording, look, samples=1, points=points)
    return report.failures[0].problem if report.failures else ""


def _by_interrupts() -> str:
    with TemporaryDirectory() as folder:
        node = open_node(Path(folder) / "home", peer="ana", create=True, sync="normal")
        node.create_mesh(MESH)
        try:
            for n in interrupted_writes(node):
                node.mesh(MESH).state.set("next", n)
        except (AssertionError, HoldfastError, apsw.Error) as error:
            return describe(error)
        finally:
            node._opened.abandon()
    return ""


FINDERS = {
    "interrupts": _by_interrupts,
    "world": _in_a_world,
    "zones": _in_a_world_of_zones,
    "delivery": _in_a_world_of_delivery,
    "bus": _in_a_world_of_the_bus,
    "mesh": _in_a_world_of_homes,
    "mesh power": _by_a_power_cut_of_pages,
    "capabilities": accepted_though_bad,
    "sweep": _by_a_sweep,
    "power": _by_a_power_cut,
    "failed sync": _after_a_failed_sync,
}


ELSEWHERE = ("world", "zones", "delivery", "bus", "mesh", "mesh power", "interrupts")
"""Those are tests/simulate/…/test_world, test_mesh_page_power and test_interrupts."""


def test_R1_without_a_bug_the_same_finders_find_nothing() -> None:
    for name, find in FINDERS.items():
        if name not in ELSEWHERE:
            assert not find(), name
