"""Digests of what this node holds, to compare it with another node or with the lake."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, check_still
from holdfast.node.log import digests
from holdfast.node.log.digests import BucketRows, Digests
from holdfast.rules.digests import TABLES, check_table, parse_bucket
from holdfast.rules.errors import NotGranted, TooMany, UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.service.http.request import is_own
from holdfast.service.http.route import Param, Routes
from holdfast.storage.ports import Reader

routes = Routes()


@routes.get(
    "/v1/digests",
    answers={200: Digests},
    params=(Param("mesh", "Only of this mesh; may be repeated."),),
    errors=(NotGranted, UnknownMesh, TooMany),
)
async def _digests(call: NodeRequest) -> Response:
    """Digests of all that this node holds, by mesh, table and bucket, at one place in its log.
    It reads everything once.
    """
    named = call.all("mesh")
    meshes = call.caller.narrow(Filter(meshes=named).check()).meshes
    peer = call.api.node.peer

    def read(tx: Reader) -> Digests:
        _check_known(tx, named)
        return digests.digests(tx, peer, meshes)

    return await _answer(call, partial(call.api.engine.read, "digests", read))


@routes.get(
    "/v1/digests/rows",
    answers={200: BucketRows},
    params=(
        Param("mesh", "The mesh.", required=True),
        Param("table", f"One of {', '.join(TABLES)}.", required=True),
        Param("bucket", "The bucket, as two hex digits.", required=True),
    ),
    errors=(NotGranted, UnknownMesh, TooMany),
    example="-G -d mesh=team -d table=state -d bucket=a7",
)
async def _rows(call: NodeRequest) -> Response:
    """The rows of one bucket, each with its digest."""
    mesh, table, bucket = (call.required(name) for name in ("mesh", "table", "bucket"))
    call.caller.narrow(Filter(meshes=(mesh,)).check())
    check_table(table)
    number = parse_bucket(bucket)
    peer = call.api.node.peer

    def read(tx: Reader) -> BucketRows:
        return digests.bucket_rows(tx, peer, mesh, table, number)

    return await _answer(call, partial(call.api.engine.read, "digests", read))


async def _answer(call: NodeRequest, make: partial[Digests] | partial[BucketRows]) -> Response:
    with call.api.gate.inside("digest", own=is_own(call.scope)):
        answer = await call.api.run(make)
    check_still(call)
    return call.answer(answer)


def _check_known(tx: Reader, meshes: Collection[str]) -> None:
    for mesh in meshes:
        if tx.mesh_get(mesh) is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
