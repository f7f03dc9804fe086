"""The doctor's look at clocks: the stamps of the meshes."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.recovery.checks import Check, warn
from holdfast.rules.lamport import ceiling
from holdfast.storage.ports import Reader

Checks = Iterator[Check]


def check_stamps(reader: Reader, now_ms: int) -> Checks:
    """Warns of meshes whose clock is near or above what other nodes take."""
    top = ceiling(now_ms)
    for mesh in reader.mesh_list():
        if mesh.lamport > top:
            yield warn(
                "clock",
                f"the clock of {mesh.slug} is at {mesh.lamport}, above {top}: its members go on, "
                "but a new node or broker refuses what they write",
                "if this machine's date is in the past, set it; else export the mesh and import it "
                "into a new one, which stamps everything anew",
            )
        elif mesh.lamport > top // 2:
            yield warn(
                "clock",
                f"the clock of {mesh.slug} is at {mesh.lamport}, of {top} that other nodes take "
                "today: somebody has moved it",
                "see who in `holdfast peer list`, and remove that member; nothing is lost so far",
            )
