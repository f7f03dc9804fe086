"""Shared files: whose they are, whether their content is here, and the content a part at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, number, url
from holdfast.apps.web.pages.rows import fitting
from holdfast.apps.web.view import PageView, no_such
from holdfast.rules.errors import BadInput, BadToken, HoldfastError
from holdfast.rules.limits import CONSOLE_FILE_PART

_BYTES_OF_ROW: Final = 16


async def files(view: PageView) -> Mapping[str, Any]:
    mesh, scope, after = view.param("mesh"), view.one("scope", "all"), view.one("after")
    page, _ = await fitting(view, f"/v1/meshes/{mesh}/files", scope=scope, after=after or None)
    path = f"/meshes/{mesh}/files"
    return {
        "scope": scope,
        "rows": page["items"],
        "first": url(path, scope=scope) if after else "",
        "next": url(path, scope=scope, after=page["next"]) if page["next"] else "",
    }


async def file(view: PageView) -> Mapping[str, Any]:
    mesh, path, peer = view.param("mesh"), view.one("path"), view.one("peer", view.name)
    if not path:
        raise no_such("no path of a file is given")
    row = await view.get(f"/v1/meshes/{mesh}/file-info/{path}", peer=peer)
    begin, problem, raw = _begin(view.one("from", "0")), None, b""
    begin = min(begin, max(0, row["size"] - 1))
    if row["here"] and row["size"]:
        try:
            raw = await _part(view, path, peer, begin)
        except BadToken:
            raise
        except HoldfastError as error:
            problem = error
    here, end = f"/meshes/{mesh}/file", begin + len(raw)
    asked = {"path": path, "peer": peer}
    text = readable(raw)
    return {
        "row": row,
        "path": path,
        "peer": peer,
        "is_own": peer == view.name,
        "problem": problem,
        "begin": begin,
        "end": end,
        "is_text": text is not None,
        "text": as_bytes(raw, begin) if text is None else text,
        "first": url(here, **asked) if begin else "",
        "next": url(here, **asked, **{"from": end}) if raw and end < row["size"] else "",
    }


def _begin(text: str) -> int:
    try:
        return number(text)
    except ValueError as error:
        raise BadInput(f"{text[:40]!r} is no place in a file", hint=str(error)) from None


async def _part(view: PageView, path: str, peer: str, begin: int) -> bytes:
    mesh = view.param("mesh")
    raw: bytes | None = await view.call(
        "GET",
        f"/v1/meshes/{mesh}/files/{path}",
        query={"peer": peer},
        headers={"range": f"bytes={begin}-{begin + CONSOLE_FILE_PART - 1}"},
    )
    return raw or b""


def readable(raw: bytes) -> str | None:
    """Bytes as text; None if they are none. A character that is cut at an end does not count."""
    for cut_off in range(4):
        for left_out in range(4):
            try:
                text = raw[left_out : len(raw) - cut_off].decode()
            except UnicodeDecodeError:
                continue
            strange = sum(not char.isprintable() and char not in "\n\r\t" for char in text)
            return text if strange * 50 <= len(text) else None
    return None


def as_bytes(raw: bytes, begin: int) -> str:
    """The beginning of bytes for people: place, numbers and letters."""
    rows = []
    for at in range(0, min(len(raw), 64 * _BYTES_OF_ROW), _BYTES_OF_ROW):
        part = raw[at : at + _BYTES_OF_ROW]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        rows.append(f"{begin + at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(rows)


DELETE: Final = Action(
    "file.delete",
    label="Stop sharing",
    call="DELETE /v1/meshes/{mesh}/files/{path}",
    command="holdfast file delete {path} --mesh {mesh}",
    done="{path} is not shared any more.",
    asks="Stop sharing {path} with {mesh}? Its content goes when nothing names it any more.",
    tone="danger",
)

SHARE: Final = Action(
    "file.share",
    label="Share",
    call="PUT /v1/meshes/{mesh}/files/{path}",
    command="holdfast file share {path} --from FILE --mesh {mesh}",
    done="{path} is shared.",
    takes_file=True,
    tone="main",
    undone="file.delete; what is there already is replaced only if that is marked",
)

PAGES: Final = (
    ConsolePage(
        path="/meshes/{mesh}/files",
        title="Files of {mesh}",
        template="files.html",
        load=files,
        live=("rows",),
        wakes=("log", "store"),
        tab="Files",
        actions=(SHARE, DELETE),
    ),
    ConsolePage(
        path="/meshes/{mesh}/file",
        title="A file of {mesh}",
        template="file.html",
        load=file,
        under="/meshes/{mesh}/files",
    ),
)
