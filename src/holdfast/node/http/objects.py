"""Objects over HTTP: content that facts and files name by its SHA-256.

An object is put before the fact that names it. A sweep removes one that nothing names after an
hour.

A whole object is checked: it is hashed on its way out, and the last piece is held back until the
hash is right, so content that was damaged on the disk never arrives as a whole. A part of an object
cannot be checked by itself. It is sent as it is on the disk; the client that joins the parts checks
the hash, which is the name.

Only callers that have read an entry that names an object, or that have its content, know its name.
So every caller that may read anything here gets it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from hashlib import sha256
from typing import BinaryIO, Final

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.rules.errors import (
    BadInput,
    BadRange,
    BlobCorrupt,
    BlobMissing,
    BodyTooLarge,
    DiskFull,
    NotGranted,
    UnknownObject,
)
from holdfast.rules.filters import EVERYTHING
from holdfast.rules.limits import BLOB_CHUNK_BYTES, FILE_BYTES_MAX
from holdfast.service.http.errors import refusal
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed
from holdfast.storage.files.blobs import Blob, check_sha

BINARY: Final = "application/octet-stream"
RANGED: Final = (
    Param("range", "bytes=FIRST-LAST; a part of it.", where="header"),
    Param("if-range", "The part is wanted only of this ETag.", where="header"),
    Param("if-none-match", "It is wanted only if the ETag is another.", where="header"),
)
_NOTHING: Final[Mapping[str, str]] = {}
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


class PutObject(msgspec.Struct, frozen=True):
    """An object that is here, on the disk."""

    sha256: str
    size: int


routes = Routes()


# --- put -----------------------------------------------------------------------------------------


@routes.put(
    "/v1/objects",
    request=BINARY,
    answers={201: PutObject},
    errors=(BodyTooLarge, DiskFull),
    example="-T FILE",
    local_only=True,
)
async def _put(call: NodeRequest) -> Response:
    """Put an object; the answer says by which hash facts name it."""
    return await _take(call, None)


@routes.put(
    "/v1/objects/{sha256}",
    request=BINARY,
    answers={201: PutObject},
    errors=(BadInput, BodyTooLarge, DiskFull),
    example="-T FILE",
    local_only=True,
)
async def _put_named(call: NodeRequest) -> Response:
    """Put an object whose hash is known: refused if it is something else."""
    return await _take(call, check_sha(call.path["sha256"]))


async def _take(call: NodeRequest, expected: str | None) -> Response:
    blob = await received(call.api, call.chunks(FILE_BYTES_MAX), expected)
    return call.answer(PutObject(blob.sha256, blob.size), 201)


async def received(api: NodeApi, parts: AsyncIterator[bytes], expected: str | None) -> Blob:
    """Writes content to the disk as it comes, piece by piece: no thread waits for a slow caller."""
    incoming = await api.run(api.engine.blobs.receive)

    def write(piece: bytes) -> None:
        api.engine.check_room()
        incoming.write(piece)

    try:
        waiting = bytearray()
        async for part in parts:
            waiting += part
            if len(waiting) >= BLOB_CHUNK_BYTES:
                await api.run(write, bytes(waiting))
                waiting.clear()
        await api.run(write, bytes(waiting))
        blob: Blob = await api.run(incoming.finish, expected)
    finally:
        await api.run(incoming.discard)
    return blob


# --- get -----------------------------------------------------------------------------------------


@routes.get(
    "/v1/objects/{sha256}",
    answers={200: BINARY, 206: BINARY, 304: None},
    params=RANGED,
    errors=(UnknownObject, BadRange, NotGranted),
    example="-o FILE",
)
async def _get(call: NodeRequest) -> Response:
    """An object, or a part of it."""
    sha = check_sha(call.path["sha256"])
    call.caller.narrow(EVERYTHING)  # raises for a caller that may read nothing
    tag = f'"{sha}"'
    try:
        size = await call.api.run(call.api.engine.blobs.size, sha)
    except BlobMissing:
        raise UnknownObject(f"the object {sha} is not on this node") from None
    return span_answer(
        call,
        tag,
        size,
        whole=lambda: whole_blob(call.api, sha, size),
        part=lambda start, stop: part_of_blob(call.api, sha, start, stop),
    )


def span_answer(
    call: NodeRequest,
    tag: str,
    size: int,
    *,
    whole: Callable[[], AsyncGenerator[bytes, None]],
    part: Callable[[int, int], AsyncGenerator[bytes, None]],
    more: Mapping[str, str] = _NOTHING,
) -> Response:
    """Content, or the part of it that the Range header asks for. `more` are further headers."""
    headers = {"etag": tag, "accept-ranges": "bytes", **more}
    if tag in call.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    wanted = call.headers.get("range") if call.headers.get("if-range", tag) == tag else None
    span = None if wanted is None else span_of(wanted, size)
    if span is None:
        headers["content-length"] = str(size)
        return Streamed(whole(), headers=headers, media_type=BINARY)
    start, stop = span
    if start >= stop:
        response = refusal(BadRange(f"the content has {size} bytes, and none of {wanted}"))
        response.headers["content-range"] = f"bytes */{size}"
        return response
    headers["content-length"] = str(stop - start)
    headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    return Streamed(part(start, stop), 206, headers=headers, media_type=BINARY)


def span_of(text: str, size: int) -> tuple[int, int] | None:
    """The half-open span of a Range header, which may be empty. None for every header that is not
    one plain range: then the whole content is sent.
    """
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is None or found.group() == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - parse_int("range", last)), size
    start = parse_int("range", first)
    stop = size if not last else min(size, parse_int("range", last) + 1)
    if last and start > parse_int("range", last):
        return None
    return start, stop


async def whole_blob(api: NodeApi, sha: str, size: int) -> AsyncGenerator[bytes, None]:
    hashing = sha256()
    held = b""
    async for piece in part_of_blob(api, sha, 0, size, hashing.update):
        if held:
            yield held
        held = piece
    if hashing.hexdigest() != sha:
        raise BlobCorrupt(f"blob {sha} holds other content: it hashes to {hashing.hexdigest()}")
    if held:
        yield held


async def part_of_blob(
    api: NodeApi, sha: str, start: int, stop: int, look: Callable[[bytes], None] | None = None
) -> AsyncGenerator[bytes, None]:
    """A part of a blob, piece by piece; `look` is called with each in the thread that read it."""
    stream: BinaryIO = await api.run(api.engine.blobs.open_unchecked, sha)

    def read(size: int) -> bytes:
        piece = stream.read(size)
        if len(piece) != size:
            raise BlobCorrupt(f"blob {sha} is shorter than it was")
        if look is not None:
            look(piece)
        return piece

    try:
        await api.run(stream.seek, start)
        while start < stop:
            piece = await api.run(read, min(BLOB_CHUNK_BYTES, stop - start))
            start += len(piece)
            yield piece
    finally:
        stream.close()
