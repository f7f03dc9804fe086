"""`holdfast file`: files that peers share, by path."""

from __future__ import annotations

import io
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from shlex import quote
from typing import BinaryIO
from unicodedata import normalize

import click

from holdfast.apps.cli import contents, documents, inputs
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.lists.watching import watch_verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import size
from holdfast.rules.errors import BadPath
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.rules.paths import check_path, is_path

PEER = click.option("--peer", metavar="ID", help="Whose; else this node's own.")

file_ = noun("file", "Files that peers share, by path.")

watch_verb(
    file_,
    lambda mesh, prefix, **terms: mesh.files.watch(prefix, **terms),
    "Show files that are shared and deleted below PREFIX, as they come.",
    scoped=True,
)


@verb(file_, "share", writes=True)
@click.argument("path")
@click.option(
    "--from", "source", metavar="FILE", help="The content; else the file named PATH; - is stdin."
)
def share(session: CommandSession, path: str, source: str | None) -> None:
    """Share content under PATH, a relative path with / between folders."""
    name = normalize("NFC", path)  # some systems spell what they hand in otherwise
    _check_name(name, path, source)
    with session.mesh() as mesh, _content(path, source) as content:
        done = mesh.files.share(name, content, id=session.id)
        info = mesh.files.info(name)
        shared = f"shared {name!r} ({size(info.size)}) in"
        session.receipt(
            mesh, done, "file.share", shared, path=name, size=info.size, sha256=info.sha256
        )


@verb(file_, "list", lists="updated_at")
@click.option(
    "--scope", default="all", metavar="SCOPE", help="Whose: all (the default), self or peer:ID."
)
@click.option("--peer", metavar="ID", help="Only files of this peer: short for --scope peer:ID.")
def list_(session: CommandSession, scope: str, peer: str | None) -> None:
    """List shared files. HERE says whether the content is on this machine."""
    with session.mesh() as mesh:
        found = mesh.files.list(scope=scope, peer=peer)
        session.rows(
            (documents.in_mesh(info, mesh.slug) for info in found),
            "peer path size here lamport updated_at",
            empty=f"no file is shared in {mesh.slug}",
        )


@verb(file_, "read")
@click.argument("path")
@PEER
@click.option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
@click.option(
    "--last-known", is_flag=True, help="Where the newest content is not here yet, an older one."
)
def read(
    session: CommandSession, path: str, peer: str | None, output: str | None, last_known: bool
) -> None:
    """Write the content to stdout or to a file. It is checked against its hash first."""
    with session.mesh() as mesh:
        document = documents.in_mesh(mesh.files.info(path, peer=peer), mesh.slug)
        if last_known:
            known = mesh.files.last_known(path, peer=peer)
            if known.status == "stale":
                session.talk(f"stale: this is the version of lamport {known.lamport}")
            document |= documents.last_known(known)
            content: BinaryIO = io.BytesIO(known.content)
        else:
            content = mesh.files.open(path, peer=peer)
        with content:
            if output is not None:
                with contents.new_file(output) as draft:
                    shutil.copyfileobj(content, draft, BLOB_CHUNK_BYTES)
                session.talk(f"wrote {size(document['size'])} to {output}")
                session.show({**document, "output": output}, "")
            elif session.as_json:
                session.show({**document, **contents.as_text(content.read())})
            else:
                shutil.copyfileobj(content, sys.stdout.buffer, BLOB_CHUNK_BYTES)


@verb(file_, "delete", writes=True, removes=DRY)
@click.argument("path")
def delete(session: CommandSession, path: str) -> None:
    """Stop sharing PATH; its content goes when nothing names it any more."""
    with session.mesh() as mesh:
        if session.dry_run:
            info = mesh.files.info(path)
            what = f"stop sharing {info.path!r} ({size(info.size)}) in {mesh.slug}"
            session.goes_on(what, **documents.in_mesh(info, mesh.slug))
            return
        done = mesh.files.delete(path, id=session.id)
        session.receipt(mesh, done, "file.delete", f"deleted {path!r} from", path=path)


def _check_name(name: str, typed: str, source: str | None) -> None:
    """Refuses what no file can be called here. Whoever typed where a file of this machine lies is
    told how to say that.
    """
    try:
        check_path(name)
    except BadPath as error:
        proposed = Path(name).name
        if source is not None or not Path(typed).is_file() or not is_path(proposed):
            raise
        raise BadPath(
            f"{error.message}; the members of the mesh know a file by a name of its own",
            hint=f"to share that file: holdfast file share {quote(proposed)} --from {quote(typed)}",
        ) from None


def _content(path: str, source: str | None) -> AbstractContextManager[Path | BinaryIO]:
    if source == inputs.STDIN:
        return contents.stdin_copy()
    hint = "name the content with --from FILE, or --from - for stdin"
    return nullcontext(contents.existing(path if source is None else source, hint))
