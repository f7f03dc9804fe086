"""What people hand in: values, vectors, models; as an argument, from a file or from stdin."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.apps.cli import contents
from holdfast.node.library.node import Mesh
from holdfast.rules import limits
from holdfast.rules.errors import (
    BadInput,
    BadValue,
    BadVector,
    OverLimit,
    StampMoved,
    UnknownModel,
)
from holdfast.rules.expected import ABSENT
from holdfast.rules.rows import ModelRow
from holdfast.rules.strict_json import strict_json
from holdfast.rules.vectors import Model

STDIN = "-"

EXPECT = click.option(
    "--expect", metavar="STAMP", help="Only if it is at this stamp here (12@ana); else conflict."
)
CREATE_ONLY = click.option("--create-only", is_flag=True, help="Only if nothing is there here.")
_READ_BYTES_MAX = 16 * limits.VALUE_BYTES_MAX
"""JSON may be written more loosely than it is stored, but an endless input must end somewhere."""


def text_of(argument: str) -> str:
    """The argument itself, or stdin where it is a dash."""
    if argument != STDIN:
        return argument
    try:
        return _all(sys.stdin.buffer).decode()
    except UnicodeDecodeError:
        raise BadValue(
            "stdin is not UTF-8 text", hint="share binary content with: holdfast file share"
        ) from None


def secret_of(name: str) -> str | None:
    """The secret in the environment, or in the file that the variable with `_FILE` after its name
    names: what others can list is then a path. Credentials of systemd and secrets of containers
    are such files. None if neither says anything.
    """
    file = f"{name}_FILE"
    said, path = os.environ.get(name, ""), os.environ.get(file, "")
    if said and path:
        raise BadInput(f"${name} and ${file} are two answers to one question")
    if not path:
        return said or None
    with Path(path).open("rb") as stream:
        raw = stream.read(limits.TOKEN_FILE_BYTES_MAX + 1)
    if len(raw) > limits.TOKEN_FILE_BYTES_MAX:
        raise OverLimit(f"{path} has over {limits.TOKEN_FILE_BYTES_MAX} bytes: it is no secret")
    try:
        secret = raw.decode().strip()
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text") from None
    if not secret or "\n" in secret:
        raise BadInput(f"{path} does not hold one line", hint=f"it is what ${file} names")
    return secret


def value_of(argument: str, as_json: bool) -> Any:
    """A value to store: text as it is, or parsed as JSON."""
    text = text_of(argument)
    return json_of(text, "the value") if as_json else text


def json_of(text: str, what: str) -> Any:
    """A value from JSON, by the rule that holds for HTTP too."""
    try:
        return strict_json(text.encode("utf-8", "surrogateescape"), what)
    except BadInput as error:
        hint = error.hint or "quote text twice: '\"text\"', or store it as text"
        raise BadValue(error.message, hint=hint) from None


def expected(expect: str | None, create_only: bool) -> str | None:
    """What must stand where a command writes, from `--expect` and `--create-only`."""
    if create_only and expect is not None:
        raise BadInput("--expect and --create-only are two answers to one question")
    return ABSENT if create_only else expect


@contextmanager
def told_stamp(family: str, key: str, mesh: str, *, deletes: bool = False) -> Iterator[None]:
    """A refusal because of another stamp says how to look, and how to write after that."""
    try:
        yield
    except StampMoved as error:
        look = f"look at it: holdfast {family} get {shlex.quote(key)} --json --mesh {mesh}"
        then = "--create-only" if error.present is None else f"--expect {error.present}"
        if error.present is None and deletes:
            error.hint = look
        else:
            error.hint = f"{look}; then decide, and write with {then}"
        raise


def json_lines_of(file: str) -> list[Any]:
    """The values of a file that has one in JSON on each line, or of stdin (`-`)."""
    if file == STDIN:
        raw = _all(sys.stdin.buffer)
    else:
        with contents.existing(file).open("rb") as stream:
            raw = _all(stream)
    lines = enumerate(raw.split(b"\n"), 1)
    return [_json_line(line, number) for number, line in lines if line.strip()]


def _json_line(line: bytes, number: int) -> Any:
    try:
        return strict_json(line, "it")
    except BadInput as error:
        raise BadInput(f"line {number}: {error.message}") from None


def vector_of(argument: str | None, source: str | None) -> list[Any]:
    """A JSON list of numbers: as the argument, from stdin (`-`) or from a file."""
    if (argument is None) == (source is None):
        raise BadInput("give the vector as an argument or with --from FILE, one of the two")
    if source is not None:
        with open(source, "rb") as file:
            text = _all(file).decode("utf-8", "replace")
    else:
        assert argument is not None
        text = text_of(argument)
    try:
        numbers = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise BadVector(f"the vector is not JSON: {error}", hint="write it as [0.1, 0.2]") from None
    if not isinstance(numbers, list):
        raise BadVector("the vector is not a JSON list", hint="write it as [0.1, 0.2]")
    return numbers


def _all(stream: BinaryIO) -> bytes:
    raw = stream.read(_READ_BYTES_MAX + 1)
    if len(raw) > _READ_BYTES_MAX:
        raise OverLimit(
            f"the input has over {_READ_BYTES_MAX} bytes",
            hint="share large content with: holdfast file share",
        )
    return raw


# --- models --------------------------------------------------------------------------------------


def split_model(text: str) -> tuple[str, str, str]:
    """`provider:name[:version]`. With three parts or more, the last is the version."""
    provider, _, rest = text.partition(":")
    name, colon, version = rest.rpartition(":")
    if not colon:
        name, version = rest, "unknown"
    if not (provider and name and version):
        raise BadVector(
            f"{text!r} does not name a model",
            hint="write it as provider:name or provider:name:version",
        )
    return provider, name, version


def model_for(
    mesh: Mesh, text: str, length: int | None, dim: int | None, quantization: str | None = None
) -> Model:
    """The model that is meant, with its dimension and quantization: as asked, as stored, or as the
    vector has.

    A vector of another length than the model's earlier ones is more likely a slip than a new model
    of the same name, so a new length needs --dim.
    """
    rows = [
        row for row in _rows(mesh, text) if quantization is None or row.quantization == quantization
    ]
    known = sorted({row.dim for row in rows})
    if dim is None and length is not None and known and length not in known:
        raise BadVector(
            f"the vector has {length} numbers; {text} has {' or '.join(map(str, known))}",
            hint=f"check the vector, or say --dim {length} for another model of that name",
        )
    if dim is None and length is None and len(known) != 1:
        if not known:
            raise UnknownModel(f"nothing is stored under {text}")
        raise BadInput(
            f"{text} has vectors of several lengths: {', '.join(map(str, known))}",
            hint="say which with --dim N",
        )
    provider, name, version = split_model(text)
    dim = dim or length or known[0]
    kinds = sorted({row.quantization for row in rows if row.dim == dim})
    if len(kinds) > 1:
        raise BadInput(
            f"{text} has vectors of several quantizations: {', '.join(kinds)}",
            hint="say which with --quantization",
        )
    kind = quantization or next(iter(kinds), "float32")
    return Model(provider=provider, name=name, version=version, dim=dim, quantization=kind)


def _rows(mesh: Mesh, text: str) -> list[ModelRow]:
    wanted = split_model(text)
    return [row for row in mesh.vectors.models() if (row.provider, row.name, row.version) == wanted]
