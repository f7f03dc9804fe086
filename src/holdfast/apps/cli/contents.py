"""Content that commands take from files and pipes, write to files, and show in JSON."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.storage.files.durable import Draft, durable_writer


def existing(path: str | Path, hint: str = "check its path: it is taken from here") -> Path:
    """A file of this machine that can be read."""
    file = Path(path)
    if not file.is_file():
        raise BadInput(f"{path} is not a file on this machine", hint=hint)
    return file


@contextmanager
def stdin_copy() -> Iterator[BinaryIO]:
    """All of stdin as a temporary file: a reader may need it twice, and a pipe can be read once."""
    import shutil  # here, because most commands copy nothing
    import tempfile

    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, BLOB_CHUNK_BYTES)
        copy.seek(0)
        yield copy


@contextmanager
def new_file(path: str) -> Iterator[Draft]:
    """A file to be written; it appears under its name when it is whole."""
    target = Path(path).absolute()
    if target.is_dir() or not target.parent.is_dir():
        raise BadInput(f"{path} cannot be written", hint="name a file in a folder that exists")
    if (home := _home_around(target)) is not None:
        raise BadInput(
            f"{path} lies inside the home {home}, whose files are its own",
            hint="choose another folder",
        )
    with durable_writer(target) as draft:
        yield draft


def _home_around(target: Path) -> Path | None:
    """The home of a node or the store of a broker that a file would be written into."""
    real = target.resolve()
    return next((folder for folder in real.parents if (folder / "identity.key").exists()), None)


def as_text(raw: bytes) -> dict[str, Any]:
    """The fields of a JSON document that hold content: as text if it is UTF-8, else as base64."""
    try:
        return {"encoding": "utf-8", "content": raw.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "content": base64.b64encode(raw).decode()}
