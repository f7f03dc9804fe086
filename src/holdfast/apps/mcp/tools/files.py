"""Files for agents: share, read, list."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Annotated, Literal

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall, page, pair, read_pair
from holdfast.apps.mcp.tools.declare import (
    DEFAULT_ROWS,
    After,
    AgentTools,
    Id,
    Limit,
    ToolAnswer,
    ToolArguments,
)
from holdfast.node.core.views import FileInfo
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput, OverLimit
from holdfast.rules.limits import MCP_FILE_BYTES_MAX, MCP_FILE_READ_BYTES_MAX

FILES = AgentTools()


class FileAsked(ToolArguments, frozen=True):
    action: Annotated[
        Literal["list", "read", "share"],
        msgspec.Meta(
            description="`list` the files of all peers; `read` one; `share` content under a path."
        ),
    ]
    path: Annotated[str | None, msgspec.Meta(description="Like `reports/today.md`.")] = None
    peer: Annotated[
        str | None, msgspec.Meta(description="Whose file; your own if it is not given.")
    ] = None
    content: Annotated[str | None, msgspec.Meta(description="To share: the text.")] = None
    content_base64: Annotated[
        str | None, msgspec.Meta(description="To share: what is no text, as base64.")
    ] = None
    from_byte: Annotated[
        int, msgspec.Meta(description="To read: begin here; see `next_byte`.", ge=0)
    ] = 0
    limit: Limit = DEFAULT_ROWS
    after: After = None
    id: Id = None


class SharedFile(msgspec.Struct, frozen=True, kw_only=True):
    peer: str
    path: str
    size: int
    sha256: str
    updated_at: int
    """Milliseconds since 1970."""
    here: bool
    """Its content is on this machine."""


class FileAnswered(ToolAnswer, frozen=True):
    mesh: str
    files: tuple[SharedFile, ...] = ()
    next: str | None = None
    """Where the rest of the list begins; null if this is all."""
    text: str | None = None
    """What was read, if it is text."""
    base64: str | None = None
    """What was read, if it is no text."""
    next_byte: int | None = None
    """Where the rest of the file begins, for `from_byte`; null if this is all."""
    id: str | None = None
    """Of a share: the same call with this id is written once."""
    duplicate: bool | None = None
    """Of a share: an earlier call with this id had written it."""


@FILES.writes("file", "Files", FileAsked, FileAnswered)
def file(call: AgentCall, asked: FileAsked) -> FileAnswered:
    """Files that members of the mesh share, by path. `list` says what there is, `read` gets one
    (long ones piece by piece), `share` puts content under a path of your own, in place of what you
    have shared there before.
    """
    mesh = call.mesh(asked.mesh)
    if asked.action == "list":
        return _list(mesh, asked)
    if asked.path is None:
        raise BadInput(f"{asked.action} is about one file", hint="say which one as `path`")
    if asked.action == "read":
        return _read(mesh, asked, asked.path)
    done = mesh.files.share(asked.path, _content(asked), id=call.id(asked.id, mesh))
    return FileAnswered(mesh=mesh.slug, id=done.id, duplicate=done.duplicate)


def _list(mesh: Mesh, asked: FileAsked) -> FileAnswered:
    rows = mesh.files.list(peer=asked.peer, after=read_pair(asked.after))
    items, more = page(rows, asked.limit, shared_file, lambda row: pair(row.peer, row.path))
    return FileAnswered(mesh=mesh.slug, files=items, next=more)


def _read(mesh: Mesh, asked: FileAsked, path: str) -> FileAnswered:
    info = mesh.files.info(path, peer=asked.peer)
    raw = content_of(mesh, info, asked.peer)
    piece = raw[asked.from_byte : asked.from_byte + MCP_FILE_BYTES_MAX]
    text, piece = _as_text(piece, last=asked.from_byte + len(piece) >= len(raw))
    until = asked.from_byte + len(piece)
    return FileAnswered(
        mesh=mesh.slug,
        files=(shared_file(info),),
        text=text,
        base64=None if text is not None else b64encode(piece).decode(),
        next_byte=until if until < len(raw) else None,
    )


def content_of(mesh: Mesh, info: FileInfo, peer: str | None) -> bytes:
    if info.size > MCP_FILE_READ_BYTES_MAX:
        raise OverLimit(
            f"{info.path} has {info.size} bytes; agents read files of {MCP_FILE_READ_BYTES_MAX} "
            "at most",
            hint=f"the user can read it with: holdfast file read {info.path}",
        )
    return mesh.files.read(info.path, peer=peer)


def _as_text(piece: bytes, *, last: bool) -> tuple[str | None, bytes]:
    """The piece as text, and what it has of the bytes: a letter that was cut in two comes with the
    next. None if it is no text.
    """
    for cut in range(1 if last else 4):
        whole = piece[: len(piece) - cut]
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            continue
        return (None, piece) if "\0" in text else (text, whole)
    return None, piece


def _content(asked: FileAsked) -> bytes:
    if (asked.content is None) == (asked.content_base64 is None):
        raise BadInput(
            "what is shared is given once",
            hint="give `content` for text, or `content_base64` for anything else",
        )
    if asked.content is not None:
        return asked.content.encode()
    try:
        return b64decode(asked.content_base64 or "", validate=True)
    except ValueError:
        raise BadInput("content_base64 is not base64") from None


def shared_file(row: FileInfo) -> SharedFile:
    return SharedFile(
        peer=row.peer,
        path=row.path,
        size=row.size,
        sha256=row.sha256,
        updated_at=row.updated_at,
        here=row.here,
    )
