"""What stands around the order of a mesh in this node's store: policies, what waits, warnings."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.node.core.write_queue import queue_counts
from holdfast.node.quorum.documents import QuorumView
from holdfast.node.quorum.ports import OrderStatus
from holdfast.rules.limits import QUORUM_CONFLICTS_COUNTED
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.quorum.entities import MESH_SETTINGS_ID, PARK, read_fields
from holdfast.rules.quorum.write_queue import WriteCounts
from holdfast.storage.ports import Reader

_EVEN: Final = "{count} voters survive the loss of as many as {less} would; add one, or remove one"


class QuorumStanding(NamedTuple):
    """Policies of a mesh, and what of it waits on this node."""

    minority: str
    handoff: str
    paused: bool
    writes: WriteCounts
    conflicts: int

    def view(self, order: OrderStatus, read: DegradedRead) -> QuorumView:
        return QuorumView(
            order=order,
            minority=self.minority,
            handoff=self.handoff,
            paused=self.paused,
            writes=self.writes,
            conflicts=self.conflicts,
            read=read,
            warnings=warnings_of(order),
        )


def quorum_standing(tx: Reader, mesh: str, minority: str) -> QuorumStanding:
    """`minority` counts where the mesh has no setting of its own."""
    row = tx.entity_get(mesh, "mesh_settings", MESH_SETTINGS_ID)
    fields = {} if row is None or row.deleted else read_fields(row.fields)
    waiting = tx.waiting_conflicts(mesh, 0, QUORUM_CONFLICTS_COUNTED)
    return QuorumStanding(
        fields.get("minority", minority),
        fields.get("handoff", PARK),
        tx.job_get(f"quorum.paused:{mesh}") is not None,
        queue_counts(tx, mesh),
        len(waiting),
    )


def even_warning(count: int) -> str:
    """What is said of an even number of voters; empty for an odd one."""
    if count == 0 or count % 2:
        return ""
    return _EVEN.format(count=count, less=count - 1)


def warnings_of(order: OrderStatus) -> list[str]:
    """What an operator of this quorum should look at."""
    voters = [one for one in order.members if one.place == "voter"]
    found = [even_warning(len(voters))]
    if len(voters) == 1:
        found.append("one voter decides alone: if its disk is lost, all is lost; add two more")
    if not order.has_quorum and order.part != "member":  # which asks voters when it has to
        found.append("no majority of the voters is heard: strong writes do not commit")
    # A member without a vote asks one voter, and need not be linked to the others.
    away = [one.peer for one in voters if not one.linked and order.part != "member"]
    if away:
        found.append(f"no link to {', '.join(away)}")
    found += [f"the disk of {one.peer}: {one.disk}" for one in voters if one.disk != "fine"]
    found.append(order.problem)
    return [text for text in found if text]
