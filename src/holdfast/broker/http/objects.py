"""Objects that envelopes name by their hash: brought before the envelope, fetched before it is
taken.

What an upload that was cut off has left is used by the next one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.responses import Response

from holdfast.broker.http.context import BrokerApi, BrokerRequest
from holdfast.rules import limits
from holdfast.rules.errors import BadValue, BodyTooLarge, DiskFull, NotAMember, UnknownObject
from holdfast.service.http.route import Route
from holdfast.service.http.streaming import Streamed
from holdfast.storage.files.blobs import check_sha

BINARY: Final = "application/octet-stream"
_AT: Final = "/v1/meshes/{mesh}/objects/{sha256}"


class ObjectPut(msgspec.Struct, frozen=True):
    sha256: str
    size: int


def routes() -> list[Route]:
    return [
        Route(
            "PUT",
            _AT,
            _put,
            "Bring an object.",
            request=BINARY,
            answers={200: ObjectPut, 201: ObjectPut},
            errors=(NotAMember, BadValue, BodyTooLarge, DiskFull),
            example="-T FILE",
        ),
        Route(
            "GET",
            _AT,
            _get,
            "An object.",
            answers={200: BINARY},
            errors=(NotAMember, UnknownObject),
            example="-o FILE",
        ),
    ]


async def _put(call: BrokerRequest) -> Response:
    await call.member("write")
    sha = check_sha(call.path["sha256"])
    store, mesh = call.api.store, call.mesh
    known = await store.object_asked(mesh, sha)
    if known is not None:
        return call.answer(ObjectPut(sha, known))
    waiting = bytearray()
    number = size = 0

    async def keep(piece: bytes) -> None:
        # Pieces that an earlier try has left are there already: they are passed over.
        nonlocal number
        await store.object_add(mesh, sha, number, piece)
        number += 1

    async for part in call.chunks(limits.FILE_BYTES_MAX):
        waiting += part
        size += len(part)
        while len(waiting) >= limits.BROKER_PIECE_BYTES:
            await keep(bytes(waiting[: limits.BROKER_PIECE_BYTES]))
            del waiting[: limits.BROKER_PIECE_BYTES]
    if waiting:
        await keep(bytes(waiting))
    await store.object_finish(mesh, sha, size)
    return call.answer(ObjectPut(sha, size), 201)


async def _get(call: BrokerRequest) -> Response:
    await call.member("read")
    sha = check_sha(call.path["sha256"])
    store, head_only = call.api.store, call.scope["method"] == "HEAD"
    size = await (store.object_asked if head_only else store.object_size)(call.mesh, sha)
    if size is None:
        raise UnknownObject(f"this broker has no object {sha}", hint="it was not brought yet")
    headers = {"content-length": str(size), "etag": f'"{sha}"'}
    if head_only:  # before an envelope names it, as a rule
        return Response(headers=headers, media_type=BINARY)
    return Streamed(_pieces(call.api, call.mesh, sha), headers=headers, media_type=BINARY)


async def _pieces(api: BrokerApi, mesh: str, sha: str) -> AsyncGenerator[bytes, None]:
    async for piece in api.store.object_read(mesh, sha):
        yield piece
