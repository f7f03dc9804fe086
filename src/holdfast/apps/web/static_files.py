"""The files that the browser is given besides pages: ours, and those of others with their licences.

Each is read once, compressed once, and named with a part of its hash, so that a browser asks for it
once.
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from importlib import resources
from typing import Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from holdfast.apps.web.answers import FOR_EVER, HEADERS
from holdfast.rules.errors import NoRoute
from holdfast.service.http.streaming import takes_gzip

_KINDS: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_GZIP: Final = 31


class _File(NamedTuple):
    body: bytes
    packed: bytes
    kind: str
    tag: str


class StaticFiles:
    """What stands in `static/`."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def address(self, name: str) -> str:
        """Where a page finds a file."""
        return f"/static/{name}?v={self._file(name).tag}"

    def answer(self, name: str, scope: Scope) -> Response:
        file = self._file(name)
        headers = {**HEADERS, **FOR_EVER, "etag": f'"{file.tag}"', "vary": "accept-encoding"}
        given = Headers(scope=scope)
        if file.tag in given.get("if-none-match", ""):
            return Response(b"", 304, headers=headers)
        body = file.body
        if takes_gzip(given.get("accept-encoding", "")):
            body, headers["content-encoding"] = file.packed, "gzip"
        return Response(body, headers=headers, media_type=file.kind)

    def _file(self, name: str) -> _File:
        known = self._files.get(name)
        if known is not None:
            return known
        kind = _KINDS.get(name.rpartition(".")[2])
        # Looked for by its name alone: what somebody asks for never becomes a path.
        there = (resources.files("holdfast.apps.web") / "static").iterdir()
        found = next((file for file in there if file.name == name), None)
        if kind is None or found is None:
            raise NoRoute(f"the console has no file {name!r:.100}")
        body = found.read_bytes()
        packer = zlib.compressobj(9, wbits=_GZIP)
        packed = packer.compress(body) + packer.flush()
        made = self._files[name] = _File(body, packed, kind, sha256(body).hexdigest()[:16])
        return made
