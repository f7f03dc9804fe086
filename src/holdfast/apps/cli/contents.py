"""Content that commands take from files and pipes, write to files, and show in JSON."""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.storage.files.durable import Draft, durable_writer


def existing(path: str | Path, hint: str = "") -> Path:
    """A file of this machine that can be read."""
    file = Path(path)
    if not file.is_file():
        raise BadInput(f"{path} is not a file on this machine", hint=hint)
    return file


@contextmanager
def stdin_copy() -> Iterator[BinaryIO]:
    """All of stdin as a temporary file: a reader may need it twice, and a pipe can be read once."""
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
    with durable_writer(target) as draft:
        yield draft


def as_text(raw: bytes) -> dict[str, Any]:
    """The fields of a JSON document that hold content: as text if it is UTF-8, else as base64."""
    try:
        return {"encoding": "utf-8", "content": raw.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "content": base64.b64encode(raw).decode()}
