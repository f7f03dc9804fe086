"""Who may do what at a broker. It is looked up for every call and every frame: a removal acts at
once.
"""

from __future__ import annotations

from holdfast.protocol.frames import MeshPosition
from holdfast.rules.broker_rows import BrokerMesh, MemberRow, Membership
from holdfast.rules.errors import NotAMember, NotGranted, UnknownMesh
from holdfast.rules.structs import copy_to
from holdfast.storage.broker.port import BrokerStore

_NO_SUCH_MESH = "ask the owner of the mesh for its name at this broker"


async def require_member(store: BrokerStore, mesh: str, key: bytes, *grants: str) -> MemberRow:
    """The member with this key; raises unless it has all of these grants. A stranger does not learn
    which meshes there are.
    """
    member = await store.member_get(mesh, key)
    if member is None:
        raise NotAMember("this key is no member of the mesh")
    lacks = [grant for grant in grants if grant not in member.grants]
    if lacks:
        raise NotGranted(
            f"{member.name!r} may not {', '.join(lacks)} in mesh {mesh!r}",
            hint="ask the owner of the mesh for the grant",
        )
    return member


async def require_mesh(store: BrokerStore, slug: str) -> BrokerMesh:
    mesh = await store.mesh_get(slug)
    if mesh is None:
        raise UnknownMesh(f"this broker has no mesh {slug!r}", hint=_NO_SUCH_MESH)
    return mesh


async def mesh_position(store: BrokerStore, mesh: BrokerMesh, member: MemberRow) -> MeshPosition:
    """The position of a mesh, for one of its members."""
    epochs = await store.epochs(mesh.slug)
    return position_of(Membership(mesh=mesh, member=member, epochs=epochs))


async def mesh_positions(store: BrokerStore, key: bytes) -> list[MeshPosition]:
    """The positions of every mesh that a key is a member of."""
    return [position_of(found) for found in await store.memberships(key)]


def position_of(found: Membership) -> MeshPosition:
    return copy_to(
        MeshPosition,
        found.mesh,
        mesh=found.mesh.slug,
        grants=tuple(sorted(found.member.grants)),
        epochs=tuple((row.epoch, row.base) for row in found.epochs),
    )
