"""Worlds in a box: nodes, disks, networks and time, all drawn from one seed.

A world runs the real code of a node or a broker; only the machine under it is simulated. A run that
fails is repeated exactly by its seed: `python -m holdfast.simulate nodes 42`.

    disk       a disk that fails on request and forgets what was not synced; no node needed
    world      what every world is made of: calendar, machines, network, random work, invariants
    nodes      nodes that pull each other's logs, each from every other
    zones      nodes with links of every shape: filters, pauses, removals, restores from backups
    delivery   nodes that share meshes through a broker
    bus        peers that speak with each other without a broker

A new fault of the disk belongs in `disk`, a new fault of a machine or the network in `world`, a new
promise to check beside the world that can break it. Code that a node or broker runs in life does
not belong here. The names below are for users' own tests (see docs/library.md); they are loaded
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.simulate.disk.disk import SimulatedDisk
    from holdfast.simulate.disk.every_call_fails import run_with_fault, sweep
    from holdfast.simulate.disk.faults import FailAt
    from holdfast.simulate.disk.files import watch_files
    from holdfast.simulate.disk.powerloss import cut_power, rebuild, record
    from holdfast.simulate.nodes.nodes import NodeWorld
    from holdfast.simulate.world.seeds import PromiseBroken
    from holdfast.simulate.world.world import World

_WHERE = {
    "FailAt": "disk.faults",
    "NodeWorld": "nodes.nodes",
    "PromiseBroken": "world.seeds",
    "SimulatedDisk": "disk.disk",
    "World": "world.world",
    "cut_power": "disk.powerloss",
    "rebuild": "disk.powerloss",
    "record": "disk.powerloss",
    "run_with_fault": "disk.every_call_fails",
    "sweep": "disk.every_call_fails",
    "watch_files": "disk.files",
}

__all__ = [
    "FailAt",
    "NodeWorld",
    "PromiseBroken",
    "SimulatedDisk",
    "World",
    "cut_power",
    "rebuild",
    "record",
    "run_with_fault",
    "sweep",
    "watch_files",
]


if not TYPE_CHECKING:  # checkers see plain imports, and know a name that does not exist

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'holdfast.simulate' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"holdfast.simulate.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
