"""Which logs a lake is made of: remembered, so that the next run needs no words.

They stand in `sources.json` beside the tables: addresses and folders, the names that logs were
given, and how to reach them. Secrets never: a token or a key is remembered by the path of its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import pyarrow.fs

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import BROKER
from holdfast.rules.errors import BadInput, StoreCorrupt
from holdfast.storage.files.durable import durable_replace

_NAME: Final = "sources.json"
_OPTIONS: Final = ("name", "token_file", "key_file", "card", "ca", "pin")
_ADDRESSES: Final = ("http://", "https://", BROKER)


class LogSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One log: where it is, what it is called, how it is reached."""

    location: str
    log: str | None = None
    """What it was called when it was last read: so it can be told of while it is away."""
    name: str | None = None
    """What it is to be called in place of that."""
    token_file: str | None = None
    key_file: str | None = None
    card: str | None = None
    ca: str | None = None
    pin: str | None = None

    def options(self) -> dict[str, str]:
        """As `open_log` takes them."""
        said = msgspec.structs.asdict(self)
        return {name: said[name] for name in _OPTIONS if said[name] is not None}


class _Card(msgspec.Struct, kw_only=True):
    holdfast: str = "sources"
    version: int = 1
    logs: list[LogSource] = []


def source(
    location: str,
    *,
    name: str | None = None,
    token_file: str | None = None,
    key_file: str | None = None,
    card: str | None = None,
    ca: str | None = None,
    pin: str | None = None,
) -> LogSource:
    """A log as somebody named it, so that it is found again from any folder."""
    if location.startswith(_ADDRESSES):
        where = urlsplit(location)
        if where.username is not None or where.query:
            raise BadInput(
                "an address is remembered, so no secret may stand in it",
                hint="write https://host:port, and the token into a file: --token-file FILE",
            )
    elif location.startswith("unix:"):
        location = f"unix:{Path(location.removeprefix('unix:')).absolute()}"
    else:
        location = str(Path(location.removeprefix("file://")).absolute())
    return LogSource(
        location=location,
        name=name,
        token_file=_absolute(token_file),
        key_file=_absolute(key_file),
        card=card,
        ca=_absolute(ca),
        pin=pin,
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def remembered(lake: Lake) -> list[LogSource]:
    """The logs that the lake was given so far."""
    system, path = _file(lake)
    try:
        with system.open_input_file(path) as file:
            raw = bytes(file.read())
    except FileNotFoundError:
        return []
    try:
        card = msgspec.json.decode(raw, type=_Card)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"{lake.root}/{_NAME} cannot be read: {error}",
            hint="remove that file and name the logs again: holdfast pipeline run LOG...",
        ) from None
    return card.logs


def remember(lake: Lake, given: Iterable[LogSource]) -> list[LogSource]:
    """Adds logs to those of the lake; what is said anew of a known one replaces what was known."""
    before = remembered(lake)
    known = {one.location: one for one in before}
    known.update({one.location: one for one in given})
    now = list(known.values())
    if now != before:
        _write(lake, now)
    return now


def forget(lake: Lake, location: str) -> bool:
    """A log that is read no more. What was read of it stays in the lake."""
    before = remembered(lake)
    now = [one for one in before if location not in (one.location, one.name, one.log)]
    if now != before:
        _write(lake, now)
    return now != before


def _write(lake: Lake, logs: Sequence[LogSource]) -> None:
    raw = msgspec.json.format(msgspec.json.encode(_Card(logs=list(logs)))) + b"\n"
    system, path = _file(lake)
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        durable_replace(Path(path), raw)
        return
    with system.open_output_stream(path) as out:
        out.write(raw)


def _file(lake: Lake) -> tuple[pyarrow.fs.FileSystem, str]:
    if "://" not in lake.root:
        return pyarrow.fs.LocalFileSystem(), f"{lake.root}/{_NAME}"
    system, base = pyarrow.fs.FileSystem.from_uri(lake.root)
    return system, f"{base}/{_NAME}"
