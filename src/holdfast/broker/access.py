"""Who may do what, asked anew for every call and every frame: a removal acts at once."""

from __future__ import annotations

from holdfast.protocol.frames import MeshPosition
from holdfast.rules.broker_rows import BrokerMesh, MemberRow
from holdfast.rules.errors import NotAMember, NotGranted, UnknownMesh
from holdfast.storage.broker.port import BrokerStore

_NO_SUCH_MESH = "ask whoever shared it; names at a broker are its own"


async def require_member(store: BrokerStore, mesh: str, key: bytes, *grants: str) -> MemberRow:
    """The member, with all of these grants. Strangers are not told which meshes there are."""
    found = await store.member_get(mesh, key)
    if found is None:
        raise NotAMember(f"this key is no member of mesh {mesh!r}")
    lacks = [grant for grant in grants if grant not in found.grants]
    if lacks:
        raise NotGranted(
            f"{found.name!r} may not {', '.join(lacks)} in mesh {mesh!r}",
            hint="ask the owner of the mesh for the grant",
        )
    return found


async def require_mesh(store: BrokerStore, slug: str) -> BrokerMesh:
    found = await store.mesh_get(slug)
    if found is None:
        raise UnknownMesh(f"this broker has no mesh {slug!r}", hint=_NO_SUCH_MESH)
    return found


async def mesh_position(store: BrokerStore, mesh: BrokerMesh, member: MemberRow) -> MeshPosition:
    """Where a mesh stands, for one of its members."""
    return MeshPosition(
        mesh=mesh.slug,
        server_id=mesh.server_id,
        epoch=mesh.epoch,
        base=mesh.base,
        first=mesh.first,
        seq=mesh.seq,
        grants=tuple(sorted(member.grants)),
        epochs=tuple((row.epoch, row.base) for row in await store.epochs(mesh.slug)),
    )


async def mesh_positions(store: BrokerStore, key: bytes) -> list[MeshPosition]:
    """Every mesh that a key is a member of."""
    found = []
    for slug in await store.meshes_of(key):
        mesh = await store.mesh_get(slug)
        member = await store.member_get(slug, key)
        if mesh is not None and member is not None:
            found.append(await mesh_position(store, mesh, member))
    return found
