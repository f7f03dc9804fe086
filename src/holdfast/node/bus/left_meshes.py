"""Which meshes of this home were shared over the bus and are not any more.

Whoever leaves a mesh keeps what is in it, as a mesh of its own under the same name. A mesh that was
never shared must not be joined to somebody else's by its name alone; one that was left may be
joined again, and is known by the id that its owner gave it.
"""

from __future__ import annotations

from holdfast.rules.bus.meshes.member_list import MemberList
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction


def note_left(tx: Transaction, members: MemberList, now_ms: int) -> None:
    cursor = {"id": members.id.hex()}
    tx.job_put(JobRow(name=_name(members.mesh), cursor=cursor, updated_at=now_ms))


def left_mesh(tx: Reader, mesh: str) -> bytes | None:
    """The id of the mesh that this home left last under a name; None if it left none."""
    found = tx.job_get(_name(mesh))
    return None if found is None else bytes.fromhex(found.cursor["id"])


def note_back(tx: Transaction, mesh: str) -> None:
    """It is shared again."""
    tx.job_drop(_name(mesh))


def _name(mesh: str) -> str:
    return f"bus.left:{mesh}"
