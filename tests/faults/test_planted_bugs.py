"""Every harness finds the bugs that it is there for: they are planted, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
FIRST = {
    "way forgotten (zones)": 20,
    "truncated ids forgotten (zones)": 6,
    "cursor before rows (delivery)": 5,
    "epoch ignored (delivery)": 8,
    "forgotten not put back (delivery)": 8,
    "lease not asked for (delivery)": 3,
    "late before it is sent (delivery)": 28,
    "whole group again (delivery)": 28,
    "backfill in two steps (delivery)": 3,
    "published by the log alone (delivery)": 2,
    "joined without the snapshot (delivery)": 2,
    "messages sent however old (delivery)": 19,
    "swept by any clock (delivery)": 4,
    "leaps counted (delivery)": 2,
    "mark before row (bus)": 19,
    "numbers again after restore (bus)": 31,
}
"""The world in which a bug was found, where that is not one of the first ones: it is tried first.
If the code has changed since and nothing happens there, the search goes through the others, and
says where it found it: a search through thirty worlds costs as much as a thousand other tests.
"""
LARGE = b"large content " * 6000


def _title(bug: Bug) -> str:
    return f"{bug.name} ({bug.finder})"


@pytest.mark.parametrize("bug", BUGS, ids=_title)
def test_R1_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    found = _in_a_world(bug) if bug.finder in WORLDS else FINDERS[bug.finder]()
    print(f"{bug.name}: {found}")
    assert found, f"{bug.finder} does not see it"


def _in_a_world(bug: Bug) -> str:
    tell, seeds = WORLDS[bug.finder]
    first = [FIRST[_title(bug)]] if _title(bug) in FIRST else []
    for seed in dict.fromkeys((*first, *seeds)):
        try:
            tell(seed)
        except (AssertionError, HoldfastError, apsw.Error) as error:
            return f"in world {seed}: {describe(error)}"
    return ""


def _three_nodes(seed: int) -> None:
    with NodeWorld(seed, peers=("ana", "bob", "cai")) as world:
        world.storm()
        world.calm()


WORLDS: dict[str, tuple[Callable[[int], object], Iterable[int]]] = {
    "world": (_three_nodes, range(WORLDS_MAX)),
    "zones": (zones.tell, range(WORLDS_MAX)),
    "delivery": (delivery.tell, range(WORLDS_MAX)),
    # Odd ones are worlds of the bus alone, even ones of homes; rare things happen in the first.
    "bus": (bus.tell, (15, 7, 3, 31, *range(1, WORLDS_MAX, 2))),
    "mesh": (bus.tell, (16, 6, *range(0, WORLDS_MAX, 2))),
}


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
    "mesh power": _by_a_power_cut_of_pages,
    "capabilities": accepted_though_bad,
    "sweep": _by_a_sweep,
    "power": _by_a_power_cut,
    "failed sync": _after_a_failed_sync,
}


ELSEWHERE = ("mesh power", "interrupts")
"""Those are test_mesh_page_power and test_interrupts; for worlds there is tests/simulate."""


def test_R1_without_a_bug_the_same_finders_find_nothing() -> None:
    for name, find in FINDERS.items():
        if name not in ELSEWHERE:
            assert not find(), name
