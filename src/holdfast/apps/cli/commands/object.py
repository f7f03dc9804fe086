"""`holdfast object`: content by its hash, which facts and larger files name."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from holdfast.apps.cli import contents, inputs, short_ids
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import size
from holdfast.node.core.views import ObjectInfo
from holdfast.node.library.node import Node
from holdfast.rules.errors import BlobMissing, UnknownObject
from holdfast.rules.limits import BLOB_CHUNK_BYTES

object_ = noun("object", "Content by its SHA-256, which facts and larger files name.")

_SHA_CHARS = 64


@verb(object_, "put", mesh=False)
@click.argument("file")
def put(session: CommandSession, file: str) -> None:
    """Put the content of FILE (- is stdin) on this node; say by which hash it is named.

    A sweep removes it after an hour if no fact and no file names it by then.
    """
    with session.node() as node, _content(file) as content:
        sha = node.receive_blob(content)
        found = next(node_objects(node, sha))
        session.talk(f"{size(found.size)} here; facts name it: holdfast fact append … --object")
        session.show({"sha256": sha, "size": found.size}, f"{sha}\n")


@verb(object_, "get", mesh=False)
@click.argument("sha256")
@click.option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
def get(session: CommandSession, sha256: str, output: str | None) -> None:
    """Write the content to stdout or to a file. It is checked against its hash first.

    The first digits of the hash are enough if they begin no other.
    """
    with session.node() as node:
        sha = _meant(node, sha256)
        with _opened(node, sha) as content:
            if output is not None:
                with contents.new_file(output) as draft:
                    shutil.copyfileobj(content, draft, BLOB_CHUNK_BYTES)
                written = Path(output).stat().st_size
                session.talk(f"wrote {size(written)} to {output}")
                session.show({"sha256": sha, "size": written, "output": output}, "")
            elif session.as_json:
                session.show({"sha256": sha, **contents.as_text(content.read())})
            else:
                shutil.copyfileobj(content, sys.stdout.buffer, BLOB_CHUNK_BYTES)


@verb(object_, "list", mesh=False, lists="since")
def list_(session: CommandSession) -> None:
    """List content by hash. HERE says whether it is on this machine, NAMED whether it stays."""
    with session.node() as node:
        session.rows(
            map(msgspec.structs.asdict, node.objects()),
            "sha256 size here named since",
            empty="no content by hash is known here",
        )


def node_objects(node: Node, begins: str) -> Iterator[ObjectInfo]:
    return (found for found in node.objects() if found.sha256.startswith(begins))


def _content(file: str) -> AbstractContextManager[Path | BinaryIO]:
    if file == inputs.STDIN:
        return contents.stdin_copy()
    return nullcontext(contents.existing(file))


def _meant(node: Node, given: str) -> str:
    if len(given) >= _SHA_CHARS:
        return given
    known = ((one.sha256, f"{one.size} bytes") for one in node_objects(node, given))
    missing = UnknownObject(f"there is no object {given!r} here")
    missing.hint = "see: holdfast object list"
    return short_ids.one_of(given, known, missing)


def _opened(node: Node, sha: str) -> BinaryIO:
    try:
        return node.open_blob(sha)
    except BlobMissing:
        raise UnknownObject(f"the content of {sha} is not on this node") from None
