"""Shared files over HTTP: their content travels as it is, in both directions.

Content is written to the disk as it comes, and checked on its way out, as that of objects is
(`objects`). What is small stays in the row of its file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from hashlib import sha256

from starlette.responses import Response

from holdfast.node.calls.shapes import RECEIPT
from holdfast.node.core import files, operations
from holdfast.node.core.views import LastKnown
from holdfast.node.http.context import NodeRequest
from holdfast.node.http.library.verbs import id_of, keeps_warnings, with_warnings
from holdfast.node.http.objects import (
    BINARY,
    RANGED,
    part_of_blob,
    received,
    span_answer,
    whole_blob,
)
from holdfast.node.http.quorum.access import check_may_read
from holdfast.node.library.families import Files
from holdfast.rules.errors import (
    BadRange,
    BlobCorrupt,
    BlobElsewhere,
    BlobMissing,
    BodyTooLarge,
    DiskFull,
    IdReused,
    NotGranted,
    UnknownFile,
    UnknownMesh,
)
from holdfast.rules.limits import FILE_BYTES_MAX, INLINE_BYTES_MAX
from holdfast.rules.paths import named_path
from holdfast.rules.rows import FileRow
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed

_PATH = "/v1/meshes/{mesh}"
_PEER = Param("peer", "Of this peer; of this node itself if it is not given.")
_READS = (UnknownMesh, UnknownFile, NotGranted, BlobElsewhere, BlobMissing, BlobCorrupt)

routes = Routes()


@routes.put(
    f"{_PATH}/files/{{path:path}}",
    name="files_share",
    request=BINARY,
    answers={200: RECEIPT.type},
    params=(
        Param("id", "Names the write, so that it may be sent again: a UUID of version 7 or 8."),
        Param("idempotency-key", "The same, or any text.", where="header"),
        Param("warnings", "`keep`: leave warnings for who asks for them."),
    ),
    errors=(UnknownMesh, IdReused, BodyTooLarge, DiskFull, BlobMissing),
    example="-T FILE",
    local_only=True,
)
async def _share(call: NodeRequest) -> Response:
    """Shares content under a path, in place of what this peer has shared there before."""
    api, mesh, path = call.api, call.path["mesh"], named_path(call.path["path"])
    api.engine.require_mesh(mesh)
    api.engine.check_room()
    keeps_warnings(call)
    id = id_of(call)
    parts = call.chunks(FILE_BYTES_MAX)
    begin = bytearray()
    async for part in parts:
        begin += part
        if len(begin) >= INLINE_BYTES_MAX:
            break
    if len(begin) < INLINE_BYTES_MAX:
        content = bytes(begin)
        digest, size = sha256(content).hexdigest(), len(content)
    else:
        blob = await received(api, _from(bytes(begin), parts), None)
        digest, size, content = blob.sha256, blob.size, None
    share = operations.file_share(api.engine.ctx, mesh, path, digest, size, content, id)
    try:
        receipt = await api.writer.write("file.share", share)
    except operations.BlobGone:
        raise BlobMissing(f"the content of {path!r} vanished", hint="share it again") from None
    return call.answer(with_warnings(call, RECEIPT, RECEIPT.of(receipt)))


async def _from(begin: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begin
    async for part in rest:
        yield part


@routes.get(
    f"{_PATH}/files/{{path:path}}",
    name="files_read",
    answers={200: BINARY, 206: BINARY, 304: None},
    params=(_PEER, *RANGED),
    errors=(*_READS, BadRange),
    example="-o FILE",
)
async def _read(call: NodeRequest) -> Response:
    """The content of a file, or a part of it."""
    api, mesh = call.api, _mesh_to_read(call)
    row = await api.run(files.find_file, api.engine, mesh, call.path["path"], call.one("peer"))
    more = {"holdfast-lamport": str(row.lamport)}
    if row.content is not None:
        content = files.verified(row)
        return span_answer(
            call,
            _tag(row),
            row.size,
            whole=partial(_piece, content, 0, row.size),
            part=partial(_piece, content),
            more=more,
        )
    await api.run(files.require_blob, api.engine, row)
    return span_answer(
        call,
        _tag(row),
        row.size,
        whole=partial(whole_blob, api, row.sha256, row.size),
        part=partial(part_of_blob, api, row.sha256),
        more=more,
    )


async def _piece(content: bytes, start: int, stop: int) -> AsyncGenerator[bytes, None]:
    yield content[start:stop]


@routes.get(
    f"{_PATH}/file-last-known/{{path:path}}",
    name="files_last_known",
    answers={200: BINARY},
    params=(_PEER,),
    errors=_READS,
    example="-D - -o FILE",
)
async def _last_known(call: NodeRequest) -> Response:
    """The content if it is here, else that of the newest older version that is. The headers
    `holdfast-status` (`fresh` or `stale`), `holdfast-lamport`, `holdfast-updated-at` and `etag` say
    which.
    """
    face = Files(call.api.engine, _mesh_to_read(call))
    find = partial(face.last_known, call.path["path"], peer=call.one("peer"))
    found: LastKnown = await call.api.run(find)
    size = len(found.content)
    return Streamed(
        _piece(found.content, 0, size),
        headers={"content-length": str(size), **_said(found)},
        media_type=BINARY,
    )


def _said(found: LastKnown) -> Mapping[str, str]:
    return {
        "etag": f'"{found.sha256}"',
        "holdfast-status": found.status,
        "holdfast-lamport": str(found.lamport),
        "holdfast-updated-at": str(found.updated_at),
    }


def _mesh_to_read(call: NodeRequest) -> str:
    mesh = call.path["mesh"]
    check_may_read(call, mesh)
    return call.api.engine.require_mesh(mesh).slug


def _tag(row: FileRow) -> str:
    return f'"{row.sha256}"'
